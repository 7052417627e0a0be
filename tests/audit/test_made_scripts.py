"""Whatever weight a script gives its samples, the audit says that it does, and which: scripts made by a rule."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path[:0] = [str(Path(__file__).parent)]

from made_scripts import (  # noqa: E402
    EXACT,
    SUMS,
    Made,
    by_place,
    coupled,
    mean_of,
    of_ranks,
    over_all_tokens,
    vectors,
    weighted,
)

from paceline.audit import Audit  # noqa: E402

SHAPES = st.fixed_dictionaries(
    {
        "ranks": st.integers(2, 3),
        "micro": st.integers(1, 3),
        "size": st.sampled_from([3, 4, 6]),
        "seed": st.integers(0, 99),
    }
)
FEW = settings(max_examples=4)


def verdict(script, steps=3):
    return Audit(script, steps=steps).verdict()


def told(found):
    return found.status.name, found.cause and found.cause.name, found.detail


@given(SHAPES)
@FEW
def test_mean_over_samples_is_exact(shape):
    found = verdict(Made(EXACT, **shape))
    assert told(found) == ("EXACT", None, "")
    assert found.runs.keys() == {"an equal run", "samples exchanged", "one process, first step"}
    assert found.deviation == max(found.runs.values()) < 1e-12
    assert (found.steps, found.ranks, found.precision, found.noise) == (3, shape["ranks"], "float64", 0.0)
    assert len(found.notes) == 2
    assert "has no BalancedLoader" in found.notes[0]


@given(SHAPES)
@FEW
def test_sums_are_smaller_or_larger(shape):
    ranks = shape["ranks"]
    share = f"{1 / ranks:.4g} times that of one process"
    assert told(verdict(Made(SUMS, **shape))) == ("NOT_EXACT", "SUM", share)
    larger = Made(lambda batches, state: len(batches[0]) * EXACT(batches, state), **shape)
    found = verdict(larger)
    assert told(found) == ("NOT_EXACT", "TIMES_RANKS", f"{ranks} times that of one process")
    assert (found.first_step, found.parameter) == (0, "first")
    found = verdict(replace(larger, facts={"trainer expects a divided loss": True}))
    assert told(found) == ("NOT_EXACT", "TRAINER", f"{ranks} times that of one process")
    odd = Made(lambda batches, state: (0.9 if len(batches[0]) > 1 else 1.0) * EXACT(batches, state), **shape)
    assert told(verdict(odd)) == ("NOT_EXACT", "UNKNOWN", "0.9 times that of one process")


@pytest.mark.parametrize(
    ("weight", "detail"),
    [
        (lambda one: one["counts"]["tokens"], "it follows the size of tokens"),
        (lambda one: one["counts"]["tokens"] - 1, "it follows the size of tokens, less one"),
        (lambda one: one["counts"]["labels that count"], "it follows the number of labels that count"),
    ],
)
@given(shape=SHAPES)
@FEW
def test_batch_normalized_loss_names_its_divisor(weight, detail, shape):
    found = verdict(Made(mean_of(weighted(weight)), **shape))
    assert told(found) == ("NOT_EXACT", "TERMS", detail)


@given(SHAPES, st.sampled_from([0.25, 0.5, 1.5, 1.75]))
@FEW
def test_uneven_ranks_and_micro_batches_told(shape, first):
    others = (shape["ranks"] - first) / (shape["ranks"] - 1)
    found = verdict(Made(by_place([first, *[others] * 2], 1), **shape))
    assert told(found) == ("NOT_EXACT", "RANKS", f"the first counts {first:.3g} times its share")
    if (micro := shape["micro"]) > 1:
        others = (micro - first) / (micro - 1)
        found = verdict(Made(by_place([first, *[others] * 2], 0), **shape))
        assert told(found) == ("NOT_EXACT", "MICRO_BATCHES", f"the first counts {first:.3g} times its share")


# -- what one run shows ----------------------------------------------------------------------------------------------


def each(change):
    """A script whose every run is changed: by its number, its plan, whether it is one process, and what it was."""
    return Made(EXACT, spoilt=change)


def test_failing_script_is_unknown():
    def fails(run, plan, alone, found):
        return replace(found, records=[], error="no data")

    def takes_no_step(run, plan, alone, found):
        return replace(found, records=[])

    def single(run, plan, alone, found):
        return found if plan.precision == "float32" else replace(found, records=[], error="no doubles")

    def later(run, plan, alone, found):
        return found if run == 1 else replace(found, records=[], error="no more")

    assert told(verdict(each(fails))) == ("COULD_NOT_TELL", "FAILED", "no data")
    assert told(verdict(each(takes_no_step))) == ("COULD_NOT_TELL", "NO_STEPS", "")
    found = verdict(each(single))
    assert told(found) == ("EXACT", None, "")
    assert found.precision == "float32"
    found = verdict(each(later))
    assert told(found) == ("COULD_NOT_TELL", "FAILED", "a second, equal run ended earlier than the first")
    assert found.notes[-1] == "The run with an equal run failed: no more"


@pytest.mark.parametrize(("noise", "known"), [(1e-12, True), (0.02, True), (0.2, False)])
def test_noise_widens_tolerance_until_unknown(noise, known):
    def noisy(run, plan, alone, found):
        for record in found.records:
            for step in record.steps:
                step.gradients = {k: v * (1 + noise * (run == 2)) for k, v in step.gradients.items()}
        return found

    found = verdict(each(noisy))
    assert found.noise == pytest.approx(noise, rel=1e-3)
    if known:
        assert told(found) == ("EXACT", None, "")
    else:
        assert told(found) == ("COULD_NOT_TELL", "NOISE", "by 2.0e-01 of the gradient")


def on_rank_one(of_step, start=None):
    """Change what the second rank has: its parameters at the start, and each of its steps."""

    def change(run, plan, alone, found):
        for record in found.records[1:]:
            record.initial_parameters = start(record.initial_parameters) if start else record.initial_parameters
            for step in record.steps:
                of_step(step)
        return found

    return change


def nothing(step):
    return None


def other_gradients(step):
    step.gradients = {k: v * 1.5 for k, v in step.gradients.items()}


def other_parameters(step):
    step.parameters = {k: v * 1.5 for k, v in step.parameters.items()}


def both(step):
    other_gradients(step)
    other_parameters(step)


def moved_start(start):
    return {k: v + 1.0 for k, v in start.items()}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (on_rank_one(nothing), None),
        (on_rank_one(other_gradients), None),  # parameters end alike: a sharded optimizer
        (on_rank_one(other_parameters), None),
        (on_rank_one(both), "NOT_AVERAGED"),
        (on_rank_one(nothing, moved_start), "STARTS"),
        (on_rank_one(other_parameters, moved_start), "STARTS"),
        (on_rank_one(both, moved_start), "STARTS"),
        (on_rank_one(other_gradients, moved_start), None),
        (on_rank_one(other_gradients, lambda start: {k: v[:1] for k, v in start.items()}), None),  # shards
    ],
)
def test_ranks_must_begin_and_step_alike(change, cause):
    found = verdict(each(change))
    assert (found.cause and found.cause.name) == cause


@pytest.mark.parametrize(
    ("facts", "micro", "cause"),
    [
        ({"ratio": [1.0, 1.0], "scale": [1.0]}, 2, "NOT_DIVIDED"),
        ({"ratio": [1.0, 1.0]}, 2, "NOT_DIVIDED"),
        ({"ratio": [0.5, 0.5], "scale": [1.0]}, 2, None),
        ({"ratio": [1.0, 1.0], "scale": [0.5]}, 2, None),  # the script divides gradients
        ({"ratio": [1.0], "scale": [1.0]}, 2, None),  # one backward pass of both
        ({"ratio": [1.0], "scale": [1.0]}, 1, None),
        ({"ratio": [1.0, 1.0 + 1e-4], "scale": [1.0]}, 2, None),
        ({"ratio": [1.0, 1.0 + 1e-8], "scale": [1.0]}, 2, "NOT_DIVIDED"),
    ],
)
def test_losses_of_micro_batches_must_be_divided(facts, micro, cause):
    found = verdict(Made(EXACT, micro=micro, step_facts=facts))
    assert (found.cause and found.cause.name) == cause
    if cause:
        assert found.detail == "a step's gradient is 2 times a mean's"


def test_single_process_failures_are_said():
    found = verdict(Made(EXACT, alone=False))
    assert told(found) == ("EXACT", None, "")
    assert found.notes[-1] == "It was not compared with one process: it does not run as one (it needs two ranks)."

    def two(run, plan, alone, found):
        return replace(found, records=[replace(record, world_size=2) for record in found.records])

    assert verdict(each(two)).notes[-1].endswith("it does not run as one (it started 2 ranks).")

    def short(run, plan, alone, found):
        for record in found.records:
            del record.steps[2:]
        return found

    found = verdict(each(short))
    assert "The script took only 2 steps." in found.notes
    assert found.steps == 2
    assert "The script took" not in " ".join(verdict(Made(EXACT)).notes)


# -- balanced jobs ---------------------------------------------------------------------------------------------------


def balanced(of_batch, weight=lambda own, total, ranks: own / total, **options):
    return Made(of_ranks(of_batch, weight), balanced=12, **options)


def mean(samples):
    return vectors(samples).mean(axis=0)


def total_of(samples):
    return vectors(samples).sum(axis=0)


@pytest.mark.parametrize("ranks", [2, 3])
@given(seed=st.integers(0, 99))
@FEW
def test_a_balanced_job_gets_its_verdict(seed, ranks):
    options = {"ranks": ranks, "seed": seed}
    found = verdict(balanced(mean, **options))
    assert told(found) == ("EXACT", None, "")
    assert found.runs.keys() == {"an equal run", "uneven sizes"}
    square = "a rank's weight grows with the square of its batch"
    assert told(verdict(balanced(total_of, **options))) == ("NOT_EXACT", "SUM", square)
    of_tokens = Made(over_all_tokens, balanced=12, **options)
    assert told(verdict(of_tokens)) == ("NOT_EXACT", "SUM", square)
    alike = balanced(mean, lambda own, total, ranks: 1 / ranks, **options)
    assert told(verdict(alike)) == ("NOT_EXACT", "NOT_WEIGHTED", "")
    odd = balanced(mean, lambda own, total, ranks: (own / total) ** 0.5, **options)
    assert told(verdict(odd))[:2] == ("NOT_EXACT", "UNKNOWN")
    tokens = weighted(lambda one: one["counts"]["labels that count"])
    follows = "it follows the number of labels that count"
    assert told(verdict(balanced(tokens, **options))) == ("NOT_EXACT", "TERMS", follows)
    assert told(verdict(balanced(coupled, **options)))[1] == "ROWS"
