"""``paceline watch`` without a terminal's process: what is drawn, how often it looks, and which file it follows."""

import io
import json
import os
from types import SimpleNamespace

import pytest
from recorded_runs import iterations
from rich.text import Text
from typer.testing import CliRunner

from paceline.cli import main
from paceline.cli.show import SafeConsole
from paceline.cli.watching import watch_command
from paceline.cli.watching.watch_command import KEPT, Watched
from paceline.runs import JsonLines


def run_of(path, count=6, first=0, ended=True):
    sink = JsonLines(path)
    for one in iterations(count, first=first):
        sink(one)
    if ended:
        sink.close()
    return path


@pytest.fixture
def screen(monkeypatch):
    """A terminal on which pictures are texts, and whose user has enough after some looks."""
    told = SimpleNamespace(drawn=[], slept=[], looks=3, lives=[], pictures=[])

    class Live:
        def __init__(self, **options):
            told.lives.append(options)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            told.drawn.append("over")

        def update(self, picture, refresh):
            told.drawn.append((str(picture), refresh))

    def sleep(seconds):
        told.slept.append(seconds)
        if len(told.slept) == told.looks:
            raise KeyboardInterrupt

    def picture(self):
        found = told.pictures.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    told.console = SimpleNamespace(is_terminal=True, print=lambda shown: told.drawn.append(shown))
    monkeypatch.setattr("rich.live.Live", Live)
    monkeypatch.setattr(watch_command, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(watch_command, "out", told.console)
    monkeypatch.setattr(Watched, "picture", picture)
    return told


def test_on_a_terminal_it_looks_until_the_user_has_enough_and_waits_for_a_file(screen):
    screen.pictures = [FileNotFoundError("none"), "first", "second"]
    result = CliRunner().invoke(main.app, ["watch", "a\x1b.jsonl", "--every", "0.25"], catch_exceptions=False)
    assert result.exit_code == 0
    assert screen.drawn == [(r"waiting for a\x1b.jsonl ...", True), ("first", True), ("second", True), "over"]
    assert screen.slept == [0.25] * 3
    assert screen.lives == [{"console": screen.console, "auto_refresh": False}]


def test_it_looks_twice_a_second_unless_told_otherwise(screen):
    screen.pictures, screen.looks = ["first"], 1
    CliRunner().invoke(main.app, ["watch", "a"], catch_exceptions=False)
    assert screen.slept == [0.5]


@pytest.mark.parametrize(("terminal", "words"), [(True, ["--once"]), (False, []), (False, ["--once"])])
def test_one_picture_is_printed_if_asked_and_where_there_is_no_terminal(screen, terminal, words):
    screen.pictures, screen.console.is_terminal = ["only"], terminal
    CliRunner().invoke(main.app, ["watch", "a", *words], catch_exceptions=False)
    assert (screen.drawn, screen.slept, screen.lives) == (["only"], [], [])


@pytest.mark.parametrize("every", ["0", "-1.5"])
def test_a_look_without_a_pause_is_refused(screen, every):
    result = CliRunner().invoke(main.app, ["watch", "a", "--every", every])
    assert str(result.exception) == f"--every must be above 0 seconds, got {every}"
    assert not screen.pictures


# -- what is followed ----------------------------------------------------------------------------------------------


def shown(watched):
    console = SafeConsole(file=io.StringIO(), width=100)
    console.print(watched.picture())
    return console.file.getvalue()


def test_the_last_iterations_are_drawn_and_all_are_counted(tmp_path, monkeypatch):
    assert KEPT == 2000
    monkeypatch.setattr(watch_command, "KEPT", 3)
    path = run_of(tmp_path / "run.jsonl")
    watched = Watched(path)
    assert "6 iterations recorded, ended" in shown(watched)
    assert len(watched._reader.run()) == 3
    assert "recorded, ended" not in shown(Watched(run_of(tmp_path / "open.jsonl", ended=False)))


def test_a_file_without_iterations_says_so_and_how_many_lines_were_not_read(tmp_path):
    path = run_of(tmp_path / "a\x1b.jsonl", count=1)
    head = path.read_text().splitlines()[0]
    for lines, more in (
        ([], ""), (["{oops"], "; 1 line could not be read"), (["{", "["], "; 2 lines could not be read"),
    ):  # fmt: skip
        path.write_text("\n".join([head, *lines]) + "\n")
        found = Watched(path).picture()
        assert isinstance(found, Text)
        assert str(found) == rf"{tmp_path}/a\x1b.jsonl holds no iteration yet{more}"


def test_the_newest_file_is_followed_by_the_writers_clock_until_a_line_of_it_is_seen(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watch_command, "time", SimpleNamespace(time=lambda: 50.0, monotonic=lambda: clock[0]))
    first = run_of(tmp_path / "a.jsonl", ended=False)
    watched = Watched(tmp_path)
    assert watched._read().path == first
    assert (watched._silent(20.0), watched._silent(60.0)) == (30.0, 0.0)
    reader = watched._reader
    watched._read()
    assert watched._silent(20.0) == 30.0, "no line came"
    with first.open("a") as file:
        file.write(first.read_text().splitlines()[-1] + "\n")
    assert watched._read() is reader
    clock[0] = 107.0
    assert watched._silent(20.0) == 7.0
    watched._read()
    assert watched._silent(20.0) == 7.0, "no further line came"
    second = run_of(tmp_path / "b.jsonl", ended=False)
    os.utime(second, (2e9, 2e9))
    assert watched._read().path == second
    assert watched._silent(20.0) == 30.0
    assert len(watched._reader) == 6


def test_a_run_of_the_other_kind_that_is_written_over_is_read_anew(tmp_path):
    from paceline.runs import AsyncRunReader, RunReader

    path = run_of(tmp_path / "a.jsonl")
    watched = Watched(path)
    assert type(watched._read()) is RunReader
    head = json.loads(path.read_text().splitlines()[0])
    other = {("paceline_async_run" if key == "paceline_run" else key): value for key, value in head.items()}
    for content, kind in ((other, AsyncRunReader), (head, RunReader)):
        path.write_text(json.dumps(content) + "\n")
        assert type(watched._read()) is kind


def test_what_is_not_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Watched(tmp_path / "gone.jsonl").picture()
