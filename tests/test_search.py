import numpy as np
import pytest

from paceline.coordinator import LeaderSearch, Policy
from paceline.predictors import Report

FLEET = ("gpu0", "gpu1", "gpu2")


def search(workers=FLEET, global_batch=192, **options):
    return LeaderSearch(workers=workers, global_batch=global_batch, **{"window": 1, **options})


def report(sizes, seconds_of_sample, fixed=0.0):
    return Report(sizes, fixed + sizes * np.array(seconds_of_sample))


def test_a_step_moves_from_the_straggler_to_the_leader():
    plan = search().step(Report([64, 64, 64], [0.5, 0.4, 0.9]))
    assert plan.sizes.tolist() == [64, 72, 56]


def test_the_leader_is_one_that_has_room():
    plan = search(policy=Policy(upper={"gpu1": 64})).step(Report([64, 64, 64], [0.5, 0.4, 0.9]))
    assert plan.sizes.tolist() == [72, 64, 56]


def test_times_are_averaged_over_the_window():
    searching = search(window=3)
    reports = [[0.5, 0.4, 0.9], [0.5, 0.4, 0.1], [0.5, 0.4, 0.1]]  # gpu2 is slow once and the fastest in the mean
    plans = [searching.step(Report([64, 64, 64], seconds)) for seconds in reports]
    assert [plan.acted for plan in plans] == [False, False, True]
    assert plans[-1].sizes.tolist() == [56, 64, 72]


def test_on_oscillation_the_step_halves_and_the_window_doubles():
    searching = search(("gpu0", "gpu1"), 128, tolerance=0.0)
    searching.step(Report([64, 64], [0.5, 0.6]))
    plan = searching.step(Report(searching.plan.sizes, [0.6, 0.5]))
    assert plan.sizes.tolist() == [68, 60]
    assert plan.why.endswith("; sizes oscillate, so the step is now 4 samples and the window 2 iterations.")
    assert not searching.step(Report(plan.sizes, [0.5, 0.6])).acted
    assert searching.step(Report(plan.sizes, [0.5, 0.6])).sizes.tolist() == [70, 58]


def test_a_worker_that_gives_twice_in_a_row_has_the_step_regrow():
    searching = search(("gpu0", "gpu1"), 128)
    searching.step(Report([64, 64], [0.5, 0.6]))
    searching.step(Report([72, 56], [0.6, 0.5]))
    sizes = [searching.step(Report(searching.plan.sizes, [0.9, 0.1])).sizes.tolist() for _ in range(4)]
    assert sizes == [[68, 60], [60, 68], [52, 76], [44, 84]]


def test_it_finds_balance_where_the_time_is_no_line_through_the_origin():
    searching = search(global_batch=600)
    for _ in range(300):
        sizes = searching.plan.sizes
        seconds = np.array([0.1, 0.4, 0.2]) + np.array([1e-3, 1e-3, 3e-3]) * sizes
        searching.step(Report(sizes, seconds))
    assert seconds.max() < 1.06 * seconds.min()


def test_workers_as_fast_as_each_other_are_left_alone():
    plan = search().step(Report([64, 64, 64], [0.5, 0.51, 0.49]))
    assert not plan.acted
    assert plan.why == (
        "Kept the sizes: the leader gpu2 is 3.9 % ahead of the straggler gpu1, less than the tolerance of 5 %."
    )


def test_a_straggler_at_its_lower_bound_keeps_its_samples():
    plan = search(policy=Policy(lower=64)).step(Report([64, 64, 64], [0.5, 0.4, 0.9]))
    assert plan.why == "Kept the sizes: gpu2 is the straggler, but there is no room to move its samples."


def test_a_worker_out_of_memory_gets_less_at_once():
    plan = search(window=9).step(Report([64, 64, 64], [0.5, 0.5, 0.5], out_of_memory=[False, True, False]))
    assert plan.sizes[1] == 51
    assert plan.sizes.sum() == 192


def test_silence_and_garbage_move_nothing():
    searching = search()
    for seconds in ([np.nan] * 3, [0.0, -1.0, np.inf], [np.nan, 0.5, np.nan]):
        assert not searching.step(Report([64, 64, 64], seconds)).acted


@pytest.mark.parametrize("seed", range(5))
def test_sizes_keep_sum_quantum_and_bounds(seed):
    rng = np.random.default_rng(seed)
    searching = search(global_batch=240, tolerance=0.0, policy=Policy(quantum=4, lower=8, upper=120))
    for _ in range(100):
        seconds = rng.choice([0.1, 0.5, 2.0, np.nan, -1.0, 1e300, 0.0], 3)
        sizes = searching.step(Report(searching.plan.sizes, seconds, out_of_memory=rng.random(3) < 0.01)).sizes
        assert sizes.sum() == 240
        assert (sizes % 4 == 0).all()
        assert (sizes >= 8).all()
        assert (sizes <= 120).all()


def test_a_resumed_search_goes_on_exactly_as_the_first():
    rng = np.random.default_rng(0)
    reports = [Report([64, 64, 64], rng.uniform(0.1, 1, 3)) for _ in range(40)]
    first, second = search(window=2), search(("other",), window=2)
    for each in reports[:19]:
        first.step(each)
    second.load_state_dict(first.state_dict())
    for each in reports[19:]:
        one, other = first.step(each), second.step(each)
        assert (one.sizes.tolist(), one.why) == (other.sizes.tolist(), other.why)


def test_workers_join_and_leave():
    searching = search()
    searching.step(Report([64, 64, 64], [0.5, 0.5, 1.0]))
    assert searching.leave("gpu0").sizes.tolist() == [128, 64]
    assert searching.join("gpu3").workers == ("gpu1", "gpu2", "gpu3")
    assert searching.plan.sizes.sum() == 192
    for refused in (lambda: searching.join("gpu1"), lambda: searching.leave("gpu9")):
        with pytest.raises(ValueError, match="fleet"):
            refused()


@pytest.mark.parametrize("options", [{"step": 0.0}, {"step": 1.0}, {"tolerance": -0.1}, {"window": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"step must lie in \(0, 1\), tolerance in \[0, 1\) and window be at least 1"):
        search(**options)
