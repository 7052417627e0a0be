"""Panels of usage: how many workers fit into one, how long it may be, which times are refused, how many buckets."""

import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets.readers import panel
from paceline.datasets.readers.panel import Buckets, Coded, Layout, Rows, _groups_that_fit, _length, _timed

HERE = Path("some.csv")


def coded(workers, times):
    return Coded(np.array(workers), np.array(times, dtype=float), np.arange(float(len(workers)))[:, None])


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=9),
    st.sampled_from([1.0, 2.0]),
    st.integers(1, 5),
    st.integers(1, 300),
)
def test_a_group_has_as_many_workers_as_fit_into_a_panel_and_at_least_one(rows_of, step, covariates, values):
    workers = [w for w, count in enumerate(rows_of) for _ in range(count)]
    times = [float(k) for count in rows_of for k in range(count)]
    each = int(1 + (max(times) - min(times)) / step) * (covariates + 2)  # what it holds, its samples and its seconds
    fitting = 1
    while (fitting + 1) * each <= values:
        fitting += 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "PANEL_VALUES", values)
        groups = list(_groups_that_fit(HERE, coded(workers, times), step, covariates))
    names = sorted(set(workers))
    assert [sorted(set(group.worker.tolist())) for group in groups] == [
        names[k : k + fitting] for k in range(0, len(names), fitting)
    ]
    assert np.concatenate([group.worker for group in groups]).tolist() == workers
    assert np.concatenate([group.time for group in groups]).tolist() == times
    assert np.concatenate([group.values for group in groups]).ravel().tolist() == list(range(len(workers)))


def test_a_panel_has_three_million_numbers_and_no_rows_make_none():
    assert panel.PANEL_VALUES == 3_000_000
    assert list(_groups_that_fit(HERE, coded([], []), 1.0, 3)) == []


@pytest.mark.parametrize(("rows", "most"), [(2, 10), (3, 12), (5, 20)])
def test_a_panel_may_be_as_long_as_four_times_its_rows_and_longer_only_if_it_is_short(monkeypatch, rows, most):
    assert (panel.LONGEST, panel.LONGEST_TO_ROWS) == (1_000_000, 4)
    monkeypatch.setattr(panel, "LONGEST", 10)
    for step in (1.0, 300.0):
        inside = [step * 7] * (rows - 1)
        assert _length(HERE, coded([0] * rows, [*inside, step * (6 + most)]), step) == most
        assert _length(HERE, coded([0] * rows, [*inside, step * (6.9 + most) - step]), step) == most - 1
        with pytest.raises(ValueError, match=rf"^some\.csv: {rows} rows from {7 * step:g} s to") as refused:
            _length(HERE, coded([0] * rows, [*inside, step * (6.1 + most)]), step)
        assert str(refused.value).endswith(
            f"to {step * (6.1 + most):g} s would make {most + 0.1:.3g} iterations of {step:g} s: a time or its unit is "
            "wrong; if they are right, give a longer period"
        )


@pytest.mark.parametrize("far", [2.0**53, -(2.0**53)])
def test_a_time_that_float64_cannot_tell_from_the_next_to_a_thousandth_of_a_row_is_refused(far):
    assert np.spacing(2.0**53) == 2.0
    assert _length(HERE, coded([0, 1], [far, far]), 2000.0) == 1
    with pytest.raises(ValueError, match=re.escape(f"some.csv: a time or its unit is wrong: {far:g} s")):
        _length(HERE, coded([0, 1], [far, far]), 1999.0)


@pytest.mark.parametrize(("wrong", "is_wrong"), [(0.0, False), (-1e-9, True), (panel.LATEST, False), (None, True)])
def test_times_since_1970_lie_before_2100_and_others_anywhere(wrong, is_wrong):
    wrong = float(np.nextafter(panel.LATEST, np.inf)) if wrong is None else float(wrong)
    block = Rows(pd.Series(["a", "b", "c"]), np.array([5.0, wrong, wrong]), np.zeros((3, 1)))
    for since_1970 in (False, True):
        checked = _timed(HERE, [block], Layout(covariates={"x": "s"}, period=1.0, since_1970=since_1970))
        if is_wrong and since_1970:
            said = f"times must be seconds between 1970 and 2100, got {wrong:.17g}; the unit is mixed up"
            with pytest.raises(ValueError, match=re.escape(said)):
                list(checked)
        else:
            assert list(checked) == [block]


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        *(({"a.csv": (8 << 20) - 1}, 1), ({"a.csv": 8 << 20}, 2), ({"a.csv": 5 << 20, "b.csv": 3 << 20}, 2)),
        *(({"a.csv.gz": 838_860}, 1), ({"a.csv.gz": 838_861}, 2), ({"a.csv": 80 << 20}, 11)),
        *(({"a.csv": (8 << 20) * 199 - 1}, 199), ({"a.csv": (8 << 20) * 300}, 200)),
    ],
)
def test_rows_lie_in_a_bucket_for_every_eight_megabytes_and_in_two_hundred_at_most(tmp_path, sizes, count):
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with ExitStack() as stack:
        buckets = Buckets([tmp_path / name for name in sizes], 1, stack)
        assert buckets.count == count
        buckets.add(Coded(np.array([0, 1, 0, 2]), np.arange(4.0), np.arange(4.0)[:, None]))
        found = [buckets.rows(bucket) for bucket in range(min(count, 3))]
    for bucket, rows in enumerate(found):
        places = [k for k, worker in enumerate([0, 1, 0, 2]) if worker % count == bucket]
        assert rows.time.tolist() == rows.values.ravel().tolist() == places
