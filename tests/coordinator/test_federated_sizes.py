"""Batches of a round beside a slow search, and the caution behind them."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, Reason
from paceline.coordinator.federated.rounds import LOG_CHANCE, SCORES, RoundBounds, Rules, caution_of, sized
from paceline.predictors import Curves

NAN, INF = math.nan, math.inf

# -- caution -------------------------------------------------------------------------------------------------------


def caution_by_hand(speed, spread, risk):
    """As the docstring says: one quantile for all, with the least expected log time of the last, by a plain sum."""
    spread = [min(max(one, 0.05), 1.0) for one in spread]
    least, most = min(spread), max(spread)
    if most == least or risk == 0:
        return [1.0] * len(spread)
    groups = {}
    for v, s in zip(speed, spread, strict=True):
        groups.setdefault(min(int(8 * (s - least) / (most - least)), 7), []).append((v, s))
    groups = [(len(rows), sum(v for v, _ in rows), sum(s for _, s in rows) / len(rows)) for rows in groups.values()]
    times = [most * (k - 80) / 20 for k in range(161)]
    normal, costs = NormalDist(), []
    for z in (k / 5 for k in range(21)):
        ended = [math.prod(normal.cdf(time / s + z) ** count for count, _, s in groups) for time in times]
        last = times[-1] - sum(ended) * (times[1] - times[0])
        costs.append(last - math.log(sum(v * math.exp(-z * s) for _, v, s in groups)))
    best = min(costs)
    return [
        {round(math.exp(risk * k / 5 * (s - least)), 9) for k, cost in enumerate(costs) if cost < best + 1e-6}
        for s in spread
    ]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(1.0, 100.0), st.sampled_from([0.0, 0.05, 0.06, 0.1, 0.3, 0.5, 1.0, 9.0])),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([0.0, 0.7, 2.0]),
)
def test_all_are_taken_at_the_quantile_at_which_the_last_is_expected_first(rows, risk):
    speed, spread = map(list, zip(*rows, strict=True))
    found = caution_of(np.array(speed), np.array(spread), risk)
    for one, wanted in zip(found.tolist(), caution_by_hand(speed, spread, risk), strict=True):
        assert one == 1.0 if isinstance(wanted, float) else round(one, 9) in wanted


@pytest.mark.parametrize("seed", [7, 9])
def test_clients_are_told_apart_by_eighths_of_the_range_of_their_spreads(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(3, 12)
    speed, spread = rng.uniform(1, 100, count).round(), rng.uniform(0.05, 1, count).round(2)
    wanted = caution_by_hand(speed.tolist(), spread.tolist(), 1.0)
    assert all(round(one, 9) in each for one, each in zip(caution_of(speed, spread, 1.0).tolist(), wanted, strict=True))


def test_the_table_of_the_normal_distribution_holds_each_fiftieth_of_a_deviation_up_to_eight():
    assert [round(50 * score, 9) for score in SCORES.tolist()] == list(range(-400, 401))
    between = (SCORES[1:] + SCORES[:-1]) / 2
    wanted = [NormalDist().cdf(score) for score in between]
    assert np.exp(np.interp(between, SCORES, LOG_CHANCE)) == pytest.approx(wanted, abs=1e-4)


def test_nobody_is_taken_to_be_slow_where_all_are_as_uncertain_or_nobody_is_there():
    assert caution_of(np.empty(0), np.empty(0), 1.0).tolist() == []
    for alike in ([0.3, 0.3], [0.0, 0.05], [1.0, 7.0], [0.2]):
        assert caution_of(np.ones(len(alike)), np.array(alike), 1.0).tolist() == [1.0] * len(alike)


# -- sizes ---------------------------------------------------------------------------------------------------------


def bounded(row, rules):
    """Return the most and the least samples of a client, and the reason that holds it; the deadline apart."""
    limits = {
        Reason.LARGEST: rules.largest,
        Reason.DATA: math.floor(row["data"]) if row["data"] == row["data"] else INF,
    }
    limits[Reason.MEMORY] = math.floor(row["memory"]) if row["memory"] < INF else INF
    held_by = min(limits, key=limits.get)
    return max(limits[held_by], 0), held_by


def told_of(rows, rules, caution):
    """Return bounds and first reasons, client by client."""
    for row, slower in zip(rows, caution, strict=True):
        upper, held_by = bounded(row, rules)
        least, fixed = min(rules.least, upper), row["fixed"]
        if fixed == fixed:
            upper = min(upper, fixed)
        lower = min(max(least, fixed), upper) if fixed == fixed else least
        reason = Reason.NO_ROOM if upper < 1 else Reason.BALANCED
        if rules.deadline is not None:
            left = (rules.deadline - row["comm"]) / math.exp(min(row["spread"], 1.0))
            in_time = math.floor(left / row["slope"]) if left >= 0 else -1
            if in_time < least and upper >= 1:
                reason, upper = Reason.TRIED_AGAIN if row["due"] else Reason.LEFT_OUT, least
            elif in_time < upper:
                upper, held_by = in_time, Reason.DEADLINE
            lower = min(lower, upper)
        yield {"lower": lower, "upper": upper, "held_by": held_by, "reason": reason, "slower": slower}


ROWS = st.fixed_dictionaries(
    {
        "slope": st.sampled_from([0.25, 0.5, 1.0, 4.0]),
        "comm": st.sampled_from([0.0, 1.0, 6.5]),
        "spread": st.sampled_from([0.0, 0.2, 3.0]),
        "data": st.sampled_from([NAN, NAN, 0.5, 3.0, 6.9, 99.0]),
        "memory": st.sampled_from([INF, INF, 5.0, 2.5]),
        "due": st.booleans(),
        "fixed": st.sampled_from([NAN, NAN, NAN, 4.0, 9.0]),
    }
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=5),
    st.sampled_from([None, 2.0, 5.0, 30.0]),
    st.integers(1, 4),
    st.sampled_from([0.0, 1.0]),
)
def test_a_round_is_sized_as_a_slow_search_would_and_says_what_decided(rows, deadline, least, risk):
    rules = Rules(batch=6, least=least, largest=20, risk=risk, deadline=deadline)
    column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    none = np.zeros(len(rows))
    curves = Curves(none, column["slope"], none, none + INF)
    now = RoundBounds(
        curves=curves, cause=np.full(len(rows), Reason.TESTED), **{k: v for k, v in column.items() if k != "slope"}
    )
    size, reason, upper, caution = sized(now, rules)
    first = list(told_of(rows, rules, caution.tolist()))
    asked = [k for k, one in enumerate(first) if one["reason"] not in (Reason.NO_ROOM, Reason.LEFT_OUT)]
    cautious = caution_of(1 / column["slope"][asked], column["spread"][asked], risk)
    assert caution[asked].tolist() == cautious.tolist()
    assert upper.tolist() == [one["upper"] for one in first]
    assert [caution[k] for k in range(len(rows)) if k not in asked] == [1.0] * (len(rows) - len(asked))

    def end(k, samples):
        return rows[k]["comm"] + samples * rows[k]["slope"] * caution[k]

    # One more sample to whoever would end first with it, from the least on.
    wanted = {k: first[k]["lower"] for k in asked}
    free = [k for k in asked if rows[k]["fixed"] != rows[k]["fixed"]]
    total = int(rules.batch * len(free) + sum(first[k]["upper"] for k in asked if k not in free))
    while sum(wanted.values()) < total and (open_ := [k for k in asked if wanted[k] < first[k]["upper"]]):
        wanted[min(open_, key=lambda k: end(k, wanted[k] + 1))] += 1
    assert sum(size) == sum(wanted.values())
    assert [size[k] for k in range(len(rows)) if k not in asked] == [0] * (len(rows) - len(asked))
    if not asked:
        return
    assert max(end(k, size[k]) for k in asked) == pytest.approx(max(end(k, wanted[k]) for k in asked), rel=1e-9)
    ends = {k: rows[k]["comm"] + size[k] * rows[k]["slope"] for k in asked}
    for k, (one, row) in enumerate(zip(first, rows, strict=True)):
        decided = one["reason"]
        if decided is Reason.BALANCED and row["fixed"] == row["fixed"]:
            decided = Reason.TESTED
        elif decided is Reason.BALANCED and size[k] >= one["upper"]:
            decided = one["held_by"]
        elif decided is Reason.BALANCED and size[k] == one["lower"]:
            is_late = ends[k] > np.median(list(ends.values())) + row["slope"]
            decided = Reason.LEAST if is_late else decided
        assert reason[k] == decided
        if k in ends:
            assert one["lower"] <= size[k] <= one["upper"]


def test_a_client_held_by_two_bounds_is_held_by_the_first_of_largest_data_and_memory():
    balancer = FederatedBalancer(batch=4, local_steps=1, largest=2.0)
    names = ["a", "b", "c", "d"]
    balancer.join(names, data=[8, 8, 3, 99], memory=[8, 9, 3, 8])
    assert balancer.plan(names).upper.tolist() == [8, 8, 3, 8]


def test_one_that_is_left_out_was_taken_to_be_as_slow_as_forecast():
    none = np.zeros(11)
    slope = np.array([0.1] * 10 + [9.0])
    now = RoundBounds(
        curves=Curves(none, slope, none, none + INF),
        comm=none,
        spread=np.array([0.5] * 2 + [0.05] * 8 + [0.5]),
        data=none + NAN,
        memory=none + INF,
        due=none > 0,
        fixed=none + NAN,
        cause=np.full(11, Reason.TESTED),
    )
    size, reason, upper, caution = sized(now, Rules(batch=8, least=2, largest=64, risk=1.0, deadline=5.0))
    assert (size[10], upper[10], caution[10], reason[10]) == (0, 2, 1.0, Reason.LEFT_OUT)
    assert caution[:10].round(1).tolist() == [2.1, 2.1, *[1.0] * 8]
    assert (size.dtype, size.sum(), size[0] < 6) == (np.int64, 80, True)
    size, reason, _, caution = sized(now, Rules(batch=8, least=2, largest=64, risk=1.0, deadline=0.01))
    assert (size.tolist(), reason.tolist(), caution.tolist()) == ([0] * 11, [Reason.LEFT_OUT] * 11, [1.0] * 11)
