"""No name in a file reaches a terminal as an escape sequence, whichever command prints it."""

import pytest

from paceline.cli import main

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
    path.write_text(f'worker,iteration,samples,seconds,"cpu{EVIL}"\n' + rows, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("data", "info"),
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
