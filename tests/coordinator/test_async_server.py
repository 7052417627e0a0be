"""Laws of the asynchronous server, over random interleavings of pulls, pushes, losses and faults."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import SCHEMES, SGD, EpochSampler, Outcome, Server, StepToken, scheme
from paceline.predictors import EWMA, LastValue

SAMPLES, BATCH = 50, 8
WORKERS = "abcd"

acts = st.tuples(st.sampled_from(["step", "step", "step", "part", "nan", "abandon", "leave"]), st.sampled_from(WORKERS))


class Watched:
    """A server among workers that do as they are told, with an account of its own of everything that happens."""

    def __init__(self, name, bound=None, epochs=None, predictor=None, min_batch=1):
        rules = scheme(name, len(WORKERS))
        rules = rules if bound is None else replace(rules, bound=bound)
        self.sampler = EpochSampler(SAMPLES, seed=3, epochs=epochs)
        self.server = Server(
            np.zeros(2),
            SGD(0.01),
            rules,
            self.sampler,
            batch=BATCH,
            workers=WORKERS,
            predictor=predictor,
            min_batch=min_batch,
        )
        self.under_way, self.versions, self.pulls, self.ends = {}, [0], 0, Counter()
        self.stamps = []
        self.applied, self.gathered, self.waits, self.smallest = Counter(), [], 0, SAMPLES

    def act(self, what, worker):
        if worker not in self.server.workers:
            self.server.join(worker)
        pulled = self.under_way.get(worker)
        if what == "leave":
            self._given_up(self.server.leave(worker), worker)
        elif what == "abandon":
            self._given_up(self.server.abandon(worker), worker)
        elif pulled is None:
            self._pull(worker)
        else:
            self._push(what, worker, pulled)
        self.versions.append(self.server.version)

    def _pull(self, worker):
        pulled = self.server.pull(worker)
        if pulled is None:
            self.waits += 1
            return
        self.pulls += 1
        self.smallest = min(self.smallest, len(pulled.assigned))
        self.under_way[worker] = pulled
        self.stamps.append((worker, pulled.stamp))

    def _push(self, what, worker, pulled):
        del self.under_way[worker]
        gradient = np.full(2, math.nan) if what == "nan" else np.ones(2)
        count = max(len(pulled.assigned) // 2, 1) if what == "part" else len(pulled.assigned)
        verdict = self.server.push(worker, pulled.stamp, gradient, count, seconds=count * (1 + ord(worker) % 4))
        self._given_up(verdict.abandoned_workers)
        if verdict.outcome in (Outcome.APPLIED, Outcome.DAMPED, Outcome.GATHERED):
            self.gathered.append(pulled.assigned[:count])
        if self.server.gathered == 0:
            for hand in self.gathered:
                self.applied.update(zip(hand.epochs.tolist(), hand.indices.tolist(), strict=True))
            self.gathered = []

    def _given_up(self, workers, *more):
        for worker in (*workers, *more):
            self.under_way.pop(worker, None)
        if self.server.gathered == 0:
            for hand in self.gathered:
                self.applied.update(zip(hand.epochs.tolist(), hand.indices.tolist(), strict=True))
            self.gathered = []


@pytest.mark.parametrize("name", SCHEMES)
@given(turns=st.lists(acts, max_size=120))
@settings(max_examples=15)
def test_every_step_is_accounted_for(name, turns):
    watched = Watched(name)
    for turn in turns:
        watched.act(*turn)
    ledger, server = watched.server.ledger, watched.server
    assert watched.versions == sorted(watched.versions)
    under_way = sum(member.step is not None for member in server.fleet)
    assert ledger.steps(*Outcome) + server.gathered + under_way == watched.pulls
    assert sum(account.applied for account in ledger.accounts.values()) == watched.sampler.applied
    assert np.isfinite(server.parameters).all()


@pytest.mark.parametrize("name", ["saps", "saps-measured", "saps-dc"])
@given(turns=st.lists(acts, max_size=200), bound=st.integers(0, 8), forecast=st.booleans())
@settings(max_examples=60)
def test_saps_keeps_the_bound_without_waiting(name, turns, bound, forecast):
    watched = Watched(name, bound=bound, predictor=EWMA() if forecast else None)
    for turn in turns:
        watched.act(*turn)
        under_way = [member.step.stamp for member in watched.server.fleet if member.step is not None]
        lags = [watched.server.version - stamp.version for stamp in under_way]
        assert max(lags, default=0) <= bound, "not even a step under way passes the bound"
    assert watched.server.ledger.largest_staleness <= bound
    assert watched.waits == 0
    assert watched.server.ledger.steps(Outcome.DROPPED) == 0


@pytest.mark.parametrize("name", SCHEMES)
@given(turns=st.lists(acts, max_size=80))
@settings(max_examples=10)
def test_epochs_apply_every_sample_once(name, turns):
    watched = Watched(name, epochs=2)
    for turn in turns:
        watched.act(*turn)
    for worker in WORKERS * 100:
        if watched.server.is_finished:
            break
        watched.act("step", worker)
    assert watched.server.is_finished
    assert watched.applied == Counter((epoch, row) for epoch in range(2) for row in range(SAMPLES))
    assert watched.sampler.epoch == 2


@given(turns=st.lists(acts, max_size=80))
@settings(max_examples=30)
def test_resumed_server_loses_no_sample(turns):
    before, after = Watched("saps", epochs=2), Watched("saps", epochs=2)
    for turn in turns:
        before.act(*turn)
    after.server.load_state_dict(before.server.state_dict())
    assert (after.server.parameters == before.server.parameters).all()
    assert after.server.version == before.server.version
    after.applied = before.applied.copy()
    for worker in WORKERS * 100:
        after.act("step", worker)
    assert after.applied == Counter((epoch, row) for epoch in range(2) for row in range(SAMPLES))


BAD = {
    "NaN": (lambda g: np.full_like(g, np.nan), "2 of its 2 numbers are NaN or infinite"),
    "inf": (lambda g: np.array([np.inf, 0.0]), "1 of its 2 numbers is NaN or infinite"),
    "a wrong shape": (lambda g: np.zeros(3), "its shape is (3,), but that of the parameters is (2,)"),
    "whole numbers": (lambda g: np.zeros(2, int), "it must be an array of floats, got int64"),
    "no array": (lambda g: [1.0, 2.0], "it must be an array of floats, got list"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_gradient_is_refused(fault):
    server = Watched("saps").server
    pulled = server.pull("a")
    make, reason = BAD[fault]
    verdict = server.push("a", pulled.stamp, make(np.zeros(2)))
    assert verdict.why == f"Refused the push of a: {reason}; its 8 samples go back"
    assert (server.parameters.tolist(), server.version) == ([0.0, 0.0], 0)
    assert server.pull("b").assigned.indices.tolist() == pulled.assigned.indices.tolist()


def test_invalid_pushes_change_nothing():
    server = Watched("asp").server
    pulled = server.pull("a")
    assert "is from the future; the version is 0" in server.push("a", StepToken(5, 0), np.ones(2)).why
    assert "is from the future" in server.push("a", StepToken(0, 9), np.ones(2)).why
    assert server.push("a", pulled.stamp, np.ones(2)).outcome is Outcome.APPLIED
    once = server.state_dict()
    assert "did it push twice?" in server.push("a", pulled.stamp, np.ones(2)).why
    assert "not one of the 4 workers" in server.push("z", pulled.stamp, np.ones(2)).why
    twice = server.state_dict()
    assert all((once[name] == twice[name]).all() for name in once)
    assert sum(server.ledger.steps(outcome) for outcome in (Outcome.DROPPED, Outcome.ABANDONED, Outcome.REFUSED)) == 0


def test_push_of_too_many_samples_is_refused():
    server = Watched("asp").server
    verdict = server.push("a", server.pull("a").stamp, np.ones(2), samples=9)
    assert "mean of 9 samples, but 8 were assigned" in verdict.why


@pytest.mark.parametrize("lie", [-5, 0, 10**15])
def test_late_push_with_wrong_samples_is_ignored(lie):
    def speeds_after(samples, seconds):
        server = Watched("saps", bound=1, predictor=LastValue()).server
        late = server.pull("d")
        push_all(server, "abc" * 6)
        assert "its step was given up" in server.push("d", late.stamp, np.zeros(2), samples, seconds=seconds).reason
        push_all(server, "abcabc")
        return server.sizes.tolist(), server.expected_staleness.tolist()

    assert speeds_after(lie, seconds=0.1) == speeds_after(1, seconds=math.nan) != speeds_after(1, seconds=0.1 / BATCH)


def push_all(server, workers):
    for worker in workers:
        server.push(worker, server.pull(worker).stamp, np.zeros(2), seconds=0.1)


def test_pulled_parameters_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        Watched("asp").server.pull("a").parameters[0] = 1.0


@pytest.mark.slow
def test_staleness_forecast_and_smaller_batches():
    seconds = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 8.0}  # for a full batch
    for name, even in (("asp", False), ("saps", True)):
        watched = Watched(name, predictor=LastValue())
        server, due, under_way, forecast, actual = watched.server, {}, {}, dict.fromkeys(WORKERS, np.nan), []
        for worker in WORKERS:
            under_way[worker] = server.pull(worker)
            due[worker] = seconds[worker]
        for _ in range(300):
            worker = min(due, key=due.get)
            took = seconds[worker] * len(under_way[worker].assigned) / BATCH
            verdict = server.push(worker, under_way[worker].stamp, np.zeros(2), seconds=took)
            actual.append((forecast[worker], verdict.staleness))
            under_way[worker] = server.pull(worker)
            forecast[worker] = server.expected_staleness[WORKERS.index(worker)]
            due[worker] += seconds[worker] * len(under_way[worker].assigned) / BATCH
        expected = [3.0, 3.0, 3.0, 3.0] if even else [1.625, 1.625, 4.25, 20.0]
        assert server.expected_staleness == pytest.approx(expected, abs=0.01)
        assert server.staleness == pytest.approx(expected, abs=1.1)
        assert server.sizes.tolist() == ([8, 8, 4, 1] if even else [8, 8, 8, 8])
        # Until speeds are known, in the first rounds, the forecast is a guess.
        mean_forecast, mean_actual = np.mean(actual[60:], axis=0)
        assert mean_actual == pytest.approx(mean_forecast, rel=0.05)


def test_straggler_is_found_before_its_first_push():
    from paceline.datasets import Trace

    fleet = Trace(np.full((50, 4), 8.0), np.tile([1.0, 1.0, 1.0, 9.0], (50, 1)), workers=list(WORKERS))
    predictor = LastValue()
    server = Watched("asp", predictor=predictor).server
    held = server.pull("d")
    for report in fleet.seconds[:3]:
        for worker, seconds in zip("abc", report, strict=False):
            server.push(worker, server.pull(worker).stamp, np.zeros(2), seconds=seconds)
    server.report("d", 4, 4.5)  # half-way it says how fast it is
    for _ in range(4):
        server.push("a", server.pull("a").stamp, np.zeros(2), seconds=1.0)
    told = server.staleness_reports()
    assert [one.is_straggler for one in told] == [False, False, False, True]
    assert np.isnan(told[3].staleness)
    assert told[3].expected_staleness == pytest.approx(27.0)
    server.push("d", held.stamp, np.zeros(2), seconds=9.0)
    assert server.staleness_reports()[3].staleness == 13.0
    assert "d is a straggler: its pushes have been 13 versions stale" in server.staleness_reports()[3].why


@pytest.mark.parametrize("name", SCHEMES)
@given(turns=st.lists(acts.filter(lambda act: act[0] != "part"), max_size=120), min_batch=st.integers(1, BATCH))
@settings(max_examples=10, deadline=None)
def test_steps_have_the_fewest_samples(name, turns, min_batch):
    watched = Watched(name, epochs=1, predictor=LastValue(), min_batch=min_batch)
    for turn in turns:
        watched.act(*turn)
    assert watched.smallest >= min_batch
    assert watched.server.sizes.min(initial=BATCH) >= min_batch


@pytest.mark.parametrize(("min_batch", "batch", "samples"), [(0, 8, 50), (9, 8, 50), (3, 8, 2)])
def test_too_few_samples_are_refused(min_batch, batch, samples):
    with pytest.raises(ValueError, match="min_batch must be at least 1, and at most batch"):
        Server(np.zeros(2), SGD(0.01), scheme("asp", 1), EpochSampler(samples), batch=batch, min_batch=min_batch)
