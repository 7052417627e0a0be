"""Synthetic fleets have the properties that they claim."""

import numpy as np
import pytest

from paceline.datasets import synthetic_fleet

KINDS = ("mixed", "noexog", "walk")


@pytest.mark.parametrize("kind", KINDS)
def test_seed_decides_the_fleet(kind):
    one, same = (synthetic_fleet(kind, workers=3, iterations=50, seed=1) for _ in range(2))
    other = synthetic_fleet(kind, workers=3, iterations=50, seed=2)
    assert np.array_equal(one.speed, same.speed)
    assert np.array_equal(one.covariates, same.covariates)
    assert not np.allclose(one.speed, other.speed)


def _correlation_with_cpu(kind):
    fleet = synthetic_fleet(kind, workers=20, iterations=1000)
    cpu_TW, speed_TW = fleet.covariates[:, :, 0], np.log(fleet.speed)
    return np.mean([np.corrcoef(np.diff(cpu_TW[:, w]), np.diff(speed_TW[:, w]))[0, 1] for w in range(20)])


def test_covariates_explain_only_mixed_fleets():
    assert _correlation_with_cpu("mixed") > 0.1
    assert abs(_correlation_with_cpu("noexog")) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_empty_fleets_refused(kind):
    one = synthetic_fleet(kind, workers=1, iterations=1)
    assert one.seconds.shape == (1, 1)
    for size in ({"workers": 0}, {"iterations": 0}, {"workers": -1, "iterations": 5}):
        with pytest.raises(ValueError, match=r"^workers and iterations must be at least 1, got"):
            synthetic_fleet(kind, **{"workers": 3, "iterations": 3, **size})
