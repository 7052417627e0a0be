"""The mark at the start of a text, and two iterations in a row, as readers and the check of a trace see them."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.health import health
from paceline.datasets.readers.files import head, numbered_lines

MARK = "\ufeff"


def test_a_mark_is_taken_off_the_first_line_alone(tmp_path):
    path = tmp_path / "marked.txt"
    path.write_text(f"{MARK}first\n{MARK}second\n", encoding="utf-8")
    assert list(numbered_lines(path))[:2] == [(1, "first"), (2, f"{MARK}second")]
    assert head(path).startswith("first")


@pytest.mark.parametrize("module", ["os", "posix", "nt", "numpy.core.multiarray", "__builtin__", "pandas"])
def test_a_pickle_of_text_is_told_from_a_header_that_begins_like_one(tmp_path, module):
    pickled, table = tmp_path / "pickled.csv", tmp_path / "table.csv"
    pickled.write_text(f"c{module}\nsystem\n(S'x'\ntR.")
    with pytest.raises(ValueError, match="is a pickle"):
        head(pickled)
    for header in (f"c{module}", "cost", "cnt", "cost_of.all"):
        table.write_text(f"{header}\n1.5\n2.5\n")
        assert head(table).startswith(header)


CONSECUTIVE = "no worker reported two consecutive iterations"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ([[1.0, 1.0]], False),
        ([[1.0, np.nan], [np.nan, 1.0]], True),
        ([[1.0, np.nan], [1.0, np.nan]], False),
        ([[np.nan, 1.0], [1.0, np.nan], [np.nan, 1.0]], True),
    ],
)
def test_a_worker_without_two_iterations_in_a_row_is_told_of(seconds, said):
    seconds = np.array(seconds)
    trace = Trace(np.where(np.isfinite(seconds), 8.0, np.nan), seconds)
    assert any(CONSECUTIVE in concern for concern in health(trace).concerns) == said
