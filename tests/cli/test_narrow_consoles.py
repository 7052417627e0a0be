"""What commands print on a narrow terminal of colours: what is broken into lines, what is bold, and what is not."""

import io
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import require_kept
from recorded_runs import iterations, written
from test_printed import evaluated, made, usage_alone
from typer.testing import CliRunner

from paceline.cli import (
    collect_command,
    data_command,
    fit_command,
    live_command,
    main,
    models_command,
    report_command,
    show,
    simulate_command,
)
from paceline.cli.report_command import sha256, typed
from paceline.cli.show import SafeConsole
from paceline.cli.watching import watch_command
from paceline.datasets import Trace, recorded
from paceline.predictors import EWMA
from paceline.training.model_registry import Registry

KEPT = Path(__file__).parent / "narrow.json"
ROOMS = (collect_command, data_command, fit_command, live_command, main, models_command, report_command, show)

COMMANDS = f"""
data info a.parquet
data info usage.parquet
data load b.parquet --out {"long" * 12}.parquet
data convert a.parquet {"long" * 12}.csv
models list
models use good
models compare
models export good {"long" * 12}
models check ewma a.parquet
report run.jsonl --out {"long" * 12}.html
collect --list
fit ewma -f a.parquet --out {"long" * 12}.safetensors
fit ewma:smoothing=0.5 -f a.parquet --out m.safetensors
fit ewma -f a.parquet -f broken.csv --out m.safetensors
fit ewma -f a.parquet -t b.parquet --registry models --name next
watch run.jsonl --once
simulate speeds
""".strip().splitlines()


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Some traces, a run and a registry, in the working folder."""
    monkeypatch.chdir(tmp_path)
    made("first", split="fit", rows_read="12345", dropped="7 [rows]").save(tmp_path / "a.parquet")
    made("second", iterations=60, workers=2, seed=1).save(tmp_path / "b.parquet")
    usage_alone().save(tmp_path / "usage.parquet")
    (tmp_path / "folder").mkdir()
    for number in range(3):
        made(f"job{number}", iterations=4, workers=1, gaps=0.0).save(tmp_path / "folder" / f"{number}.parquet")
    (tmp_path / "broken.csv").write_text("worker,iteration\na,0\n")
    written(tmp_path / "run.jsonl", iterations(12)).close()
    models = Registry(tmp_path / "models")
    models.add("plain", EWMA(), command="by hand")
    models.add("good", EWMA(smoothing=0.3), command="paceline fit", evaluation=evaluated(0.75, "aa"))


@pytest.fixture
def narrow(monkeypatch):
    """Two consoles of 50 columns with colours in the place of all others."""
    streams = [io.StringIO(), io.StringIO()]
    consoles = [SafeConsole(file=one, force_terminal=False, color_system="standard", width=50) for one in streams]
    for room in (*ROOMS, simulate_command, watch_command):
        for name, console in zip(("out", "err"), consoles, strict=True):
            if hasattr(room, name):
                monkeypatch.setattr(room, name, console)
    return streams


def lines(stream):
    changing = r"20\d\d-\d\d-\d\dT[\d:]+\+00:00|\b[0-9a-f]{64}\b"
    return re.sub(changing, lambda found: "-" * len(found[0]), stream.getvalue()).split("\n")


def quick(monkeypatch):
    """Leave out what takes long: what is measured is in other tests."""
    found = SimpleNamespace(
        sentences=("a [sentence] of 12 words",), pays=True, global_batch=64, uneven_samples=0.5, to_dict=dict
    )
    monkeypatch.setattr("paceline.eval.worth", lambda trace, global_batch: found)
    monkeypatch.setattr("paceline.cli.simulate_command._of_traces", lambda *_: [("one [1]", found), ("two", found)])


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_in_these_lines_and_colours(few, narrow, monkeypatch, command):
    quick(monkeypatch)
    result = CliRunner().invoke(main.app, command.split())
    assert result.exception is None, result.exception
    assert result.output == ""
    require_kept(KEPT, command, [lines(stream) for stream in narrow])


def test_a_command_is_shown_as_it_was_typed_without_secrets_and_a_file_by_its_checksum(monkeypatch, tmp_path):
    words = ["paceline", "evaluate", "s3://key@bucket/a b", "it's", "-f"]
    monkeypatch.setattr(sys, "argv", ["/bin/x", *words[1:]])
    assert shlex.split(typed()) == ["paceline", "evaluate", "s3://***@bucket/a b", "it's", "-f"]
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# -- names ---------------------------------------------------------------------------------------------------------


def test_options_are_numbers_truths_lists_and_texts():
    from paceline.cli.named_sources import option

    told = {"a=3": 3, "a=0.5": 0.5, "a=True": True, "a=ms": "ms", "a=b=c": "b=c", "a=": "", "a=(1, 2)": (1, 2)}
    assert {text: option(text)[1] for text in told} == told
    assert option("workers=1,b") == ("workers", ["1", "b"])
    with pytest.raises(ValueError, match="like period=300, got 'a'; only one"):
        option("a")


@pytest.mark.slow
def test_names_are_recorded_jobs_files_and_folders_and_a_split_where_none_is_given(few):
    from paceline.cli import named_sources as sources

    assert [one.name for one in sources.traces(None, "fit")] == [one.name for one in recorded.load_split("fit")]
    assert [one.name for one in sources.traces(["a.parquet", recorded.names()[0]], "fit")] == [
        "first",
        recorded.names()[0],
    ]
    assert sources.trace("a.parquet").name == "first"
    with pytest.raises(ValueError, match="folder holds more than one trace"):
        sources.trace("folder")
    assert [one.name for one in sources.traces(["folder"], "fit")] == ["job0", "job1", "job2"]
    given = sources.source(["a.parquet", recorded.names()[0]], "fit")
    assert [one.name for one in given] == ["first", recorded.names()[0]]
    for strict in (False, True):
        assert sources.source(["a.parquet"], "fit", strict=strict).strict is strict
    assert [sources.is_model(text) for text in ("a.safetensors", "models", "folder", "ewma")] == [
        True,
        True,
        False,
        False,
    ]
    assert [repr(sources.predictor(text)) for text in ("models", "ewma")] == [repr(EWMA(smoothing=0.3)), repr(EWMA())]


def test_traces_of_one_name_are_told_apart_by_as_much_of_their_paths_as_is_needed(tmp_path):
    from paceline.cli.named_sources import _told_apart

    job = made("a")
    files = [tmp_path / "x" / "in" / "a.csv", tmp_path / "y" / "in" / "a.csv", tmp_path / "b.csv"]
    found = _told_apart([(job, files[0]), (job, files[1]), (job, files[2]), (replace(job, meta={"job": "c"}), None)])
    assert [one.name for one in found] == ["x/in/a.csv", "y/in/a.csv", "b.csv/a", "c"]
    assert [one.name for one in _told_apart([(job, files[0]), (job, files[0]), (job, None)])] == ["a", "a", "a"]
    assert _told_apart([(job, files[0])])[0] is job


def test_a_trace_is_written_with_what_was_dropped_and_whether_it_has_a_speed(few, narrow):
    seconds = [[1.0, float("nan")], [2.0, float("nan")]]
    data_command._written(Trace([[8, 8]] * 2, seconds, meta={"job": "x", "dropped": "2 rows"}), Path("x.parquet"))
    assert "".join(lines(narrow[0])).replace("\x1b", "").endswith("rows")
    assert "no speed" not in narrow[0].getvalue()
    told = json.loads(CliRunner().invoke(main.app, ["data", "info", "x.parquet", "--json"]).output)
    assert (told["median seconds"], told["variation of speed"]) == (1.5, pytest.approx(1 / 3))
