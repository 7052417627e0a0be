"""The cost of samples is learned from busy times, whatever speeds do, and what cannot be told is said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.work import WorkModel, WorkStatus
from paceline.solver import assign


def features_of(lengths):
    columns = np.stack([lengths, lengths**2, np.ones_like(lengths)], axis=1)
    return columns / columns.mean(axis=0)


def learned(true, *, workers=4, iterations=100, noise=0.0, jumps=0.0, balanced=False, seed=0, fixed=0.02):
    """Let a model learn in a simulated training; return it with the features of the dataset's samples."""
    chance, model = np.random.default_rng(seed), WorkModel(features=3)
    samples = features_of(np.ceil(300 * chance.lognormal(0, 0.83, 4000)))
    usual, slow = chance.uniform(50, 100, workers), np.zeros(workers, dtype=bool)
    for _ in range(iterations):
        slow ^= chance.random(workers) < jumps
        speeds = usual * np.where(slow, 0.5, 1.0)
        batch = samples[chance.integers(0, len(samples), 32 * workers)]
        owner = assign(model.work(batch), speeds).owner if balanced else np.arange(len(batch)) % workers
        features = np.stack([batch[owner == rank].sum(axis=0) for rank in range(workers)])
        seconds = features @ true / speeds + fixed
        model.observe(features, seconds * np.exp(noise * chance.standard_normal(workers)))
    return model, samples


def error(model, samples, true):
    """Mean relative error of the cost of a sample, weighted by cost."""
    cost = samples @ true
    return np.abs(model.work(samples) - cost).sum() / cost.sum()


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.booleans(), st.sampled_from([0.0, 0.02]))
def test_costs_are_found_while_speeds_jump(parts, balanced, jumps):
    true = np.array(parts) / sum(parts)
    model, samples = learned(true, balanced=balanced, jumps=jumps)
    assert model.status is WorkStatus.LEARNED
    assert error(model, samples, true) < 0.01


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.slow
def test_costs_within_5_percent_under_noise(balanced):
    for true in ([1.0, 0.0, 0.0], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]):
        errors = [error(*learned(true, noise=0.03, workers=8, balanced=balanced, seed=seed), true) for seed in range(3)]
        assert np.mean(errors) < 0.05


def test_equal_lengths_say_nothing():
    model, chance = WorkModel(features=3), np.random.default_rng(0)
    for _ in range(40):
        counts = chance.integers(10, 20, 2)
        model.observe(np.repeat(counts[:, None], 3, axis=1), counts / 100)
    assert model.status is WorkStatus.ALIKE
    assert model.coefficients.tolist() == [1.0, 0.0, 0.0]


def test_invalid_times_do_no_harm():
    true = np.array([0.5, 0.3, 0.2])
    model, chance = WorkModel(features=3), np.random.default_rng(3)
    samples = features_of(chance.lognormal(5, 0.8, 1000))
    for iteration in range(96):
        features = np.stack([samples[chance.integers(0, 1000, chance.integers(24, 40))].sum(axis=0) for _ in range(3)])
        seconds = features @ true / 100
        seconds[iteration % 3] = [np.nan, np.inf, 0.0, -1.0, seconds[0] * 1000][iteration % 5]
        model.observe(features, seconds)
    assert error(model, samples, true) < 0.02


@pytest.mark.slow
def test_resumes_exactly():
    first, second = WorkModel(features=3), WorkModel(features=3)
    chance = np.random.default_rng(1)
    rows = [(chance.uniform(1, 9, (2, 3)), chance.uniform(0.1, 0.2, 2)) for _ in range(60)]
    for features, seconds in rows[:37]:
        first.observe(features, seconds)
    second.load_state_dict(first.state_dict())
    for features, seconds in rows[37:]:
        assert first.observe(features, seconds) == second.observe(features, seconds)
    assert first.coefficients.tolist() == second.coefficients.tolist()
    assert first.status is second.status


def test_another_fleet_size_starts_again():
    model = WorkModel(features=2)
    model.observe(np.ones((3, 2)), np.ones(3))
    model.observe(np.ones((2, 2)), np.ones(2))
    assert model.state_dict()["past"].shape == (1, 2, 3)


def test_wrong_features_are_refused():
    with pytest.raises(ValueError, match=r"features must have the shape \[workers, features\] \(2, 3\), got \(2, 2\)"):
        WorkModel(features=3).observe(np.ones((2, 2)), np.ones(2))
    with pytest.raises(ValueError, match="the state has 2 coefficients of cost, but this job has 3"):
        WorkModel(features=3).load_state_dict(WorkModel(features=2).state_dict())
