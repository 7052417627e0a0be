"""Windows in a folder of checkpoints: a collection that was killed goes on where it was last noted."""

import json

import numpy as np
import pytest
from test_windows_law import ITEM, jobs, part

from paceline.predictors.fitting.kept import Kept
from paceline.predictors.networks import training_windows
from paceline.predictors.networks.training_windows import windows_of


class KillError(Exception):
    pass


def until(made, job, parts):
    """Yield jobs until this one, and of it only so many parts."""
    for k, (name, own) in enumerate(made):
        yield name, own if k < job else killed(own[:parts])


def killed(own):
    yield from own
    raise KillError


CASE = [("a", [4, 0, 7]), ("b", [0]), ("c", [5, 5]), ("d", []), ("e", [9, 2])]
TOTAL = sum(sum(own) for _, own in CASE)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [10**6, 7 * ITEM], ids=["one shard", "shards"])
@pytest.mark.parametrize("block", [1, 6, 1000])
def test_windows_of_a_collection_that_was_killed_are_those_of_one_that_was_not(tmp_path, monkeypatch, memory, block):
    monkeypatch.setattr(training_windows, "BLOCK", block)
    made = jobs(CASE)
    whole = windows_of(made, TOTAL, memory=memory, seed=2)
    expected = [shard() for shard in whole.shards]
    for n, (job, parts) in enumerate([(0, 2), (1, 0), (2, 1), (3, 0), (4, 1)]):
        folder = tmp_path / str(n)
        with pytest.raises(KillError):
            windows_of(until(made, job, parts), TOTAL, memory=memory, seed=2, kept=Kept(folder, "one", 0.0))
        kept = Kept(folder, "one", 0.0)
        assert kept.names == [name for name, _ in CASE[:job]]
        assert not kept.complete
        assert kept.counts.sum() == sum(sum(own) for _, own in CASE[:job])
        for path in folder.glob("*.records"):
            with path.open("ab") as file:
                file.write(b"what was written after the last note")
        kept = Kept(folder, "one", 0.0)
        again = windows_of(made[job:], TOTAL, memory=memory, seed=2, kept=kept)
        assert kept.complete
        assert (again.names, list(again.counts), again.validating) == (
            whole.names,
            list(whole.counts),
            whole.validating,
        )
        for shard, records in zip(again.shards, expected, strict=True):
            np.testing.assert_array_equal(shard(), records)
        kept = Kept(folder, "one", 0.0)
        assert kept.complete
        once_more = windows_of([], TOTAL, memory=memory, seed=2, kept=kept)
        assert (once_more.names, list(once_more.counts)) == (whole.names, list(whole.counts))
        for shard, records in zip(once_more.shards, expected, strict=True):
            np.testing.assert_array_equal(shard(), records)


def noted(folder):
    made = jobs(CASE)
    kept = Kept(folder, "one", 1e9)
    windows_of(made, TOTAL, memory=7 * ITEM, seed=2, kept=kept)
    return kept


def test_progress_is_noted_when_its_time_has_passed(tmp_path, monkeypatch):
    """Each job takes a second; three make a note."""
    now, notes = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    note = Kept.note

    def told(self, **options):
        notes.append((now[0], options.get("complete", False)))
        note(self, **options)

    monkeypatch.setattr(Kept, "note", told)

    def slowly():
        for one in jobs(CASE):
            yield one
            now[0] += 1.0  # asked for once the job before is written

    kept = Kept(tmp_path, "one", 3.0)
    windows_of(slowly(), TOTAL, memory=7 * ITEM, seed=2, kept=kept)
    assert notes == [(3.0, False), (5.0, True)]
    told_last = json.loads((tmp_path / "state.json").read_text())
    assert sorted(told_last) == ["complete", "counts", "generator", "identity", "names", "sizes", "validating"]
    assert told_last["sizes"] == [count * ITEM for count in told_last["counts"]]
    assert (sum(told_last["counts"]), told_last["names"]) == (TOTAL, [name for name, _ in CASE])


def test_before_the_first_window_there_is_nothing_to_note(tmp_path):
    kept = Kept(tmp_path, "one", 0.0)
    kept.note()
    assert list(tmp_path.iterdir()) == []
    assert windows_of([("a", []), ("b", [part(0, 0)])], 5, memory=10**6, seed=0, kept=kept).shards == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: (folder / "state.json").write_text("{"),
        lambda folder: (folder / "state.json").write_text("{}"),
        lambda folder: (folder / "kind.npy").unlink(),
        lambda folder: (folder / "kind.npy").write_bytes(b""),
        lambda folder: (folder / "001.records").unlink(),
        lambda folder: (folder / "001.records").write_bytes((folder / "001.records").read_bytes()[:-1]),
    ],
)
def test_windows_of_which_something_is_missing_are_collected_anew(tmp_path, harm):
    first = noted(tmp_path / "kept")
    assert first.path(1) == tmp_path / "kept" / "001.records"
    assert Kept(tmp_path / "kept", "one", 0.0).names == first.names
    harm(tmp_path / "kept")
    again = Kept(tmp_path / "kept", "one", 0.0)
    assert (again.names, again.complete, again.kind, again.validating, len(again.counts)) == ([], False, None, 0, 0)
    assert list((tmp_path / "kept").iterdir()) == []


def test_windows_of_another_fit_are_removed(tmp_path):
    noted(tmp_path)
    assert Kept(tmp_path, "other", 0.0).names == []
    assert list(tmp_path.iterdir()) == []
