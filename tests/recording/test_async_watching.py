"""Watching an asynchronous run: what the sinks write is shown, and metrics take it."""

import re

import pytest
from recorded_runs import rounds
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.recording import TensorBoard, sinks


def written(path):
    """Write the file of a run of three rounds."""
    (sink,) = sinks(str(path))
    for record in rounds(3):
        sink(record)
    sink.close()
    return path


def test_watch_shows_staleness_and_waste(tmp_path):
    done = CliRunner().invoke(cli.app, ["watch", "--once", str(written(tmp_path / "run.jsonl"))])
    assert done.exit_code == 0, done.output
    assert "SaPS, version 60" in done.output
    assert "largest staleness applied 7, bound 2; wasted 9.1% (dropped 0, given up 48, refused 0)" in done.output
    rows = [row.split() for row in done.output.splitlines() if re.search(r"(fast|slow|worse) +\d", row)]
    shown = {row[1]: row[2:9] for row in rows}
    assert list(shown) == ["worse", "slow", "fast"], "the stalest first"
    assert shown["worse"][:5] == ["1", "7.0", "6.0", "30", "3"]
    assert "worse is a straggler" in done.output
    assert "3 rounds recorded, ended" in done.output


def test_report_of_async_run_names_watch(tmp_path):
    path = written(tmp_path / "run.jsonl")
    done = CliRunner().invoke(cli.app, ["report", str(path), "--out", str(tmp_path / "report.html")])
    assert "run.jsonl is the record of an asynchronous run: read it with read_async_run" in str(done.exception)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_tensorboard_takes_rounds(tmp_path):
    pytest.importorskip("tensorboard")
    sink = TensorBoard(tmp_path)
    for record in rounds(3):
        sink(record)
    sink.close()
    assert any(tmp_path.iterdir())
