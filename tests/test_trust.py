"""How far forecast gains are trusted: as far as noise could not promise them, and as they came true."""

import math

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.trust import FIRST_DOUBT, MOST, STEP, Trust
from paceline.predictors import LastValue, Report


def followed(trust, smoothing, noise, iterations, workers=200, common=0.0):
    """Let reports of equal workers be averaged; return the deviation of such forecasts in log speed."""
    rng, log_forecast_W = np.random.default_rng(0), np.zeros(workers)
    for k in range(iterations):
        log_speed_W = rng.normal(0, noise, workers) + common * k
        log_forecast_W = log_forecast_W + smoothing * (log_speed_W - log_forecast_W)
        trust.follow(np.exp(log_speed_W), np.exp(log_forecast_W))
    return noise * math.sqrt(smoothing / (2 - smoothing))


def share_of_chance(workers, error):
    return (math.sqrt(2 * math.log(workers)) + 1) * error


@pytest.mark.parametrize("workers", [200, 1000])
@pytest.mark.parametrize("smoothing", [0.1, 0.3, 0.6])
def test_chance_may_promise_what_the_forecasts_own_errors_do_whatever_their_smoothing(smoothing, workers):
    trust = Trust()
    error = followed(trust, smoothing, 0.02, 300, workers)
    assert trust.least_gain == pytest.approx(share_of_chance(workers, error), rel=0.2)


def test_a_change_that_all_workers_share_is_no_noise():
    alone, together = Trust(), Trust()
    followed(alone, 0.3, 0.02, 100)
    followed(together, 0.3, 0.02, 100, common=0.05)
    assert together.least_gain == pytest.approx(alone.least_gain)


def test_without_any_report_nothing_is_promised_by_chance():
    assert Trust().least_gain == 0


def test_one_jump_moves_what_is_usual_no_further_than_any_other_report():
    trust = Trust()
    followed(trust, 0.3, 0.02, 100)
    before = trust.least_gain
    trust.follow(np.geomspace(1, 100, 200), np.geomspace(1, 100, 200))
    assert before < trust.least_gain <= STEP * before * (1 + 1e-12)


def test_noise_is_noticed_however_quiet_it_was_before():
    trust = Trust()
    followed(trust, 0.3, 0.0, 1000)
    assert 0 < trust.least_gain < 1e-4
    error = followed(trust, 0.3, 0.02, 150)
    assert trust.least_gain == pytest.approx(share_of_chance(200, error), rel=0.2)


def test_a_gain_of_fifteen_percent_is_worth_a_change_however_noisy_speeds_are():
    trust = Trust()
    for k in range(100):
        speed_W = np.array([1.0, 50.0]) if k % 2 else np.array([50.0, 1.0])
        trust.follow(speed_W, speed_W)
        trust.judge(1.6, 1.2)
    assert trust.least_gain == 0.15


@pytest.mark.parametrize("workers", [2, 9, 64])
def test_few_and_many_workers_are_followed_alike(workers):
    few, many = Trust(), Trust()
    rng = np.random.default_rng(workers)
    for _ in range(50):
        speed_W, forecast_W = rng.lognormal(0, 0.1, (2, workers))
        few.follow(speed_W, forecast_W)
        many.follow(np.tile(speed_W, 65), np.tile(forecast_W, 65))
        np.testing.assert_allclose(few.state_dict()["usual"], many.state_dict()["usual"], rtol=1e-12)


def test_an_iteration_without_reports_says_nothing_of_how_far_off_forecasts_are():
    trust = Trust()
    followed(trust, 0.3, 0.02, 50)
    before = trust.state_dict()["usual"][1]
    trust.follow(np.full(200, np.nan), np.ones(200))
    assert trust.state_dict()["usual"][1] == before


def test_what_is_usual_outlives_a_change_of_the_fleet():
    trust = Trust()
    followed(trust, 0.3, 0.02, 50)
    before = trust.state_dict()["usual"]
    trust.follow(np.array([1.0, 5.0, 9.0]), np.array([1.0, 5.0, 9.0]))
    np.testing.assert_array_equal(trust.state_dict()["usual"], before)
    trust.follow(np.array([1.0, 5.0, 9.0]), np.array([1.0, 5.0, 9.0]))
    assert (trust.state_dict()["usual"] < before).all()


@pytest.mark.parametrize(("taken", "equal"), [(1.6, 1.2), (1.2, 1.6)])
def test_what_is_lost_is_by_how_much_equal_batches_would_have_been_faster(taken, equal):
    trust = Trust()
    for _ in range(200):
        trust.judge(taken, equal)
    assert trust.lost == pytest.approx(1 - equal / taken)
    assert trust.has_lost == (trust.lost > 0.01)


def test_a_single_unlucky_iteration_is_no_loss_and_ten_are():
    trust = Trust()
    for _ in range(50):
        trust.judge(0.9, 0.91)
    told = []
    for _ in range(10):
        trust.judge(1.1, 1.0)
        told.append(trust.has_lost)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (False, True)


def stepped(sizes, seconds, slow=1.0):
    """What a balancer trusts after it planned 40 and 80 samples and got this report."""
    policy = Policy(warmup=0, dead_band=0.0)
    balancer = LoadBalancer(LastValue(), workers="ab", global_batch=120, policy=policy)
    balancer.step(Report([60, 60], [0.6, 0.3]))
    assert balancer.plan.sizes.tolist() == [40, 80]
    balancer.step(Report(sizes, np.array(seconds) * slow))
    return balancer._trust.gain, balancer._trust.doubt


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_equal_batches_are_taken_to_follow_the_curves_of_the_plan(slow):
    """The second worker took 0.8 s for 80 samples, so 60 would have taken 0.6 s; the first needs 0.6 s for 60."""
    gain, doubt = stepped([40, 80], [0.4, 0.8], slow)
    assert gain == pytest.approx(0.1 * math.log(0.6 / 0.8))
    assert doubt > FIRST_DOUBT


@pytest.mark.parametrize(
    "report",
    [([60, 60], [0.9, 1.9]), ([40, 80], [np.nan, 1.6]), ([np.nan, 80], [0.6, 1.6]), ([40, 80], [1e-9, 1.6])],
    ids=["equal sizes", "no time", "no samples", "no time that a clock could measure"],
)
def test_equal_sizes_and_incomplete_reports_teach_nothing_of_what_sizes_gain(report):
    assert stepped(*report) == (0.0, 0.0)


def test_doubt_grows_with_every_loss_up_to_the_most_and_every_gain_takes_some_of_it():
    trust, doubts = Trust(), [0.0]
    for taken in [1.0] * 5 + [1.6] * 40 + [1.0] * 40:
        trust.judge(taken, 1.2)
        doubts.append(trust.doubt)
    assert set(doubts[:6]) == {0.0}, "nothing has been lost yet"
    assert FIRST_DOUBT < doubts[6] < 1.5 * FIRST_DOUBT
    rises = np.diff(doubts[6:46])
    assert (rises[doubts[6:45] < np.float64(MOST)] > 0).all()
    assert max(doubts) == doubts[45] == MOST
    falls = np.array(doubts[46:]) / doubts[45:-1]
    assert ((falls > 0.9) & (falls < 1)).all(), "slowly"


@pytest.mark.parametrize("equal", [1.0, math.nan, math.inf, 0.0])
def test_what_costs_no_time_or_cannot_be_measured_is_no_reason_to_doubt(equal):
    trust = Trust()
    trust.judge(1.0, equal)
    assert (trust.gain, trust.doubt) == (0.0, 0.0)


def test_what_was_doubted_stays_so_when_sizes_change_and_what_they_lost_is_forgotten():
    trust = Trust()
    for _ in range(20):
        trust.judge(1.6, 1.2)
    doubt = trust.least_gain
    assert trust.has_lost
    trust.begin_anew()
    assert (trust.has_lost, trust.lost, trust.least_gain) == (False, 0.0, doubt)


@pytest.mark.parametrize("iterations", [0, 20])
def test_a_resumed_trust_goes_on_exactly_and_the_state_of_none_begins_anew(iterations):
    def follow(trust, rng, iterations=20):
        for _ in range(iterations):
            speed_W = rng.lognormal(0, 0.1, 2)
            trust.follow(speed_W, speed_W)
            trust.judge(1.6, 1.2 * speed_W.max())
        return trust.least_gain, trust.lost, *trust.state_dict()["forecast"]

    first, resumed, fresh = (Trust() for _ in range(3))
    if iterations:
        follow(first, np.random.default_rng(0), iterations)
    state = first.state_dict()
    resumed.load_state_dict(state)
    fresh.load_state_dict(state)
    fresh.load_state_dict({})
    assert resumed.least_gain == first.least_gain
    assert fresh.least_gain == Trust().least_gain
    assert follow(first, np.random.default_rng(1)) == follow(resumed, np.random.default_rng(1))
    assert follow(fresh, np.random.default_rng(1)) == follow(Trust(), np.random.default_rng(1))
