import numpy as np
import pandas as pd
import pytest
from recorded_runs import iterations

from paceline.datasets import Trace
from paceline.datasets.profiles import COLUMNS
from paceline.eval import Balanced, leaderboard, leaderboard_figure, replay, replay_figure
from paceline.eval.pages.curve_figure import curve_figure
from paceline.eval.pages.health_figure import health_figure
from paceline.predictors import EWMA, LastValue, checks
from paceline.runs import JsonLines, read_run
from paceline.runs.pages.run_report import run_figure


@pytest.fixture(scope="module")
def replayed():
    return replay({"ewma": Balanced(EWMA()), "last": Balanced(LastValue())}, checks.example_trace())


def text_of(path):
    """The words of an svg: matplotlib writes each as a comment before its glyphs."""
    return [line.strip()[5:-4] for line in path.read_text().splitlines() if line.strip().startswith("<!-- ")]


def test_a_figure_is_a_png_written_whole(tmp_path, replayed):
    path = replay_figure(replayed, checks.example_trace(), tmp_path / "replay.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["replay.png"]


def test_the_replay_names_its_schemes_with_their_speed_ups(tmp_path, replayed):
    words = text_of(replay_figure(replayed, checks.example_trace(), tmp_path / "replay.svg", scheme="last"))
    row = replayed.table.set_index("scheme").loc["last"]
    assert {"equal batches", "last", "oracle"} <= set(words)
    assert f"{1e3 * row['mean']:.1f} ms, {row['speed-up']:.2f}x as fast" in words
    assert "c, the slowest" in words


def test_the_fastest_scheme_is_drawn_unless_one_is_named(tmp_path, replayed):
    table = replayed.table["scheme"]
    fastest = table[table.isin(["ewma", "last"])].iloc[0]
    words = text_of(replay_figure(replayed, checks.example_trace(), tmp_path / "replay.svg"))
    assert [name for name in ("ewma", "last") if name in words] == [fastest]


def test_one_worker_with_gaps_and_no_scheme_can_be_drawn(tmp_path):
    seconds = np.full((60, 1), 2.0)
    seconds[30:] = np.nan
    trace = Trace(np.ones((60, 1)), seconds)
    words = text_of(replay_figure(replay({}, trace, warmup=5), trace, tmp_path / "replay.svg"))
    assert words.count("oracle") == 1


def test_the_leaderboard_shows_every_predictor_with_its_ratio(tmp_path):
    board = leaderboard({"ewma": EWMA()}, [checks.example_trace()])
    words = text_of(leaderboard_figure(board, tmp_path / "board.svg"))
    assert {"ewma", "last-value", "1.000", f"{board.overall['rmse'].max():.3f}"} <= set(words)


def test_a_missing_library_gives_the_line_to_type(tmp_path, monkeypatch, replayed):
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None)
    with pytest.raises(ImportError) as error:
        replay_figure(replayed, checks.example_trace(), tmp_path / "replay.png")
    assert str(error.value) == '`matplotlib` is needed by figures; install it with `pip install "paceline[plot]"`'
    assert not list(tmp_path.iterdir())


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


def test_no_panel_of_a_health_picture_is_empty(tmp_path, drawn):
    none = np.full((60, 2), np.nan)
    cpu = np.random.default_rng(0).uniform(0, 100, (60, 2, 1))
    usage = Trace(none, none, covariates=cpu, covariate_names=["cpu"], meta={"units": "cpu: percent"})
    for trace, panels in ((usage, 2), (fleet_of(2), 2), (fleet_of(2, iterations=1), 1), (checks.example_trace(), 3)):
        health_figure(trace, tmp_path / "health.png")
        assert len(drawn[-1].axes) == panels
        assert all(axes.lines or axes.patches for axes in drawn[-1].axes)
    health_figure(usage, tmp_path / "health.png")
    assert drawn[-1].axes[0].get_ylabel() == "cpu, percent"


def test_many_workers_are_bands_and_few_are_lines(tmp_path, drawn):
    for workers, lines, bands in ((100, 2, 2), (5, 5, 0)):
        trace = fleet_of(workers)
        replay_figure(replay({}, trace, warmup=5, global_batch=100 * workers), trace, tmp_path / "replay.png")
        speeds = drawn[-1].axes[0]
        assert (len(speeds.lines), len(speeds.collections)) == (lines, bands)


def test_a_profile_is_drawn_on_logarithmic_axes_and_says_how_far_the_fit_is_off(tmp_path, drawn):
    seconds = [0.01, 0.01, 0.01, 0.02, 0.04, 0.085]
    rows = [("measured", "gpu", "net", x, t, np.nan, "") for x, t in zip((1, 2, 4, 8, 16, 32), seconds, strict=True)]
    curve_figure(pd.DataFrame(rows, columns=list(COLUMNS)), tmp_path / "curve.png")
    (panel,) = drawn[0].axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert "off in the median" in panel.get_title(loc="left")
    assert panel.get_xlim()[0] < 1 < 32 < panel.get_xlim()[1]


def test_the_leaderboards_axis_fits_its_values_and_shows_intervals(tmp_path, drawn):
    board = leaderboard({"ewma": EWMA()}, [checks.example_trace()])
    leaderboard_figure(board, tmp_path / "board.png")
    axes = drawn[0].axes[0]
    least = min(1.0, board.workers["rmse"].min())
    assert 0.5 * least < axes.get_xlim()[0] <= least
    ratios = np.log(board.workers.query("predictor == 'ewma'")["rmse"])
    half = 1.96 * ratios.std() / np.sqrt(len(ratios))
    low, high = np.exp(ratios.mean() - half), np.exp(ratios.mean() + half)
    ends = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
    assert any(end == pytest.approx([low, high]) for end in ends)


def test_shares_of_many_workers_fill_their_axis_and_the_forecast_lies_on_top(tmp_path, drawn):
    workers = [f"g{k}" for k in range(20)]
    sink = JsonLines(tmp_path / "run.jsonl")
    for record in iterations(30, workers=workers, speeds=np.linspace(70, 130, 20)):
        sink(record)
    sink.close()
    assert run_figure(read_run(tmp_path / "run.jsonl")).startswith(b"\x89PNG")
    times, shares, _ = drawn[0].axes
    assert [line.get_label() for line in times.lines][-1] == "forecast"
    assert times.lines[-1].get_linewidth() > times.lines[0].get_linewidth()
    low, high = shares.get_ylim()
    values = np.concatenate([line.get_ydata() for line in shares.lines])
    assert low > 0
    assert values.max() - values.min() > 0.8 * (high - low)
