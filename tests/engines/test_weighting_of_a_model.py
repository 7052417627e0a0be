"""The hooks on one model: which module they are on, in which order they run, and what is left once they are off."""

import math
from types import SimpleNamespace

import pytest
import torch
from lone_weighting import Listener, turn_of
from torch.nn.parallel import DistributedDataParallel

from paceline.torch.exchange import LostRankError
from paceline.torch.weighting import graph, hooks
from paceline.torch.weighting.weighting import Weighting, _divide

EXCHANGE = SimpleNamespace(group=SimpleNamespace(group_name="g"), world_size=1, lost=LostRankError)


class Pair(torch.nn.Module):
    """A layer, and a number that has no gradient."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, rows):
        return self.layer(rows), torch.ones(1)


@pytest.fixture
def weighted():
    made = []

    def make(model, **options):
        made.append(Weighting(model, Listener(**options), EXCHANGE))
        return made[-1]

    yield make
    for one in made:
        if one in graph._owners:
            one.close()


def test_the_module_inside_is_looked_at_and_a_compiled_wrapper_from_outside(alone, weighted):
    models = [DistributedDataParallel(torch.nn.Linear(2, 1)) for _ in range(2)]
    compiled, plain = torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.nn.Linear(2, 1)
    object.__setattr__(compiled, "_orig_mod", models[1])
    first, second, third = (weighted(one) for one in (models[0], compiled, plain))
    assert first._inside is models[0].module
    assert second._inside is compiled
    assert third._inside is plain
    assert [one.alone for one in (first, second, third)] == [False] * 3
    for one in (first, second, third):
        assert one in graph._owners
        one.close()
        assert one not in graph._owners
    assert [hooks._slots[one].weighting() for one in models] == [None, None]
    models[0].module(torch.ones(1, 2))
    assert first.listener.called == []


@pytest.mark.parametrize(("outside", "inside"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_model_trains_if_it_or_the_one_inside_does(alone, weighted, outside, inside):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    weighting = weighted(model)
    model.train(outside)
    model.module.train(inside)
    model.module(torch.ones(1, 2))
    assert ("given" in weighting.listener.called) == (outside or inside)
    assert weighting._pass.begin < weighting._pass.end < math.inf


def test_the_hook_before_a_pass_runs_before_others_and_none_runs_without_gradients(weighted):
    model, seen = Pair(), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(list(weighting.listener.called)))
    weighting = weighted(model)
    model(torch.ones(1, 2))
    assert seen == [[("look", 1, []), "given"]]
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert len(weighting.listener.called) == 3
    assert weighting.listener.called[2][0::2] == ("noted", 1)
    assert weighting.listener.called[2][3] == 2


@pytest.mark.parametrize(("share", "summed", "zero"), [(0.0, False, True), (0.0, True, False), (0.5, False, False)])
def test_a_mean_over_no_terms_does_not_reach_gradients_that_others_sum(weighted, share, summed, zero):
    model = Pair()
    weighting = weighted(model)
    weighting.listener.turn = turn_of(share)
    weighting._ddp = SimpleNamespace() if summed else None
    made, _ = model(torch.ones(1, 2))
    weighting._ddp = None
    weighting._unwatch()
    (made.sum() * math.nan).backward()
    assert model.layer.weight.grad.isnan().any() != zero


def test_a_model_takes_its_own_parameters(weighted):
    weighting = weighted(Pair())
    assert weighting.takes([torch.ones(1), weighting.model.layer.bias])
    assert not weighting.takes([torch.ones(1)])
    assert not weighting.takes([])


def test_gradients_were_summed_for_an_optimizer_since_its_own_last_step(weighted):
    weighting = weighted(Pair())
    one, other = (torch.optim.SGD(weighting.model.parameters(), 0.1) for _ in range(2))
    assert weighting.summed_for(one), "nothing sums a model alone"
    weighting._ddp = SimpleNamespace()
    found = [weighting.summed_for(one)]
    weighting.sums = 1
    found += [weighting.summed_for(one), weighting.summed_for(one), weighting.summed_for(other)]
    weighting._ddp = None
    assert found == [False, True, False, True]


def test_on_a_device_the_sum_of_weights_is_not_read_but_divided_by():
    waited, least = [], []
    share = SimpleNamespace(is_cuda=True, clamp_=lambda **of: least.append(of) or [4.0, 9.0])
    total = torch.tensor([8.0, 2.0])
    _divide(total, share, SimpleNamespace(wait=lambda: waited.append(1)))
    assert (total.tolist(), waited, least) == ([2.0, 0.5], [1], [{"min": 1e-30}])
    for weight, expected in ((1.0 + 1e-10, 8.0), (2.0, 4.0), (0.0, 8e30)):
        total = torch.tensor([8.0])
        _divide(total, torch.tensor([weight], dtype=torch.float64), SimpleNamespace(wait=lambda: waited.append(1)))
        assert total.tolist() == pytest.approx([expected])
    assert waited == [1] * 4
