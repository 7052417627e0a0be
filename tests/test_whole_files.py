"""Files that appear whole or not at all, whoever writes them at once and whoever is killed meanwhile."""

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline._files import atomic_write


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def handles():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_file_appears_complete_and_readable(tmp_path):
    before = handles()
    with atomic_write(str(tmp_path / "a.txt")) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.txt.paceline-")
        temporary.write_text("whole")
        assert not (tmp_path / "a.txt").exists()
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text("utf-8") == "whole"
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644
    assert handles() == before


def fails(path, does):
    def block():
        with atomic_write(path) as temporary:
            does(temporary)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_failing_block_keeps_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    before = handles()
    fails(tmp_path / "a.txt", lambda temporary: temporary.write_text("half"))
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text("utf-8") == "old"
    assert handles() == before
    fails(tmp_path / "b.txt", Path.unlink)  # what a block removes itself is not missed


WRITES = """
import sys, time
from paceline._files import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half of it")
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_next_write_replaces_what_a_kill_left(tmp_path):
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(2):
        command = [sys.executable, "-c", WRITES, str(tmp_path / "a.json")]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        assert names(tmp_path) == [".a.json.paceline-tmp"]
    with atomic_write(tmp_path / "a.json") as temporary:
        assert temporary.read_bytes() == b""
        temporary.write_text("whole")
    assert names(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text("utf-8") == "whole"


def no_locks(*_):
    raise OSError(37, "No locks available")


@pytest.mark.parametrize("locks", [True, False])
def test_writers_of_one_file_do_not_mix(tmp_path, monkeypatch, locks):
    if not locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    before = handles()

    def write(number):
        with atomic_write(tmp_path / "a") as temporary:
            for _ in range(50):
                with temporary.open("a") as file:
                    file.write(f"{number}\n")
        return set((tmp_path / "a").read_text("utf-8").split())

    with ThreadPoolExecutor(8) as pool:
        assert all(len(seen) == 1 for seen in pool.map(write, range(40)))
    assert (tmp_path / "a").read_text("utf-8").count("\n") == 50
    assert names(tmp_path) == ["a"]
    assert handles() == before


def test_link_in_place_of_temporary_file_is_refused(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".a.txt.paceline-tmp").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"cannot write .*a\.txt"), atomic_write(tmp_path / "a.txt"):
        pass
    assert (tmp_path / "mine").read_text("utf-8") == "mine"
