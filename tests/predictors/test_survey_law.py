"""A survey says what all traces hold, in one pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.predictors.fitting import Survey


def trace(seed, workers=("a", "b"), names=("load",), iterations=6, **meta):
    rng = np.random.default_rng(seed)
    shape = (iterations, len(workers))
    seconds_TW = rng.uniform(0.5, 2.0, shape)
    seconds_TW[rng.random(shape) < 0.15] = np.nan
    covariates_TWD = rng.normal(size=(*shape, len(names)))
    covariates_TWD[rng.random(covariates_TWD.shape) < 0.1] = np.nan
    more = {"covariates": covariates_TWD, "covariate_names": names} if names else {}
    return Trace(np.full(shape, 8.0), seconds_TW, workers=workers, meta=meta, **more)


NAMES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
TRACES = st.lists(
    st.tuples(NAMES, st.lists(st.sampled_from("xyz"), max_size=3, unique=True), st.integers(1, 7)), max_size=4
)


@pytest.mark.slow
@given(TRACES, st.sets(st.sampled_from("abcde")))
@settings(max_examples=60)
def test_a_survey_says_what_all_traces_hold(made, held_out):
    traces = [trace(k, tuple(w), tuple(n), iterations) for k, (w, n, iterations) in enumerate(made)]
    if not traces:
        with pytest.raises(ValueError, match="at least one trace to fit, got none"):
            Survey.of(traces, held_out.__contains__)
        return
    found = Survey.of(traces, held_out.__contains__)
    assert found.lengths == tuple(map(len, traces))
    assert found.speeds == sum(int(np.isfinite(one.speed).sum()) for one in traces)
    assert found.workers == tuple(dict.fromkeys(w for one in traces for w in one.workers))
    shared = [n for n in traces[0].covariate_names if all(n in one.covariate_names for one in traces)]
    assert found.shared == tuple(shared)
    assert list(found.covariates) == list(dict.fromkeys(n for one in traces for n in one.covariate_names))
    values = {name: [] for name in found.covariates}
    for one in traces:
        for w in (w for w, name in enumerate(one.workers) if name not in held_out):
            for d, name in enumerate(one.covariate_names):
                values[name] += one.covariates[:, w, d].tolist()
    for name, own in values.items():
        require_spread(found.covariates[name], own)


def require_spread(spread, values):
    known = [value for value in values if np.isfinite(value)]
    assert spread.count == len(known)
    if known:
        assert spread.mean == pytest.approx(np.mean(known), abs=1e-12)
        assert spread.squares == pytest.approx(np.sum(np.square(known - np.mean(known))), abs=1e-12)


def test_covariates_wanted_or_present():
    one = Survey.of([trace(0, names=("x", "y")), trace(1, names=("y", "z"))])
    assert one.shared_covariates(None) == ("y",)
    assert one.any_covariates(None) == ("x", "y", "z")
    assert one.shared_covariates(("y",)) == one.any_covariates(("y",)) == ("y",)
    assert one.shared_covariates(()) == one.any_covariates(()) == ()
    with pytest.raises(
        ValueError, match=r"^covariates \['x', 'w'\] are not in every trace to fit; those that are: \['y'\]$"
    ):
        one.shared_covariates(("x", "y", "w"))
    with pytest.raises(
        ValueError, match=r"^covariates \['w'\] are in none of the traces to fit; those that are: \['x', 'y', 'z'\]$"
    ):
        one.any_covariates(("x", "w"))
    mean_D, scale_D = one.mean_and_scale(("z", "nobody", "x"))
    known = one.covariates
    assert mean_D.tolist() == [known["z"].mean, 0.0, known["x"].mean]
    assert scale_D.tolist() == [known["z"].deviation, 1.0, known["x"].deviation]
    assert [part.dtype for part in one.mean_and_scale(())] == [np.float64] * 2
