"""Causes told apart at exactly their limits, from the results of a probing run, and the parts that lead there."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.audit import audit, causes, compare
from paceline.audit.audit_verdict import Cause
from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.inside.balanced import watch_balanced
from paceline.audit.probe import Probe, named
from paceline.audit.tape import Tape, TapedStep
from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.engines.torch.loading.assigner import EpochAssigner
from paceline.engines.torch.loading.balanced_loader import BalancedLoader
from paceline.engines.torch.streaming.drawn import StreamAssigner
from paceline.engines.torch.streaming.stream_loader import StreamLoader

EVEN = {"control": 0.0, "residual": 0.0, "shares": (0.5, 0.5), "expected": 0.5, "rank_weight": 1.0, "micro_weight": 1.0}
EVEN["counts"] = ({}, {}, {})
LIMITS = {"float64": 1e-5, "float32": 2e-2}


def told(precision="float64", facts=None, draws=False, **changed):
    """The cause and its detail that a probing run with these results leads to."""
    tape = Tape(0, 2, {}, {}, [TapedStep({}, {}, {}, {"draws": draws})], facts or {})
    inquiry = SimpleNamespace(
        balanced=[],
        base=SimpleNamespace(tapes=[tape]),
        precision=precision,
        tolerance=1e-3,
        unknown=lambda cause: (cause, "could not tell"),
        not_exact=lambda cause, found, detail="": (cause, detail),
    )
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(causes, "_probe_plain", lambda inquiry, alone: Probe(**{**EVEN, **changed}) if changed else None)
        return causes.told_apart(inquiry, compare.Difference(()))


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        (lambda x: {"residual": x}, Cause.ROWS),
        (lambda x: {"shares": (0.5 + x, math.nan)}, Cause.TERMS),
        (lambda x: {"micro_weight": 1 - x}, Cause.MICRO_BATCHES),
        (lambda x: {"rank_weight": 1 + x}, Cause.RANKS),
    ],
)
def test_a_cause_is_told_from_just_above_what_rounding_does(precision, changed, cause):
    fine = LIMITS[precision]
    found, detail = told(precision, **changed(1.001 * fine))
    assert found is cause
    assert "same of it" not in detail
    found, detail = told(precision, **changed(0.999 * fine))
    assert (found, detail) == (Cause.TERMS, told(precision, control=0.0)[1])
    assert "the same of it" in detail


def test_a_run_that_does_not_repeat_itself_carries_something_over_or_draws():
    assert told(control=0.1)[0] is Cause.TERMS
    assert told(control=0.1001) == (Cause.CARRIED, "")
    assert told(control=0.1001, draws=True) == (Cause.CHANCE, "could not tell")
    assert told() == (Cause.UNKNOWN, "")
    assert told(draws=True) == (Cause.CHANCE, "could not tell")
    assert told(expected=math.nan, shares=(0.4, 0.6)) == (Cause.UNKNOWN, "")


@pytest.mark.parametrize("share", [0.0, 1.0, 1e-10])
def test_a_sample_that_counts_for_nothing_or_alone_is_mixed_with_the_others(share):
    default = "negatives within the batch, hard examples, mixup"
    assert told(shares=(share, math.nan)) == (Cause.ROWS, default)
    assert told(residual=1.0, facts={"mixing": ["BatchNorm1d", "Queue"]}) == (Cause.ROWS, "BatchNorm1d, Queue")
    assert told(residual=1.0, facts={"hooks": ["a"]}) == (Cause.HOOKS, "on a")
    assert told(residual=1.0, facts={"hooks": ["a", "b"]}) == (Cause.HOOKS, "on a and others")
    assert told(shares=(1e-8, math.nan))[0] is Cause.TERMS


def test_weights_follow_a_count_within_ten_times_what_rounding_does():
    counts = ({"labels": 6}, {"labels": 9}, {"labels": 7})
    for times, word in ((9.9, "it follows the size of labels"), (10.5, "samples count")):
        ratio = 6 / 9 + times * LIMITS["float64"]
        cause, detail = told(shares=(ratio / (1 + ratio), math.nan), counts=counts)
        assert (cause, detail.startswith(word)) == (Cause.TERMS, True), detail


@given(
    st.integers(3, 90),
    st.integers(3, 90),
    st.booleans(),
    st.sampled_from([0.5, 0.6]),
    st.sampled_from(["x", "a that 1"]),
)
@settings(max_examples=30)
def test_the_part_whose_size_counts_is_named(one, other, less, expected, part):
    exact = (one - less) / (other - less)
    odds = exact * expected / (1 - expected)
    share = odds / (1 + odds)
    detail = named(
        Probe(
            **{**EVEN, "expected": expected, "shares": (share, expected), "counts": ({part: one}, {part: other}, {})}
        ),
        1e-9,
    )
    if one == other:
        assert detail == ""
    else:
        kind = "number" if part == "a that 1" else "size"
        assert detail == f"it follows the {kind} of {part}" + (", less one" if less else "")


@given(st.integers(0, 99), st.booleans(), st.integers(0, 3), st.booleans())
@settings(max_examples=30)
def test_a_plan_is_what_a_plain_job_does_unless_it_is_told_otherwise(seed, uneven, steps, frozen):
    plain = AuditPlan.from_json('{"balanced": {}}')
    assert plain.balanced == BalancedRun(uneven=False, seed=0, numbers=[])
    assert plain == AuditPlan(
        steps=4, precision="float64", arranged=None, supplies="", frozen=False, balanced=BalancedRun()
    )
    plan = AuditPlan(steps=steps, frozen=frozen, supplies="a", balanced=BalancedRun(uneven=uneven, seed=seed))
    assert AuditPlan.from_json(plan.to_json()) == plan


class Nowhere(torch.autograd.Function):
    """The first factor's gradient only: of the second nothing is known."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(other)
        return one * other

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


@pytest.mark.slow
def test_a_parameter_without_a_gradient_has_one_of_zeros_in_a_notebook():
    one, other = (torch.nn.Parameter(torch.full((3,), value, dtype=torch.float64)) for value in (1.0, 2.0))
    batches = [torch.arange(12.0, dtype=torch.float64).reshape(4, 3) + k for k in range(2)]
    found = audit(lambda batch: (batch * Nowhere.apply(one, other)).mean(), batches)
    assert (found.status.name, found.cause) == ("EXACT", None)


class Patched(dict):
    """Patches that are made nowhere: each is kept by its class."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def replace(self, owner, name, make):
        assert name == "__init__"
        self[owner] = make


def test_the_steps_of_a_balanced_loader_are_watched_and_its_facts_are_kept():
    watched = []
    tape = Tape(0, 2, {}, {}, [])
    recorder = SimpleNamespace(plan=AuditPlan(), tape=tape, watch=watched.append)
    patches = Patched(recorder)
    watch_balanced(patches)
    assert set(patches) == {LoadBalancer, EpochAssigner, StreamAssigner, BalancedLoader, StreamLoader}
    given_ = []

    def before(loader, dataset, *arguments, **options):
        given_.append((arguments, options))
        loader.world_size, loader.batches = 2, 6

    class Loader(BalancedLoader):
        __init__ = patches[BalancedLoader](before)
        global_batch, accumulate = 8, 3

        def __len__(self):
            return 6

    data = torch.utils.data.TensorDataset(torch.arange(5.0))
    loader = Loader(data, 8, num_workers=2, timeout=5, prefetch_factor=2, multiprocessing_context="fork", accumulate=3)
    assert watched == [loader]
    ((arguments, options),) = given_
    assert arguments == (8,)
    assert set(options) == {"accumulate", "collate_fn"}
    (facts,) = tape.facts["balanced"]
    assert (facts["step"], facts["ranks"], facts["batches"]) == (24, 2, 2)
    assert [number for number, _ in facts["candidates"]] == list(range(5))


@given(st.integers(1, 6), st.integers(0, 5))
@settings(max_examples=30)
def test_the_largest_deviation_begins_where_the_first_exceeds_the_tolerance(count, at):
    steps = [{"a": 0.0, "b": float(k)} for k in range(count)]
    found = compare.Difference(tuple(steps))
    assert found.largest == count - 1
    assert found.begins(at) == ((at + 1, "b") if at + 1 < count else (0, ""))
    assert np.isinf(compare.apart(np.zeros(2), np.zeros(3)))
