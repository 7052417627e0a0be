"""What an audit changes of this library's own loaders: sizes, orders, streams, and what loaders hand out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.inside.balanced import (
    LOOKED_AT,
    Mixed,
    MixedStream,
    Restless,
    candidates,
    delivering,
    watch_balanced,
)
from paceline.audit.tape import Tape
from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.coordinator.balanced.policy import Policy
from paceline.engines.torch.loading.assigner import EpochAssigner
from paceline.engines.torch.loading.balanced_loader import BalancedLoader
from paceline.engines.torch.streaming.drawn import StreamAssigner
from paceline.engines.torch.streaming.stream_loader import StreamLoader


def changed(**plan):
    """The changes by the class whose start they change, and the recorder that is told."""
    made, watched, handed = {}, [], []
    balanced = BalancedRun(**plan) if plan else None
    recorder = SimpleNamespace(
        plan=AuditPlan(balanced=balanced),
        tape=Tape(0, 2),
        watch=watched.append,
        watched=watched,
        handed=handed,
        handed_out=handed.append,
        delivered=lambda batch: ("delivered", batch),
    )
    patches = SimpleNamespace(recorder=recorder, replace=lambda owner, name, make: made.update({owner: make}))
    watch_balanced(patches)
    return made, recorder


@pytest.mark.parametrize("policy", [None, Policy(warmup=7, change_cost=0.5, risk=0.25, batch_multiple=8)])
def test_sizes_are_equal_for_ever_or_follow_restless_speeds_at_once(policy):
    seen = []

    def before(balancer, predictor, **options):
        seen.append((balancer, predictor, options))

    options = {"workers": ["a"], **({} if policy is None else {"policy": policy})}
    own = policy or Policy()
    for plan in ({}, {"seed": 1}, {"uneven": True}):
        made, _ = changed(**plan)
        made[LoadBalancer](before)("self", "predictor", **options)
    for balancer, predictor, given in seen[:2]:
        assert (balancer, predictor, given["workers"]) == ("self", "predictor", ["a"])
        assert given["policy"] == type(own)(**{**vars(own), "warmup": 10**9})
    balancer, predictor, given = seen[2]
    assert (balancer, type(predictor), given["workers"]) == ("self", Restless, ["a"])
    free = {"warmup": 0, "change_cost": 0.0, "risk": 0.0, "batch_multiple": 1}
    assert given["policy"] == type(own)(**{**vars(own), **free})


def loader_of(kind, made, **attributes):
    """A loader of a kind whose start only notes what it was given."""
    given = []

    def before(loader, dataset, *arguments, **options):
        given.append((dataset, arguments, options))
        vars(loader).update(attributes)

    class Loader(kind):
        __init__ = made[kind](before)
        world_size, accumulate, global_batch, length = 2, 1, 8, 6

        def __len__(self):
            return self.length

    return Loader, given


def test_orders_are_mixed_in_blocks_of_a_step_where_their_number_is_fixed():
    seen = []

    def before(assigner, order, rule, *arguments, **options):
        seen.append((assigner, order, rule, arguments, options))

    made, _ = changed(seed=3)
    rule, data = SimpleNamespace(samples=8), [torch.ones(1)] * 3
    make = made[EpochAssigner](before)
    for accumulate, costs, block in ((1, None, 8), (3, None, 24), (2, SimpleNamespace(global_tokens=None), 16)):
        options = {} if accumulate == 1 else {"accumulate": accumulate}
        loader, _ = loader_of(BalancedLoader, made)
        loader(data, 8, **options, **({} if costs is None else {"costs": costs}))
        make("self", "order", rule, 1, rank=2)
        assigner, order, same, arguments, given = seen.pop()
        assert (assigner, same, arguments, given) == ("self", rule, (1,), {"rank": 2})
        assert type(order) is Mixed
        assert (order.order, order.block, order.plan) == ("order", block, BalancedRun(seed=3))
    loader, _ = loader_of(BalancedLoader, made)
    loader(data, 8, costs=SimpleNamespace(global_tokens=100))
    make("self", "order", rule)
    assert seen.pop()[1] == "order", "steps have different numbers of samples"


@pytest.mark.parametrize(("window", "plan", "seed"), [(1, {"seed": 5}, 5), (1, {}, 0), (2, {"seed": 5}, None)])
def test_a_stream_is_mixed_unless_it_is_sorted_within_a_window(window, plan, seed):
    seen = []
    made, _ = changed(**plan)
    make = made[StreamAssigner](lambda *given: seen.append(given))
    make("self", "stream", SimpleNamespace(samples=8), 1, "costs", window, 9)
    ((assigner, stream, _, *rest),) = seen
    assert (assigner, rest) == ("self", [1, "costs", window, 9])
    if seed is None:
        assert stream == "stream"
    else:
        assert type(stream) is MixedStream
        assert (stream.stream, stream.block, stream.seed) == ("stream", 8, seed)


def test_loaders_are_numbered_have_no_processes_and_tell_their_steps():
    made, recorder = changed()
    plain, seen = loader_of(BalancedLoader, made, accumulate=3, world_size=4)
    streaming, streamed = loader_of(StreamLoader, made)
    data = [torch.ones(2), torch.ones(3)]
    processes = {"num_workers": 2, "prefetch_factor": 2, "multiprocessing_context": "fork", "timeout": 5}
    loaders = [plain(data, 8, accumulate=3, collate_fn=sum, **processes), streaming(iter(data), 8, seed=4)]
    assert recorder.watched == loaders
    ((dataset, arguments, options),) = seen
    assert (dataset, arguments) == (data, (8,))
    assert set(options) == {"accumulate", "collate_fn"}
    assert options["collate_fn"]([1, 2]) == ("delivered", 3)
    ((_, arguments, options),) = streamed
    assert (arguments, options.pop("seed"), set(options)) == ((8,), 4, {"collate_fn"})
    delivered, batch = options["collate_fn"]([torch.ones(1), torch.zeros(1)])
    assert (delivered, batch.tolist()) == ("delivered", [[1], [0]])
    assert recorder.handed == ["balanced loader 0", "balanced loader 1"]
    sizes = [(0, {"a sample": 2, "a sample that are 1": 2}), (1, {"a sample": 3, "a sample that are 1": 3})]
    assert recorder.tape.facts["balanced"] == [
        {"step": 24, "candidates": sizes, "ranks": 4, "batches": 2},
        {"step": 8, "candidates": [], "ranks": 2, "batches": 6},
    ]


def test_candidates_are_read_without_gradients_and_those_of_no_known_kind_have_no_sizes():
    seen = []

    class Samples:
        def __init__(self, length):
            self.length = length

        def __len__(self):
            return self.length

        def __getitem__(self, number):
            seen.append((number, torch.is_grad_enabled()))
            return object() if number == 1 else torch.full((number + 1,), 0.5)

    assert candidates(Samples(3)) == [(0, {"a sample": 1}), (1, {}), (2, {"a sample": 3})]
    assert seen == [(0, False), (1, False), (2, False)]
    assert len(candidates(Samples(LOOKED_AT + 5))) == LOOKED_AT == 64
    assert torch.is_grad_enabled()


def test_restless_speeds_are_drawn_by_how_often_something_was_seen():
    one = Restless()
    one.reset(iter(["a", "b", "c"]))
    for seen in range(3):
        forecast = one.predict(horizon=2)
        assert forecast.speed.tolist() == np.random.default_rng(seen).uniform(1, 3, 3).tolist()
        assert one.state_dict() == {"seen": np.array(seen)}
        one.observe(None)
        assert forecast.spread.tolist() == [1e-3] * 3
    assert one.covariate_names == ()
    one.leave("b")
    one.join("d")
    assert one.workers == ("a", "c", "d")
    new = Restless()
    assert (new.state_dict(), new.workers) == ({"seen": np.array(0)}, ())
    later = Restless()
    later.load_state_dict({"seen": np.array(5)})
    assert (later.seen, type(later.seen)) == (5, int)
    one.reset(["d"])
    assert (one.seen, one.workers) == (0, ("d",))


def test_a_mixed_order_is_that_of_its_seed_its_epoch_and_its_block_and_is_as_long():
    class Order:
        name = "own"

        def __len__(self):
            return 7

        def of(self, epoch, ranks):
            return np.arange(7) + 10 * epoch + 100 * ranks

    order = Mixed(Order(), 3, BalancedRun(seed=4))
    expected = np.arange(7) + 20 + 300
    for first in (0, 3):
        expected[first : first + 3] = np.random.default_rng([4, 2, first]).permutation(expected[first : first + 3])
    assert order.of(2, 3).tolist() == expected.tolist()
    assert order.of(2).tolist() != order.of(3).tolist()
    assert (len(order), order.name) == (7, "own")
    for seed in range(1, 9):  # what is left of the last block stays
        assert Mixed(Order(), 4, BalancedRun(seed=seed)).of(0).tolist()[4:] == [104, 105, 106]
    found = list(MixedStream(range(7), 3, 4))
    drawn = [np.random.default_rng([4, number]).permutation(3) + 3 * number for number in (0, 1)]
    assert found == [*drawn[0], *drawn[1], 6]


def test_a_batch_is_counted_before_it_is_put_together():
    log = []
    recorder = SimpleNamespace(
        handed_out=lambda name: log.append(name), delivered=lambda batch: log.append(batch) or batch
    )
    assert delivering(recorder, "l", lambda samples: log.append("together") or samples)([1]) == [1]
    assert log == ["l", "together", [1]]
