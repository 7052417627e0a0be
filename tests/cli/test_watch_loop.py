"""``paceline watch`` without a terminal's process: what is drawn, and which file it follows."""

from recorded_runs import iterations
from typer.testing import CliRunner

from paceline.cli import main
from paceline.recording import JsonLines


def run_of(path, count=6, first=0, ended=True):
    sink = JsonLines(path)
    for one in iterations(count, first=first):
        sink(one)
    if ended:
        sink.close()
    return path


def test_file_without_iterations_says_so(tmp_path):
    path = run_of(tmp_path / "a\x1b.jsonl", count=1)
    head = path.read_text("utf-8").splitlines()[0]
    for lines, more in (
        ([], ""), (["{oops"], "; 1 line could not be read"), (["{", "["], "; 2 lines could not be read"),
    ):  # fmt: skip
        path.write_text("\n".join([head, *lines]) + "\n")
        printed = CliRunner().invoke(main.app, ["watch", str(path)]).stdout
        assert printed == rf"{tmp_path}/a\x1b.jsonl holds no iteration yet{more}" + "\n"


def test_what_is_not_there_is_no_file(tmp_path):
    result = CliRunner().invoke(main.app, ["watch", "--once", str(tmp_path / "gone.jsonl")])
    assert "there is no file" in str(result.exception)
