"""``paceline watch`` without a terminal's process: what is drawn, how often it looks, and which file it follows."""

import io
import json

import pytest
from recorded_runs import iterations
from rich.text import Text
from typer.testing import CliRunner

from paceline.cli import main
from paceline.cli.show import SafeConsole
from paceline.cli.watch_command import Watched
from paceline.recording import JsonLines


def run_of(path, count=6, first=0, ended=True):
    sink = JsonLines(path)
    for one in iterations(count, first=first):
        sink(one)
    if ended:
        sink.close()
    return path


@pytest.mark.parametrize("every", ["0", "-1.5"])
def test_watch_refuses_no_pause(every):
    result = CliRunner().invoke(main.app, ["watch", "a", "--every", every])
    assert str(result.exception) == f"--every must be above 0 seconds, got {every}"


# -- what is followed ----------------------------------------------------------------------------------------------


def shown(watched):
    console = SafeConsole(file=io.StringIO(), width=100)
    console.print(watched.picture())
    return console.file.getvalue()


def test_file_without_iterations_says_so(tmp_path):
    path = run_of(tmp_path / "a\x1b.jsonl", count=1)
    head = path.read_text("utf-8").splitlines()[0]
    for lines, more in (
        ([], ""), (["{oops"], "; 1 line could not be read"), (["{", "["], "; 2 lines could not be read"),
    ):  # fmt: skip
        path.write_text("\n".join([head, *lines]) + "\n")
        found = Watched(path).picture()
        assert isinstance(found, Text)
        assert str(found) == rf"{tmp_path}/a\x1b.jsonl holds no iteration yet{more}"


def test_overwritten_run_of_other_kind_is_read(tmp_path):
    path = run_of(tmp_path / "a.jsonl")
    watched = Watched(path)
    first = shown(watched)
    lines = path.read_text("utf-8")
    head = json.loads(lines.splitlines()[0])
    other = {("paceline_async_run" if key == "paceline_run" else key): value for key, value in head.items()}
    path.write_text(json.dumps(other) + "\n")
    assert "no iteration yet" not in first
    assert shown(watched) != first
    path.write_text(lines)
    assert shown(watched) == first


def test_what_is_not_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Watched(tmp_path / "gone.jsonl").picture()
