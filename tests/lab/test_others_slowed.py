"""How much longer the other ranks take for a sample while the disturbed one is slow, on made times."""

import math

import numpy as np
import pytest

from paceline.lab.experiment import ExperimentOutcome, Setting
from paceline.lab.experiment.outcome import CLEARLY, DISTURBED


@pytest.mark.parametrize(
    ("slow", "others", "expected"),
    [
        (4.0, [2.0, 9.0, 3.0], 3.0 / 1.5),
        (1.0, [2.0, 9.0, 3.0], math.nan),
        (CLEARLY * 1.001, [6.0, 6.0, 6.0], 6.0 / 1.5),
        (CLEARLY * 0.999, [6.0, 6.0, 6.0], math.nan),
    ],
)
def test_medians_of_seconds_a_sample_are_compared_where_one_rank_is_clearly_slow(monkeypatch, slow, others, expected):
    seconds = np.ones((6, 2))
    seconds[:3, DISTURBED] = slow
    seconds[:3, 1 - DISTURBED] = others
    seconds[3:, 1 - DISTURBED] = [1.0, 1.5, 8.0]
    sizes = np.tile([[2, 4]], (6, 1)) * np.arange(1, 7)[:, None]
    monkeypatch.setattr(ExperimentOutcome, "_measured", lambda self, scheme: (None, sizes, seconds * sizes))
    outcome = ExperimentOutcome(Setting(contention="none"), [])
    assert outcome.slowdown_of_others("auto") == pytest.approx(expected, nan_ok=True)
