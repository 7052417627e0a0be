"""Every scheme's rule against steps worked out by hand: two or three workers, parameters of one or two numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SCHEMES, SGD, EpochSampler, Outcome, Server, saps, scheme
from paceline.coordinator.asynchronous.schemes import MeanAggregation, SlackGate


def server_of(rules, workers="abc", start=(1.0,), rate=0.1, batch=10, samples=10_000):
    rules = scheme(rules, len(workers)) if isinstance(rules, str) else rules
    return Server(np.array(start), SGD(rate), rules, EpochSampler(samples), batch=batch, workers=list(workers))


def push(server, worker, pulled, *gradient, **more):
    return server.push(worker, pulled.stamp, np.array(gradient), **more)


def test_asp_applies_stale_gradients_in_full():
    server = server_of("asp")
    a, b = server.pull("a"), server.pull("b")
    push(server, "a", a, 1.0)
    verdict = push(server, "b", b, 2.0)
    assert (verdict.outcome, verdict.staleness, verdict.factor) == (Outcome.APPLIED, 1, 1.0)
    assert server.parameters == pytest.approx([1.0 - 0.1 - 0.2])


STALE_BY_TWO = {
    "sa-asgd": 1 / 2,
    "dyn-sgd": 1 / 3,
    "con-sgd": 1 / 3,  # a fleet of three
}


@pytest.mark.parametrize(
    "rules",
    STALE_BY_TWO,
)
def test_damping_as_published(rules):
    server = server_of(rules)
    pulled = {worker: server.pull(worker) for worker in "abc"}
    push(server, "a", pulled["a"], 0.0)
    push(server, "b", pulled["b"], 0.0)
    verdict = push(server, "c", pulled["c"], 1.0)
    assert (verdict.outcome, verdict.staleness) == (Outcome.DAMPED, 2)
    assert server.parameters == pytest.approx([1.0 - 0.1 * STALE_BY_TWO[rules]])


def test_dc_asgd_c_compensates():
    server = server_of("dc-asgd-c", start=(1.0, 1.0))
    a, b = server.pull("a"), server.pull("b")
    push(server, "a", a, 1.0, 0.0)  # to 0.9, 1.0
    push(server, "b", b, 3.0, 2.0)
    first = 3.0 + 0.04 * 9.0 * (0.9 - 1.0)
    assert server.parameters == pytest.approx([0.9 - 0.1 * first, 1.0 - 0.1 * 2.0])


def test_dc_asgd_a_adapts_its_strength():
    server = server_of("dc-asgd-a")
    a, b = server.pull("a"), server.pull("b")
    push(server, "a", a, 1.0)  # to 0.9
    push(server, "b", b, 3.0)
    mean_square = 0.05 * 9.0
    first = 3.0 + 2.0 / math.sqrt(mean_square + 1e-10) * 9.0 * (0.9 - 1.0)
    assert server.parameters == pytest.approx([0.9 - 0.1 * first])
    c = server.pull("b")
    push(server, "a", server.pull("a"), 1.0)  # moves by 0.1: its gradient is fresh
    after = server.parameters[0]
    push(server, "b", c, 2.0)
    mean_square = 0.95 * mean_square + 0.05 * 4.0
    second = 2.0 + 2.0 / math.sqrt(mean_square + 1e-10) * 4.0 * (after - (after + 0.1))
    assert server.parameters == pytest.approx([after - 0.1 * second])


def test_overflow_in_compensation_leaves_no_trace():
    overflown, spared = (server_of("dc-asgd-a", workers="ab") for _ in range(2))
    for server in (overflown, spared):
        first, stale = server.pull("a"), server.pull("b")
        push(server, "b", stale, 1.0)
        if server is overflown:
            assert "overflows" in push(server, "a", first, 1e200).reason
    again = server_of("dc-asgd-a", workers="ab")
    again.load_state_dict(overflown.state_dict())
    for server in (overflown, spared, again):
        late = server.pull("a")
        push(server, "b", server.pull("b"), 2.0)
        push(server, "a", late, 3.0)
    assert overflown.parameters == spared.parameters == again.parameters


def test_bsp_applies_the_mean_of_all():
    server = server_of("bsp")
    pulled = {worker: server.pull(worker) for worker in "abc"}
    assert push(server, "a", pulled["a"], 1.0).outcome is Outcome.GATHERED
    assert server.pull("a") is None
    push(server, "b", pulled["b"], 2.0)
    assert push(server, "c", pulled["c"], 6.0).outcome is Outcome.APPLIED
    assert server.parameters == pytest.approx([1.0 - 0.1 * 3.0])
    assert server.version == 1
    assert server.pull("a").stamp.version == 1


def test_mean_weights_by_samples():
    server = server_of("bsp", workers="ab")
    a, b = server.pull("a"), server.pull("b")
    push(server, "a", a, 1.0, samples=10)
    push(server, "b", b, 4.0, samples=5)
    assert server.parameters == pytest.approx([1.0 - 0.1 * (10 * 1.0 + 5 * 4.0) / 15])


def test_lb_bsp_balances_batches():
    from paceline.predictors import LastValue

    server = Server(
        np.zeros(1), SGD(0.1), scheme("lb-bsp", 2), EpochSampler(1000), batch=30, workers="ab", predictor=LastValue()
    )
    for worker, seconds in (("a", 1.0), ("b", 2.0)):
        server.push(worker, server.pull(worker).stamp, np.ones(1), seconds=seconds)
    assert server.sizes.tolist() == [40, 20]


def test_ssp_stops_beyond_the_slack():
    server = server_of(replace(scheme("ssp", 2), gate=SlackGate(1, 1)), workers="ab")
    b = server.pull("b")
    for _ in range(2):
        push(server, "a", server.pull("a"), 0.0)
    assert server.pull("a") is None
    push(server, "b", b, 0.0)
    assert server.pull("a") is not None


def test_dssp_runs_until_the_slowest_is_due():
    server = server_of(replace(scheme("dssp", 2), gate=SlackGate(2, 5)), workers="ab")
    for now in (4.0, 8.0):
        push(server, "b", server.pull("b"), 0.0, now=now)
    slow, starts = server.pull("b"), 0
    for now in np.arange(8.0, 30.0):
        pulled = server.pull("a")
        if pulled is None:
            break
        starts += 1
        push(server, "a", pulled, 0.0, now=now)
    lead = server.fleet.members["a"].clock - server.fleet.members["b"].clock
    # At 12 s, with its fifth push, it passes the lower bound; the slow one is due at 12 s too: no step beyond that.
    assert (starts, lead) == (5, 3)
    push(server, "b", slow, 0.0, now=12.0)
    assert server.pull("a") is not None


def test_dssp_grants_extra_steps():
    server = server_of(replace(scheme("dssp", 2), gate=SlackGate(1, 5)), workers="ab")
    for now in (0.0, 4.0):
        push(server, "b", server.pull("b"), 0.0, now=now)
    for now in (3.0, 4.0, 5.0, 6.0):  # at 6 s it is two ahead, beyond the bound of 1; the slow one is due at 8 s
        push(server, "a", server.pull("a"), 0.0, now=now)
    assert server.fleet.members["a"].extra_steps == 2
    for now in (7.0, 8.0):
        push(server, "a", server.pull("a"), 0.0, now=now)
    assert server.pull("a") is None


def test_k_sync_cancels_the_others():
    server = server_of(replace(scheme("k-sync", 3), aggregation=MeanAggregation(2)))
    pulled = {worker: server.pull(worker) for worker in "abc"}
    push(server, "a", pulled["a"], 1.0)
    verdict = push(server, "b", pulled["b"], 3.0)
    assert server.parameters == pytest.approx([1.0 - 0.1 * 2.0])
    assert verdict.abandoned_workers == ("c",)
    assert server.is_abandoned("c", pulled["c"].stamp)
    assert push(server, "c", pulled["c"], 100.0).outcome is Outcome.DROPPED
    assert server.parameters == pytest.approx([0.8])


def test_backup_workers_drop_late_pushes():
    server = server_of(replace(scheme("backup", 3), aggregation=MeanAggregation(2)))
    pulled = {worker: server.pull(worker) for worker in "abc"}
    push(server, "a", pulled["a"], 1.0)
    push(server, "b", pulled["b"], 3.0)
    assert server.version == 1
    assert push(server, "c", pulled["c"], 100.0).outcome is Outcome.DROPPED
    assert server.pull("a").assigned.indices.tolist() == pulled["c"].assigned.indices.tolist()


def test_k_batch_async_and_k_async():
    for name, waits in (("k-batch-async", False), ("k-async", True)):
        server = server_of(replace(scheme(name, 3), aggregation=MeanAggregation(2)))
        push(server, "a", server.pull("a"), 1.0)
        again = server.pull("a")
        assert (again is None) == waits
        if again is not None:
            push(server, "a", again, 3.0)
            assert server.parameters == pytest.approx([1.0 - 0.1 * 2.0])


def test_fed_buff_scales_by_staleness():
    server = server_of(replace(scheme("fed-buff", 3), aggregation=MeanAggregation(2)))
    a, b, c = (server.pull(worker) for worker in "abc")
    push(server, "a", a, 1.0)
    push(server, "b", b, 3.0)
    assert server.parameters == pytest.approx([0.8])
    push(server, "c", c, 4.0)  # one version stale
    push(server, "a", server.pull("a"), 2.0)
    assert server.parameters == pytest.approx([0.8 - 0.1 * (4.0 * 2**-0.5 + 2.0) / 2])


def test_saps_gathers_at_the_bound():
    server = server_of(saps(3, bound=1))
    straggler = server.pull("c")
    assert push(server, "a", server.pull("a"), 1.0).outcome is Outcome.APPLIED
    held = push(server, "a", server.pull("a"), 1.0, samples=5)
    assert (held.outcome, server.version) == (Outcome.GATHERED, 1)
    assert server.pull("a") is not None, "it does not wait"
    last = push(server, "c", straggler, 2.0)
    assert (last.outcome, last.staleness, server.version) == (Outcome.APPLIED, 1, 2)
    assert server.parameters == pytest.approx([1.0 - 0.1 * (1.0 + 0.5 * 1.0 + 2.0)])


def test_saps_gives_up_a_straggler():
    server = server_of(saps(3, bound=1))
    straggler = server.pull("c")
    push(server, "a", server.pull("a"), 0.0)
    verdicts = [push(server, "b", server.pull("b"), 1.0) for _ in range(3)]
    assert [verdict.abandoned_workers for verdict in verdicts] == [(), (), ("c",)]
    assert server.parameters == pytest.approx([0.7])
    assert server.pull("a").assigned.indices.tolist() == straggler.assigned.indices.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_converges(name):
    server = server_of(name, start=(1.0, -2.0), rate=0.05, samples=3000)
    under_way = {}
    for turn in range(600):
        worker = "aababc"[turn % 6]  # a pushes three times as often as c
        if worker in under_way:
            pulled, at = under_way.pop(worker)
            server.push(worker, pulled.stamp, at)  # the gradient of half the square is the place itself
        if (pulled := server.pull(worker)) is not None:
            under_way[worker] = pulled, pulled.parameters.copy()
    assert np.abs(server.parameters).max() < 0.05
