"""Costs read from a column of lists: how many labels count, whatever kind of numbers they are."""

import numpy as np
import pytest

from paceline.torch.cost_column import numbers_of

pa = pytest.importorskip("pyarrow")


class Table:
    """A data set of one column, as Hugging Face's, in several chunks."""

    def __init__(self, *chunks, kind=None):
        self.column_names = ["labels"]
        self._table = pa.table({"labels": pa.chunked_array([pa.array(chunk, type=kind) for chunk in chunks])})

    def __len__(self):
        return len(self._table)

    def with_format(self, kind):
        return self

    def select_columns(self, names):
        assert names == ["labels"]
        return self

    def __getitem__(self, rows):
        return self._table


@pytest.mark.parametrize(
    ("chunks", "kind", "terms", "lengths"),
    [
        ([[[1, -100, 3], [-100]], [[5], [6, 7]]], None, [2, 0, 1, 2], [3, 1, 1, 2]),
        ([[[1, None, -100]], [[2, 3]]], None, [2, 2], [3, 2]),
        ([[[True, False], [True]]], None, [2, 1], [2, 1]),
        ([[[1.5, -100.0], [2.5]]], pa.large_list(pa.float64()), [1, 1], [2, 1]),
    ],
)
def test_labels_count_but_for_those_that_losses_leave_out_and_all_others_by_length(chunks, kind, terms, lengths):
    table = Table(*chunks, kind=kind)
    np.testing.assert_array_equal(numbers_of(table, "labels", "loss_terms", zero=True), terms)
    np.testing.assert_array_equal(numbers_of(table, "labels", "lengths"), lengths)


def test_a_column_of_numbers_is_taken_as_it_is_and_one_that_is_not_there_is_refused():
    np.testing.assert_array_equal(numbers_of(Table([3, 1], [2]), "labels", "lengths"), [3.0, 1.0, 2.0])
    with pytest.raises(TypeError, match="lengths='rows' names a column, which Table does not have"):
        numbers_of(Table([3]), "rows", "lengths")
    with pytest.raises(TypeError, match="which list does not have"):
        numbers_of([1, 2], "rows", "lengths")
