import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import Balanced, iter_replay, leaderboard, leaderboard_figure, replay, replay_all, replay_figure
from paceline.predictors import EWMA, LastValue, checks


class Oracle(LastValue):
    """Knows the speeds to come, as no honest predictor does: its drivers are the speeds themselves."""

    driver_names = ("speed",)

    def _next_speed(self, drivers_WD, horizon):
        return drivers_WD[:, 0]


def with_speed_as_driver(trace):
    return Trace(trace.samples, trace.seconds, drivers=trace.speed[:, :, None], driver_names=["speed"])


def test_a_replay_computed_by_hand():
    # Speeds 30 and 15: equal batches of 30 take 1 s and 2 s; by hindsight 40 and 20 take 4/3 s each.
    table = replay({}, Trace([[30, 30]] * 2, [[1, 2]] * 2), warmup=0).table.set_index("scheme")
    assert table.loc["equal batches", ["mean", "waiting"]].tolist() == [2.0, 0.25]
    assert table.loc["clairvoyant", "mean"] == pytest.approx(4 / 3)
    assert table.loc["clairvoyant", "speed-up"] == pytest.approx(1.5)
    assert table.loc["equal batches", "regret"] == pytest.approx(0.5)


def test_a_perfect_predictor_has_no_regret():
    table = replay({"oracle": Balanced(Oracle())}, with_speed_as_driver(checks.example_trace())).table
    assert table.set_index("scheme").loc["oracle", "regret"] == 0.0


def test_nobody_is_faster_than_hindsight_in_any_iteration():
    result = replay({"last": Balanced(LastValue()), "ewma": Balanced(EWMA())}, checks.example_trace())
    for name in result.iterations:
        assert (result.seconds(name) >= result.seconds("clairvoyant")).all()


def test_workers_of_one_speed_gain_nothing():
    table = replay({"last": Balanced(LastValue())}, Trace([[8, 8]] * 9, [[1, 1]] * 9), warmup=0).table
    assert table["speed-up"].tolist() == [1.0] * 3
    assert table["waiting"].tolist() == [0.0] * 3


def test_every_scheme_hands_out_the_whole_batch():
    for iteration in iter_replay(Balanced(EWMA()), checks.example_trace(), global_batch=101):
        assert iteration.sizes.sum() == 101
        assert (iteration.sizes >= 1).all()


def test_sizes_do_not_look_ahead():
    trace = checks.example_trace(40)
    seconds = trace.seconds.copy()
    seconds[20:] *= np.random.default_rng(0).uniform(0.1, 10, seconds[20:].shape)
    changed = Trace(trace.samples, seconds, workers=trace.workers)
    ran = [list(iter_replay(Balanced(EWMA()), t, global_batch=192)) for t in (trace, changed)]
    for one, other in zip(ran[0][:21], ran[1][:21], strict=True):
        np.testing.assert_array_equal(one.sizes, other.sizes)


def test_iterations_that_somebody_did_not_report_are_skipped_and_counted():
    trace = checks.example_trace()
    seconds = trace.seconds.copy()
    seconds[[100, 150], 1] = np.nan
    result = replay({"last": Balanced(LastValue())}, Trace(trace.samples, seconds))
    assert result.skipped == 2
    assert len(result.seconds("last")) == len(trace) - 50 - 2


def test_jobs_are_summed_up_by_geometric_means():
    traces = [Trace([[30, 30]] * 3, [[1, slow]] * 3, meta={"job": f"slow{slow}"}) for slow in (2, 3)]
    result = replay_all({}, traces, warmup=0)
    overall = result.overall.set_index("scheme")
    each = [replay({}, t, warmup=0).table.set_index("scheme").loc["clairvoyant", "speed-up"] for t in traces]
    assert overall.loc["clairvoyant", "speed-up"] == pytest.approx(np.sqrt(each[0] * each[1]))
    assert set(result.per_trace["trace"]) == {"slow2", "slow3"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"global_batch": 2}, "global_batch must be at least one sample for each of the 3 workers, got 2"),
        ({"warmup": 500}, "no complete iteration after a warm-up of 500"),
    ],
)
def test_what_cannot_be_replayed_is_said(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        replay({}, checks.example_trace(), **arguments)


def test_figures_are_written_whole(tmp_path):
    trace = checks.example_trace()
    result = replay({"ewma": Balanced(EWMA())}, trace)
    for path in (
        replay_figure(result, trace, tmp_path / "replay.png", scheme="ewma"),
        leaderboard_figure(leaderboard({"ewma": EWMA()}, [trace]), tmp_path / "board.svg"),
    ):
        assert path.stat().st_size > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board.svg", "replay.png"]


def test_a_missing_library_gives_the_line_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.predictors.extras.find_spec", lambda name: None)
    trace = checks.example_trace()
    with pytest.raises(ImportError, match=r'`matplotlib` is needed by figures; install it with `pip install "pacel'):
        replay_figure(replay({}, trace), trace, tmp_path / "replay.png", scheme="clairvoyant")
