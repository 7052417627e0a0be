"""When a worker of the default predictor starts afresh: in its warm-up, and where its speed has jumped."""

import itertools
import math

import numpy as np
import pytest

from paceline.predictors import Auto, Report
from paceline.predictors.auto import FASTER, SLOWER


def forgotten(speeds):
    """Return after each report how often the worker has started afresh, and how many errors are counted."""
    model, found = Auto(), []
    model.reset(["a"])
    for speed in speeds:
        model.observe(Report([speed], [1.0]))
        found.append((int(model._rows["forgotten"][0]), int(model._rows["compared"][0])))
    return found


def test_a_worker_that_speeds_up_starts_afresh_five_times():
    assert [count for count, _ in forgotten([1.3**k for k in range(9)])] == [0, 1, 2, 3, 4, 5, 5, 5, 5]


@pytest.mark.parametrize(("factor", "times"), [(1.19, 0), (1.21, 1), (0.51, 0), (0.49, 1)])
def test_a_worker_starts_afresh_where_its_second_speed_is_a_fifth_higher_or_half_as_high(factor, times):
    assert forgotten([100.0, 100.0 * factor]) == [(0, 0), (times, 1 - times)]


@pytest.mark.parametrize("factor", [1.4, 0.4])
@pytest.mark.parametrize("usual", range(1, 8))
def test_a_worker_has_warmed_up_after_five_errors(usual, factor):
    """Of the first report there is no error."""
    found = forgotten([*([100.0] * usual), 100.0 * factor])
    assert found[-1] == ((1, 0) if usual <= 5 else (0, usual))
    assert [compared for _, compared in found[:-1]] == list(range(usual))


def test_a_worker_that_joins_warms_up_among_others_that_have():
    model = Auto()
    model.reset(["a"])
    for _ in range(8):
        model.observe(Report([100.0], [1.0]))
    model.join("b")
    for speed in (50.0, 100.0):
        model.observe(Report([100.0, speed], [1.0, 1.0]))
    assert model._rows["forgotten"].tolist() == [0, 1]
    assert model._rows["compared"].tolist() == [9, 0]
    assert model.predict().speed == pytest.approx([100.0, 100.0], rel=1e-3)


def one(far, scale, error):
    """Return whether a worker with this mark and usual error has jumped, and its next mark."""
    if math.isnan(error):
        return False, far
    beyond = max(math.log(1.5), 6.0 * scale) if far == 0 else abs(far)
    if math.isnan(scale) and far == 0:
        return False, 0.0
    mark = math.copysign(beyond, error) if abs(error) > beyond else 0.0
    jumped = mark * far > 0
    return jumped, 0.0 if jumped else mark


def test_a_jump_is_two_errors_in_a_row_to_one_side_each_far_beyond_the_usual():
    log = math.log(1.5)
    sizes = [0.0, 0.3, log, log + 1e-9, 0.5, 0.5 + 1e-9, 0.6, 0.6 + 1e-9, 6.0, 6.1]
    cases = list(
        itertools.product(
            [0.0, 0.5, -0.5, 0.6, -6.0], [math.nan, 0.01, 0.1, 1.0], [math.nan, *sizes, *(-size for size in sizes)]
        )
    )
    model = Auto()
    model.reset([str(k) for k in range(len(cases))])
    far_W, scale_W, error_W = np.array(cases).T
    model._rows["far"], model._rows["scale"] = far_W, scale_W
    jumped_W = model._jumped(error_W)
    wanted = [one(*case) for case in cases]
    assert jumped_W.tolist() == [jumped for jumped, _ in wanted]
    np.testing.assert_allclose(model._rows["far"], [mark for _, mark in wanted], rtol=1e-12)
    assert sum(jumped for jumped, _ in wanted) > 20


@pytest.mark.parametrize(("errors", "near"), [([0.0, 0.1], True), ([0.0, 0.7], False), ([-0.7, 0.7], False)])
def test_who_is_near_is_known_of_all_together(errors, near):
    model = Auto()
    model.reset(["a", "b"])
    model._rows["scale"] = np.full(2, 0.01)
    assert not model._jumped(np.array(errors)).any()
    assert model._all_near is near


def test_averages_start_afresh_at_a_jump_of_one_worker_and_its_intervals_do_not():
    model, rng = Auto(), np.random.default_rng(0)
    model.reset(["steady", "jumps"])
    for k in range(60):
        factor = np.array([1.0, 1.0 if k < 50 else 3.0])
        model.observe(Report(100.0 * factor * np.exp(rng.normal(0.0, 0.01, 2)), np.ones(2)))
        if k == 50:
            assert model._rows["far"].tolist() == [0.0, pytest.approx(math.log(1.5))]
    averages = model._inner[0]._inner[0]
    assert averages._rows["seen"].tolist() == [60, 9]
    assert model._rows["compared"].tolist() == [59, 59]
    assert model._rows["far"].tolist() == [0.0, 0.0]


def test_the_network_is_trusted_by_its_head_start_alone_at_first():
    model = Auto()
    model.reset(["a"])
    model.join("b")
    regret_WE = model._inner[0]._rows["regret"]
    np.testing.assert_array_equal(regret_WE[:, -1], 9.0)
    np.testing.assert_array_equal(regret_WE[:, :-1], 0.0)
    assert regret_WE.shape == (2, 8)


def test_only_what_is_beyond_the_limits_is_a_warm_up():
    model = Auto()
    model.reset(["a"])
    model.observe(Report([100.0], [1.0]))
    for limit, beyond in ((FASTER, math.inf), (-SLOWER, -math.inf)):
        assert not model._warming(np.array([limit])).any()
        assert model._warming(np.array([np.nextafter(limit, beyond)])).all()
