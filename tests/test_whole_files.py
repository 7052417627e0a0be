"""Files that appear whole, and temporary folders, as one process sees them."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from paceline import _atomic
from paceline._atomic import TemporaryFolder, atomic_write, remove_left_folders, remove_leftovers


def handles():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_file_appears_complete_and_readable(tmp_path):
    before = handles()
    with atomic_write(str(tmp_path / "a.txt")) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.txt.paceline-")
        temporary.write_text("whole")
        assert not (tmp_path / "a.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert ((tmp_path / "a.txt").read_text("utf-8"), mode(tmp_path / "a.txt")) == ("whole", 0o644)
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
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text("utf-8") == "old"
    assert handles() == before
    fails(tmp_path / "b.txt", Path.unlink)  # what a block removes itself is not missed


def left_behind(folder, name):
    (folder / name).write_text("half")
    return folder / name


def test_leftovers_removed_unless_linked_or_locked(tmp_path):
    mine = left_behind(tmp_path, ".a.txt.paceline-1")
    others = [left_behind(tmp_path, name) for name in (".b.txt.paceline-1", "a.txt.paceline-1", ".a.txt-1", "x")]
    link = tmp_path / ".a.txt.paceline-2"
    link.symlink_to(others[-1])
    before = handles()
    remove_leftovers(str(tmp_path / "a.txt"))
    assert not mine.exists()
    assert sorted(tmp_path.iterdir()) == sorted([*others, link])
    assert handles() == before
    with atomic_write(tmp_path / "a.txt") as temporary:
        remove_leftovers(tmp_path / "a.txt")
        assert temporary.exists(), "its process holds it locked"


def test_first_write_lists_folder_once(tmp_path):
    left = left_behind(tmp_path, ".a.txt.paceline-1")
    with atomic_write(tmp_path / "a.txt"):
        assert not left.exists()
    left = left_behind(tmp_path, ".a.txt.paceline-2")
    with atomic_write(tmp_path / "a.txt"):
        assert left.exists()


def test_removed_temporary_file_made_again(tmp_path, monkeypatch):
    made, mkstemp = [], tempfile.mkstemp

    def removed_at_first(**where):
        handle, name = mkstemp(**where)
        made.append(name)
        if len(made) < 3:
            Path(name).unlink()
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", removed_at_first)
    before = handles()
    with atomic_write(tmp_path / "a.txt") as temporary:
        assert str(temporary) == made[2]
    assert handles() == before, "those that were removed are closed"


def test_file_written_without_locking(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_atomic.fcntl, "flock", refused)
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
    left = left_behind(tmp_path, ".a.txt.paceline-1")
    remove_leftovers(tmp_path / "a.txt")
    assert left.exists(), "nobody knows whether it is in use"


# -- folders -------------------------------------------------------------------------------------------------------


def test_temporary_folder_private_and_removed(tmp_path, monkeypatch):
    before = handles()
    folder = TemporaryFolder(tmp_path)
    path = Path(folder.name)
    assert (path.parent, path.name[:14]) == (tmp_path, ".paceline-tmp-")
    assert (mode(path), mode(path / ".lock")) == (0o700, 0o600)
    (path / "rows").write_text("1, 2")
    assert handles() == before + 1
    folder.cleanup()
    assert not path.exists()
    assert handles() == before
    folder.cleanup()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with TemporaryFolder() as name:
        assert Path(name).parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_folder_searched_once_for_leftovers(tmp_path):
    left = tmp_path / ".paceline-tmp-1"
    for still in (False, True):
        left.mkdir()
        with TemporaryFolder(tmp_path):
            assert left.exists() is still


def test_only_own_unlocked_folders_removed(tmp_path, monkeypatch):
    for name in (".paceline-tmp-1", ".paceline-tmp-2", ".paceline-1", "paceline-tmp-3"):
        (tmp_path / name / "in").mkdir(parents=True)
    (tmp_path / ".paceline-tmp-4").symlink_to(tmp_path / ".paceline-1")
    before = handles()
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: os.geteuid() + 1)
        remove_left_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    with TemporaryFolder(tmp_path) as held:
        remove_left_folders(tmp_path)
        assert Path(held).exists()
    assert handles() == before
    assert {".paceline-1", "paceline-tmp-3"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / ".paceline-1" / "in").exists()
    assert not (tmp_path / ".paceline-tmp-1").exists()


def test_unremovable_folder_ends_nothing(tmp_path, monkeypatch):
    def busy(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with TemporaryFolder(tmp_path) as name, monkeypatch.context() as later:
        later.setattr(os, "rmdir", busy)
        TemporaryFolder(tmp_path).cleanup()
    assert not Path(name).exists()
