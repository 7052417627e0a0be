"""What drift and a saving mean, said in whole sentences, each at the figure from which it is said."""

import pytest

from paceline.eval.model_drift import MANY, _sentence
from paceline.eval.saving import Simulation

NAN = float("nan")
FIGURES = {"workers": 4, "iterations": 50, "global_batch": 64, "saving": 0.1, "low": 0.02, "high": 0.2}
FIGURES |= {"hindsight": 0.15, "slow_machines": 0.02, "uneven_samples": 0.03, "noise": 0.1, "slowest": "3"}


@pytest.mark.parametrize(
    ("late", "refitted", "said"),
    [
        (1.0, NAN, "still beats the last value; it learns nothing from traces, so keep it"),
        (1.001, NAN, "is worse than the last value; it learns nothing from traces, so take another one"),
        (1.0, 0.98, "still beats the last value; a refit would help: it lowers the error by 2%"),
        (1.0, 0.981, "still beats the last value; a refit would not help: it changes the error by -1.9%"),
        (1.25, 1.5, "is worse than the last value; a refit would not help: it changes the error by +20.0%"),
    ],
)
def test_advice_follows_from_the_errors_before_and_after_a_refit(late, refitted, said):
    assert _sentence(late, refitted, NAN, NAN) == _sentence(late, refitted, MANY, MANY) == f"the model {said}"


def test_speeds_and_covariates_unlike_the_fitted_ones_are_told_with_their_share():
    said = "the model still beats the last value{}; it learns nothing from traces, so keep it"
    far = ", and {} of the {} are far from those it was fitted on"
    speeds, samples = far.format("50%", "changes of speed"), far.format("75%", "covariates' samples")
    assert _sentence(0.9, NAN, 0.5, NAN) == said.format(speeds)
    assert _sentence(0.9, NAN, NAN, 0.75) == said.format(samples)
    assert _sentence(0.9, NAN, 0.5, 0.75) == said.format(speeds + samples)


@pytest.mark.parametrize(
    ("low", "high", "sure"),
    [(0.02, 0.2, ""), (0.0199, 0.02, ", too little to be sure of"), (0.0, 0.0199, ", next to nothing")],
)
def test_a_saving_is_sure_if_both_ends_of_its_interval_are_two_hundredths(low, high, sure):
    found = Simulation(**{**FIGURES, "low": low, "high": high})
    assert found.pays is (not sure)
    assert found.sentences == (
        f"Balancing would save 10.0 % of the time (90 % interval: {100 * low:.1f} to {100 * high:.1f} %){sure}.",
        "Waiting costs 15.0 % of the time: slow machines 2.0 %, uneven samples 3.0 %, noise 10.0 %; mostly for worker "
        "3.",
        "Replayed: 50 iterations of 4 workers, 64 samples each.",
    )


def test_nobody_is_named_where_slow_machines_cost_next_to_nothing():
    found = Simulation(**{**FIGURES, "slow_machines": 0.0199, "assumed": ("Supposed.",)})
    assert found.sentences[1].endswith("noise 10.0 %.")
    assert found.sentences[2] == "Supposed."
