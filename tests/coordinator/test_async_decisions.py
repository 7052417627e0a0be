"""What a server decides, books and learns, step by step: limits, defaults, and what is not told."""

import math

import numpy as np
import pytest
from lone_servers import push, server_of

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Scheme, Server, Stamp
from paceline.coordinator.asynchronous.rules import Mean, Paced, Ranged
from paceline.coordinator.asynchronous.rules.batch_rules import ByForecast
from paceline.coordinator.asynchronous.updates import counted
from paceline.coordinator.asynchronous.workers import Member, Workers
from paceline.predictors import LastValue

# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "batch", "samples", "said"),
    [
        (0, 8, 50, "at least 1, and so many samples must there be, as a step takes no fewer; got least=0, batch=8"),
        (9, 8, 50, "at least 9, .* got least=9, batch=8 and 50 samples"),
        (3, 8, 2, "at least 3, .* got least=3, batch=8 and 2 samples"),
        (1, 0, 2, "at least 1, .* got least=1, batch=0 and 2 samples"),
    ],
)
def test_a_step_that_there_could_never_be_is_refused_with_its_numbers(least, batch, samples, said):
    with pytest.raises(ValueError, match=f"batch must be {said}"):
        server_of(batch=batch, samples=samples, least=least)


@pytest.mark.parametrize(("least", "batch", "samples"), [(1, 1, 1), (8, 8, 8), (2, 9, 2)])
def test_the_smallest_data_set_and_the_smallest_batch_are_taken(least, batch, samples):
    server = server_of(batch=batch, samples=samples, least=least)
    assert len(server.pull("a").drawn) == batch


def test_who_has_not_joined_can_neither_pull_nor_leave_nor_be_given_up():
    server = server_of()
    for act in (server.pull, server.leave, server.abandon):
        with pytest.raises(ValueError, match=r"worker must be one of \['a', 'b'\], got 'z': let it join first"):
            act("z")
    assert server.is_given_up("z", Stamp(0, 0))
    assert "not one of the 2 workers" in server.push("z", Stamp(0, 0), np.zeros(1)).reason


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_newcomer_starts_at_the_clock_of_the_slowest_and_one_that_comes_back_keeps_its_own():
    server = server_of()
    for worker in "abbb":
        push(server, worker)
    server.join("c")
    assert [member.clock for member in server.fleet] == [1, 3, 1]
    held = server.pull("b")
    server.join("b")
    assert [member.clock for member in server.fleet] == [1, 3, 1]
    assert server.workers == ("a", "b", "c")
    assert server.is_given_up("b", held.stamp)
    assert server.pull("c").drawn.rows.tolist() == held.drawn.rows.tolist()
    assert server_of(workers="").workers == ()
    assert server_of(workers="a").fleet.members["a"].clock == 0


def test_who_leaves_gives_its_samples_back_and_no_longer_holds_the_others_up():
    server = server_of("bsp", "abc")
    held = {worker: server.pull(worker) for worker in "abc"}
    push(server, "a", held["a"], 1.0)
    push(server, "b", held["b"], 3.0)
    assert server.leave("c") == ()
    assert (server.workers, server.version, server.gathered, server.parameters.tolist()) == (("a", "b"), 1, 0, [-2.0])
    assert server.sizes.tolist() == [4, 4]
    assert server.pull("a").drawn.rows.tolist() == held["c"].drawn.rows.tolist()
    for worker in "ab":
        server.leave(worker)
    assert (server.workers, server.ledger.steps(Outcome.ABANDONED)) == ((), 2)
    server.join("d")
    assert push(server, "d").outcome is Outcome.APPLIED


def test_a_worker_that_pulls_twice_has_given_its_first_step_up():
    server = server_of()
    first, second = server.pull("a"), server.pull("a")
    assert second.drawn.rows.tolist() == first.drawn.rows.tolist()
    assert (first.stamp, second.stamp) == (Stamp(0, 0), Stamp(0, 1))
    assert (server.is_given_up("a", first.stamp), server.is_given_up("a", second.stamp)) == (True, False)
    verdict = push(server, "a", first, seconds=2.0)
    assert (verdict.outcome, verdict.reason) == (Outcome.DROPPED, "its step was given up before it came")
    assert (verdict.samples, verdict.staleness, verdict.version, verdict.factor) == (0, -1, 0, 0.0)
    again = push(server, "a", first, seconds=2.0)
    assert (again.outcome, "did it push twice?" in again.reason) == (Outcome.REFUSED, True)
    assert server.ledger.accounts["a"].seconds == {Outcome.ABANDONED: 2.0}
    assert server.ledger.accounts["a"].steps == {Outcome.ABANDONED: 1}
    assert push(server, "a", second).outcome is Outcome.APPLIED


def test_behind_a_barrier_a_step_that_is_given_up_may_begin_again_from_the_same_version():
    server = server_of("bsp")
    server.pull("a")
    assert server.abandon("a") == ()
    held = server.pull("a")
    assert held.stamp.version == 0
    refused = push(server, "a", held, math.nan)
    assert (refused.outcome, refused.staleness, refused.factor, refused.samples) == (Outcome.REFUSED, -1, 0.0, 4)
    assert server.fleet.members["a"].worked_on == -1
    push(server, "a")
    assert server.pull("a") is None
    assert (server.abandon("a"), server.fleet.members["a"].worked_on) == ((), 0)


# -- pushes --------------------------------------------------------------------------------------------------------


def test_a_push_as_stale_as_the_bound_counts_and_one_that_is_staler_does_not():
    server = server_of(Scheme(name="bounded", bound=2), "abc")
    in_time, late = server.pull("b"), server.pull("c")
    for _ in range(2):
        push(server, "a")
    verdict = push(server, "b", in_time, 1.0)
    assert (verdict.outcome, verdict.staleness, verdict.factor, verdict.version) == (Outcome.APPLIED, 2, 1.0, 3)
    verdict = push(server, "c", late, 5.0, 3, seconds=2.0)
    assert (verdict.outcome, verdict.staleness, verdict.samples) == (Outcome.DROPPED, 3, 4)
    assert (verdict.reason, verdict.factor) == ("it is 3 versions stale, beyond the bound of 2", 0.0)
    assert (verdict.version, server.version, server.parameters.tolist()) == (3, 3, [-1.0])
    account = server.ledger.accounts["c"]
    assert (account.steps, account.samples, account.seconds) == tuple({Outcome.DROPPED: one} for one in (1, 4, 2.0)), (
        "it is dropped with all that it was given"
    )
    assert server.staleness.tolist() == [0.0, 2.0, 3.0], "what it took is learnt all the same"
    assert (server.fleet.pushes, server.fleet.members["c"].clock) == (4, 1)
    assert server.pull("a").drawn.rows.tolist() == late.drawn.rows.tolist()


def test_the_extra_steps_of_dssp_are_counted_in_the_pace_of_the_fastest():
    fast, slow = Member("fast", clock=4, pushed=(0.0, 2.0)), Member("slow", pushed=(0.0, 8.0))
    Ranged(3, 15).pushed(fast, Workers(members={"fast": fast, "slow": slow}))
    assert fast.extra == 7, "it is ready at 2 s and 7 times 2 s, when the slowest is due"


def test_what_a_push_leaves_out_is_drawn_next():
    server = server_of()
    held = server.pull("a")
    verdict = push(server, "a", held, 1.0, 1)
    assert (verdict.samples, server.sampler.applied) == (1, 1)
    assert server.pull("b").drawn.rows.tolist()[:3] == held.drawn.rows.tolist()[1:]


def test_a_push_counts_in_full_or_is_damped():
    assert [counted(factor) for factor in (0.0, 0.5, np.nextafter(1.0, 0.0), 1.0)] == [Outcome.DAMPED] * 3 + [
        Outcome.APPLIED
    ]


def test_without_a_time_nothing_is_booked_and_all_pushes_came_at_once():
    server = server_of()
    push(server, "a")
    account = server.ledger.accounts["a"]
    assert (account.seconds, account.samples) == ({}, {Outcome.APPLIED: 4})
    assert server.fleet.members["a"].pushed == (0.0,)
    push(server, "a", now=3.0, seconds=1.5)
    assert (account.seconds, server.fleet.members["a"].pushed) == ({Outcome.APPLIED: 1.5}, (0.0, 3.0))


def test_a_push_that_says_nothing_of_its_wire_had_none():
    rules = Scheme(name="x", sizing=ByForecast())
    plain, told, wired = (server_of(rules, batch=32, predictor=LastValue()) for _ in range(3))
    for server, more in ((plain, {}), (told, {"comm_seconds": 0.0}), (wired, {"comm_seconds": 40.0})):
        for worker, seconds in (("a", 0.01), ("b", 0.04)):
            push(server, worker, seconds=seconds, **more)
    assert plain.sizes.tolist() == told.sizes.tolist() == [32, 8]
    assert wired.sizes[1] > 8, "its samples have to be worth their wire"


def test_a_report_of_a_step_that_was_given_up_is_learnt_and_booked():
    rules = Scheme(name="x", sizing=ByForecast())
    server = server_of(rules, batch=32, predictor=LastValue())
    server.pull("a")
    server.abandon("a")
    server.report("a", 4, 0.01)
    server.report("b", 4, 0.04)
    assert server.sizes.tolist() == [32, 8]
    assert [server.ledger.accounts[name].seconds for name in "ab"] == [{Outcome.ABANDONED: one} for one in (0.01, 0.04)]
    assert [server.ledger.accounts[name].steps for name in "ab"] == [{Outcome.ABANDONED: 1}, {}]


# -- updates -------------------------------------------------------------------------------------------------------


def test_the_last_pushes_are_applied_though_too_few_for_a_mean():
    server = Server(
        np.zeros(1), SGD(1.0), Scheme(name="x", gathering=Mean(9)), EpochSampler(8, epochs=1), batch=4, workers="ab"
    )
    a, b = server.pull("a"), server.pull("b")
    first = push(server, "a", a, 2.0)
    assert (first.outcome, server.gathered, server.version, server.finished) == (Outcome.GATHERED, 1, 0, False)
    last = push(server, "b", b, 4.0)
    assert (last.outcome, server.gathered, server.version, server.finished) == (Outcome.APPLIED, 0, 1, True)
    assert server.parameters.tolist() == [-3.0]
    assert server.ledger.steps(Outcome.APPLIED) == 2
    assert server.pull("a") is None


@pytest.mark.parametrize(("bound", "given_up"), [(1, ("c",)), (2, ())])
def test_steps_beyond_the_bound_are_given_up_only_where_a_scheme_says_so(bound, given_up):
    for refresh in (True, False):
        server = server_of(Scheme(name="x", bound=bound, refresh=refresh), "abc")
        held = server.pull("c")
        assert [push(server, "a").given_up for _ in range(2)] == [(), given_up if refresh else ()]
        assert server.is_given_up("c", held.stamp) == bool(refresh and given_up)
        assert server.fleet.lost == pytest.approx(2 / 3 if refresh and given_up else 0.0)
        assert server.ledger.steps(Outcome.ABANDONED) == int(bool(refresh and given_up))


def test_gathered_pushes_move_no_further_than_one_of_each_worker():
    rules = Scheme(name="x", gathering=Paced(), bound=1, by_samples=True)
    server = server_of(rules, "ab")
    server.fleet.lost = 100.0
    late = server.pull("b")
    push(server, "a")
    for _ in range(5):
        assert push(server, "a", value=1.0).outcome is Outcome.GATHERED
    verdict = push(server, "b", late, 1.0)
    assert (verdict.outcome, server.version) == (Outcome.APPLIED, 2)
    assert server.parameters.tolist() == [-2.0]
