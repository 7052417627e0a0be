"""Windows: each goes to the shard that is drawn for it, in the order of arrival, wherever and in whatever blocks."""

import gc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._whole import remove_left_folders
from paceline.predictors.networks import training_windows
from paceline.predictors.networks.neural import Examples, Sequences
from paceline.predictors.networks.training_windows import grouped, windows_of

ITEM = 20
"""Bytes of a window of :func:`part`: two inputs, a target, and a truth value padded to four bytes; its trace."""


def part(first, count):
    targets_N = np.arange(first, first + count, dtype=float)
    return Examples(np.stack([targets_N, -targets_N], axis=1), targets_N, targets_N % 3 == 0)


def jobs(counts):
    """Return jobs of parts of so many windows, whose targets count through all."""
    first, made = 0, []
    for name, own in counts:
        parts = []
        for count in own:
            parts.append(part(first, count))
            first += count
        made.append((name, parts))
    return made


LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5)


@given(LISTS, st.integers(60, 700), st.integers(0, 9), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=40)
def test_every_window_is_in_the_shard_that_is_drawn_for_it_in_the_order_of_arrival(counts, memory, more, block, seed):
    """So that a fit is the same however the windows came in blocks."""
    made = jobs([(f"job {k}", own) for k, own in enumerate(counts)])
    total = sum(map(sum, counts))
    expected = total + more
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training_windows, "BLOCK", block)
        windows = windows_of(made, expected, memory=memory, seed=seed)
    shards = min(-(-expected * ITEM // memory), 500)
    validates_N = np.arange(total) % 3 == 0
    source_N = np.repeat(np.arange(len(counts)), [sum(own) for own in counts]).astype(int)
    shard_N = np.random.default_rng(seed).integers(shards, size=total) if shards > 1 else np.zeros(total, dtype=int)
    held = [np.flatnonzero(shard_N == k) for k in range(max(shards, 1))]
    if shards > 1 or not total:
        held = [rows for rows in held if len(rows)]
    assert windows.names == [f"job {k}" for k in range(len(counts))]
    if total:
        assert windows.kind.itemsize == ITEM
        assert windows.width("inputs") == 2
    assert list(windows.counts) == [len(rows) for rows in held]
    assert (len(windows), windows.validating) == (total, validates_N.sum())
    assert windows.too_few == (validates_N.all() or not validates_N.any())
    for shard, rows in zip(windows.shards, held, strict=True):
        for _ in range(2):
            records = shard()
            np.testing.assert_array_equal(records["targets"], rows)
            np.testing.assert_array_equal(records["inputs"], np.stack([rows, -rows], axis=1))
            np.testing.assert_array_equal(records["validates"], validates_N[rows])
            np.testing.assert_array_equal(records["source"], source_N[rows])


def test_there_are_at_most_five_hundred_shards():
    windows = windows_of(jobs([("a", [2000])]), 2000, memory=ITEM, seed=3)
    drawn_N = np.random.default_rng(3).integers(500, size=2000)
    assert list(windows.counts) == np.bincount(drawn_N, minlength=500)[np.unique(drawn_N)].tolist()
    np.testing.assert_array_equal(windows.shards[0]()["targets"], np.flatnonzero(drawn_N == drawn_N.min()))


def test_temporary_files_go_with_the_windows(monkeypatch):
    places, make = [], training_windows.TemporaryFolder
    monkeypatch.setattr(training_windows, "TemporaryFolder", lambda: places.append(make()) or places[-1])
    windows = windows_of(jobs([("a", [200])]), 200, memory=40 * ITEM, seed=3)
    folder = Path(places.pop().name)
    assert {path.name for path in folder.rglob("*.records")} == {f"{k:03}.records" for k in range(5)}
    shard = windows.shards[0]
    assert not list(folder.rglob("state.json"))
    del windows
    gc.collect()
    assert len(shard()) > 0
    del shard
    gc.collect()
    assert not folder.exists()


def test_temporary_files_are_no_leftovers_to_another_process_while_the_windows_live(tmp_path, monkeypatch):
    """The folder's lock was once removed with what lay in it: the next fit on the machine took the windows away."""
    monkeypatch.setattr(training_windows, "TemporaryFolder", partial(training_windows.TemporaryFolder, tmp_path))
    windows = windows_of(jobs([("a", [200])]), 200, memory=40 * ITEM, seed=3)
    remove_left_folders(tmp_path)
    assert sum(len(shard()) for shard in windows.shards) == 200
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0, "others may not read it"


def test_a_record_holds_every_column_in_single_precision_and_its_trace():
    made = Sequences(np.full((2, 4, 3), 1 / 3), np.full((2, 4), np.nan), np.array([True, False]))
    windows = windows_of([("a", []), ("b", [made])], 2, memory=10**6, seed=0)
    (records,) = (shard() for shard in windows.shards)
    assert records.dtype.names == ("inputs", "targets", "validates", "source")
    assert [records.dtype[name].base for name in records.dtype.names] == [np.float32, np.float32, np.bool_, np.int32]
    assert [records[name].shape for name in records.dtype.names] == [(2, 4, 3), (2, 4), (2,), (2,)]
    assert records.dtype.isalignedstruct
    assert records["inputs"][0, 0, 0] == np.float32(1 / 3)
    assert np.isnan(records["targets"]).all()
    assert records["source"].tolist() == [1, 1]
    assert (windows.width("inputs"), windows.width("targets")) == (3, 4)


def test_mapped_windows_are_made_whenever_a_shard_is_read():
    windows = windows_of(jobs([("a", [30])]), 30, memory=10 * ITEM, seed=1)
    made = []

    def pairs(records):
        made.append(len(records))
        return grouped(records, np.arange(len(records) // 2 * 2).reshape(-1, 2))

    mapped = windows.mapped(pairs)
    assert len(made) == len(mapped.shards) == len(windows.shards) > 1
    assert list(mapped.counts) == [count // 2 for count in windows.counts]
    assert mapped.names == windows.names
    assert len(mapped) == sum(mapped.counts)
    shards = [shard() for shard in mapped.shards]
    assert made == [*windows.counts, *windows.counts]
    assert mapped.validating == sum(int(records["validates"].sum()) for records in shards)
    assert mapped.kind == shards[0].dtype
    assert mapped.width("inputs") == 2
    assert mapped.width("targets") == 2
    for records, shard in zip(shards, windows.shards, strict=True):
        whole = shard()
        for n, record in enumerate(records):
            np.testing.assert_array_equal(record["targets"], whole["targets"][2 * n : 2 * n + 2])
            np.testing.assert_array_equal(record["inputs"], whole["inputs"][2 * n : 2 * n + 2])
            assert record["validates"] == whole["validates"][2 * n]
            assert record["source"] == whole["source"][2 * n]
    nothing = windows_of([], 0, memory=10, seed=0).mapped(pairs)
    assert (len(nothing), list(nothing.shards), nothing.validating) == (0, [], 0)
