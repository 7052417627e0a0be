"""``paceline simulate``: one source, an answer in words or JSON, and what to do next."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace
from paceline.eval import simulate

runner = CliRunner()


def run(*arguments, code=0):
    result = runner.invoke(cli.app, ["simulate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else str(result.exception)


@pytest.fixture
def trace(tmp_path):
    seconds = np.random.default_rng(0).normal([0.1, 0.1, 0.2], 0.002, size=(100, 3))
    return Trace(np.full((100, 3), 32), seconds).save(tmp_path / "job.parquet")


@pytest.fixture
def probe(tmp_path):
    samples = np.where(np.arange(100)[:, None] // 4 % 2, 16.0, 32.0) * np.ones(3)
    seconds = samples * np.random.default_rng(0).normal([0.003, 0.003, 0.006], 1e-4, size=(100, 3))
    return Trace(samples, seconds, meta={"probe": "half", "accumulate": "2"}).save(tmp_path / "probe.parquet")


@pytest.mark.slow
def test_equal_sizes_end_with_probe_command(trace):
    said = run(trace)
    assert all(sentence in said for sentence in simulate(Trace.load(trace)).sentences)
    assert "paceline record --probe -- <your command>" in said
    assert "BalancedLoader" not in said


@pytest.mark.slow
def test_a_probe_ends_with_the_lines_to_add(probe):
    said = run(probe)
    assert "loader = BalancedLoader(dataset, global_batch=48, accumulate=2)" in said
    assert "docs/howto/pytorch.md" in said


@pytest.mark.slow
def test_json_holds_the_same_numbers(trace):
    (found,) = json.loads(run(trace, "--json", "--global-batch", 480))
    same = simulate(Trace.load(trace), global_batch=480).to_dict()
    assert {key: found[key] for key in ("saving", "low", "high", "sentences")} == {
        key: list(same[key]) if key == "sentences" else same[key] for key in ("saving", "low", "high", "sentences")
    }


@pytest.mark.slow
def test_profiles_count_their_workers(tmp_path):
    rows = "\n".join(f"x,d,m,{size},{0.001 * size},," for size in (8, 32, 128))
    (tmp_path / "a.csv").write_text(f"source,device,model,batch,seconds,comm_seconds,held\n{rows}")
    (found,) = json.loads(run("--profile", f"{tmp_path / 'a.csv'}=3", "--global-batch", 96, "--json"))
    assert found["workers"] == 3
    assert found["saving"] == pytest.approx(0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "simulate takes exactly one of a source"),
        (["digits-mlp-steady", "--speeds", "1,2"], "--speeds and --profile, got 2"),
        (["--speeds", "fast"], "--speeds must be numbers like 100,100,60, got 'fast'"),
        (["--profile", "a.csv"], "--profile needs --global-batch"),
        (["--profile", "a.csv=two", "--global-batch", "64"], "like t4.csv=2, got 'a.csv=two'"),
        (["nothing-there"], "there is no recorded trace, file or folder 'nothing-there'"),
    ],
)
def test_unanswerable_sources_refused(arguments, sentence):
    assert sentence in run(*arguments, code=1)
