import sys

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.datasets.profiles import COLUMNS
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
def test_the_health_of_many_workers_says_how_many_are_drawn_and_in_which_unit(tmp_path, drawn):
    health_figure(fleet_of(100), tmp_path / "health.png")
    along = drawn[0].axes[0]
    assert along.get_title() == "trace: 8 of 100 workers (grey: all)"
    assert along.get_ylabel() == "speed, samples/s"
    assert len(along.lines) == 8
    ends = [np.median(line.get_ydata()) for line in along.lines]
    assert ends[0] < 110
    assert ends[-1] > 270, "the slowest and the fastest are among them"
    health_figure(fleet_of(3), tmp_path / "health.png")
    assert drawn[1].axes[0].get_title() == "trace: 3 workers"


@pytest.mark.slow
def test_no_panel_of_a_health_picture_is_empty(tmp_path, drawn):
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


@pytest.mark.slow
def test_a_profile_is_drawn_on_logarithmic_axes_and_says_how_far_the_fit_is_off(tmp_path, drawn):
    seconds = [0.01, 0.01, 0.01, 0.02, 0.04, 0.085]
    rows = [("measured", "gpu", "net", x, t, np.nan, "") for x, t in zip((1, 2, 4, 8, 16, 32), seconds, strict=True)]
    curve_figure(pd.DataFrame(rows, columns=list(COLUMNS)), tmp_path / "curve.png")
    (panel,) = drawn[0].axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert "off in the median" in panel.get_title(loc="left")
    assert panel.get_xlim()[0] < 1 < 32 < panel.get_xlim()[1]


@pytest.mark.parametrize(("draw", "given"), [(curve_figure, pd.DataFrame()), (health_figure, checks.example_trace())])
def test_without_matplotlib_the_line_that_installs_it_is_said_before_anything_is_drawn(
    tmp_path, monkeypatch, draw, given
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=rf'{draw.__name__}.*pip install "\.\[plot\]"'):
        draw(given, tmp_path / "picture.png")
