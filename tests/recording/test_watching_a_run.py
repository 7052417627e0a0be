"""``paceline watch`` and ``paceline report``: a run while it goes on, and when it is over."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.recording import JsonLines, RunReader, read_run

HEADER = {"paceline_run": 1, "version": "0.1.0", "workers": ["gpu0", "gpu1"]}


def line(index, sizes=(30, 30), seconds=(0.03, 0.06), why="Kept the sizes.", **others):
    content = {
        "index": index,
        "time": 1.7e9 + 0.1 * index,
        "sizes": list(sizes),
        "seconds": list(seconds),
        "forecast_seconds": [0.03, 0.06],
        "comm_seconds": [None, None],
        "wall_seconds": 0.062,
        "equal_seconds": 0.06,
        "overhead_seconds": 0.0001,
        "agreed": True,
        "planned": list(sizes),
        "gain": 0.0,
        "acted": False,
        "why": why,
    }
    return json.dumps({**content, **others})


def run_file(path, count=12, workers=("gpu0", "gpu1"), **last):
    lines = [line(index) for index in range(count - 1)]
    lines[2] = line(2, why="Moved 10 samples from gpu1 (50% slower than the median) to gpu0: ...", acted=True)
    path.write_text(
        "\n".join([json.dumps({**HEADER, "workers": list(workers)}), *lines, line(count - 1, **last)]) + "\n"
    )
    return path


def paceline(monkeypatch, *arguments):
    """Run the command and return its exit status."""
    monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


@pytest.mark.slow
def test_watch_shows_slow_waiting_and_why(tmp_path, monkeypatch, capsys):
    run_file(tmp_path / "run.jsonl", sizes=(40, 20), seconds=(0.04, 0.03))
    assert not paceline(monkeypatch, "watch", tmp_path / "run.jsonl", "--once")
    shown = capsys.readouterr().out
    assert "iteration 11" in shown
    assert "Moved 10 samples from gpu1" in shown
    rows = {text.split()[1]: text for text in shown.splitlines() if "gpu" in text and "/s" in text}
    assert rows["gpu0"].split()[2] == "30", "the median of its sizes"
    assert "50%" in rows["gpu0"], "it waits for half of the time"
    assert "92%" in rows["gpu1"], "it was the slowest in 11 of 12"
    assert list(rows) == ["gpu1", "gpu0"], "the slowest comes first"


@pytest.mark.parametrize("folder", ["a", "a" * 60, "a" * 200])
def test_file_name_shown_despite_long_path(tmp_path, folder):
    (tmp_path / folder).mkdir()
    assert "run.jsonl" in looks(written(tmp_path / folder / "run.jsonl", [line(0)]))
    assert "day.jsonl" in looks(written(tmp_path / f"{'b' * 150}-day.jsonl", [line(0)]))


def fleet_line(index, seconds):
    """An iteration of many workers with equal batches."""
    count = len(seconds)
    same = {key: [10] * count for key in ("sizes", "planned")}
    return line(index, **same, seconds=list(seconds), comm_seconds=[None] * count, forecast_seconds=[0.1] * count)


def test_waited_for_worker_comes_first(tmp_path):
    """Of 20 workers c was the slowest in the first 12 of 20 iterations and b in the last 8; the others never were."""
    workers = [*"abcdefghijklmnopqrst"]
    lines = []
    for index in range(20):
        seconds = np.linspace(0.5, 0.6, 20)
        seconds[2 if index < 12 else 1] = 0.9
        lines.append(fleet_line(index, seconds.tolist()))
    shown = looks(written(tmp_path / "run.jsonl", lines, workers))
    rows = [text.split()[0] for text in shown.splitlines() if "/s" in text]
    assert rows[:3] == ["b", "c", "t"], "then those that wait least"
    assert len(rows) == 12
    assert "8 others were waited for less" in shown


@pytest.mark.slow
def test_unreported_run_is_shown(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    unknown = {"seconds": [None, None], "forecast_seconds": [None, None], "equal_seconds": None, "wall_seconds": None}
    path.write_text(f"{json.dumps(HEADER)}\n{line(0, **unknown)}\n")
    assert not paceline(monkeypatch, "watch", path, "--once")
    assert "nan" not in capsys.readouterr().out
    assert not paceline(monkeypatch, "report", path, "--out", tmp_path / "report.html")
    assert "Not known" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["watch", "--once"], ["report"]])
def test_a_mistake_ends_in_one_sentence(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text("a,b\n")
    for path, sentence in ((tmp_path / "absent.jsonl", "there is no file"), (other, "is not the record of a run")):
        assert paceline(monkeypatch, command[0], path, *command[1:]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert sentence in error
        assert "Traceback" not in error


def read_while(terminal, wanted, seconds=60):
    """Read what a terminal shows, as a terminal does without pause, while something is wanted; return all of it."""
    shown, end = "", time.monotonic() + seconds
    while wanted(shown):
        assert time.monotonic() < end, f"waited for nothing, shown was: {shown[-2000:]}"
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


def read_until(terminal, text):
    return read_while(terminal, lambda shown: text not in shown)


def test_growing_file_followed_until_interrupted(tmp_path):
    path = tmp_path / "run.jsonl"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "paceline", "watch", str(path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    try:
        read_until(ours, "waiting for")
        run_file(path)
        assert "…" not in read_until(ours, "iteration 11"), "no cell is cut at 80 columns"
        with path.open("a") as file:
            file.write(line(12, why="Moved back.", acted=True) + "\n")
        assert "Moved back." in read_until(ours, "iteration 12") + read_until(ours, "No iteration has been")
        process.send_signal(signal.SIGINT)
        read_while(ours, lambda _: process.poll() is None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def written(path, lines, workers=("gpu0", "gpu1")):
    """Write a file of these lines after its header, and return the run."""
    path.write_text("\n".join([json.dumps({**HEADER, "workers": list(workers)}), *lines]) + "\n")
    return read_run(path)


def looks(run, silent=0.0):
    """Return how a run looks so many seconds after its last line, in plain text without the frame."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: run.fleet_columns["time"][-1] + silent)
        done = CliRunner().invoke(cli.app, ["watch", "--once", run.name])
    assert done.exit_code == 0, done.output
    return "\n".join(text.strip("│╭╮╰╯─ ") for text in done.output.splitlines())


# -- is it alive? --------------------------------------------------------------------------------------------------


def test_standstill_told_first(tmp_path):
    """As when a rank is stopped: all others wait for it, and no line comes."""
    run = written(tmp_path / "run.jsonl", [line(index) for index in range(30)])
    _, first, second, *_ = looks(run, silent=10.0).splitlines()
    assert first == "No iteration has been reported for 10 s: one usually comes every 100 ms."
    assert second == "The slowest until then was gpu1."
    assert "No iteration" not in looks(run, silent=2.9), "less may be a checkpoint that is written"


JOB = """
import sys
from paceline.recording import JsonLines
from recorded_runs import iterations

def train():
    sink = JsonLines(sys.argv[1])
    for iteration in iterations(8):
        sink(iteration)

train()
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "ended"),
    [
        ("", True),
        ("sys.exit(0)", True),
        ("raise RuntimeError('out of memory')", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),
        ("import os; os.fork() or sys.exit(0); os.wait(); os.kill(os.getpid(), 9)", False),
    ],
)
def test_ended_run_is_not_silent(tmp_path, monkeypatch, capsys, ending, ended):
    path = tmp_path / "run.jsonl"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", JOB.format(ending=ending), str(path)], env=environ, capture_output=True)
    assert not paceline(monkeypatch, "watch", path, "--once")
    shown = capsys.readouterr().out
    assert ("No iteration has been reported for" in shown) != ended
    assert ("8 iterations recorded, ended" in shown) == ended
    assert read_run(path).skipped_lines == 0


def test_run_continued_in_file_has_not_ended(tmp_path):
    from recorded_runs import iterations

    path = tmp_path / "run.jsonl"
    for k in range(3):
        sink = JsonLines(path)
        sink(next(iterations(1, first=k)))
        reader = RunReader(path)
        reader.poll()
        assert not reader.ended
        sink.close()
        reader.poll()
        assert reader.ended
        assert (len(reader), reader.skipped_lines) == (k + 1, 0)


# -- whose reports are missing? --------------------------------------------------------------------------------------


def test_missing_worker_named_first(tmp_path):
    lines = [line(index, seconds=(None if index > 4 else 0.03, 0.06)) for index in range(12)]
    shown = looks(written(tmp_path / "run.jsonl", lines))
    assert "No report from gpu0 for 7 iterations." in shown
    rows = [text for text in shown.splitlines() if text.startswith("gpu")]
    assert rows[0].startswith("gpu0")
    assert "missing" in rows[0]
    assert "missing" not in rows[1]


def test_missing_workers_counted_left_are_not(tmp_path):
    workers = [f"rank {w}" for w in range(6)]
    rows = {key: [10] * 6 for key in ("sizes", "planned")} | {"comm_seconds": [None] * 6, "forecast_seconds": [0.1] * 6}
    run = written(tmp_path / "run.jsonl", [line(0, **{**rows, "seconds": [0.1, *[None] * 5]})], workers)
    assert "No report from rank 1 for 1 iteration, rank 2 for 1 iteration, rank 3 for 1 iteration and 2 others." in (
        looks(run).replace("\n", " ")
    )
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write(json.dumps({**HEADER, "workers": ["rank 0", "rank 9"]}) + "\n" + line(1) + "\n")
    assert "No report" not in looks(read_run(tmp_path / "run.jsonl"))


def test_unreported_iteration_blames_no_worker(tmp_path):
    run = written(tmp_path / "run.jsonl", [line(0), line(1, seconds=[None, None])])
    assert run.slowest.tolist() == [1, -1]
    shown = looks(run)
    assert "No report from any worker for 1 iteration." in shown
    assert [text.split()[-1] for text in shown.splitlines() if text.startswith("gpu")] == ["50%", "0%"]


# -- how it is drawn -------------------------------------------------------------------------------------------------


# -- what a file may hold --------------------------------------------------------------------------------------------


def spoilt(**others):
    return json.dumps({**json.loads(line(5)), **others})


SPOILT = {
    "a missing key": json.dumps({key: value for key, value in json.loads(line(5)).items() if key != "gain"}),
    "too few workers": spoilt(seconds=[0.1]),
    "a text for a number": spoilt(sizes=["30", 30]),
    "a number for a row": spoilt(planned=30),
    "no row of sizes": spoilt(sizes=None),
    "no row of times": spoilt(comm_seconds=None),
    "no index": spoilt(index=None),
    "a time that is not finite": spoilt(time=float("inf")),
    "a whole number beyond all bounds": spoilt(gain=10**400),
    "a number for a reason": spoilt(why=7),
    "a text for a truth": spoilt(acted="yes"),
    "a list": "[1, 2]",
    "nothing of JSON": "{oops",
    "no text at all": "\udc80",
    "nested without end": "[" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("bad", SPOILT.values(), ids=SPOILT.keys())
def test_unreadable_line_counted(tmp_path, monkeypatch, capsys, bad):
    path = run_file(tmp_path / "run.jsonl")
    head, *lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([head, *lines[:5], bad, "", *lines[5:]]) + "\n", errors="surrogateescape")
    assert not paceline(monkeypatch, "watch", path, "--once")
    shown = capsys.readouterr().out
    assert "1 line of the file could not be read and was skipped." in shown
    assert "12 iterations recorded" in shown
    assert not paceline(monkeypatch, "report", path, "--out", tmp_path / "report.html")
    assert "12 iterations of 2 workers; 1 line could not be read" in capsys.readouterr().out
    rows = re.findall(
        r">lines of the file that could not be read</th><td[^>]*>(\d+)</td>",
        (tmp_path / "report.html").read_text("utf-8"),
    )
    assert rows == ["1"]


@pytest.mark.parametrize(
    "bad", [{}, {"workers": "gpu0"}, {"workers": ["a", 1]}, {"workers": []}, {"workers": ["a", "a"]}]
)
def test_broken_header_makes_workers_unknown(tmp_path, bad):
    header = json.dumps({"paceline_run": 1, **bad})
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([json.dumps(HEADER), line(0), header, line(1), json.dumps(HEADER), line(2)]) + "\n")
    run = read_run(path)
    assert run.fleet_columns["index"].tolist() == [0, 2]
    assert run.skipped_lines == 2
    path.write_text(header + "\n")
    with pytest.raises(ValueError, match="its first line must be a JSON object with paceline_run"):
        read_run(path)


EVIL = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\r\u202e\ud800"


@pytest.mark.slow
@pytest.mark.parametrize("command", [("watch", "--once"), ("report",)], ids=["watch", "report"])
def test_control_characters_not_on_terminal(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    name = "evil\x1b]0;owned\x07.jsonl"
    stopped = {"seconds": [None, 0.06]}
    run_file(tmp_path / name, workers=(f"a{EVIL}", "b"), why=f"Because{EVIL}", acted=True, **stopped)
    assert not paceline(monkeypatch, command[0], name, *command[1:])
    shown = capsys.readouterr().out
    assert not {char for char in shown if not char.isprintable()} - {"\n"}
    page = tmp_path / "report.html"
    for told in [shown] if command[0] == "watch" else [page.read_text("utf-8")]:
        assert r"\x1b]52;c;aGk=\x07" in told.replace("\n", "")
        assert not {char for char in told if not char.isprintable()} - {"\n"}


# -- who joins and leaves -------------------------------------------------------------------------------------------
