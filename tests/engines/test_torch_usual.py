"""The policy that a job gets where none is given, and the covariates that it samples."""

import logging
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator import Policy
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.torch.sampled import SAMPLING, Sampled, covariates_for
from paceline.torch.usual import policy_for

MODELS = {False: torch.nn.Linear(2, 2), True: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))}


def loader(global_batch, ranks, micro_batch=None, costs=False):
    coefficients = np.ones(1) if costs else None
    return SimpleNamespace(
        global_batch=global_batch, world_size=ranks, micro_batch=micro_batch, coefficients=coefficients
    )


@given(st.integers(1, 512), st.integers(1, 9), st.none() | st.sampled_from([1, 3, 8]), st.booleans(), st.booleans())
def test_sizes_are_a_multiple_that_the_batch_allows_and_two_where_batches_are_normalised(
    global_batch, ranks, micro_batch, costs, normalises
):
    found = policy_for(MODELS[normalises], loader(global_batch, ranks, micro_batch, costs), None)
    whole = default_batch_multiple(global_batch, ranks)
    if micro_batch and global_batch % micro_batch == 0:
        whole = micro_batch
    lower = 2 if normalises and global_batch >= 2 * ranks else 1
    assert found == Policy(batch_multiple=1 if costs else whole, lower=lower)


@pytest.mark.parametrize(
    "policy", [Policy(lower=3), Policy(lower={"a": 1}), Policy(lower={}), Policy(batch_multiple=4)]
)
def test_a_given_policy_stays_but_for_the_bound_that_the_model_needs(policy):
    assert policy_for(MODELS[False], loader(64, 2), policy) is policy
    needed = policy_for(MODELS[True], loader(64, 2), policy)
    assert needed == (Policy(batch_multiple=4, lower=2) if policy.lower == 1 else policy)


@pytest.mark.parametrize("lower", [0, {"a": 2, "b": 0}])
def test_a_rank_without_samples_is_refused(lower):
    with pytest.raises(ValueError, match=r"policy\.lower must be at least 1 sample, as an empty batch"):
        policy_for(MODELS[False], loader(64, 2), Policy(lower=lower))


class Slow:
    """A covariate that takes a while on a clock that only it moves, and is closed in the end."""

    unit = "seconds"

    def __init__(self, name, clock=None, takes=0.0):
        self.name, self.clock, self.takes = name, clock, takes

    def sample(self):
        self.clock["now"] += self.takes
        return self.clock["now"]


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=4), st.floats(1.0, 1e6))
def test_sampling_takes_no_more_than_its_share_of_the_time(takes, now):
    clock = {"now": now}
    sampled = Sampled([Slow(f"{each}", clock, each) for each in takes])
    assert sampled.next == 0, "at once"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: clock["now"])
        sampled.take()
    ended, spent = clock["now"], clock["now"] - now
    assert sampled.values == [pytest.approx(now + sum(takes[: k + 1])) for k in range(len(takes))]
    assert sampled.next == pytest.approx(ended + spent / SAMPLING)
    sampled.close()
    assert sampled.next == math.inf
    assert Sampled([]).next == math.inf, "never"


def test_a_predictor_gets_the_covariates_that_it_reads_in_its_order_and_nan_for_others(caplog):
    reads = SimpleNamespace(covariate_names=("memory", "unheard of", "load"))
    load, memory = Slow("load"), Slow("memory")
    with caplog.at_level(logging.INFO, "paceline"):
        found = covariates_for(reads, [load, Slow("disk"), memory])
    assert (found[0], found[2]) == (memory, load)
    assert found[1].name == "unheard of"
    assert math.isnan(found[1].sample())
    assert "the predictor can read ['unheard of'], which nothing samples here" in caplog.text
    caplog.clear()
    assert covariates_for(SimpleNamespace(covariate_names=("load",)), [load]) == [load]
    assert covariates_for(SimpleNamespace(covariate_names=()), [load]) == []
    assert not caplog.text
    with pytest.raises(ValueError, match=r"reads the covariates \['a', 'b'\], but only \['load'\] are sampled"):
        covariates_for(SimpleNamespace(covariate_names=("a", "b")), [load])
