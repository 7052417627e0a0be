"""Dampings are their formulas at any staleness and fleet, and round reports are what their docstrings say."""

import math

import numpy as np
import pytest

from paceline.coordinator.asynchronous.rules import (
    Beyond,
    Exponential,
    Inverse,
    InverseNext,
    Polynomial,
    Share,
    Undamped,
)
from paceline.coordinator.federated import RoundReport

FORMULAS = [
    (Undamped(), lambda tau, workers: 1.0),
    (Inverse(), lambda tau, workers: 1.0 if tau == 0 else 1 / tau),
    (InverseNext(), lambda tau, workers: 1 / (tau + 1)),
    (Share(), lambda tau, workers: 1 / workers),
    (Polynomial(), lambda tau, workers: 1 / math.sqrt(tau + 1)),
    (Polynomial(2.0), lambda tau, workers: 1 / (tau + 1) ** 2),
    (Polynomial(0.0), lambda tau, workers: 1.0),
    (Exponential(), lambda tau, workers: math.exp(-tau / 10)),
    (Exponential(0.0), lambda tau, workers: 1.0),
    (Beyond(), lambda tau, workers: workers / (tau + 1) if tau >= workers else 1.0),
]


@pytest.mark.parametrize(("rule", "formula"), FORMULAS, ids=lambda one: repr(one) if hasattr(one, "factor") else "")
def test_a_damping_is_its_formula(rule, formula):
    for tau in range(12):
        for workers in range(1, 9):
            assert rule.factor(tau, workers) == pytest.approx(formula(tau, workers), rel=1e-12)


@pytest.mark.parametrize(("rule", "name"), [(Polynomial, "power"), (Exponential, "decay")])
@pytest.mark.parametrize("value", [-5e-324, math.nan])
def test_a_damping_that_would_strengthen_is_refused(rule, name, value):
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, got {value}"):
        rule(value)


ODD = [math.nan, math.inf, 0.0, -1.0, 1e-320, 1.0, 4.0, 9.0]


def speed_of(samples, seconds, failed, ran_out):
    """Return samples / seconds, or None where the reply makes no speed."""
    if failed or ran_out or not samples > 0 or not seconds > 0 or math.isinf(seconds) or math.isinf(samples):
        return None
    return None if seconds == 1e-320 else samples / seconds  # a time that is next to none makes an infinite speed


def communication_of(measured, elapsed, seconds):
    """Return what was measured, or the rest of the round trip; None where neither is a time."""
    if math.isnan(measured):
        measured = elapsed - seconds
        measured = measured if math.isnan(measured) else max(measured, 0.0)
    return measured if 0 <= measured < math.inf else None


@pytest.mark.parametrize("seed", range(5))
def test_a_round_report_makes_a_number_of_each_reply_or_none_and_warns_of_nothing(seed):
    rng = np.random.default_rng(seed)
    samples, seconds, comm, elapsed = rng.choice(ODD, (4, 200))
    samples = np.where(samples == 1e-320, 64.0, samples)
    ran_out, failed = rng.random((2, 200)) < 0.1
    report = RoundReport(
        clients=range(200),
        samples=samples,
        seconds=seconds,
        comm_seconds=comm if seed % 2 else None,
        elapsed=elapsed if seed % 3 else None,
        out_of_memory=ran_out if seed else None,
        failed=failed if seed else None,
    )
    ran_out, failed = (mask & bool(seed) for mask in (ran_out, failed))
    comm = comm if seed % 2 else np.full(200, np.nan)
    elapsed = elapsed if seed % 3 else np.full(200, np.nan)
    assert report.names == tuple(str(number) for number in range(200))
    np.testing.assert_array_equal(report.used, ~failed & ~ran_out)
    np.testing.assert_array_equal(report.ran_out, ran_out)
    speeds = [
        speed_of(*one) for one in zip(*(column.tolist() for column in (samples, seconds, failed, ran_out)), strict=True)
    ]
    np.testing.assert_array_equal(report.speed, np.array(speeds, dtype=float))
    waits = [communication_of(*one) for one in zip(comm.tolist(), elapsed.tolist(), seconds.tolist(), strict=True)]
    np.testing.assert_array_equal(report.communication, np.array(waits, dtype=float))
    np.testing.assert_array_equal(report.measured_comm, comm)
    np.testing.assert_array_equal(report.elapsed_seconds, elapsed)


@pytest.mark.parametrize("name", ["samples", "seconds", "comm_seconds", "elapsed", "out_of_memory", "failed"])
@pytest.mark.parametrize("given", [[1.0], [1.0, 1.0, 1.0], [[1.0, 1.0]], 1.0])
def test_a_round_report_of_another_shape_is_refused(name, given):
    with pytest.raises(ValueError, match=f"{name} must have one entry for each of the 2 clients"):
        RoundReport(clients=["a", "b"], **{"samples": [1, 1], "seconds": [1, 1], name: given})


def test_a_client_that_replied_twice_is_refused_also_if_its_ids_differ_in_type():
    with pytest.raises(ValueError, match="clients must not repeat an id"):
        RoundReport(clients=[1, "1"], samples=[1, 1], seconds=[1, 1])


def test_in_a_round_report_none_is_not_known_and_numbers_may_be_of_any_type():
    told = {"samples": [64, None], "seconds": [0.5, 1], "comm_seconds": [None, 2], "elapsed": [2, None]}
    report = RoundReport(clients=["a", "b"], **told)
    np.testing.assert_array_equal(report.speed, [128.0, np.nan])
    np.testing.assert_array_equal(report.communication, [1.5, 2.0])
    report = RoundReport(clients=["a"], samples=[64], seconds=[None])
    np.testing.assert_array_equal([report.speed, report.communication], [[np.nan], [np.nan]])
