import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import Balanced, leaderboard, leaderboard_figure, replay, replay_figure
from paceline.predictors import EWMA, LastValue, checks


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
    assert {"equal batches", "last", "clairvoyant"} <= set(words)
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
    assert words.count("clairvoyant") == 1


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
