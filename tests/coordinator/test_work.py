"""The cost of samples is learned from busy times, whatever speeds do, and what cannot be told is said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.balanced import work
from paceline.coordinator.balanced.work import WorkModel, WorkStatus, not_negative
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
def test_without_noise_the_costs_are_found_even_while_speeds_jump(parts, balanced, jumps):
    true = np.array(parts) / sum(parts)
    model, samples = learned(true, balanced=balanced, jumps=jumps)
    assert model.status is WorkStatus.LEARNED
    assert error(model, samples, true) < 0.01


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.slow
def test_with_noise_the_costs_are_within_5_percent_after_100_iterations(balanced):
    for true in ([1.0, 0.0, 0.0], [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]):
        errors = [error(*learned(true, noise=0.03, workers=8, balanced=balanced, seed=seed), true) for seed in range(3)]
        assert np.mean(errors) < 0.05


def test_equal_lengths_are_said_to_tell_nothing():
    model, chance = WorkModel(features=3), np.random.default_rng(0)
    for _ in range(40):
        counts = chance.integers(10, 20, 2)
        model.observe(np.repeat(counts[:, None], 3, axis=1), counts / 100)
    assert model.status is WorkStatus.ALIKE
    assert model.coefficients.tolist() == [1.0, 0.0, 0.0]


def test_a_given_cost_has_nothing_to_be_learned():
    model = WorkModel(features=1)
    assert not any(model.observe([[5.0], [7.0]], [0.1, 0.2]) for _ in range(40))
    assert model.work(np.array([[2.0]])).tolist() == [2.0]


@pytest.mark.slow
def test_the_work_of_an_average_sample_stays_1():
    model, samples = learned([0.5, 0.3, 0.2], noise=0.1, jumps=0.1)
    assert model.work(samples).mean() == pytest.approx(1)


def test_missing_and_senseless_times_do_no_harm():
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
def test_a_saved_model_learns_on_exactly():
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


def test_a_fleet_of_another_size_starts_its_window_anew():
    model = WorkModel(features=2)
    model.observe(np.ones((3, 2)), np.ones(3))
    model.observe(np.ones((2, 2)), np.ones(2))
    assert model.state_dict()["past"].shape == (1, 2, 3)


def test_wrong_features_are_refused():
    with pytest.raises(ValueError, match=r"features must be 2 rows of 3, one for each worker, got the shape \(2, 2\)"):
        WorkModel(features=3).observe(np.ones((2, 2)), np.ones(2))
    with pytest.raises(ValueError, match="features must be at least 1, got 0"):
        WorkModel(features=0)
    with pytest.raises(ValueError, match="the state has 2 coefficients of cost, but this job has 3"):
        WorkModel(features=3).load_state_dict(WorkModel(features=2).state_dict())


# -- parts, against slow accounts of the same ----------------------------------------------------------------------


def panels(seed, iterations=7, workers=3, features=3):
    """Return features, busy seconds and which of them are known, of a few iterations that are hardly alike."""
    chance = np.random.default_rng(seed)
    features_KWF = chance.uniform(0.5, 1.5, (iterations, workers, features))
    seconds_KW = chance.lognormal(0, 0.5, (iterations, workers))
    return features_KWF, seconds_KW, chance.random((iterations, workers)) < 0.8


@settings(max_examples=40)
@given(st.integers(0, 999))
def test_differences_are_those_of_each_worker_one_and_two_iterations_apart_unless_its_work_moved_far(seed):
    slope_KWF, _, known_KW = panels(seed)
    chance = np.random.default_rng(seed)
    work_KW, seconds_KW = (np.where(known_KW, chance.normal(0, 0.4, known_KW.shape), np.nan) for _ in range(2))
    rows = []
    for lag in (1, 2):
        for k in range(lag, len(work_KW)):
            for w in range(work_KW.shape[1]):
                moved = work_KW[k, w] - work_KW[k - lag, w]
                unexplained = seconds_KW[k, w] - seconds_KW[k - lag, w] - moved
                if abs(moved) < 0.4 and np.isfinite(unexplained):
                    rows.append([*(slope_KWF[k, w] - slope_KWF[k - lag, w]), unexplained])
    slope_RF, target_R = work._differences(slope_KWF, work_KW, seconds_KW)
    assert np.column_stack([slope_RF, target_R]) == pytest.approx(np.array(rows).reshape(-1, 4))


@settings(max_examples=40)
@given(st.integers(0, 999), st.floats(0.0, 0.5))
def test_a_workers_usual_speed_is_the_median_of_what_it_did_in_the_time_that_is_not_fixed(seed, fixed):
    features_KWF, seconds_KW, known_KW = panels(seed)
    known_KW[:, 0] &= seed % 3 > 0
    theta = np.array([0.5, 0.3, 0.2, fixed])
    speed_W = work._speeds(features_KWF, seconds_KW, known_KW, theta)
    for w in range(3):
        did = [
            features_KWF[k, w] @ theta[:3] / max(seconds_KW[k, w] - fixed, 0.05 * seconds_KW[k, w])
            for k in range(len(seconds_KW))
            if known_KW[k, w]
        ]
        assert speed_W[w] == pytest.approx(np.median(did) if did else 1.0)


@settings(max_examples=40)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_residuals_of_more_than_a_time_and_a_half_the_usual_count_less_and_of_eight_times_not_at_all(residuals):
    usual = max(float(np.median(np.abs(residuals))), 1e-9)
    times = [abs(one) / usual for one in residuals]
    wanted = [0.0 if one > 8 else 1.0 if one <= 1.5 else (1.5 / one) ** 0.5 for one in times]
    unsure = [abs(one - 8) < 1e-9 for one in times]
    found = work._weights(np.array(residuals))
    assert np.where(unsure, 0, found) == pytest.approx(np.where(unsure, 0, wanted))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.015, 0.025, 0.3]), min_size=1, max_size=3))
def test_batches_are_alike_where_every_feature_varies_by_less_than_a_fiftieth(apart):
    first = np.linspace(1, 9, 20)
    swing = np.where(np.arange(20) % 2 == 0, 1, -1)
    columns = [first, *(3.0 * first * (1 + one * swing) for one in apart)]
    assert work._alike(np.stack(columns, axis=1)) == all(one < 0.02 for one in apart)


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.0, 1 / 128, 1 / 64]), max_size=9), st.sampled_from(list(WorkStatus)))
def test_fits_become_rarer_while_costs_stay_and_are_as_frequent_as_at_first_after_they_moved(moves, status):
    class Scripted(WorkModel):
        def _refit(self):
            fitted_at.append(self._seen)
            self.status, move = status, moves[len(fitted_at) - 1] if len(fitted_at) <= len(moves) else 0.0
            self.coefficients = self.coefficients + np.array([move, 0.0])
            return move > 0

    fitted_at, model = [], Scripted(2)
    told = [model.observe(np.ones((1, 2)), np.ones(1)) for _ in range(200)]
    due, every, wanted = 8, 8, []
    for move in [*moves, *[0.0] * 40]:
        wanted.append(due)
        every = min(2 * every, 64) if move <= 0.01 and status is not WorkStatus.EARLY else 8
        due += every
    assert fitted_at == [at for at in wanted if at <= 200]
    assert [k + 1 for k, changed in enumerate(told) if changed] == [
        at for at, move in zip(wanted, moves, strict=False) if move > 0 and at <= 200
    ]


@settings(max_examples=8)
@given(st.integers(0, 999), st.floats(1e-3, 1e3))
def test_times_in_another_unit_give_the_same_costs_and_the_fixed_time_in_that_unit(seed, unit):
    features_KWF, _, _ = panels(seed, iterations=24)
    seconds_KW = (features_KWF @ [0.5, 0.3, 0.2] + 0.25) * np.random.default_rng(seed).lognormal(0, 0.01, (24, 3))
    models = [WorkModel(3), WorkModel(3)]
    for model, scale in zip(models, (1.0, unit), strict=True):
        for features, seconds in zip(features_KWF, seconds_KW * scale, strict=True):
            model.observe(features, seconds)
    assert models[0].status is models[1].status is WorkStatus.LEARNED
    assert models[1].coefficients == pytest.approx(models[0].coefficients, abs=2e-4)
    assert models[1].fixed == pytest.approx(unit * models[0].fixed, rel=1e-2, abs=1e-3 * unit)
    assert models[0].fixed == pytest.approx(0.25, abs=0.1)
    assert models[0].coefficients == pytest.approx([0.5, 0.3, 0.2], abs=0.1)


def test_nothing_is_concluded_from_fewer_than_sixteen_known_times():
    for missing, status in ((0, WorkStatus.LEARNED), (1, WorkStatus.EARLY)):
        model, chance = WorkModel(2), np.random.default_rng(0)
        for k in range(8):
            features = chance.uniform(1, 9, (2, 2))
            seconds = features @ [0.5, 0.5]
            seconds[0] = np.nan if k < missing else seconds[0]
            model.observe(features, seconds)
        assert model.status is status
    assert (model.coefficients.tolist(), model.fixed) == ([1.0, 0.0], 0.0)


def test_the_last_iterations_are_handed_out_newest_last_and_the_oldest_are_forgotten():
    model = WorkModel(1)
    assert model.recent(3).shape == model.state_dict()["past"].shape == (0, 0, 2)
    for k in range(200):
        model.observe([[float(k)]], [0.5])
    assert model.recent(2).tolist() == [[[198.0, 0.5]], [[199.0, 0.5]]]
    assert model.recent(500)[:, 0, 0].tolist() == list(range(72, 200))


@settings(max_examples=40)
@given(st.integers(0, 999))
def test_least_squares_towards_a_prior_are_those_of_scipy_with_a_row_of_doubt_for_each_feature(seed):
    from scipy.optimize import nnls

    chance = np.random.default_rng(seed)
    design, target, prior = chance.normal(size=(9, 3)), chance.normal(size=9), chance.uniform(0, 2, 3)
    doubt = np.sqrt(1e-3 * np.square(design).sum(axis=0))
    stacked = np.concatenate([design, np.diag(doubt)]), np.concatenate([target, doubt * prior])
    assert not_negative(design, target, prior) == pytest.approx(nnls(*stacked)[0], abs=1e-9)
