"""How samples are given out in packed batches, against slow accounts of the rules. Axes: N samples, W ranks."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.solver import AssignmentStatus, assign
from paceline.solver.assign_arguments import Fleet, Samples
from paceline.solver.packed import packed
from paceline.solver.padded import Cuts

# Of costs in tens and sevens some are exactly the share of the longest at which samples are still alike.
COSTS = st.lists(st.sampled_from([7.0, 10.0, 14.0, 20.0, 3.0, 49.0, 70.0, 100.0]), min_size=1, max_size=24)
RANKS = st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.0, 8.0])), min_size=1, max_size=4)


def problem_of(costs, ranks, *, tokens=None, cap=np.inf, lower=0):
    """Samples, the most expensive first, and a fleet in which all times are exact."""
    order = np.argsort(-np.array(costs), kind="stable")
    cost_N = np.array(costs)[order]
    token_N = cost_N if tokens is None else np.array(tokens)[order]
    pace, fixed = map(np.array, zip(*ranks, strict=True))
    return Samples(cost_N, token_N, cap, lower), Fleet(pace, fixed, np.zeros(len(pace)))


def in_groups(costs, pace, ends):
    """The rank of each sample: groups of like samples go, at their mean cost, to whoever ends one first."""
    owners, ends = [], list(ends)
    while len(owners) < len(costs):
        rest = costs[len(owners) :]
        alike = [cost for cost in rest if cost >= 0.7 * rest[0]][: 2 * len(pace)]
        mean, count = sum(alike) / len(alike), dict.fromkeys(range(len(pace)), 0)
        for _ in alike:
            rank = min(count, key=lambda one: (ends[one] + (count[one] + 1) * mean * pace[one], one))
            count[rank] += 1
            owners.append(rank)
        for rank in count:
            mine = [cost for cost, one in zip(alike, owners[-len(alike) :], strict=True) if one == rank]
            ends[rank] += sum(mine) * pace[rank]
    return owners


@pytest.mark.slow
@settings(max_examples=100)
@given(COSTS, RANKS)
def test_the_longest_samples_go_first_and_like_ones_together(costs, ranks):
    samples, fleet = problem_of(costs, ranks)
    wanted = in_groups(samples.costs.tolist(), fleet.pace.tolist(), fleet.fixed.tolist())
    assert packed(samples, fleet, np.inf).tolist() == wanted


def one_by_one(samples, fleet, order, tight):
    ends, room = fleet.fixed.tolist(), [samples.cap] * len(fleet)
    owners = [-1] * len(samples)
    for number in order:
        cost, tokens = samples.costs[number], samples.tokens[number]
        able = [rank for rank in range(len(fleet)) if room[rank] >= tokens]
        if not able:
            return None
        rank = min(able, key=lambda one: (room[one] if tight else ends[one] + cost * fleet.pace[one], one))
        owners[number] = rank
        ends[rank] += cost * fleet.pace[rank]
        room[rank] -= tokens
    return owners


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12),
    RANKS,
    st.sampled_from([1.0, 1.1, 1.3]),
)
def test_under_a_cap_samples_go_where_there_is_room_by_cost_else_by_tokens_else_where_least_is_left(pairs, ranks, room):
    costs, tokens = (list(map(float, column)) for column in zip(*pairs, strict=True))
    cap = float(np.floor(max(max(tokens), room * sum(tokens) / len(ranks))))
    samples, fleet = problem_of(costs, ranks, tokens=tokens, cap=cap)
    free = packed(*problem_of(costs, ranks, tokens=tokens), np.inf)
    by_cost, by_tokens = range(len(costs)), np.argsort(-samples.tokens, kind="stable").tolist()
    tried = [one_by_one(samples, fleet, *how) for how in ((by_cost, False), (by_tokens, False), (by_tokens, True))]
    wanted = next((owners for owners in tried if owners), None)
    if np.bincount(free, samples.tokens).max() <= cap:
        wanted = free.tolist()  # the cap binds nowhere
    if wanted is None:
        with pytest.raises(ValueError, match=f"cap of {cap:g} tokens"):
            packed(samples, fleet, np.inf)
    else:
        assert packed(samples, fleet, np.inf).tolist() == wanted


def test_the_three_ways_to_give_out_samples_under_a_cap_are_tried_in_turn():
    ranks = [(1.0, 0.0), (1.0, 0.0)]
    for tokens, cap, owners in (
        ([5.0, 5.0, 5.0, 5.0], 10.0, [0, 1, 0, 1]),  # by cost
        ([1.0, 1.0, 8.0, 8.0], 9.0, [0, 1, 0, 1]),
        ([2.0, 3.0, 8.0, 7.0], 10.0, [0, 1, 0, 1]),
        ([3.0, 3.0, 4.0, 6.0, 2.0, 2.0], 10.0, None),
    ):
        samples, fleet = problem_of([float(10 - k) for k in range(len(tokens))], ranks, tokens=tokens, cap=cap)
        found = packed(samples, fleet, np.inf)
        assert np.bincount(found, samples.tokens).max() <= cap
        assert owners is None or found.tolist() == owners


@pytest.mark.slow
@settings(max_examples=60)
@given(COSTS, RANKS, st.integers(1, 3))
def test_ranks_with_too_few_get_the_shortest_that_others_can_spare_the_slowest_rank_first(costs, ranks, lower):
    assume(len(costs) >= lower * len(ranks))
    samples, fleet = problem_of(costs, ranks, lower=lower)
    owners = in_groups(samples.costs.tolist(), fleet.pace.tolist(), fleet.fixed.tolist())
    short = [rank for rank in range(len(fleet)) if owners.count(rank) < lower]
    for rank in sorted(short, key=lambda one: -fleet.pace[one]):
        while owners.count(rank) < lower:
            spare = max(number for number, owner in enumerate(owners) if owners.count(owner) > lower)
            owners[spare] = rank
    assert packed(samples, fleet, np.inf).tolist() == owners


@settings(max_examples=60)
@given(COSTS, RANKS, st.integers(0, 2), st.sampled_from([np.inf, 1.2]))
def test_exchanges_never_end_later_and_keep_to_the_cap_and_the_fewest(costs, ranks, lower, room):
    assume(len(costs) >= lower * len(ranks))
    cap = np.inf if room == np.inf else max(*costs, room * sum(costs) / len(ranks), max(costs) * lower)
    samples, fleet = problem_of(costs, ranks, cap=cap, lower=lower)
    try:
        begun, done = packed(samples, fleet, np.inf), packed(samples, fleet, 0.0)
    except ValueError:
        assume(False)
    before, after = (fleet.seconds(samples.works(owners, len(fleet))).max() for owners in (begun, done))
    assert after <= before
    assert np.bincount(done, minlength=len(fleet)).min() >= lower
    if (np.bincount(begun, samples.tokens, len(fleet)) <= cap).all():
        assert (np.bincount(done, samples.tokens, len(fleet)) <= cap).all()


# -- padded --------------------------------------------------------------------------------------------------------


def most_in_time(samples, fleet, rank, first, others, until):
    """How many samples from this one on a rank ends in time, if the others after it get their fewest."""
    left = len(samples) - first - others * samples.lower
    widest = max(samples.tokens[first:], default=0.0)
    fits = [
        n
        for n in range(1, left + 1)
        if fleet.fixed[rank] < until
        and n * samples.costs[first] * fleet.pace[rank] <= until - fleet.fixed[rank]
        and n * widest <= samples.cap
    ]
    return max(fits, default=0)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9),
    st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([0.0, 4.0])), min_size=1, max_size=4),
    st.sampled_from([np.inf, 12.0, 20.0]),
    st.integers(0, 2),
    st.integers(1, 40),
)
def test_cuts_give_every_rank_as_many_as_it_ends_in_time(pairs, ranks, cap, lower, until):
    costs, tokens = (list(map(float, column)) for column in zip(*pairs, strict=True))
    samples, fleet = problem_of(costs, ranks, tokens=tokens, cap=cap, lower=lower)
    for sparing in (False, True):
        cut, first, rest = [], 0, list(range(len(fleet)))
        while rest and cut is not None:
            choices = []
            for place, rank in enumerate(rest if sparing else rest[:1]):
                count = most_in_time(samples, fleet, rank, first, len(rest) - 1, until)
                room = (until - fleet.fixed[rank]) / (fleet.pace[rank] * samples.costs[min(first, len(samples) - 1)])
                choices.append(((room - count) / room if count >= max(lower, 1) else 1.0, place, count))
            _, place, count = min(choices)
            cut = None if count < lower else [*cut, (rest.pop(place), count)]
            first += count
        wanted = cut if cut is not None and first == len(samples) else None
        cuts = Cuts(samples, fleet)
        assert (cuts.sparing if sparing else cuts.in_order)(range(len(fleet)), until) == wanted


# -- what an assignment says ---------------------------------------------------------------------------------------


def test_an_assignment_shows_its_figures_and_not_the_problem_behind_them():
    shown = repr(assign([8.0, 5.0], [2.0, 1.0]))
    assert shown.startswith("Assignment(owner=array([0, 1]), work=array([8., 5.]), tokens=array([8., 5.]), seconds=")
    assert "_" not in shown


@pytest.mark.parametrize(
    ("costs", "speeds", "options", "status"),
    [
        ([101.0, 99.0], [1.0, 1.0], {}, AssignmentStatus.BALANCED),  # a hundredth later than at best
        ([102.0, 98.0], [1.0, 1.0], {}, AssignmentStatus.HELD_BY_SAMPLE),
        ([4.0, 1.0], [1.0, 0.25], {}, AssignmentStatus.BALANCED),
        ([1.0] * 3, [1.0, 0.1], {"lower": 1}, AssignmentStatus.HELD_BY_LOWER),
        ([1.0] * 4, [1.0, 0.1], {"lower": 2}, AssignmentStatus.HELD_BY_LOWER),
        ([9.0, 1.0], [1.0, 1.0], {}, AssignmentStatus.HELD_BY_SAMPLE),  # of equal ranks none is slow
        ([2.0] * 3, [1.0, 1.0], {"cap": 4.0}, AssignmentStatus.HELD_BY_CAP),
        ([2.0] * 3, [1.0, 1.0], {"cap": 6.0}, AssignmentStatus.COARSE),  # each has room for one more
        ([2.0] * 3, [1.0, 1.0], {"cap": 5.9}, AssignmentStatus.HELD_BY_CAP),
        ([2.0] * 3, [1.0, 1.0], {}, AssignmentStatus.COARSE),
    ],
)
def test_the_status_is_the_first_that_holds_at_its_bounds(costs, speeds, options, status):
    assert assign(costs, speeds, **options).status is status


def test_padded_each_sample_of_a_rank_takes_the_work_and_the_tokens_of_its_longest():
    found = assign([5.0, 3.0, 2.0, 2.0], [1.0, 1.0], tokens=[7, 9, 4, 6], padded=True)
    for rank in (0, 1):
        own = np.flatnonzero(found.owner == rank)
        costs, tokens = np.array([5.0, 3.0, 2.0, 2.0])[own], np.array([7, 9, 4, 6])[own]
        assert found.work[rank] == len(own) * costs.max()
        assert found.tokens[rank] == len(own) * tokens.max()
