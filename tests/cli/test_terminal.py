"""No name in a file reaches a terminal as an escape sequence, whichever command prints it."""

import logging
import math
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import iterations
from rich.text import Text

from paceline import _wording
from paceline.cli import collect_command as collect
from paceline.cli import data_command as data
from paceline.cli import live_command as live
from paceline.cli import main, show
from paceline.cli.show import SafeConsole
from paceline.cli.watching import short_numbers
from paceline.cli.watching import watch_command as watch
from paceline.cli.watching.bars import bars, bars_top
from paceline.runs import Logging

OSC = "\x1b]52;c;aGk=\x07"
EVIL = f"a{OSC}\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def unprintable(shown):
    return {char for char in shown if not char.isprintable()} - {"\n"}


def paceline(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    return stopped.value.code


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A trace whose file, workers and covariates have names that would act on a terminal."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"evil{OSC}.csv"
    rows = "".join(f'"{EVIL}{w}",{k},8,{0.5 + w + k % 3},{k}\n' for k in range(60) for w in (0, 1))
    path.write_text(f'worker,iteration,samples,seconds,"cpu{EVIL}"\n' + rows)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("data", "info"),
        ("data", "check"),
        ("data", "load", "--out", f"copy{OSC}.parquet"),
        ("evaluate", "last-value", "--warmup", "5", "--trace"),
        ("replay", "last-value", "--warmup", "5", "--trace"),
        ("fit", "last-value", "--out", f"model{OSC}.safetensors", "--fit-on"),
    ],
    ids=" ".join,
)
def test_names_of_a_file_reach_no_terminal(evil, monkeypatch, capsys, command):
    assert not paceline(monkeypatch, *command, evil.name)
    told = capsys.readouterr()
    assert r"\x1b]52" in told.out + told.err
    assert not unprintable(told.out + told.err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("data", "info"), ("data", "check"), ("evaluate", "ewma", "--trace"), ("replay", "ewma", "--trace")]
)
def test_names_in_an_error_reach_no_terminal(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"evil{OSC}.csv").write_text(f'worker,iteration,samples,seconds\n"{EVIL}",0,8,1\n"{EVIL}",0,8,1\n')
    assert paceline(monkeypatch, *command, f"evil{OSC}.csv") == 2
    assert not unprintable(capsys.readouterr().err)


def test_every_command_prints_to_a_safe_console():
    consoles = [room.out for room in (collect, data, live, show, watch)] + [
        room.err for room in (collect, data, live, show)
    ]
    assert all(isinstance(console, SafeConsole) for console in consoles)


def test_colours_of_our_own_still_reach_a_terminal():
    console = SafeConsole(file=StringIO(), force_terminal=True, color_system="standard", width=60)
    console.print("[red]stop[/] " + EVIL, highlight=False)
    console.print(Text(EVIL, style="bold"))
    shown = console.file.getvalue()
    assert shown.startswith("\x1b[31mstop\x1b[0m")
    assert OSC not in shown
    assert "\x9b" not in shown
    assert shown.count("\x1b") == 4


def test_names_reach_no_log(caplog):
    with caplog.at_level(logging.INFO, "paceline.metrics"):
        for record in iterations(4, workers=(EVIL, "b")):
            Logging(every=1)(record)
    assert r"\x1b]52" in caplog.text
    assert all(not unprintable(record.getMessage()) for record in caplog.records)


LIMITS = [
    (short_numbers.time, [(119.9, "120 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_799, "48 h")]),
    (short_numbers.time, [(172_800, "2 days"), (999.4e-6, "999 us"), (999.6e-6, "1 ms"), (0.9994, "999 ms")]),
    (_wording.duration, [(999.4e-6, "999 us"), (999.6e-6, "1 ms"), (0.9994, "999 ms"), (0.9996, "1 s")]),
    (_wording.duration, [(999.4, "999 s"), (999.6, "1000 s"), (1234.4, "1234 s"), (1e-6, "1 us")]),
    (short_numbers.speed, [(99.94, "99.9/s"), (100, "100/s"), (999_999, "999,999/s"), (1e6, "1 M/s")]),
    (short_numbers.samples, [(9_999_999, "9999999"), (1e7, "10 M")]),
    (short_numbers.percent, [(10, "1000 %"), (10.001, ">1000 %"), (-math.inf, "-")]),
    (_wording.percent, [(0.0994, "9.9 %"), (0.0996, "10 %"), (-0.0994, "-9.9 %"), (-0.0996, "-10 %"), (0.04, "4 %")]),
    (
        lambda more: _wording.listed(["a", "b"], more),
        [(0, "a and b"), (1, "a, b and 1 other"), (2, "a, b and 2 others")],
    ),
    (lambda number: _wording.count(number, "line"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines")]),
]


@pytest.mark.parametrize(("say", "cases"), LIMITS)
def test_numbers_are_said_alike_up_to_their_limits(say, cases):
    assert [say(number) for number, _ in cases] == [text for _, text in cases]


@given(st.lists(st.one_of(st.floats(0.0, 10.0), st.just(math.nan)), min_size=1, max_size=90), st.integers(1, 12))
def test_a_bar_is_as_high_as_its_value_and_those_above_the_top_are_marked(values, width):
    parts = np.array_split(np.array(values), min(width, len(values)))
    means = [np.mean([one for one in part if not math.isnan(one)] or [math.nan]) for part in parts]
    known = sorted(one for one in means if not math.isnan(one))
    drawn, top = bars(np.array(values), width), bars_top(np.array(values), width)
    assert len(drawn) == len(means)
    if not known:
        assert math.isnan(top)
        return
    usual = known[math.floor(0.95 * (len(known) - 1) + 1e-9)]
    assert top == pytest.approx(min(known[-1], 1.2 * usual, 3.0 * np.median(known)) or 1.0)
    for sign, mean in zip(drawn, means, strict=True):
        if math.isnan(mean):
            assert sign == " "
        elif mean > top:
            assert sign == "█"
        else:
            assert abs("▁▂▃▄▅▆▇".index(sign) - 6 * mean / top) <= 0.5 + 1e-9


def test_warnings_are_one_sentence_without_a_place(monkeypatch):
    told = []
    monkeypatch.setattr(main.err, "print", lambda text, **how: told.append((text, how)))
    main._show_warning(UserWarning("odd \x1b[2J [bold]"), "here.py", 3)
    plain = {"soft_wrap": True, "highlight": False}
    assert told == [(r"[yellow]warning:[/] odd \x1b[2J \[bold]", plain)]
