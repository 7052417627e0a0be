"""Looks at one rank: the kind of a loss at its borders, refusals of a device, hooks, and the exchange of one rank."""

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.torch.agreement import agree, facts_of
from paceline.torch.exchange import Exchange
from paceline.torch.reports import COLUMNS
from paceline.torch.weighting import hooks
from paceline.torch.weighting.hooks import Only, ddp_of, drop_hook, take_hook, tensors_in, was_attached
from paceline.torch.weighting.loss_kind import SENTENCES, LossKind
from paceline.torch.weighting.refusal import Refusal

BORDER = {"mean": (0.25, 1), "sum": (0.25, -1), "scaled": (1.25, 1)}


def said_of(loss, beyond, error):
    """What is said of two ranks' norms on a line so many standard errors beyond the border, of this error."""
    border, side = BORDER[loss]
    half, steps, freedom = 0.5, 6, 5  # each step has a constant of its own, and one slope is common
    noise = math.sqrt((error**2 * freedom * 2 * steps * half**2 - 1e-3) / (2 * steps))
    kind, said, power = LossKind(loss), [], border + side * beyond * error
    for step in range(steps):
        rest = noise if step % 2 else -noise
        off = np.array([-half, half])
        said.append(kind.learn(3.0 * np.exp(off), power * off + rest * off / half + step))
    return said, kind.full


@pytest.mark.parametrize("loss", ["mean", "sum", "scaled"])
@pytest.mark.parametrize(
    ("beyond", "error", "warned"),
    [(2.99, 0.1, False), (3.01, 0.1, True), (9.0, 0.149, True), (9.0, 0.151, False), (-9.0, 0.1, False)],
)
def test_a_loss_is_wrong_from_three_standard_errors_beyond_its_border_on_and_only_where_those_are_small(
    loss, beyond, error, warned
):
    said, full = said_of(loss, beyond, error)
    assert said[:5] == [""] * 5, "six steps are needed"
    assert (said[5], full) == (SENTENCES[loss] if warned else "", warned)


def test_no_more_than_sixty_steps_are_looked_at_and_none_of_which_a_rank_has_no_samples():
    kind, sizes = LossKind("mean"), np.array([1.0, 16.0])
    assert (kind.looks, kind.full, kind.norms.logs) == (False, False, [])
    for number in range(60):
        assert not kind.full
        for samples, norms in [([0.0, 8.0], [1.0, 2.0]), ([8.0, 9.0], [-750.1, 1.0]), ([8.0, math.inf], [1.0, 2.0])]:
            kind.learn(np.array(samples), np.array(norms))
        kind.learn(sizes, np.array([-750.0 if number % 2 else 1.0, 750.0]))
    assert (kind.full, kind.wants(sizes)) == (True, False)


@pytest.mark.parametrize(("most", "wanted"), [(11, False), (12, True), (13, True)])
def test_batches_are_unequal_from_a_fifth_on(most, wanted):
    assert LossKind("mean").wants(np.array([most, 10, 11])) is wanted


def refusal_of_device(arriving, cause):
    done = []
    one = Refusal("g")
    assert (one.waits, one.error, one.step) == (False, None, 0)
    one._late = SimpleNamespace(
        under_way=False,
        fetch=lambda number: done.append(number.item()),
        take=lambda: arriving,
        forget=lambda: done.append("forgot"),
    )
    one.cause = lambda key="": done.append(key) or cause
    return one, done


def test_summed_gradients_of_a_device_are_looked_at_later_one_sum_at_a_time():
    one, done = refusal_of_device(math.nan, "no terms")
    one.step = 4
    one.look_later(torch.tensor([2.0, 5.0]))
    one._late.under_way, one.step = True, 5
    one.look_later(torch.tensor([3.0]))
    assert (done, one.waits) == ([2.0], True)
    with pytest.raises(RuntimeError, match="another rank refused an earlier step: no terms"):
        one.raise_of_device()
    assert done == [2.0, "paceline/g/4"]
    one._late.under_way = False
    one.look_later(torch.zeros(0))
    assert done[2:] == [0.0], "an empty bucket"


@pytest.mark.parametrize(("arriving", "cause"), [(None, "c"), (1.0, "c"), (math.nan, "")])
def test_what_a_device_sums_is_no_refusal_unless_it_is_no_number_and_a_rank_has_left_its_cause(arriving, cause):
    one, done = refusal_of_device(arriving, cause)
    one.raise_of_device()
    assert len(done) == (arriving is not None and math.isnan(arriving))


def test_an_error_is_raised_once_and_what_a_device_sums_says_nothing_more():
    one, done = refusal_of_device(None, "")
    one.raise_error()
    one.error = RuntimeError("wrong")
    with pytest.raises(RuntimeError, match="wrong"):
        one.raise_error()
    one.raise_error()
    assert (one.error, done) == (None, ["forgot"] * 3)


class Slotted:
    __slots__ = ("first", "never_set")

    def __init__(self, first):
        self.first = first


class Heir(Slotted):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


@pytest.mark.parametrize("depth", range(7))
@pytest.mark.parametrize("wrap", [lambda one: [one], lambda one: {"a": one}, Slotted])
def test_tensors_are_found_within_four_levels_below_the_first_container(depth, wrap):
    thing = held = torch.zeros(1)
    for _ in range(depth):
        thing = wrap(thing)
    assert [one is held for one in tensors_in(thing)] == [True] * (depth <= 5)


def test_tensors_are_found_in_order_in_objects_and_not_in_modules_classes_and_plain_values():
    first, second, third = (torch.zeros(1) for _ in range(3))
    found = tensors_in((first, Heir(second, {"x": third}), "text", b"raw", 1, 2.0, 3j, None))
    assert list(map(id, found)) == list(map(id, (first, third, second)))
    assert tensors_in(torch.nn.Linear(1, 1)) == tensors_in([torch.nn.Linear(1, 1)]) == []
    assert tensors_in(type("Kind", (), {"held": first})) == tensors_in(None) == tensors_in("text") == []
    assert tensors_in([first, [second]], 0) == [first]


def test_a_hook_is_run_by_its_module_alone_and_does_nothing_in_copies(monkeypatch):
    hidden, called = [], []
    monkeypatch.setattr(torch.compiler, "disable", lambda call: hidden.append(call) or call)
    hook = Only(lambda *of: called.append(of))
    hook(1, 2)
    for other in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert other(3, 4) is None
    assert (called, len(hidden)) == ([(1, 2)], 1)


def test_a_model_takes_one_weighting_at_a_time_and_no_hook_beside_it(alone):
    ddp, sums = DistributedDataParallel(torch.nn.Linear(2, 1)), []
    one, other = (SumsOf(sums, number) for number in (1, 2))
    assert (ddp_of(ddp), ddp_of(ddp.module), ddp_of(SimpleNamespace(_orig_mod=ddp))) == (ddp, None, ddp)
    assert not was_attached(ddp)
    take_hook(ddp, one)
    with pytest.raises(ValueError, match="the model is attached already"):
        take_hook(ddp, other)
    with pytest.raises(ValueError, match="balancing has given the model a communication hook, and Distributed"):
        ddp.register_comm_hook(None, None)
    ddp(torch.ones(3, 2)).sum().backward()
    drop_hook(ddp)
    assert was_attached(ddp)
    assert (hooks._slots[ddp].weighting(), sums) == (None, [1])
    ddp.zero_grad()
    ddp(torch.ones(3, 2)).sum().backward()
    assert ddp.module.weight.grad.tolist() == [[3.0, 3.0]]
    take_hook(ddp, other)
    ddp(torch.ones(3, 2)).sum().backward()
    assert sums == [1, 2]
    busy = DistributedDataParallel(torch.nn.Linear(2, 1))
    busy.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(ValueError, match="the model already has a communication hook, and Distributed"):
        take_hook(busy, one)
    assert not was_attached(busy)


class SumsOf:
    """Sums gradients of one rank, and notes that it did."""

    def __init__(self, sums, number):
        self.sums, self.number = sums, number

    def hook(self, bucket, group):
        self.sums.append(self.number)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


@pytest.mark.parametrize("timeout", [None, 7.0])
def test_an_exchange_of_one_rank_gathers_its_own_reports_each_in_an_array_of_its_own(alone, monkeypatch, timeout):
    new, made = dist.new_group, []
    monkeypatch.setattr(dist, "new_group", lambda ranks, **of: made.append((ranks, of)) or new(ranks, **of))
    exchange = Exchange(dist.group.WORLD, timeout)
    ((ranks, options),) = made
    assert (ranks, options["backend"], options["use_local_synchronization"]) == ([0], "gloo", False)
    assert (options["timeout"].total_seconds() if timeout else options["timeout"]) == timeout
    assert (exchange.rank, exchange.world_size, exchange.timeout, exchange.under_way) == (0, 1, timeout, False)
    exchange.send([1.0, 2.0])
    assert exchange.under_way
    first = exchange.receive()
    assert (first.tolist(), exchange.under_way) == ([[1.0, 2.0]], False)
    exchange.send([3.0, math.nan])
    second = exchange.receive()
    assert (first.tolist(), second[0, 0], math.isnan(second[0, 1])) == ([[1.0, 2.0]], 3.0, True)
    with pytest.raises(AssertionError, match="receive follows send"):
        exchange.receive()
    assert exchange.gather({"a": "ä"}) == [{"a": "ä"}]
    assert exchange.from_first({"x": np.ones(2)})["x"].tolist() == [1.0, 1.0]
    exchange.send([5.0, 6.0])
    exchange.close()
    assert (exchange.under_way, hasattr(exchange, "group")) == (False, False)
    vars(exchange)["group"] = "gone"
    exchange.close()


def test_ranks_compare_all_that_plans_depend_on(monkeypatch):
    loader = SimpleNamespace(settings=lambda: {"seed": 3, "batch": 8}, position=(1, 2), rank=0, world_size=1)
    facts_of_kind = {"state_dict": lambda one: {"a": np.ones(2)}, "covariate_names": ("gpu",)}
    kind = type("Kind", (), {"__repr__": lambda one: f"<Kind at {hex(id(one))}>", **facts_of_kind})
    facts, again = (facts_of(loader, kind(), Policy(), "mean", 2.5) for _ in range(2))
    assert facts == again, "no address of an object"
    assert facts["predictor"].startswith("<Kind> with state ")
    assert len(facts["predictor"].rpartition(" ")[2]) == 16
    assert {name: facts[name] for name in facts if name not in ("version of paceline", "predictor")} == {
        "seed of the loader": "3",
        "batch of the loader": "8",
        "place in the data": "(1, 2)",
        "policy": repr(Policy()),
        "loss": "mean",
        "timeout": "2.5",
        "covariates": "['gpu']",
        "columns of a report": str(list(COLUMNS)),
    }
    told = []
    exchange = SimpleNamespace(rank=0, world_size=1, gather=lambda own: told.append(own) or [own])
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    for local, name in (("3", "host:3"), (None, "host:0")):
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local:
            monkeypatch.setenv("LOCAL_RANK", local)
        assert agree(exchange, loader, facts, None) == (name,)
    assert agree(exchange, loader, facts, [7]) == ("7",)
    assert [one["facts"]["names of the workers"] for one in told] == ["None", "None", "['7']"]
