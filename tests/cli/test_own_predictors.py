"""A predictor of one's own on the command line: what is wrong with it is said, and where."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import OWN, fails, fitting, run, trace  # noqa: F401 - fixtures

from paceline.eval import Balanced, backtest, replay
from paceline.predictors import EWMA, Forecast, checks
from paceline.training import load_model

MINE = """
from paceline.predictors import EWMA, Forecast

class Slow(EWMA):
    pass

class Wrong(EWMA):
    def predict(self, *, covariates=None, horizon=1):
        raise {error}

class Deeper(EWMA):
    def predict(self, *, covariates=None, horizon=1):
        return self.quantile(2)

    def quantile(self, q):
        return super().predict().quantile(q)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))  # to which a command adds the folder

    def write(error="ValueError('no idea')"):
        (tmp_path / "mine.py").write_text(MINE.format(error=error))

    yield write
    for name in ("mine", "own_mine"):
        sys.modules.pop(name, None)


class Sometimes(EWMA):
    """Forecasts ``given`` for one worker in one iteration."""

    def __init__(self, given=float("nan"), at=60, part="speed"):
        super().__init__()
        self.given, self.at, self.part = given, at, part

    def predict(self, *, covariates=None, horizon=1):
        forecast = super().predict(covariates=covariates, horizon=horizon)
        parts = {"speed": forecast.speed.copy(), "spread": forecast.spread.copy()}
        if self.state["count"][1] == self.at:
            parts[self.part][1] = self.given
        return Forecast(**parts)

    def initial_state(self, num_workers):
        return super().initial_state(num_workers) | {"count": np.zeros(num_workers)}

    def observe(self, report):
        super().observe(report)
        self.state["count"] = self.state["count"] + 1


@pytest.mark.slow
@given(
    given_=st.sampled_from([float("nan"), float("inf"), -1.0, 0.0]),
    at=st.integers(0, 119),
    part=st.sampled_from(["speed", "spread"]),
    own=st.booleans(),
)
def test_invalid_forecast_is_never_scored(given_, at, part, own):
    if part == "spread" and given_ in (float("inf"), 0.0):
        return  # nothing is known, or everything
    predictor = Sometimes(given_, at, part)
    job = checks.example_trace(120)
    scored = Keeps(predictor) if own else predictor
    named = "Keeps" if own else "Sometimes"
    worker = job.workers[1]
    with pytest.raises(ValueError, match=rf"^{named} forecast .* for worker {worker} in iteration {at}: "):
        backtest(scored, job, warmup=50)
    with pytest.raises(ValueError, match=rf"^{named} forecast .* for worker {worker} in iteration {at}: "):
        replay({"mine": Balanced(scored)}, job)


class Keeps:
    """Keeps the contract alone, without our base class."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "replay"])
@pytest.mark.parametrize("error", ["ValueError('no idea')", "KeyError('speed')", "ZeroDivisionError()"])
def test_error_names_file_and_line(mine, capsys, monkeypatch, trace, fitting, command, error):  # noqa: F811
    mine(error)
    said = fails(capsys, monkeypatch, command, "mine.py:Wrong", "-t", trace, "-f", fitting)
    assert said.startswith(f"error: {error.partition('(')[0]}: ")
    assert "(mine.py, line 9, in predict)" in said


@pytest.mark.slow
def test_fit_says_how_to_load_own_class(mine, fitting, tmp_path):  # noqa: F811
    mine()
    said = " ".join(run("fit", "mine.py:Slow:smoothing=0.3", "-f", fitting, "--out", "slow.safetensors").split())
    call = said[said.index("load_model(") :]
    from own_mine import Slow

    assert eval(call, {"load_model": load_model, "Slow": Slow}).smoothing == 0.3
    assert "evaluate" not in said


def test_fit_refuses_unsavable_class_early(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "broken.csv").touch()
    said = " ".join(fails(capsys, monkeypatch, "fit", "mine.py:Constant", "-f", "broken.csv").split())
    assert "mine.py:Constant cannot be saved in a model file" in said
