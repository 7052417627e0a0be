"""The sampler of epochs beside a plain list, and a server's life beyond a checkpoint."""

import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Server, scheme
from paceline.coordinator.asynchronous.server import Ledger
from paceline.coordinator.asynchronous.store import WeightedMean

ACTS = st.tuples(st.sampled_from(["draw", "draw", "back", "apply", "resume"]), st.integers(1, 9), st.integers(1, 4))


@settings(max_examples=80)
@given(st.lists(ACTS, max_size=30), st.integers(1, 7), st.sampled_from([None, 1, 3]), st.integers(0, 3))
def test_samples_come_in_the_order_of_their_epochs_and_those_that_came_back_first(acts, count, epochs, seed):
    sampler, back, held, applied = EpochSampler(count, seed=seed, epochs=epochs), deque(), [], {}
    fresh = deque()
    for epoch in range(epochs or 60):
        fresh.extend((epoch, int(row)) for row in np.random.default_rng((seed, epoch)).permutation(count))
    for what, number, least in acts:
        left = len(back) + len(fresh) if epochs else math.inf
        assert sampler.left == left
        assert sampler.empty == (left == 0)
        if what == "draw":
            number = int(left) if 0 < left - number < least else number
            wanted = [back.popleft() if back else fresh.popleft() for _ in range(min(number, len(back) + len(fresh)))]
            drawn = sampler.draw(number, least)
            assert list(zip(drawn.epochs.tolist(), drawn.rows.tolist(), strict=True)) == wanted
            held.append((drawn, wanted))
        elif what == "resume":
            state = sampler.state_dict([drawn for drawn, _ in held])
            sampler = EpochSampler(count, seed=seed, epochs=epochs)
            sampler.load_state_dict(state)
            back.extend(each for _, wanted in held for each in wanted)
            held = []
        elif held:
            drawn, wanted = held.pop(0)
            kept = min(number, len(wanted))
            sampler.apply(drawn.first(kept)) if what == "apply" else sampler.give_back(drawn.first(kept))
            sampler.give_back(drawn.after(kept))
            for epoch, _ in wanted[:kept] if what == "apply" else []:
                applied[epoch] = applied.get(epoch, 0) + 1
            back.extend(wanted if what != "apply" else wanted[kept:])
        assert sampler.applied == sum(applied.values())
        whole = 0
        while applied.get(whole) == count:
            whole += 1
        assert sampler.epoch == whole
        assert sampler.finished == (epochs is not None and sampler.applied == count * epochs)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EpochSampler(0), "samples must be at least 1, got 0"),
        (lambda: EpochSampler(3, epochs=0), "epochs must be at least 1, or None for no end, got 0"),
        (lambda: EpochSampler(3).draw(0), "count must be at least 1 sample, got 0"),
    ],
)
def test_nothing_to_draw_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_state_of_other_samples_or_of_more_epochs_is_refused_and_one_of_as_many_taken():
    sampler = EpochSampler(4, seed=1, epochs=3)
    sampler.draw(8)
    state = sampler.state_dict()
    EpochSampler(4, seed=1, epochs=2).load_state_dict(state)
    sampler.draw(1)
    for other, sentence in (
        (EpochSampler(5, seed=1), "of 4 samples with the seed 1; this one has 5 and the seed 1"),
        (EpochSampler(4, seed=2), "this one has 4 and the seed 2: build it with the same"),
        (EpochSampler(4, seed=1, epochs=2), "has assigned samples of epoch 3, and epochs is 2"),
    ):
        before = other.draw(2).rows.tolist()
        other.give_back(other.draw(1))
        with pytest.raises(ValueError, match=sentence):
            other.load_state_dict(sampler.state_dict())
        assert len(before) == 2
        assert other.left in (math.inf, 6)


@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 0.5, 8.0]), st.booleans()), min_size=1, max_size=6))
def test_a_gathered_mean_is_that_of_what_was_not_taken_back(given_):
    mean, kept = WeightedMean(), []
    for round_of in (given_, given_[::-1]):
        kept = []
        for value, weight, is_undone in round_of:
            row = np.array([value])
            mean.add(row, weight)
            if is_undone:
                assert mean.undo()
                assert not mean.undo()
            else:
                mean.keep()
                kept.append((value, weight))
            row[:] = 99.0
            mean.keep()
        if kept:
            total = sum(weight for _, weight in kept)
            wanted = sum(value * weight for value, weight in kept) / (total or 1.0)
            assert mean.mean() == pytest.approx([wanted], abs=1e-9)
        mean.clear()


def test_no_step_of_an_earlier_life_fits_one_of_a_resumed_server():
    def made():
        return Server(np.zeros(1), SGD(0.1), scheme("asp", 2), EpochSampler(50), batch=5, workers="ab")

    server = made()
    server.push("a", server.pull("a").stamp, np.ones(1))
    state = server.state_dict()
    late = [server.pull(worker) for worker in "abab"]  # after the checkpoint
    again = made()
    again.load_state_dict(state)
    fresh = {again.pull(worker).stamp for worker in "abab"}
    assert not fresh & {pulled.stamp for pulled in late}
    for pulled in late:
        verdict = again.push("a", pulled.stamp, np.ones(1))
        assert (verdict.outcome, verdict.samples) == (Outcome.REFUSED, 0)
    assert again.version == server.version == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(list(Outcome)), st.integers(0, 9), st.integers(-1, 9)),
        max_size=12,
    ),
    st.sampled_from([1.0, math.nan, 0.0, math.inf]),
)
def test_shares_that_were_wasted_are_of_what_was_computed_and_ended(steps, odd):
    ledger = Ledger()
    for k, (worker, outcome, samples, staleness) in enumerate(steps):
        ledger.note(worker, outcome, samples=samples, staleness=staleness, seconds=odd if k % 3 == 0 else 2.0)
    ledger.took("a", Outcome.ABANDONED, 0.5)
    wasted = (Outcome.DROPPED, Outcome.ABANDONED, Outcome.REFUSED)
    applied = (Outcome.APPLIED, Outcome.DAMPED)
    lost = sum(samples for _, outcome, samples, _ in steps if outcome in wasted)
    used = sum(samples for _, outcome, samples, _ in steps if outcome in applied)
    assert ledger.wasted_share == (lost / (lost + used) if lost else 0.0)
    seconds = [((odd if 0 < odd < math.inf else 0.0) if k % 3 == 0 else 2.0) for k in range(len(steps))]
    idle = 0.5 + sum(took for took, (_, outcome, *_) in zip(seconds, steps, strict=True) if outcome in wasted)
    assert ledger.wasted_seconds_share == pytest.approx(idle / (0.5 + sum(seconds)))
    stale = [staleness for _, outcome, _, staleness in steps if outcome not in wasted]
    assert ledger.largest_staleness == max([0, *stale])
    for outcome in Outcome:
        assert ledger.steps(outcome) == sum(one is outcome for _, one, *_ in steps)
