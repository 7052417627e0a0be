import sys

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.eval.plots import curve_figure, health_figure
from paceline.predictors import checks


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    return figures


def fleet_of(workers, iterations=80):
    speed_TW = np.random.default_rng(0).uniform(90, 110, (iterations, workers)) * np.linspace(1, 3, workers)
    return Trace(np.ones((iterations, workers)), 1 / speed_TW)


@pytest.mark.slow
def test_health_figure_has_no_empty_panel(tmp_path, drawn):
    none = np.full((60, 2), np.nan)
    cpu = np.random.default_rng(0).uniform(0, 100, (60, 2, 1))
    usage = Trace(none, none, covariates=cpu, covariate_names=["cpu"], meta={"units": "cpu: percent"})
    for trace, panels in ((usage, 2), (fleet_of(2), 2), (fleet_of(2, iterations=1), 1), (checks.example_trace(), 3)):
        health_figure(trace, tmp_path / "health.png")
        assert len(drawn[-1].axes) == panels
        assert all(axes.lines or axes.patches for axes in drawn[-1].axes)
        assert {axes.title.get_fontsize() for axes in drawn[-1].axes} == {10.0}, "titles of one size"
    health_figure(usage, tmp_path / "health.png")
    assert drawn[-1].axes[0].get_ylabel() == "cpu, percent"


@pytest.mark.parametrize(("draw", "given"), [(curve_figure, pd.DataFrame()), (health_figure, checks.example_trace())])
def test_missing_matplotlib_names_extra(tmp_path, monkeypatch, draw, given):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=rf'{draw.__name__}.*pip install "\.\[plot\]"'):
        draw(given, tmp_path / "picture.png")
