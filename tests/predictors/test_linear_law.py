"""What linear models read and how they learn it, beside one worker's numbers written down one by one."""

import numpy as np
import pytest

from paceline.predictors.linear import recursive


@pytest.mark.parametrize("largest", [0.5, 1e9])
@pytest.mark.parametrize("forgetting", [0.9, 1.0])
def test_recursive_step_equals_textbook(forgetting, largest, monkeypatch):
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


def test_worker_without_error_learns_nothing():
    weights_WF, covariance_WFF = np.zeros((2, 1)), np.ones((2, 1, 1))
    recursive.learn(weights_WF, covariance_WFF, np.ones((2, 1)), np.array([np.nan, 1.0]), np.ones(2), 0.5, 9.0)
    np.testing.assert_allclose(weights_WF[:, 0], [0.0, 1 / 1.5])
    np.testing.assert_allclose(covariance_WFF[:, 0, 0], [1.0, 2 * (1 - 1 / 1.5)])
