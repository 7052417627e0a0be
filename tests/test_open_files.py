"""Files that stay open after they were written."""

from pathlib import Path

import pytest

from paceline._whole import written_whole


def test_what_is_written_whole_leaves_no_file_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        with written_whole(tmp_path / f"{number}.txt") as temporary:
            temporary.write_text("all of it")
    with pytest.raises(ZeroDivisionError), written_whole(tmp_path / "bad.txt"):
        1 / 0  # noqa: B018
    assert len(list(Path("/proc/self/fd").iterdir())) == before
