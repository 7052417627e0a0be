"""Forward passes of a model are seen once each, with their batch, and backward passes find those behind them."""

import copy
from types import SimpleNamespace

import pytest
import torch
from lone_weighting import Listener, turn_of

from paceline.torch.weighting import weighting as module
from paceline.torch.weighting.graph import behind
from paceline.torch.weighting.weighting import Weighting


class Model(torch.nn.Module):
    """A model that may call itself, or fail."""

    def __init__(self):
        super().__init__()
        self.inside, self.again, self.fails = torch.nn.Linear(2, 1), False, False

    def forward(self, inputs, *, scale=1.0):
        if self.fails:
            raise ArithmeticError
        if self.again:
            self.again = False
            return self(inputs)
        return self.inside(inputs) * scale


@pytest.fixture
def job():
    exchange = SimpleNamespace(group=SimpleNamespace(group_name="g"), world_size=2)
    model, listener = Model(), Listener(loss="scaled")
    weighting = Weighting(model, listener, exchange)
    yield SimpleNamespace(model=model, listener=listener, weighting=weighting, inputs=torch.ones(4, 2))
    weighting.close()


def given(job):
    return job.listener.called.count("given")


def test_a_pass_with_gradients_is_looked_at_given_its_batch_and_noted(job):
    output = job.model(job.inputs)
    assert job.listener.called == [("look", 1, []), "given", ("noted", job.listener.turn, 1, 1)]
    job.listener.called.clear()
    job.model(job.inputs, scale=2.0)
    assert job.listener.called == [("look", 1, ["scale"]), "given", ("noted", job.listener.turn, 2, 1)]
    one = job.weighting._pass
    assert (one.turn, one.owner(), one.begin < one.end) == (job.listener.turn, job.weighting, True)
    assert len(behind([output])) == 1


def test_passes_without_gradients_of_copies_and_within_one_another_are_not_seen(job):
    with torch.no_grad():
        job.model(job.inputs)
    copied = copy.deepcopy(job.model)
    copied(job.inputs)
    copied.register_forward_pre_hook(job.weighting._before_forward, with_kwargs=True)
    copied.register_forward_hook(job.weighting._after_forward, with_kwargs=True)
    copied(job.inputs)
    assert job.listener.called == []
    job.model.again = True
    job.model(job.inputs)
    assert [one if isinstance(one, str) else one[0] for one in job.listener.called] == ["look", "given", "noted"]
    job.model.fails = True
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            job.model(job.inputs)
    job.model.fails = False
    job.listener.called.clear()
    job.model(job.inputs)
    assert given(job) == 1, "after errors too"


def test_a_pass_in_evaluation_mode_gets_its_batch_once_gradients_are_computed(job):
    job.model.eval()
    output = job.model(job.inputs)
    assert given(job) == 0
    output.sum().backward()
    assert given(job) == 1
    job.model(job.inputs)
    job.weighting.trains()
    job.weighting.trains()
    assert given(job) == 2
    assert job.weighting.settle(job.weighting._pass) is job.listener.turn
    job.weighting._pass = None
    job.weighting.trains()
    assert given(job) == 2


@pytest.mark.parametrize("features", [(), (3.0,)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_recorder_is_told_the_work_of_a_batch_whose_samples_have_costs(job, monkeypatch, features, wrapped):
    told = []
    monkeypatch.setattr(module, "tell", told.append)
    job.weighting._ddp = SimpleNamespace() if wrapped else None
    job.listener.turn = turn_of(0.5, features=features)
    job.model(job.inputs)
    job.weighting._ddp = None
    assert told == ([2.5] if features and wrapped else [])


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_batch_without_samples_gives_no_gradient_that_is_not_a_number(job, share):
    job.listener.turn = turn_of(share)
    (job.model(job.inputs).sum() * torch.nan).backward()
    assert bool(job.model.inside.bias.grad.isnan().any()) == bool(share)


def test_gradients_were_summed_since_an_optimizers_last_step_or_not(job):
    first, second = (torch.optim.SGD(job.model.parameters(), 0.1) for _ in range(2))
    assert job.weighting.summed_for(first), "nothing sums it"
    job.weighting._ddp = "wrapped"
    assert not job.weighting.summed_for(second)
    job.weighting.sums = 1
    assert [job.weighting.summed_for(one) for one in (first, first, second, second)] == [True, False, True, False]
    job.weighting._ddp = None


def test_after_it_was_closed_nothing_is_seen(job):
    job.weighting.close()
    job.model(job.inputs).sum().backward()
    assert job.listener.called == []
