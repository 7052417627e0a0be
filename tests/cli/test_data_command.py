"""``paceline data``, as a user types it."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace, read_traces, recorded

runner = CliRunner()

USAGE = "m_1,0,50,60,,,1,1,3\nm_2,10,70,63,1,2,3,4,5\n"


def run(*arguments):
    result = runner.invoke(cli.app, ["data", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments):
    result = runner.invoke(cli.app, ["data", *map(str, arguments)])
    assert isinstance(result.exception, (ValueError, OSError)), result.output
    return str(result.exception)


@pytest.fixture
def usage(tmp_path):
    path = tmp_path / "machine_usage.csv"
    path.write_text(USAGE)
    return path


@pytest.mark.slow
def test_everything_that_can_be_named_is_listed():
    assert {"parquet", "csv", "google_2019"} < {row["name"] for row in json.loads(run("list", "formats", "--json"))}
    assert [row["job"] for row in json.loads(run("list", "--json"))] == recorded.names()
    assert "cannot list 'x'" in fails("list", "x")


@pytest.mark.slow
def test_load_with_format_options(usage, tmp_path):
    run("load", usage, "--out", tmp_path / "t.parquet", "--with", "period=60", "--with", "workers=m_2")
    trace = Trace.load(tmp_path / "t.parquet")
    assert trace.workers == ("m_2",)
    assert trace.meta["period_seconds"] == "60"


@pytest.mark.slow
def test_a_file_of_several_traces_needs_a_folder(tmp_path):
    path = tmp_path / "db__TPS.csv"
    rows = [f"10,1,2023-09-0{day} 05:13:10,{machine}\n" for day in (1, 2) for machine in (0, 1)]
    path.write_text("".join(["value,runtime,starttime,VM_id\n", *rows]))
    assert "pass a folder" in fails("load", path, "--out", tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()
    run("load", path, "--out", tmp_path / "traces")
    assert sorted(file.name for file in (tmp_path / "traces").iterdir()) == [
        "db__TPS-vm0.parquet",
        "db__TPS-vm1.parquet",
    ]
    assert len(json.loads(run("info", path, "--json"))) == 2


@pytest.mark.slow
def test_info_says_what_was_dropped(usage):
    usage.write_text(USAGE + USAGE)
    about = json.loads(run("info", usage, "--json"))
    assert about["dropped"].startswith("2 repeated rows")
    assert "2 repeated rows" in run("info", usage)


NAN = float("nan")


def about(folder, samples, seconds, **more):
    return json.loads(run("info", Trace(samples, seconds, **more).save(folder / "t.parquet"), "--json"))


def test_info_shows_gaps_repeats_and_clock(tmp_path):
    seconds = np.random.default_rng(0).uniform(0.1, 0.2, (400, 3))
    seconds[100:150, 1] = NAN
    seconds[300:, 2] = seconds[299, 2]
    start = np.arange(400.0)[:, None] * np.ones(3)
    start[200:, 0] += 500
    start[300:, 1] -= 50
    found = about(tmp_path, np.ones((400, 3)), seconds, start=start)
    assert found["longest gap"] == 50
    assert found["missing speeds"] == pytest.approx(50 / 1200)
    assert found["speeds equal to the one before"] == pytest.approx(100 / (3 * 399 - 51))
    assert (found["clock jumps"], found["clock steps back"]) == (1, 1)
    assert about(tmp_path, np.ones((400, 3)), seconds)["clock jumps"] is None


@pytest.mark.parametrize(
    ("samples", "seconds", "why"),
    [
        ([[0], [0]], [[1], [1]], "all its samples are missing or 0"),
        ([[NAN], [NAN]], [[1], [1]], "all its samples are missing"),
        ([[8], [8]], [[NAN], [0]], "all its seconds are missing or 0"),
        ([[8], [NAN]], [[NAN], [1]], "no worker reported samples and seconds of the same iteration"),
    ],
)
def test_info_tells_why_there_is_no_speed(tmp_path, samples, seconds, why):
    assert about(tmp_path, samples, seconds)["no speed"] == why


@pytest.mark.slow
def test_data_mistakes_end_in_a_sentence(usage, tmp_path):
    assert "--with takes NAME=VALUE" in fails("info", usage, "--with", "period")
    assert "there is no trace file" in fails("info", tmp_path / "none.csv")
    assert "there is no format 'x'" in fails("info", usage, "--format", "x")


@pytest.mark.slow
def test_load_round_trip_keeps_values_and_meta(tmp_path):
    path = tmp_path / "job_1_norm.csv"
    path.write_text(",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,25,1,250\n")
    for source, target in ((path, "a.csv"), (tmp_path / "a.csv", "a.parquet"), (tmp_path / "a.parquet", "b.csv")):
        run("load", source, "--out", tmp_path / target)
    about = json.loads(run("info", path, "--json"))
    assert {"licence", "units", "format", "source"} <= set(about)
    for name in ("a.csv", "a.parquet", "b.csv"):
        assert json.loads(run("info", tmp_path / name, "--json")) == about
        np.testing.assert_array_equal(read_traces(tmp_path / name)[0].speed, read_traces(path)[0].speed)


@pytest.mark.parametrize("iterations", [1, 2, 13, 19, 25])
@pytest.mark.slow
def test_a_short_trace_prints_no_nan(tmp_path, iterations):
    seconds = np.random.default_rng(0).uniform(0.1, 0.3, (iterations, 3))
    covariates = np.full((iterations, 3, 1), np.nan)
    Trace(np.ones((iterations, 3)), seconds, covariates=covariates, covariate_names=["cpu"]).save(
        tmp_path / "t.parquet"
    )
    assert "nan" not in run("info", tmp_path / "t.parquet").lower()
    if iterations > 3:
        for command in (["evaluate", "ewma"], ["replay", "ewma", "--global-batch", "300"]):
            result = runner.invoke(cli.app, [*command, "-t", str(tmp_path / "t.parquet"), "--warmup", "3"])
            assert result.exit_code == 0, result.output
            assert "nan" not in result.output.lower()


@pytest.mark.slow
def test_info_prints_numbers_that_can_be_read(tmp_path):
    path = tmp_path / "machine_usage.csv"
    path.write_text("".join(f"a,{10 * k},1,2,,,3,4,5\n" for k in range(1500)))
    text = run("info", path)
    assert "iterations  1,500" in text
    assert "rows_read  1,500" in text
    assert "None" not in text
    longest = max(len(digits) for digits in re.findall(r"\d+\.(\d+)", run("info", recorded.names()[0])))
    assert longest <= 5


@pytest.mark.slow
def test_evaluate_and_replay_report_what_they_print(tmp_path):
    names = ["digits-cnn-bursty", "photo-cnn-none"]
    for command in ("evaluate", "replay"):
        page = tmp_path / f"{command}.html"
        arguments = [command, "ewma", "-t", names[0], "-t", names[1], "--report", str(page), "--json"]
        printed = runner.invoke(cli.app, arguments)
        assert printed.exit_code == 0, printed.output
        (overall,) = (one for one in json.loads(printed.stdout)["overall"] if "ewma" in one.values())
        assert f"{overall['rmse' if command == 'evaluate' else 'speed-up']:.3g}" in page.read_text("utf-8")


@pytest.mark.slow
def test_unwritable_report_fails_before_work(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.cli.main._traces_and_models", lambda *asked: pytest.fail("it worked all the same"))
    for target, said in ((tmp_path / "page.pdf", ".html"), (tmp_path / "none" / "page.html", "does not exist")):
        for command in ("evaluate", "replay"):
            result = runner.invoke(cli.app, [command, "ewma", "--report", str(target)])
            assert said in str(result.exception)


@pytest.mark.slow
def test_named_columns_make_table_recognized(tmp_path):
    (tmp_path / "LOG.csv").write_text("rank,iteration,duration_ms\n0,0,500\n1,0,250\n0,1,500\n1,1,250\n")
    options = [f"--with={one}" for one in ("seconds=duration_ms", "unit=ms", "worker=rank", "samples=32")]
    for source in (tmp_path / "LOG.csv", tmp_path):
        run("load", source, "--out", tmp_path / "l.parquet", *options)
        assert Trace.load(tmp_path / "l.parquet").speed.tolist() == [[64.0, 128.0]] * 2
        (tmp_path / "l.parquet").unlink()
    assert "matches no known format" in fails("info", tmp_path / "LOG.csv", "--with", "unit=ms")
