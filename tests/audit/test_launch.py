"""How a script is started under audit, told with processes that the test pretends."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import _version
from paceline.audit import launch
from paceline.audit.comparisons import AuditPlan
from paceline.audit.launch import WORDS, Launcher, found, of_one, reason


class Pretended:
    """A process that says something, lets so many waits time out, and ends with a status."""

    def __init__(self, command, stdout, **named):
        stdout.write(self.says)
        self.calls, self.options, self.left = [command], named, self.late
        self.made.append(self)

    def wait(self, timeout=None):
        self.calls.append(("wait", timeout))
        self.left -= 1
        if self.left >= 0:
            raise subprocess.TimeoutExpired("x", timeout)
        return self.status

    def terminate(self):
        self.calls.append("terminate")

    def kill(self):
        self.calls.append("kill")


@pytest.fixture
def pretend(monkeypatch):
    """Pretend processes of a kind, and return those that are started."""

    def make(says="", status=0, late=0):
        made = []
        kind = type("Kind", (Pretended,), {"says": says, "status": status, "late": late, "made": made})
        monkeypatch.setattr(launch.subprocess, "Popen", kind)
        return made

    return make


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_script_that_takes_too_long_is_ended_and_waited_for(tmp_path, pretend, late):
    made = pretend(late=late)
    run = Launcher(["train"], tmp_path, 12.5)(AuditPlan(), alone=False)
    late_calls = ["terminate", ("wait", 10), "kill", ("wait", None)]
    assert made[0].calls == [["train"], ("wait", 12.5), *late_calls[: 2 * late]]
    assert run.error == ("it took longer than 12.5 seconds" if late else "")


def test_runs_are_numbered_told_and_planned(tmp_path, pretend, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    made, said, command = pretend("x\nValueError: no data\ny", 1), [], ["torchrun", "--nproc_per_node=2", "t.py"]
    start = Launcher(command, tmp_path, 5, said.append)
    plans = [AuditPlan(steps=steps) for steps in (1, 2, 3)]
    for number, (plan, alone) in enumerate(zip(plans, (False, True, False), strict=True), start=1):
        run, folder = start(plan, alone), tmp_path / str(number)
        assert (run.tapes, run.folder, run.error) == ([], str(folder), "ValueError: no data")
        assert AuditPlan.from_json((folder / "plan").read_text()) == plan
        process = made[-1]
        assert process.calls[0] == ([*command[:1], "--nproc_per_node=1", "t.py"] if alone else command)
        assert process.options.pop("stderr") == subprocess.STDOUT
        assert process.options.pop("start_new_session") is True
        rest = dict(process.options.pop("env"))
        assert not process.options
        assert rest.pop("PACELINE_AUDIT_PLAN") == str(folder / "plan")
        assert rest.pop("PACELINE_AUDIT_FOLDER") == str(folder)
        assert Path(rest.pop("PACELINE_AUDIT_PATH")) / "paceline" == Path(_version.__file__).resolve().parent
        assert rest.pop("PYTHONPATH").split(os.pathsep) == [str(launch.ROOM / "bootstrap"), "/mine"]
        assert rest.items() <= os.environ.items()
    assert said == ["run 1", "run 2, as one process", "run 3"]
    nothing = Launcher(["python", "t.py"], tmp_path, 5, said.append)(plans[0], alone=True)
    assert (nothing.tapes, nothing.error) == ([], "the command does not say how many processes it starts")
    assert len(said) == 3


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["a line", "KeyError: 'a'", "[rank3]: my.own.Exception", "  ValueError: in", ""])))
def test_the_reason_is_the_first_error_or_else_the_last_line(lines):
    errors = [line for line in lines if line[:1] in ("K", "[")]
    said = [line for line in lines if line.strip()]
    last = said[-1] if said else "it said nothing"
    assert reason("\n".join(lines)).strip() == (errors[0] if errors else last).strip()


def test_a_long_last_line_is_cut_at_its_beginning():
    assert WORDS == 2000
    assert reason("a" + "b" * WORDS) == "b" * WORDS
    assert reason("KeyError: " + "b" * WORDS) == "KeyError: " + "b" * WORDS


@settings(max_examples=30)
@given(
    st.sampled_from(["--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes"]),
    st.booleans(),
    st.lists(st.sampled_from(["--multi_gpu", "x", "--num_machines=1"]), max_size=3),
    st.lists(st.sampled_from(["--multi_gpu", "y", "2"]), max_size=3),
)
def test_a_command_of_one_process_differs_in_its_number_alone(option, joined, before, after):
    numbered = [[f"{option}={number}"] if joined else [option, number] for number in ("4", "1")]
    command, expected = ([*before, *number, *after] for number in numbered)
    assert of_one(command) == [word for word in expected if word != "--multi_gpu"]
    assert of_one([*before, *after]) is None


def test_a_program_is_looked_up_in_the_path_and_beside_this_python(tmp_path, monkeypatch):
    for folder, name in (("path", "one"), ("python", "one"), ("python", "other")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python" / "python3"))
    assert found(["one", "a"]) == [str(tmp_path / "path" / "one"), "a"]
    assert found(["other", "b", "c"]) == [str(tmp_path / "python" / "other"), "b", "c"]
    with pytest.raises(FileNotFoundError, match="no program 'none' was found"):
        found(["none"])
