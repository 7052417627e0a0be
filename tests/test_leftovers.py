"""Temporary files and folders of processes that were killed: the next start removes them, and nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline import _atomic
from paceline._atomic import TemporaryFolder, atomic_write, remove_left_folders, remove_leftovers
from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
from paceline.parameter_server.service import Service

WRITES = """
import sys, time
from paceline._atomic import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer():
    """Start a process that is in the middle of writing; it ends with the test."""
    started = []

    def start(path, code=WRITES):
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", code, str(path)]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_leftovers_of_killed_process_removed(tmp_path, writer):
    path = tmp_path / "state [1].npz"
    others = [tmp_path / name for name in (".state [1].npz", ".state [1].npz.abcdefgh", ".other.paceline-abcdefgh")]
    for other in others:
        other.write_bytes(b"mine")
    dead, living = writer(path), writer(path)
    killed(dead)
    assert len(list(tmp_path.iterdir())) == len(others) + 2
    remove_leftovers(path)
    (left,) = set(tmp_path.iterdir()) - set(others)
    assert left.read_bytes() == b"half"
    killed(living)
    remove_leftovers(path)
    assert set(tmp_path.iterdir()) == set(others)


def test_first_write_replaces_killed_leftover(tmp_path, writer):
    killed(writer(tmp_path / "a.json"))
    killed(writer(tmp_path / "b.json"))
    for name in ("a.json", "c.json"):
        with atomic_write(tmp_path / name) as temporary:
            temporary.write_text("whole")
    assert sorted(path.name[:7] for path in tmp_path.iterdir()) == [".b.json", "a.json", "c.json"]


FOLDER = """
import sys, time
from paceline._atomic import TemporaryFolder
with TemporaryFolder(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_only_folders_of_killed_processes_removed(tmp_path, writer):
    (tmp_path / "mine").mkdir()
    dead, living = writer(tmp_path, FOLDER), writer(tmp_path, FOLDER)
    killed(dead)
    remove_left_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    killed(living)
    with TemporaryFolder(tmp_path) as folder:
        remove_left_folders(tmp_path)
        assert set(tmp_path.iterdir()) == {tmp_path / "mine", Path(folder)}
    remove_left_folders(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_removed_folder_made_again(tmp_path, monkeypatch):
    """In a moment that a kill hardly meets: a start takes a folder for left behind, whose process only made it yet."""
    locked = _atomic.locked

    def late(folder):
        remove_left_folders(tmp_path)
        assert not folder.exists()
        return locked(folder)

    monkeypatch.setattr(_atomic, "locked", late)
    with TemporaryFolder(tmp_path) as folder:
        remove_left_folders(tmp_path)
        assert [str(path) for path in tmp_path.iterdir()] == [folder]


def test_server_removes_killed_checkpoint_leftover(tmp_path, writer):
    killed(writer(tmp_path / "server.safetensors"))
    server = Server(np.zeros(2), SGD(0.1), scheme("asp", 2), EpochSampler(8, epochs=1), batch=4, workers="ab")
    Service(server, checkpoint=tmp_path / "server.safetensors").resume()
    assert not list(tmp_path.iterdir())


def test_write_survives_removal_of_leftovers(tmp_path):
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("all of it")
        remove_leftovers(tmp_path / "a")
    assert (tmp_path / "a").read_text("utf-8") == "all of it"
