"""A training that goes on from its checkpoint takes the steps that it would have taken, to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.neural import Training

torch = pytest.importorskip("torch", reason="needs the torch extra")

from test_descent import collected, trained  # noqa: E402 - it needs torch

from paceline.predictors.networks import descent  # noqa: E402 - it imports torch
from paceline.predictors.networks.checkpoint import Saved  # noqa: E402 - it imports torch

TRAINING = Training(epochs=4, patience=3, batch_size=4, learning_rate=0.5, weight_decay=0.2)


class StopHereError(Exception):
    pass


@pytest.fixture(autouse=True)
def tell_every_batch(monkeypatch):
    monkeypatch.setattr(descent, "TOLD_EVERY", 0.0)


def stopping(moments, batches):
    """Return a function that notes progress, and ends the training in this batch."""

    def tell(moment):
        if len(moments) == batches + 1:
            raise StopHereError
        moments.append(moment)

    return tell


@pytest.mark.parametrize("memory", [10**6, 120], ids=["one shard", "shards"])
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.slow
def test_wherever_a_training_is_ended_it_goes_on_to_the_same_weights_and_losses(tmp_path, memory, augmented):
    windows, whole = collected(memory=memory), []
    weights = trained(windows, TRAINING, Fitting(tell=whole.append), augmented)
    batches = len(whole) - 1
    for ended in (1, batches // 4, batches // 2 + 1, batches):
        fitting = Fitting(folder=tmp_path / str(ended), checkpoint_seconds=0.0, identity="one")
        before, after = [], []
        if ended < batches:
            with pytest.raises(StopHereError):
                trained(windows, TRAINING, replace(fitting, tell=stopping(before, ended)), augmented)
        else:
            trained(windows, TRAINING, replace(fitting, tell=before.append), augmented)
        # Other weights to begin with, of which nothing is left.
        again = trained(windows, TRAINING, replace(fitting, tell=after.append), augmented, begin=(9.0, 9.0, 9.0))
        np.testing.assert_array_equal(again, weights)
        if ended == batches:
            assert after == []
            continue
        begins, *rest = after
        assert (begins.stage, begins.done, begins.total) == ("training", before[-1].done, whole[0].total)
        for name in ("done", "total", "loss", "held_out"):
            assert [getattr(m, name) for m in rest] == [getattr(m, name) for m in whole[ended + 1 :]], name


@pytest.mark.slow
def test_a_rate_counts_only_what_was_done_since_it_went_on(tmp_path, monkeypatch):
    """The clock moves by a second whenever it is asked: at the begin, and in every batch."""
    ticks = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    fitting = Fitting(folder=tmp_path, checkpoint_seconds=0.0)
    windows, told = collected(), []
    with pytest.raises(StopHereError):
        trained(windows, TRAINING, replace(fitting, tell=stopping([], 4)))
    trained(windows, TRAINING, replace(fitting, tell=told.append))
    assert np.isnan(told[0].rate)
    rates = [(moment.done - told[0].done) / (k + 1) for k, moment in enumerate(told[1:])]
    assert [moment.rate for moment in told[1:]] == pytest.approx(rates)


@pytest.mark.parametrize(("every", "expected"), [(3.0, [3, 6, 9, 12, 15, 18, 20]), (100.0, [20]), (7.0, [7, 14, 20])])
def test_a_checkpoint_is_written_whenever_its_time_has_passed_and_at_the_end(tmp_path, monkeypatch, every, expected):
    """Each batch takes a second, a pass has five; the batches after which one was written are noted."""
    passed, written = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    save = Saved.save

    def noted(self, at, *others):
        written.append(int(passed[0]))
        save(self, at, *others)

    def tell(moment):
        passed[0] += moment.done > 0

    monkeypatch.setattr(Saved, "save", noted)
    training = replace(TRAINING, patience=4)
    trained(collected(), training, Fitting(folder=tmp_path, checkpoint_seconds=every, tell=tell))
    assert written == expected


def test_a_checkpoint_that_is_due_at_the_end_of_a_pass_alone_is_written_there(tmp_path, monkeypatch):
    """The loss on the windows that validate takes longest here: the last batch is not due, the pass is."""
    passed, written = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: passed[0])
    save, agreed = Saved.save, descent._Descent._agreed_loss

    def judged(self):
        passed[0] += 10.0
        return agreed(self)

    monkeypatch.setattr(descent._Descent, "_agreed_loss", judged)
    monkeypatch.setattr(
        Saved, "save", lambda self, at, *rest: written.append((at.epoch, at.batch)) or save(self, at, *rest)
    )
    trained(collected(), replace(TRAINING, patience=4), Fitting(folder=tmp_path, checkpoint_seconds=10.0))
    # Due at once: the loss of the start took so long.
    assert written == [(0, 1), (1, 0), (2, 0), (3, 0), (4, 0)]


def test_without_a_folder_nothing_is_written_and_nothing_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(collected(), TRAINING, Fitting(checkpoint_seconds=0.0))
    assert list(tmp_path.iterdir()) == []
