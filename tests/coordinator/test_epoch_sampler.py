"""The sampler of epochs beside a plain queue: every epoch covers every sample exactly once."""

import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import EpochSampler

ACTS = st.tuples(st.sampled_from(["draw", "draw", "back", "apply", "resume"]), st.integers(1, 9), st.integers(1, 4))


@settings(max_examples=80)
@given(st.lists(ACTS, max_size=30), st.integers(1, 7), st.sampled_from([None, 1, 3]), st.integers(0, 3))
def test_sampler_equals_a_plain_queue(acts, count, epochs, seed):
    sampler, back, held, applied = EpochSampler(count, seed=seed, epochs=epochs), deque(), [], {}
    fresh = deque()
    for epoch in range(epochs or 60):
        fresh.extend((epoch, int(row)) for row in np.random.default_rng((seed, epoch)).permutation(count))
    for what, number, least in acts:
        left = len(back) + len(fresh) if epochs else math.inf
        assert sampler.num_remaining == left
        assert sampler.is_exhausted == (left == 0)
        if what == "draw":
            number = int(left) if 0 < left - number < least else number
            wanted = [back.popleft() if back else fresh.popleft() for _ in range(min(number, len(back) + len(fresh)))]
            assigned = sampler.draw(number, least)
            assert list(zip(assigned.epochs.tolist(), assigned.indices.tolist(), strict=True)) == wanted
            held.append((assigned, wanted))
        elif what == "resume":
            state = sampler.state_dict([assigned for assigned, _ in held])
            sampler = EpochSampler(count, seed=seed, epochs=epochs)
            sampler.load_state_dict(state)
            back.extend(each for _, wanted in held for each in wanted)
            held = []
        elif held:
            assigned, wanted = held.pop(0)
            kept = min(number, len(wanted))
            sampler.mark_applied(assigned[:kept]) if what == "apply" else sampler.return_samples(assigned[:kept])
            sampler.return_samples(assigned[kept:])
            for epoch, _ in wanted[:kept] if what == "apply" else []:
                applied[epoch] = applied.get(epoch, 0) + 1
            back.extend(wanted if what != "apply" else wanted[kept:])
        assert sampler.applied == sum(applied.values())
        whole = 0
        while applied.get(whole) == count:
            whole += 1
        assert sampler.epoch == whole
        assert sampler.is_finished == (epochs is not None and sampler.applied == count * epochs)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EpochSampler(0), "samples must be at least 1, got 0"),
        (lambda: EpochSampler(3, epochs=0), "epochs must be at least 1, or None for no end, got 0"),
        (lambda: EpochSampler(3).draw(0), "num_samples must be at least 1 sample, got 0"),
    ],
)
def test_wrong_numbers_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_state_of_other_samples_is_refused():
    sampler = EpochSampler(4, seed=1, epochs=3)
    sampler.draw(8)
    state = sampler.state_dict()
    EpochSampler(4, seed=1, epochs=2).load_state_dict(state)
    sampler.draw(1)
    for other, sentence in (
        (EpochSampler(5, seed=1), "with 4 samples and seed 1, but this one has 5 samples and seed 1"),
        (EpochSampler(4, seed=2), "this one has 4 samples and seed 2: create it with the same values"),
        (EpochSampler(4, seed=1, epochs=2), "is in epoch 3, but epochs is 2: set epochs to at least 3"),
    ):
        before = other.draw(2).indices.tolist()
        other.return_samples(other.draw(1))
        with pytest.raises(ValueError, match=sentence):
            other.load_state_dict(sampler.state_dict())
        assert len(before) == 2
        assert other.num_remaining in (math.inf, 6)
