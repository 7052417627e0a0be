"""Place of a worker, the moment its group is looked up again, and a training that goes on when recording fails."""

import os

import pytest
from machine_files import NESTED_2, made

from paceline.recording import control_group, launch
from paceline.recording.control_group import Whereabouts
from paceline.recording.launch import Place


def test_a_process_enters_every_group_of_its_place_and_stays_on_its_cores(tmp_path):
    before = os.sched_getaffinity(0)
    folders = [tmp_path / name for name in ("cpu", "cpuacct")]
    for folder in folders:
        folder.mkdir()
    Place(folders=list(map(str, folders))).enter()
    assert [(folder / "cgroup.procs").read_text() for folder in folders] == [str(os.getpid())] * 2
    assert os.sched_getaffinity(0) == before


def test_a_group_is_looked_up_again_exactly_when_its_time_is_over(tmp_path, monkeypatch):
    made(tmp_path, {**NESTED_2, "groups/other/cpu.max": "1 10\n"})
    now = 0.0
    monkeypatch.setattr(control_group.time, "monotonic", lambda: now)
    where = Whereabouts(tmp_path)
    first = where.group()
    (tmp_path / "proc/self/cgroup").write_text("0::/other\n")
    now = control_group.LOOKED_UP_EVERY * (1 - 1e-9)
    assert where.group() is first
    now = control_group.LOOKED_UP_EVERY
    assert where.group().cpu == tmp_path / "groups/other"


@pytest.mark.parametrize("restart", ["0", "2"])
def test_a_worker_that_cannot_be_recorded_says_so_and_trains_on(tmp_path, monkeypatch, capsys, restart):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
    taken = tmp_path / {"0": "rank3.jsonl", "2": "rank3.2.jsonl"}[restart]
    taken.write_text("kept")

    class Model:
        def __init__(self, size):
            self.size = size

        def parameters(self):
            return iter(())

        def register_comm_hook(self, state, hook):
            self.hook = state, hook

    launch.watch_every(Model, str(tmp_path))
    model = Model(5)
    model.register_comm_hook("state", "hook")
    assert (model.size, model.hook) == (5, ("state", "hook"))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("paceline: rank 3 is not recorded: FileExistsError(")
    assert taken.read_text() == "kept"
