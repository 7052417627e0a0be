"""Records of ranks on disk: complete once their last file is there, and read back as they were."""

from pathlib import Path

import numpy as np

from paceline.audit.tape import Sample, Tape, TapedStep, load_all


def tape_of(rank, steps=12):
    taken = [
        TapedStep(
            {"s": k},
            {"w": np.full(2, 1.0 * k, np.float32), "gradients/1/w": np.array([k])},
            {"w": np.full(1, 100.0 + k)},
            {"ratio": [k]},
        )
        for k in range(steps)
    ]
    streams = {"s": [[Sample(7 + rank, {"x": 3}), Sample(8, {})], []], "empty": []}
    return Tape(rank, 11, streams, {"w": np.arange(3), "start/w": np.ones(1)}, taken, {"dtypes": ["float32"]})


def plain(arrays):
    return {name: (array.tolist(), array.dtype) for name, array in arrays.items()}


def test_records_are_read_back_in_the_order_of_the_ranks(tmp_path):
    tapes = [tape_of(rank) for rank in (10, 2, 0)]
    for tape in tapes:
        tape.save(tmp_path)
    found = load_all(tmp_path)
    assert [tape.rank for tape in found] == [0, 2, 10]
    for read, wrote in zip(found, tapes[::-1], strict=True):
        assert (read.world_size, read.streams, read.facts) == (11, wrote.streams, wrote.facts)
        assert plain(read.start) == plain(wrote.start)
        assert len(read.steps) == 12
        for one, other in zip(read.steps, wrote.steps, strict=True):
            assert (one.delivered, one.facts) == (other.delivered, other.facts)
            assert plain(one.gradients) == plain(other.gradients)
            assert plain(one.parameters) == plain(other.parameters)


def test_the_last_file_of_a_record_appears_whole_and_after_the_other(tmp_path, monkeypatch):
    moved, rename = [], Path.rename

    def noted(path, target):
        moved.append((path.name, target.name, sorted(file.name for file in tmp_path.iterdir())))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    tape_of(3, steps=1).save(tmp_path)
    assert moved == [("3.json.part", "3.json", ["3.json.part", "3.npz"])]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3.json", "3.npz"]
    assert load_all(tmp_path / "nowhere") == []


def test_a_new_record_is_empty():
    one, other = Tape(0, 1), Tape(0, 1)
    assert (one.streams, one.start, one.steps, one.facts) == ({}, {}, [], {})
    one.streams["s"] = one.start["w"] = one.facts["f"] = 1
    one.steps.append(TapedStep({}, {}, {}))
    assert (other.streams, other.start, other.steps, other.facts) == ({}, {}, [], {})
    one.steps[0].facts["f"] = 1
    assert TapedStep({}, {}, {}).facts == {}
