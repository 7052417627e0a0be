"""What is looked at before an optimizer steps, with stand-ins for the weightings of its models."""

import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.torch import checked
from paceline.torch import optimizers as optimizers
from paceline.torch.checked import apart, living, of_the_process
from paceline.torch.optimizers import BESIDE, BY_HAND, STEP_ALONE, Optimizers


class Told:
    """A model of one layer, what its weighting says, and what is asked of it."""

    def __init__(self, *, loss="mean", weights_loss=True, counts_all=False, uneven=True, **facts):
        self.said, self.asked = [], []
        listener = SimpleNamespace(loss=loss, weights_loss=weights_loss, warn=lambda *of: self.said.append(of))
        self.model = torch.nn.Linear(2, 1)
        refusal = SimpleNamespace(error=facts.get("error"), waits=facts.get("waits", False))
        refusal.raise_error = lambda: self.asked.append("error")
        refusal.raise_of_device = lambda: self.asked.append("device")
        self.weighting = SimpleNamespace(
            refusal=refusal,
            model=self.model,
            in_backward=facts.get("in_backward", False),
            alone=facts.get("alone", False),
            summed_for=lambda optimizer: self.asked.append("summed") or facts.get("summed", True),
        )
        self.checks = Optimizers(listener, [self.weighting], counts_all=counts_all, uneven=uneven)

    def step(self, kind=torch.optim.SGD, model=None, *, closure=False, gradients=True):
        """Check a step of an optimizer of this kind, and return it."""
        parameters = list((model or self.model).parameters())
        for one in parameters:
            one.grad = torch.ones_like(one) if gradients else None
        optimizer = kind(parameters, lr=0.1)
        self.checks.before_step(optimizer, closure=closure)
        return optimizer


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    """How often the process was looked at, and for what."""
    found = []
    monkeypatch.setattr(optimizers, "of_the_process", lambda models, **of: found.append((models, of)) or ["process"])
    monkeypatch.setattr(optimizers, "living", lambda kind: [])
    return found


@pytest.mark.parametrize("error", [None, "e"])
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_an_error_is_raised_once_gradients_are_computed_and_a_device_is_asked_while_it_may_tell(
    error, in_backward, waits
):
    told = Told(error=error, in_backward=in_backward, waits=waits)
    told.step()
    expected = ["error"] * bool(error and not in_backward) + ["device"] * waits + ["summed"]
    assert told.asked == expected
    told.asked.clear()
    told.step(closure=True)
    assert told.asked == expected[:-1], "its gradients are to come"


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_steps_on_gradients_of_one_rank_are_refused_where_they_are_of_the_model(own, gradients, closure):
    told, accepted = Told(alone=True, summed=False), []
    told.checks.accepted = lambda: accepted.append(1)
    step = lambda: told.step(model=None if own else torch.nn.Linear(2, 1), gradients=gradients, closure=closure)  # noqa: E731
    if own and gradients and not closure:
        with pytest.raises(RuntimeError) as refused:
            step()
        assert str(refused.value) == STEP_ALONE
    else:
        step()
        assert not any(about == "by hand" for about, _ in told.said)
    assert accepted == [1]
    told = Told()
    told.checks.accepted = lambda: (_ for _ in ()).throw(KeyError("refused"))
    with pytest.raises(KeyError):
        told.step()


@pytest.mark.parametrize(
    ("loss", "weights_loss", "averages"),
    [("mean", True, False), ("sum", True, False), ("sum", False, True), ("scaled", False, False)],
)
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_gradients_that_nobody_summed_are_said_unless_batches_are_equal_or_averages_are_meant(
    loss, weights_loss, averages, uneven, summed, looks
):
    told = Told(loss=loss, weights_loss=weights_loss, uneven=uneven, summed=summed)
    told.step()
    said = [("by hand", BY_HAND)] * (uneven and not summed and not averages)
    assert told.said == said + [("process", "process")] * (uneven and weights_loss)
    told.said.clear()
    told.step(gradients=False)
    told.step(model=torch.nn.Linear(2, 1), closure=True)
    assert not any(about == "by hand" for about, _ in told.said)
    assert all(of == {"averages": averages, "counts_all": False} for _, of in looks)


def test_an_optimizer_that_chooses_its_step_by_the_loss_is_refused_for_gradients_of_the_model():
    told = Told()
    with pytest.raises(RuntimeError, match="LBFGS chooses its step by the loss of each rank's own batch"):
        told.step(torch.optim.LBFGS, closure=True)
    told.step(torch.optim.LBFGS, model=torch.nn.Linear(2, 1), closure=True)
    told.step(torch.optim.LBFGS, gradients=False)


def test_the_process_is_looked_at_once_for_each_optimizer(looks):
    told = Told(counts_all=True)
    first = told.step()
    told.checks.before_step(first, closure=False)
    assert looks == [((told.model,), {"averages": False, "counts_all": True})]
    told.step()
    assert (len(looks), told.said) == (2, [("process", "process")] * 2)
    told.checks.look_at_process()
    assert len(looks) == 3
    assert told.checks.models == (told.model,)


def test_parameters_of_nobody_are_said_by_number_and_shape_of_the_first(monkeypatch):
    told, other, summed = Told(), torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    monkeypatch.setattr(optimizers, "living", lambda kind: [summed])
    told.said.clear()
    both = torch.nn.ModuleList([told.model, summed])
    told.step(model=both)
    assert told.said == [("process", "process")]
    told.step(model=torch.nn.ModuleList([both, other]))
    sentence = BESIDE.format(names="2 parameters (such as one of shape [2, 3])")
    assert told.said[2:] == [(sentence, sentence)]


def test_all_steps_are_looked_at_until_that_is_ended_or_nobody_holds_the_checks(request):
    told, seen = Told(), []
    told.checks.before_step = lambda optimizer, closure: seen.append(closure)
    stop = told.checks.watch()
    request.addfinalizer(stop)
    optimizer = torch.optim.SGD(told.model.parameters(), 0.1)
    optimizer.step()
    optimizer.step(lambda: 0.0)
    optimizer.step(closure=lambda: 0.0)
    assert seen == [False, True, True]
    stop()
    optimizer.step()
    assert len(seen) == 3
    checks = Optimizers(SimpleNamespace(loss="mean", weights_loss=True), [], counts_all=False)
    assert checks.uneven is False
    stop, kept = checks.watch(), weakref.ref(checks)
    del checks
    assert kept() is None
    optimizer.step()
    stop()


def test_ranks_are_at_one_place_of_the_data_by_epoch_and_batch_alone():
    same = apart("ab", np.array([[1.0, 7.0, 3.0], [1.0, 7.0, 4.0]]))
    assert apart("a", np.array([[1.0, 7.0, 3.0]])) == same
    assert same.startswith("the ranks had different samples by batch 7 of epoch 1. The cause is a sampler=")
    other = apart("ab", np.array([[1.0, 7.0], [1.0, 6.0]]))
    assert "same place of the data: a is at batch 7 of epoch 1, b is at batch 6 of epoch 1. Every rank" in other
    assert "a is at batch 7 of epoch 1, b is at batch 7 of epoch 2" in apart("ab", np.array([[1.0, 7.0], [2.0, 7.0]]))


@pytest.mark.parametrize(
    ("averages", "trains", "gradient", "attached", "before", "said"),
    [
        (False, True, True, False, False, True),
        (True, True, True, False, False, False),
        (False, False, True, False, False, False),
        (False, True, False, False, False, False),
        (False, True, True, True, False, False),
        (False, True, True, False, True, False),
    ],
)
def test_a_further_model_is_said_if_it_trains_and_was_never_attached(
    monkeypatch, averages, trains, gradient, attached, before, said
):
    other = torch.nn.Sequential(torch.nn.Linear(2, 1))
    other.module = other[0]
    other.train(trains)
    other[0].bias.grad = torch.zeros(1) if gradient else None
    monkeypatch.setattr(checked, "living", lambda kind: [other])
    monkeypatch.setattr(checked, "ddp_of", lambda model: model)
    monkeypatch.setattr(checked, "was_attached", lambda ddp: before)
    found = list(of_the_process([other] if attached else [torch.nn.Linear(1, 1)], averages=averages, counts_all=False))
    assert [one[:64] for one in found] == ["A further model in DistributedDataParallel (Linear) trains in th"] * said


@pytest.mark.parametrize("counts_all", [False, True])
@pytest.mark.parametrize("split", [[], [True], [True, False]])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_scheduler_of_one_rank_is_said_where_batches_of_all_ranks_count(monkeypatch, counts_all, split, loaded):
    kind = type("AcceleratedScheduler", (), {})
    held = [kind() for _ in split]
    for one, splits in zip(held, split, strict=True):
        one.split_batches = splits
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", SimpleNamespace(AcceleratedScheduler=kind))
    if not loaded:
        monkeypatch.delitem(sys.modules, "accelerate.scheduler")
    monkeypatch.setattr(checked, "living", lambda of: held if of is kind else [])
    found = list(of_the_process([], averages=True, counts_all=counts_all))
    assert [one[:33] for one in found] == ["Accelerate steps a prepared sched"] * (
        counts_all and loaded and False in split
    )


def test_what_lives_is_of_the_very_class():
    kind = type("Kind", (), {})
    one, _heir = kind(), type("Heir", (kind,), {})()
    assert living(kind) == [one]
