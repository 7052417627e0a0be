"""What linear models read and how they learn it, beside one worker's numbers written down one by one."""

import math

import numpy as np
import pytest

from paceline.predictors.linear import inputs, per_worker, recursive
from paceline.predictors.linear.per_worker import Own

SMOOTHINGS = (0.5, 0.2, 0.05)


class One:
    """One worker: its last six log speeds, three averages, a scale of its changes, and what it knows of covariates."""

    def __init__(self, covariates):
        self.past, self.averages, self.scale, self.seen = [], None, None, 0
        self.mean, self.last = [None] * covariates, [None] * covariates
        self.spread = [0.0] * covariates

    @property
    def used(self):
        return max(self.scale or 0.0, 1e-3)

    def inputs(self, covariates, more):
        if not self.past:
            references = [0.0] * 8
        else:
            older = [*self.past[1:], *[self.past[0]] * 6][:5]
            older = [(past - self.past[0]) if k + 1 < len(self.past) else 0.0 for k, past in enumerate(older)]
            references = [one / self.used for one in (*older, *(average - self.past[0] for average in self.averages))]
        driven = [
            0.0 if value is None or of is None else max(min((value - of) / (math.sqrt(spread) + 1e-6), 4.0), -4.0)
            for known in (self.mean, self.last)
            for value, of, spread in zip(covariates, known, self.spread, strict=True)
        ]
        return [*references, *[0.0] * more, *driven]

    def move(self, value, covariates):
        for d, covariate in enumerate(covariates):
            if covariate is None:
                continue
            if self.mean[d] is None:
                self.mean[d] = covariate
            else:
                rate, off = max(0.02, 1 / (self.seen + 1)), covariate - self.mean[d]
                self.mean[d] += rate * off
                self.spread[d] += rate * (off**2 - self.spread[d])
            self.last[d] = covariate
        if value is None:
            return
        if self.past:
            change = abs(value - self.past[0])
            if self.scale is None:
                self.scale = change
            else:
                self.scale += 0.05 * (min(change, 5.0 * self.used) - self.scale)
            self.averages = [a + s * (value - a) for a, s in zip(self.averages, SMOOTHINGS, strict=True)]
        else:
            self.averages = [value] * 3
        self.past = [value, *self.past][:6]
        self.seen += 1


def known(values):
    return [None if np.isnan(value) else float(value) for value in values]


def test_a_step_reaches_two_scales_farther_than_the_references_and_no_covariate_widens_it():
    inputs_WF = np.zeros((2, inputs.REFERENCES + 2))
    inputs_WF[0, [0, inputs.REFERENCES - 1, inputs.REFERENCES]] = 1.0, -3.0, 50.0
    reach_W = inputs.reach_of(inputs_WF)
    assert reach_W.tolist() == [5.0, 2.0]
    assert inputs.bounded(np.array([7.0, -7.0]), reach_W).tolist() == [5.0, -2.0]
    assert inputs.bounded(np.array([-4.0, 1.0]), reach_W).tolist() == [-4.0, 1.0]
    assert inputs.REFERENCES == 8


def test_examples_count_less_the_farther_out_their_inputs_and_errors_are():
    inputs_WF = np.array([[2.0, 2.0, 2.0], [4.0, 4.0, 2.0], [0.0, 1.0, 0.0]])
    assert inputs.farness(inputs_WF, 3).tolist() == [1.0, 3.0, 1.0]
    assert inputs.farness(inputs_WF, 9).tolist() == [1.0, 1.0, 1.0]
    found = inputs.doubt_of(np.array([-6.0, 2.0, 1.0, np.nan]), np.array([1.0, 3.0, 1.0, 1.0]))
    np.testing.assert_array_equal(found, [3.0, 3.0, 1.0, np.nan])


@pytest.mark.parametrize("largest", [0.5, 1e9])
@pytest.mark.parametrize("forgetting", [0.9, 1.0])
def test_a_recursive_step_is_that_of_the_textbook_in_blocks_of_any_size(forgetting, largest, monkeypatch):
    monkeypatch.setattr(recursive, "BLOCK", 2)
    rng = np.random.default_rng(2)
    weights_WF, root_WFF = rng.normal(0.0, 1.0, (5, 3)), rng.normal(0.0, 1.0, (5, 3, 3))
    covariance_WFF = root_WFF @ root_WFF.transpose(0, 2, 1)
    for _ in range(3):
        inputs_WF, error_W, doubt_W = rng.normal(0.0, 1.0, (5, 3)), rng.normal(0.0, 1.0, 5), rng.uniform(1.0, 3.0, 5)
        error_W[1] = np.nan
        before = weights_WF.copy(), covariance_WFF.copy()
        recursive.learn(weights_WF, covariance_WFF, inputs_WF, error_W, doubt_W, forgetting, largest)
        for w, (weight_F, covariance_FF) in enumerate(zip(*before, strict=True)):
            if w == 1:
                wanted = weight_F, covariance_FF
            else:
                gain_F = covariance_FF @ inputs_WF[w]
                gain_F = gain_F / (forgetting * doubt_W[w] + inputs_WF[w] @ gain_F)
                learnt_FF = covariance_FF - np.outer(gain_F, inputs_WF[w] @ covariance_FF)
                wanted = weight_F + gain_F * error_W[w], learnt_FF * min(1 / forgetting, largest / np.trace(learnt_FF))
            np.testing.assert_allclose(weights_WF[w], wanted[0], rtol=1e-9)
            np.testing.assert_allclose(covariance_WFF[w], wanted[1], rtol=1e-7, atol=1e-12)


def test_workers_without_an_error_learn_nothing_and_all_others_do():
    weights_WF, covariance_WFF = np.zeros((2, 1)), np.ones((2, 1, 1))
    recursive.learn(weights_WF, covariance_WFF, np.ones((2, 1)), np.array([np.nan, 1.0]), np.ones(2), 0.5, 9.0)
    np.testing.assert_allclose(weights_WF[:, 0], [0.0, 1 / 1.5])
    np.testing.assert_allclose(covariance_WFF[:, 0, 0], [1.0, 2 * (1 - 1 / 1.5)])


def own(rng, workers, covariates):
    rows = per_worker.fresh(workers, covariates)
    rows["own"] = rng.normal(0.0, 1.0, rows["own"].shape)
    return rows


@pytest.mark.parametrize(
    ("means", "first", "end"),
    [
        ([[1.0, 2.0, 3.0]], 0, 3),
        ([[np.nan, 2.0, np.nan]], 1, 2),
        ([[1.0, np.nan, np.nan], [np.nan, 2.0, np.nan]], 0, 2),
        ([[np.nan, np.nan, 3.0]], 2, 3),
        ([[1.0, np.nan, 3.0]], 0, 3),
        ([[np.nan] * 3], 0, 0),
    ],
)
def test_a_workers_own_correction_is_of_the_covariates_from_the_first_to_the_last_that_anyone_reports(
    means, first, end
):
    rng, mean_WD = np.random.default_rng(3), np.array(means)
    workers = len(mean_WD)
    rows, driven_WF = own(rng, workers, 3), rng.normal(0.0, 1.0, (workers, 6))
    alone = Own.of(rows, mean_WD, driven_WF)
    for w in range(workers):
        level_D, move_D = driven_WF[w, first:end], driven_WF[w, 3 + first : 3 + end]
        assert alone.inputs_WG[w].tolist() == [one for pair in zip(level_D, move_D, strict=True) for one in pair]
        assert alone.step_W[w] == pytest.approx(alone.inputs_WG[w] @ rows["own"][w, 2 * first : 2 * end])
    before = {name: values.copy() for name, values in rows.items()}
    if end:
        alone.learn(np.full(workers, 0.7), np.full(workers, 1.5), 0.9)
        changed_F = np.zeros(6, dtype=bool)
        changed_F[2 * first : 2 * end] = True
        np.testing.assert_array_equal((rows["own"] != before["own"]).all(axis=0), changed_F)
        np.testing.assert_array_equal(rows["own"][:, ~changed_F], before["own"][:, ~changed_F])
        wanted = {name: values[:, 2 * first : 2 * end] for name, values in before.items()}
        wanted["covariance"] = wanted["covariance"][:, :, 2 * first : 2 * end].copy()
        most = 0.05 * 2 * (end - first)
        recursive.learn(
            wanted["own"],
            wanted["covariance"],
            alone.inputs_WG,
            np.full(workers, 0.7),
            np.full(workers, 1.5),
            0.9,
            most,
        )
        np.testing.assert_allclose(rows["own"][:, changed_F], wanted["own"])
        np.testing.assert_allclose(rows["covariance"][:, changed_F][:, :, changed_F], wanted["covariance"])


def test_without_covariates_or_with_none_that_differs_a_worker_corrects_nothing_of_its_own():
    rng = np.random.default_rng(4)
    assert Own.of(own(rng, 2, 0), np.empty((2, 0)), np.empty((2, 0))) is None
    assert Own.of(own(rng, 2, 2), np.ones((2, 2)), np.zeros((2, 4))) is None
    only_one = np.zeros((2, 4))
    only_one[1, 3] = 1.0
    assert Own.of(own(rng, 2, 2), np.ones((2, 2)), only_one) is not None
