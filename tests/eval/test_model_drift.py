"""The sentence on a newer trace follows from its figures, and these are the errors of its parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.eval import backtest
from paceline.eval.model_drift import _sentence, check_drift
from paceline.predictors import EWMA, LastValue, checks

SHARES = st.sampled_from([np.nan, 0.0, 0.05, 0.051, 0.4, 1.0])


@settings(max_examples=60)
@given(st.sampled_from([0.5, 1.0, 1.01, 2.0]), st.sampled_from([np.nan, 0.5, 0.97, 0.99, 1.0, 1.3]), SHARES, SHARES)
def test_the_sentence_says_how_the_model_stands_what_is_far_and_whether_a_refit_helps(late, times, changed, covariates):
    said = _sentence(late, late * times, changed, covariates)
    assert said.startswith(f"the model {'is worse than' if late > 1 else 'still beats'} the last value")
    assert (f"{changed:.0%} of the changes of speed are far" in said) == (changed > 0.05)
    assert (f"{covariates:.0%} of the covariates' samples are far" in said) == (covariates > 0.05)
    if np.isnan(times):
        assert said.endswith(f"; it learns nothing from traces, so {'take another one' if late > 1 else 'keep it'}")
    elif times < 0.98:
        assert said.endswith(f"; a refit would help: it lowers the error by {1 - times:.0%}")
    else:
        assert said.endswith(f"; a refit would not help: it changes the error by {times - 1:+.1%}")


@pytest.mark.parametrize("iterations", [40, 101])
def test_early_and_late_errors_are_those_before_and_after_six_tenths_of_the_trace(iterations):
    whole = checks.example_trace(iterations)
    seconds = whole.seconds.copy()
    seconds[:, 0] = whole.samples[:, 0] / 50.0  # a worker whose speed never changes says nothing
    trace = Trace(whole.samples, seconds, workers=whole.workers)
    found, middle = check_drift(EWMA(smoothing=0.5), trace), int(0.6 * iterations)
    errors = [np.square(backtest(one, trace, warmup=0).error)[:, 1:] for one in (EWMA(smoothing=0.5), LastValue())]
    for part, ratio in ((slice(10, middle), found.early), (slice(middle, None), found.late)):
        each = [np.sqrt(np.nanmean(error[part], axis=0)) for error in errors]
        assert ratio == pytest.approx(np.exp(np.log(each[0] / each[1]).mean()))
    assert np.isnan(found.refitted)
    assert np.isnan([found.unknown_changes, found.unknown_covariates]).all()
    with pytest.raises(ValueError, match="must have at least 40 iterations, got 39"):
        check_drift(EWMA(smoothing=0.5), trace.select(slice(39)))
