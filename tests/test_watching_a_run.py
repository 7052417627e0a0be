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

import pytest

from paceline import cli, cli_watch
from paceline.coordinator.metrics import JsonLines, read_run
from paceline.eval.run_report import kind_of, reasons, run_report

HEADER = {"paceline_run": 1, "version": "0.1.0", "workers": ["gpu0", "gpu1"], "global_batch": 60}


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
    lines[2] = line(2, why="Moved 10 samples from gpu1 (50 % slower than the median) to gpu0: ...", acted=True)
    path.write_text(
        "\n".join([json.dumps({**HEADER, "workers": list(workers)}), *lines, line(count - 1, **last)]) + "\n"
    )
    return path


def paceline(monkeypatch, *arguments):
    """Run the command and return its exit status."""
    monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
    monkeypatch.setattr(cli_watch.out, "width", 80)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_one_look_shows_who_is_slow_who_waits_what_was_done_and_why(tmp_path, monkeypatch, capsys):
    run_file(tmp_path / "run.jsonl", sizes=(40, 20), seconds=(0.04, 0.03))
    assert not paceline(monkeypatch, "watch", tmp_path / "run.jsonl", "--once")
    shown = capsys.readouterr().out
    assert "iteration 11" in shown
    assert "Moved 10 samples from gpu1" in shown
    rows = {text.split()[1]: text for text in shown.splitlines() if "gpu" in text and "/s" in text}
    assert rows["gpu0"].split()[2] == "30", "the median of its sizes"
    assert "50 %" in rows["gpu0"], "it waits for half of the time"
    assert "92 %" in rows["gpu1"], "it was the slowest in 11 of 12"
    assert list(rows) == ["gpu1", "gpu0"], "the slowest comes first"
    assert max(map(len, shown.splitlines())) <= 80


def test_the_newest_run_of_a_folder_is_shown(tmp_path, monkeypatch, capsys):
    for age, name in enumerate(("new", "old")):
        path = run_file(tmp_path / f"{name}.jsonl")
        os.utime(path, (1e9 - age, 1e9 - age))
    assert not paceline(monkeypatch, "watch", tmp_path, "--once")
    assert "new.jsonl" in capsys.readouterr().out


def test_a_last_line_cut_short_is_left_out(tmp_path, monkeypatch, capsys):
    path = run_file(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-30])
    assert not paceline(monkeypatch, "watch", path, "--once")
    assert "iteration 10 " in capsys.readouterr().out


def test_names_and_reasons_are_shown_as_they_are(tmp_path, monkeypatch, capsys):
    run_file(tmp_path / "run.jsonl", workers=("[red]a[/red]", "<b>"), why="[bold]because[/bold]")
    assert not paceline(monkeypatch, "watch", tmp_path, "--once")
    shown = capsys.readouterr().out
    assert "[red]a[/red]" in shown
    assert "[bold]because[/bold]" in shown


def test_a_run_in_which_nobody_reported_is_shown_all_the_same(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    unknown = {"seconds": [None, None], "forecast_seconds": [None, None], "equal_seconds": None, "wall_seconds": None}
    path.write_text(f"{json.dumps(HEADER)}\n{line(0, **unknown)}\n")
    assert not paceline(monkeypatch, "watch", path, "--once")
    assert "nan" not in capsys.readouterr().out
    assert not paceline(monkeypatch, "report", path, "--out", tmp_path / "report.html")
    assert "not known" in (tmp_path / "report.html").read_text()


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
        assert time.monotonic() < end, f"waited in vain, shown was: {shown[-2000:]}"
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


def read_until(terminal, text):
    return read_while(terminal, lambda shown: text not in shown)


def test_a_growing_file_is_followed_on_a_terminal_until_interrupted(tmp_path):
    path = tmp_path / "run.jsonl"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "paceline", "watch", str(path), "--every", "0.05"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    try:
        read_until(ours, "waiting for")
        run_file(path)
        read_until(ours, "iteration 11")
        with path.open("a") as file:
            file.write(line(12, why="Moved back.", acted=True) + "\n")
        assert "Moved back." in read_until(ours, "iteration 12") + read_until(ours, "nothing new")
        process.send_signal(signal.SIGINT)
        read_while(ours, lambda _: process.poll() is None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


# -- the report ----------------------------------------------------------------------------------------------------


def test_the_report_holds_everything_and_needs_no_other_file(tmp_path, monkeypatch, capsys):
    run_file(tmp_path / "run.jsonl", count=900)
    assert not paceline(monkeypatch, "report", tmp_path, "--out", tmp_path / "report.html")
    assert "900 iterations of 2 workers" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "<td>gpu1</td><td>30.0</td>" in page
    assert "<td>899</td><td>Kept the sizes</td>" in page
    assert "<td>2</td><td>Moved 10 samples from gpu1" in page


def test_text_in_the_report_is_escaped(tmp_path):
    path = run_file(tmp_path / "<i>.jsonl", workers=("<script>", "_a$b$"), why="<b>1 & 2</b>", acted=True)
    page = run_report(read_run(path), tmp_path / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;1 &amp; 2&lt;/b&gt;" in page
    assert "<i>" not in page


def test_alike_reasons_are_counted_together(tmp_path):
    run = read_run(run_file(tmp_path / "run.jsonl"))
    assert reasons(run) == {"Kept the sizes": 11, "Moved samples": 1}
    sentence = "Kept the sizes: gpu1 is the straggler, but the last change is 2 iterations ago."
    assert (
        kind_of(sentence, ["gpu1"])
        == "Kept the sizes: a worker is the straggler, but the last change is … iterations ago"
    )
    assert kind_of("0 joined: 60 samples split anew.", ["0"]) == kind_of("1 joined: 50 samples split anew.", ["1"])


def test_a_fleet_that_changes_is_reported_whole(tmp_path):
    path = run_file(tmp_path / "run.jsonl")
    three = {"seconds": [0.03] * 3, "sizes": [20] * 3, "planned": [20] * 3}
    three |= {"forecast_seconds": [0.03] * 3, "comm_seconds": [None] * 3}
    with path.open("a") as file:
        file.write(json.dumps({**HEADER, "workers": ["gpu0", "gpu1", "gpu2"]}) + "\n" + line(12, **three) + "\n")
    page = run_report(read_run(path), tmp_path / "report.html").read_text()
    assert "<td>gpu2</td><td>20.0</td>" in page


def test_the_lines_of_a_real_sink_have_the_keys_of_these_tests(tmp_path):
    from test_metrics import iterations

    sink = JsonLines(tmp_path / "run.jsonl")
    sink(next(iterations(1)))
    sink.close()
    header, first = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
    assert first.keys() == json.loads(line(0)).keys()
    assert HEADER.keys() <= header.keys()
