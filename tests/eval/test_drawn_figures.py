"""Pictures of curves and of health: what stands in each, by hand and as it was; nothing is rendered here."""

from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kept import require_kept
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paceline.datasets import Trace
from paceline.datasets.profiles import COLUMNS
from paceline.eval.pages.curve_figure import MOST_CURVES, curve_figure
from paceline.eval.pages.health_figure import MOST_LINES, _shown, health_figure, unit_of

KEPT = Path(__file__).parent / "drawn_figures.json"
NAN = float("nan")


@pytest.fixture
def saved(monkeypatch):
    """The figures that are saved, each with how."""
    figures = []

    def save(self, path, **how):
        Path(path).write_bytes(b"a picture")
        figures.append((self, how))

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


def described(figure, how):
    """Return what is drawn, down to the widths of lines."""
    sheet = [*figure.get_size_inches(), type(figure.get_layout_engine()).__name__]
    return [list(how.items()), sheet, [_panel(axes) for axes in figure.axes]]


def _panel(axes):
    spec = axes.get_subplotspec()
    titles = [axes.get_title(loc=loc) for loc in ("left", "center")]
    sizes = [axes.title.get_fontsize(), axes._left_title.get_fontsize()]
    lines = [
        [to_hex(line.get_color()), line.get_clip_on(), _points(line.get_xydata())]
        + [get(line) for get in (Line2D.get_linewidth, Line2D.get_linestyle, Line2D.get_marker, Line2D.get_markersize)]
        for line in axes.lines
    ]
    patches = [[to_hex(one.get_facecolor(), keep_alpha=True), _points(one.get_path().vertices)] for one in axes.patches]
    places = [[round(value, 6) for one in axes.patches if hasattr(one, "get_bbox") for value in one.get_bbox().bounds]]
    areas = [
        [
            to_hex(one.get_facecolor()[0], keep_alpha=True),
            list(one.get_linewidth()),
            _points(one.get_paths()[0].vertices),
        ]
        for one in axes.collections
    ]
    texts = [
        [one.get_text(), list(one.xy), one.xycoords, one.get_ha(), one.get_va(), to_hex(one.get_color())]
        for one in axes.texts
    ]
    grid = [
        [line.get_visible(), to_hex(line.get_color()), line.get_alpha(), line.get_linewidth()]
        for line in axes.get_xgridlines()[:1] + axes.get_ygridlines()[:1]
    ]
    axis = [
        [one.get_major_formatter()(v, 0) for v in (4.0, 0.5, 256.0)]
        + [f"{one.get_scale()}: {one.get_label_text()}", type(one.get_minor_formatter()).__name__]
        + [[float(f"{v:.4g}") for v in of] for of in (one.get_majorticklocs(), one.get_view_interval())]
        for one in (axes.xaxis, axes.yaxis)
    ]
    spines = [spine.get_visible() for spine in axes.spines.values()]
    shape = [spec.get_gridspec().get_geometry(), spec.get_gridspec().get_width_ratios(), spec.num1]
    return [titles, sizes, lines, patches, places, areas, texts, grid, axis, spines, shape]


def _points(xy):
    """Return how many points there are, and some of them."""
    return [len(xy), [[round(float(v), 6) for v in one] for one in xy[:: max(len(xy) // 4, 1)][:6]]]


# -- curves ----------------------------------------------------------------------------------------------------------


def profile(*rows):
    return pd.DataFrame([("measured", *row) for row in rows], columns=list(COLUMNS))


def line_of(*, off=None, model="net", held=""):
    """A step takes 4.99 ms and 2.99 ms a sample; one of five measurements is off."""
    sizes = (8, 16, 32, 64, 128)
    return [("gpu", model, x, (1.25 if x == off else 1.0) * (0.00499 + 0.00299 * x), NAN, held) for x in sizes]


def test_a_curve_is_drawn_in_milliseconds_with_how_far_it_is_off(tmp_path, saved):
    curve_figure(profile(*line_of(off=32)), tmp_path / "curve.png")
    (panel,) = saved[0][0].axes
    title, formula, off = panel.get_title(loc="left").split("\n")
    assert title == "measured, gpu, net"
    assert formula == "t(x) = 4.99 ms + 2.99 ms x"
    assert off == "0.0 % off in the median, 20 % at 32 samples"
    curve, points = panel.lines
    np.testing.assert_allclose(curve.get_ydata(), 4.99 + 2.99 * curve.get_xdata())
    np.testing.assert_allclose(curve.get_xdata()[[0, -1]], [8 / 1.2, 128 * 1.2])
    np.testing.assert_allclose(
        points.get_xydata(), [[8, 28.91], [16, 52.83], [32, 125.8375], [64, 196.35], [128, 387.71]]
    )
    assert not panel.texts, "no measurement met the limit of memory"


def test_the_median_of_what_a_curve_is_off_is_told_beside_the_worst_with_its_size(tmp_path, saved, monkeypatch):
    from paceline.eval.pages import curve_figure as drawing

    monkeypatch.setattr(drawing, "fit_curve", lambda size, seconds: (0.003, 0.001, 0.0))
    curve_figure(
        profile(*(("gpu", "net", x, t, NAN, "") for x, t in ((1, 0.003), (2, 0.0032), (4, 0.004), (8, 0.016)))),
        tmp_path / "curve.png",
    )
    # 0, 6.25, 0 and 50 percent
    assert saved[0][0].axes[0].get_title(loc="left").split("\n")[1:] == [
        "t(x) = max(3 ms, 0 ms + 1 ms x)",
        "3.1 % off in the median, 50 % at 8 samples",
    ]


def test_the_limit_of_memory_is_at_the_largest_batch_that_fitted(tmp_path, saved):
    curve_figure(profile(*line_of(), ("gpu", "net", 256, NAN, NAN, "")), tmp_path / "curve.png")
    (panel,) = saved[0][0].axes
    assert [list(panel.lines[2].get_xdata()), panel.texts[0].get_text()] == [[128, 128], "memory limit "]
    assert len(panel.lines[1].get_xdata()) == 5


@pytest.mark.slow
def test_every_curve_has_its_panel_and_pictures_of_curves_are_drawn_as_they_were(tmp_path, saved):
    rows = [*line_of(), *line_of(model="a$b", held="world=2", off=64), ("gpu", "a$b", 256, NAN, NAN, "world=2")]
    rows += [("gpu", "floor", x, max(0.05, 0.001 * x), NAN, None) for x in (8, 16, 32, 64, 128, 256)]
    assert curve_figure(profile(*rows), tmp_path / "curve.svg") == tmp_path / "curve.svg"
    assert (tmp_path / "curve.svg").read_bytes() == b"a picture"
    titles = [panel.get_title(loc="left").split("\n")[0] for panel in saved[0][0].axes]
    assert titles == [r"measured, gpu, a\$b, world=2", "measured, gpu, floor, nan", "measured, gpu, net"]
    curve_figure(profile(*line_of()), str(tmp_path / "curve"))
    require_kept(KEPT, "curves", [described(*one) for one in saved])


@pytest.mark.slow
def test_more_than_six_curves_are_refused(tmp_path, saved):
    rows = [line_of(model=f"net {k}") for k in range(MOST_CURVES + 1)]
    curve_figure(profile(*chain(*rows[:-1])), tmp_path / "curve.png")
    assert len(saved[0][0].axes) == MOST_CURVES == 6
    with pytest.raises(ValueError, match="must hold at most 6 curves to be drawn, got 7: select some"):
        curve_figure(profile(*chain(*rows)), tmp_path / "curve.png")


# -- health ----------------------------------------------------------------------------------------------------------


def fleet_of(workers, iterations=40, **more):
    speed_TW = np.random.default_rng(5).uniform(90, 110, (iterations, workers)) * np.linspace(1, 3, workers)
    return Trace(np.ones((iterations, workers)), 1 / speed_TW, **more)


@pytest.mark.slow
def test_pictures_of_health_are_drawn_as_they_were(tmp_path, saved):
    gaps = np.array(1.0 / fleet_of(10).speed)
    gaps[7] = gaps[3:20, 2] = NAN
    cpu = np.random.default_rng(1).uniform(0, 100, (40, 10, 2))
    names = {"covariate_names": ["cpu$", "memory"], "meta": {"job": "a$b", "units": "cpu$: percent; memory: GB"}}
    many = Trace(np.ones((40, 10)), gaps, covariates=cpu, **names)
    none = np.full((40, 3), NAN)
    usage = Trace(none, none, covariates=cpu[:, :3], **names)
    for trace in (many, fleet_of(1), fleet_of(2, 5), fleet_of(2, 1), usage):
        assert health_figure(trace, tmp_path / "health.pdf") == tmp_path / "health.pdf"
    health_figure(fleet_of(2), str(tmp_path / "health"))
    assert (tmp_path / "health").read_bytes() == b"a picture"
    require_kept(KEPT, "health", [described(*one) for one in saved])


@pytest.mark.slow
def test_speeds_of_many_workers_lie_between_their_least_and_their_largest(tmp_path, saved):
    trace = fleet_of(9, 20)
    health_figure(trace, tmp_path / "health.png")
    along = saved[0][0].axes[0]
    (band,) = along.collections
    drawn = {tuple(round(float(v), 6) for v in one) for one in band.get_paths()[0].vertices}
    for end in (trace.speed.min(axis=1), trace.speed.max(axis=1)):
        assert {(float(t), round(float(v), 6)) for t, v in enumerate(end)} <= drawn
    health_figure(fleet_of(MOST_LINES, 20), tmp_path / "health.png")
    assert not saved[1][0].axes[0].collections
    assert len(saved[1][0].axes[0].lines) == 8


def test_workers_to_draw_go_from_the_least_median_to_the_largest_in_equal_steps():
    median = np.array([5.0, 1.0, NAN, 3.0, 2.0, 4.0, 9.0, 8.0, 7.0, 6.0, 5.0])
    series = np.stack([median, median, 100 * median])
    series[0, 1] = NAN
    # In the order of their medians: 1, 4, 3, 5, 0, 10, 9, 8, 7, 6.
    series[1:, 1] = 1.0, 1.5
    assert _shown(series) == [1, 4, 5, 0, 10, 9, 7, 6]
    assert _shown(np.tile([2.0, 1.0], (3, 20))) == [1, 13, 23, 35, 4, 16, 26, 38], "of equal ones the first come first"
    assert _shown(np.full((3, 4), NAN)) == [0]
    assert _shown(np.array([[2.0, NAN, 1.0]])) == [2, 0]


def test_the_unit_of_a_covariate_is_the_one_that_its_reader_wrote():
    told = Trace([[1]], [[1]], meta={"units": "cpu: percent; memory: GB: total; memory: MB"})
    assert [unit_of(told, name) for name in ("cpu", "memory", "disk")] == ["percent", "GB: total", ""]
    assert unit_of(Trace([[1]], [[1]]), "cpu") == ""
