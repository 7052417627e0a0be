"""What a console shows while a command works, and the tables that it prints."""

import io
import json
import re
import runpy

import pandas as pd
import pytest
from rich.console import Console
from rich.control import Control
from rich.text import Text

from paceline.cli import show
from paceline.predictors.fitting import Moment
from paceline.training.fit_progress import Bar

NAN = float("nan")


class Screen:
    """A terminal's stream of errors: each spinner, and the words that it shows."""

    is_terminal = True

    def __init__(self):
        self.shown = []

    def status(self, words):
        self.shown.append(words)
        return self

    def update(self, words):
        self.shown.append(words)

    def __enter__(self):
        self.shown.append("began")
        return self

    def __exit__(self, *error):
        self.shown.append("over")


def test_on_a_terminal_a_spinner_says_what_is_done_as_long_as_it_lasts(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(show, "err", screen)
    with show.working("fitting [a] \x1b") as tell:
        tell("fitting [b], \x1b of 9")
        screen.shown.append("working")
    words = [r"fitting \[a] \x1b ...", "began", r"fitting \[b], \x1b of 9 ...", "working", "over"]
    assert screen.shown == words


def test_elsewhere_a_line_says_it_as_it_stands_and_is_not_broken(monkeypatch):
    file, made = io.StringIO(), []
    long = "fitting [bold] 12 " * 9

    class Beats:
        def __init__(self, say, doing):
            made.append((say, doing))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            made.append("over")

        def tell(self, doing):
            made[0][0](doing)

    monkeypatch.setattr(show, "Heartbeat", Beats)
    console = show.SafeConsole(file=file, force_terminal=False, color_system="standard", width=20)
    monkeypatch.setattr(show, "err", console)
    with show.working("fitting") as tell:
        tell(long)
    assert made[0][1] == "fitting"
    assert made[1:] == ["over"]
    assert file.getvalue() == f"{long}\n"


def test_a_fits_line_is_written_as_it_stands_and_is_not_broken(monkeypatch):
    file, made = io.StringIO(), []

    class Beats:
        def __init__(self, say, doing):
            made.append((say, doing))

        def __enter__(self):
            made.append("began")

        def __exit__(self, *error):
            made.append(error)

        def tell(self, words):
            made.append(words)

    monkeypatch.setattr("paceline.training.fit_progress.Heartbeat", Beats)
    console = Console(file=file, force_terminal=False, color_system="standard", width=20)
    with Bar(console) as bar:
        bar(Moment("read", 3, 10))
    (say, doing), *told = made
    assert told == ["began", "read: 3 of 10", (None, None, None)]
    long = "read [bold] 12 " * 9
    say(long)
    assert (doing, file.getvalue()) == ("fitting", f"{long}\n")


def test_a_bar_without_a_console_is_beside_the_results(monkeypatch):
    made = []

    def console(**options):
        made.append(options)
        return Console(file=io.StringIO(), **options)

    monkeypatch.setattr("rich.console.Console", console)
    Bar()
    assert made == [{"stderr": True}]


def test_what_moves_the_cursor_reaches_a_terminal_and_what_a_text_holds_does_not():
    console = show.SafeConsole(file=io.StringIO(), force_terminal=True, color_system=None, width=20)
    console.print(Control.home(), Text("a\x1b[Hb"), end="")
    console.print("plain", end="")
    assert console.file.getvalue() == "\x1b[Ha\\x1b[Hbplain"


def printed(monkeypatch, function, *given, width=60):
    file = io.StringIO()
    monkeypatch.setattr(show, "out", show.SafeConsole(file=file, color_system="standard", width=width))
    function(*given)
    return file.getvalue()


def test_tables_are_printed_each_under_its_title_and_empty_ones_are_not(monkeypatch, capsys):
    frames = {
        "first": pd.DataFrame({"name": ["a", "b"], 7: [1.23456, NAN]}),
        "none": pd.DataFrame({"x": []}),
        "second": pd.DataFrame({"x": [12]}),
    }
    said = printed(monkeypatch, show.print_frames, frames, False)
    assert "none" not in said
    assert said.index("first") < said.index("1.235") < said.index("-") < said.index("second") < said.index("12")
    show.print_frames(frames, True)
    rows = [{"name": "a", "7": 1.23456}, {"name": "b", "7": None}]
    assert json.loads(capsys.readouterr().out) == {"first": rows, "none": [], "second": [{"x": 12}]}


def test_rows_are_laid_out_by_their_first_one(monkeypatch, capsys):
    rows = [{"a \x1b": "[x] \x1b", "n": 2, "f": 0.000123456, "t": "t"}, {"a \x1b": "y", "n": 30, "f": NAN, "t": None}]
    said = printed(monkeypatch, show.print_rows, "title", rows)
    plain = [line.strip() for line in re.sub("\x1b\\[[0-9;]*m", "", said).splitlines()]
    assert plain[0] == "title"
    assert said.startswith("\x1b[1mtitle")
    cells = [line.strip("│┃").replace("┃", "│").split("│") for line in plain]
    head, first, second = (line for line in cells if len(line) == 4)
    assert [cell.strip() for cell in head] == [r"a \x1b", "n", "f", "t"]
    assert first == [r" [x] \x1b ", "  2 ", " 0.0001235 ", " t    "]
    assert second == [" y        ", " 30 ", "         - ", " None "]
    show.print_rows("title", rows[:1], True)
    assert json.loads(capsys.readouterr().out) == rows[:1]


@pytest.mark.parametrize(("longest", "kept"), [(10, 10), (24, 24), (30, 23)])
def test_the_first_column_of_text_keeps_its_width_up_to_24_where_there_is_no_room(monkeypatch, longest, kept):
    rows = [{"name": "x" * longest, "text": "y" * 40}, {"name": "z", "text": "y"}]
    said = printed(monkeypatch, show.print_rows, "", rows, width=40)
    assert max(len(run) for run in re.findall("x+", said)) == kept


def test_no_rows_are_no_table(monkeypatch):
    assert printed(monkeypatch, show.print_rows, "", []).strip() == ""


def test_a_number_and_a_second_text_keep_no_width(monkeypatch):
    rows = [{"n": 1.23456789012345, "text": "y" * 40}]
    lines = printed(monkeypatch, show.print_rows, "", rows[:1], width=24).splitlines()
    assert lines[3] == "│ 1.235 │ yyyyyyyyyyy… │"


@pytest.mark.parametrize("terminal", [False, True])
def test_results_have_160_columns_where_no_window_bounds_them_and_all_else_is_beside_them(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(Console, "is_terminal", terminal)
    room = runpy.run_path(show.__file__)
    assert (room["out"].width, room["err"].width) == (70 if terminal else 160, 70)
    assert (room["out"].stderr, room["err"].stderr) == (False, True)
