"""Windows: each goes to the shard that is drawn for it, in the order of arrival, wherever and in whatever blocks."""

import gc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._atomic import remove_left_folders
from paceline.predictors.networks import training_windows
from paceline.predictors.networks.neural import Examples
from paceline.predictors.networks.training_windows import windows_of

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
def test_windows_drawn_to_shards_in_order(counts, memory, more, block, seed):
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


def test_live_files_are_no_leftovers(tmp_path, monkeypatch):
    """The folder's lock was once removed with what lay in it: the next fit on the machine took the windows away."""
    monkeypatch.setattr(training_windows, "TemporaryFolder", partial(training_windows.TemporaryFolder, tmp_path))
    windows = windows_of(jobs([("a", [200])]), 200, memory=40 * ITEM, seed=3)
    remove_left_folders(tmp_path)
    assert sum(len(shard()) for shard in windows.shards) == 200
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0, "others may not read it"
