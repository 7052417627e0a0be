"""A checkpoint holds all that the rest of a training depends on, and is of one training only."""

from dataclasses import fields
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")

from paceline.predictors.networks import checkpoint, processes  # noqa: E402 - they import torch
from paceline.predictors.networks.checkpoint import COUNTS, Position, Saved  # noqa: E402 - it imports torch


def parts(seed=0):
    """Return weights, an optimiser after some steps, its schedule, and a generator that has drawn."""
    generator = torch.Generator().manual_seed(seed)
    weights = {n: torch.randn(shape, generator=generator).requires_grad_() for n, shape in (("w", (3, 2)), ("b", ()))}
    optimiser = torch.optim.AdamW(weights.values(), lr=0.1 + seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=9)
    for _ in range(seed + 1):
        optimiser.zero_grad()
        sum((weight**2).sum() for weight in weights.values()).backward()
        optimiser.step()
        schedule.step()
    return weights, optimiser, schedule, generator


def position(**changes):
    generator = torch.Generator().manual_seed(5)
    states = {"epoch_state": generator.get_state(), "shard_state": torch.Generator().manual_seed(6).get_state()}
    told = {"epoch": 3, "shard": 2, "batch": 7, "windows": 40, "waited": 1, "best_loss": 1.0 / 3.0}
    return Position(**{**told, "begun": True, "finished": False, **states, **changes})


@pytest.mark.parametrize("changes", [{}, {"begun": False, "finished": True}, {"best_loss": float("inf")}])
def test_what_is_loaded_is_what_was_saved(tmp_path, changes):
    at, best = position(**changes), {"w": np.arange(6.0).reshape(3, 2) / 7.0, "b": np.array(0.1)}
    saved = parts(seed=2)
    Saved(tmp_path / "a" / "b", "one", 60.0).save(at, best, *saved)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["training.safetensors"]
    loaded = parts(seed=0)
    loaded[1].state.clear()
    found, weights = Saved(tmp_path / "a" / "b", "one", 60.0).load(*loaded)
    for field in fields(Position):
        one, other = getattr(found, field.name), getattr(at, field.name)
        assert type(one) is type(other)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert list(weights) == ["w", "b"]
    for name in weights:
        np.testing.assert_array_equal(weights[name], best[name])
        assert torch.equal(loaded[0][name], saved[0][name])
        mine, theirs = loaded[1].state[loaded[0][name]], saved[1].state[saved[0][name]]
        assert sorted(mine) == sorted(theirs) == ["exp_avg", "exp_avg_sq", "step"]
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert loaded[1].param_groups[0]["lr"] == saved[1].param_groups[0]["lr"]
    assert loaded[2].last_epoch == 3
    assert loaded[2].get_last_lr() == saved[2].get_last_lr()
    assert torch.equal(loaded[3].get_state(), saved[3].get_state())
    saved[2].step(), loaded[2].step()
    assert loaded[2].get_last_lr() == saved[2].get_last_lr()


def test_a_position_begins_with_nothing_done_and_moves_to_the_next_epoch():
    start = Position()
    assert [getattr(start, name) for name in COUNTS] == [0, 0, 0, 0, 0, False, False]
    assert (start.epoch_state.numel(), start.shard_state.numel()) == (0, 0)
    assert start.epoch_state.dtype == start.shard_state.dtype == torch.uint8
    assert start.best_loss == float("inf")
    at = position()
    at.next_epoch(4)
    assert [getattr(at, name) for name in COUNTS] == [4, 0, 0, 0, 4, False, False]
    assert at.best_loss == 1.0 / 3.0


def test_a_checkpoint_of_the_very_start_can_be_loaded(tmp_path):
    """Before the first batch no order was drawn: there is no state to keep of it."""
    weights, optimiser, schedule, generator = parts()
    Saved(tmp_path, "one", 60.0).save(Position(), {"w": np.zeros(2), "b": np.zeros(())}, *parts())
    at, _ = Saved(tmp_path, "one", 60.0).load(weights, optimiser, schedule, generator)
    assert (at.epoch_state.numel(), at.shard_state.numel()) == (0, 0)


def test_only_the_first_of_several_processes_writes_and_all_wait_until_the_next_is_due(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    one = Saved(tmp_path, "one", 60.0)
    now[0] = 70.0
    monkeypatch.setattr(processes, "rank", lambda: 1)
    assert one.due()
    one.save(position(), {}, *parts())
    assert not one.due()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(processes, "rank", lambda: 0)
    one.save(position(), {}, *parts())
    assert (tmp_path / "training.safetensors").exists()


def test_what_a_killed_process_left_of_a_checkpoint_is_removed(tmp_path):
    (tmp_path / ".training.safetensors.paceline-abc").write_bytes(b"half")
    Saved(tmp_path, "one", 60.0)
    assert list(tmp_path.iterdir()) == []


def test_there_is_nothing_to_load_where_none_was_written(tmp_path):
    assert Saved(tmp_path, "one", 60.0).load(*parts()) is None
    assert Saved(None, "one", 60.0).load(*parts()) is None


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    Saved(tmp_path, "one", 60.0).save(position(), {"w": np.zeros(2), "b": np.zeros(())}, *parts())
    sentence = (
        r"training\.safetensors: is the checkpoint of another fit: other traces, another predictor or other options; "
        "name another folder, or remove this one to begin again$"
    )
    with pytest.raises(ValueError, match=sentence):
        Saved(tmp_path, "other", 60.0).load(*parts())


def foreign(path, metadata):
    from safetensors.torch import save_file

    save_file({"weights/w": torch.zeros(1)}, path, metadata=metadata)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda path: path.write_bytes(b""), ".+"),
        (lambda path: path.mkdir(), ".+"),
        (partial(foreign, metadata=None), "'fit'"),
        (partial(foreign, metadata={"other": "x"}), "'fit'"),
        (partial(foreign, metadata={"fit": "no json"}), "Expecting value.*"),
    ],
)
def test_what_is_no_checkpoint_is_named_with_why(tmp_path, write, why):
    write(tmp_path / checkpoint.FILE)
    expected = rf"training\.safetensors: is no checkpoint of a fit \({why}\); remove it to begin again$"
    with pytest.raises(ValueError, match=expected):
        Saved(tmp_path, "one", 60.0).load(*parts())
