"""LineWriter of a file that grows: what was said to be written is in it, and nothing else, whatever the disk does."""

import errno
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._files import LineWriter

LOG = logging.getLogger("paceline.test")


class Disk:
    """A file on a disk that has room for so many more bytes, and says so as the kernel does."""

    def __init__(self, file):
        self.file, self.room = file, 10**9

    def write(self, content):
        fits = self.file.write(content[: self.room]) if self.room else 0
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= fits
        return fits

    def truncate(self, size):
        self.room += self.file.seek(0, 2) - size
        return self.file.truncate(size)

    def seek(self, *where):
        return self.file.seek(*where)

    def close(self):
        self.file.close()


LINES = st.lists(st.tuples(st.text("abé", max_size=5), st.one_of(st.none(), st.integers(0, 9))), max_size=8)


@given(LINES, st.sampled_from([b"", b"whole\n", b"torn"]))
@settings(max_examples=30)
def test_file_holds_exactly_the_reported_lines(tmp_path_factory, steps, before):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(before)
    lines = LineWriter(path, LOG)
    disk = lines.file = Disk(lines.file)
    written, lost = [], 0
    for text, room in steps:
        disk.room = 10**9 if room is None else room
        if lines.append(text):
            written.append(text)
        else:
            lost += 1
            assert room is not None
    lines.close()
    start = before + b"\n" if written and before == b"torn" else before
    assert path.read_bytes() == start + "".join(f"{text}\n" for text in written).encode()
    assert lines.lost_lines == lost


def test_lost_lines_are_reported(tmp_path, caplog):
    lines = LineWriter(str(tmp_path / "a.txt"), LOG, must_be_new=True)
    disk = lines.file = Disk(lines.file)
    said = []
    for room in (9, 0, 3, 9, 9, 1, 9):
        disk.room = room
        caplog.clear()
        lines.append("12345")
        said.append([(record.levelname, record.getMessage()) for record in caplog.records])
    name, full = lines.path, "[Errno 28] No space left on device"
    lost = [("ERROR", f"{name}: a line could not be written and is lost: {full}")]
    again = [[("WARNING", f"{name}: lines are written again; {count} were lost")] for count in (2, 3)]
    assert said == [[], lost, [], again[0], [], lost, again[1]]
    caplog.clear()
    lines.close()
    lines.close()
    assert [record.getMessage() for record in caplog.records] == [f"{name} lacks 3 lines that could not be written"]
    caplog.clear()
    assert not lines.append("late")
    assert (lines.lost_lines, lines.path.read_text("utf-8")) == (4, "12345\n" * 4)
    assert "is lost: the file is closed" in caplog.text


def test_new_file_must_not_exist_text_is_escaped(tmp_path):
    lines = LineWriter(tmp_path / "a.txt", LOG, must_be_new=True)
    assert lines.append("\ud800")
    with pytest.raises(FileExistsError):
        LineWriter(tmp_path / "a.txt", LOG, must_be_new=True)
    assert (tmp_path / "a.txt").read_bytes() == b"\\ud800\n", "at once, before it is closed"
    lines.close()
    again = LineWriter(tmp_path / "a.txt", LOG)
    assert again.append("more")
    again.close()
    assert (tmp_path / "a.txt").read_bytes() == b"\\ud800\nmore\n"
    null = LineWriter("/dev/null", LOG)  # no file that could be read back
    assert null.append("a")
    null.close()


class Stubborn:
    """A file on a disk so full that nothing can be taken back either, and that cannot be closed."""

    def __init__(self, file):
        self.file, self.full = file, True

    def write(self, content):
        if not self.full:
            return self.file.write(content)
        if len(content) > 3:
            return self.file.write(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self, size):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.truncate(size)

    def seek(self, *where):
        return self.file.seek(*where)

    def close(self):
        self.file.close()
        raise OSError(errno.EIO, "Input/output error")


def test_partial_line_taken_back_later(tmp_path, caplog):
    lines = LineWriter(tmp_path / "a.txt", LOG)
    assert lines.append("first")
    lines.file = Stubborn(lines.file)
    assert not lines.append("lost one")
    assert not lines.append("lost two")
    lines.file.full = False
    assert lines.append("second")
    lines.close()
    assert (tmp_path / "a.txt").read_text("utf-8") == "first\nsecond\n"
    assert "could not be closed" in caplog.text
