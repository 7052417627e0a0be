"""Federated clients come and go; shares, metrics, and arguments that are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from federated_rounds import balancer_of, played
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated import ForecastSource, RoundReport
from paceline.coordinator.federated.clients import Clients, Shares, enter, shares_of

NAN = float("nan")


def test_clients_come_and_go():
    balancer = balancer_of()
    played(balancer, [100.0, 50.0], [0.0, 0.0])
    balancer.leave("c1")
    assert balancer.clients == ["c0"]
    plan = balancer.plan(["c0", "c1"])
    assert plan.source.tolist() == [ForecastSource.OWN, ForecastSource.FLEET]
    with pytest.raises(ValueError, match="client 'c1' is not known"):
        balancer.leave("c1")


def test_whoever_was_not_seen_for_longest_is_forgotten_when_there_is_no_room():
    balancer = balancer_of(most_clients=3)
    played(balancer, [10.0, 10.0], [0.0, 0.0], names=["old", "kept"])
    played(balancer, [10.0], [0.0], names=["kept"])
    balancer.join(["kept", "new", "newer"], devices=["x", "y", "z"])
    assert set(balancer.clients) == {"kept", "new", "newer"}
    plan = balancer.plan(["kept", "new"])
    assert plan.source.tolist() == [ForecastSource.OWN, ForecastSource.FLEET]


@pytest.mark.slow
def test_memory_stays_bounded_however_many_clients_come_by():
    balancer = balancer_of(most_clients=200)
    for k in range(40):
        played(balancer, np.full(50, 10.0), np.zeros(50), names=[f"r{k}c{i}" for i in range(50)])
    assert len(balancer) <= 200
    assert len(balancer.state_dict()["speed/rows/level"]) <= 200


def test_shares_follow_data_and_show_errors_as_unused():
    balancer = balancer_of()
    balancer.join(["a", "b"], data=[100, 300])
    for k in range(6):
        plan = balancer.plan(["a", "b"])
        report = RoundReport(
            clients=["a", "b"], samples=[160, 160], seconds=[1.0, np.nan if k else 1.0], failed=[False, k > 0]
        )
        balancer.observe(plan, report)
    shares = balancer.shares()
    assert shares.data.tolist() == [0.25, 0.75]
    assert shares.weight == pytest.approx([5.25 / 6, 0.75 / 6])
    assert shares.used.tolist() == [6, 1]
    assert shares.starved.tolist() == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"least": 40}, "least must lie between 1 and the batch of 32, got 40"),
        ({"largest": 0.5}, "largest must be at least 1"),
        ({"risk": 3.0}, "risk must lie in"),
        ({"plausible": 1.0}, "plausible must be above 1"),
        ({"deadline": -1.0}, "deadline must be a positive number of seconds"),
        ({"try_again": 0}, "try_again must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        balancer_of(**options)


def test_bad_clients_and_reports_are_refused_in_a_sentence():
    balancer = balancer_of()
    with pytest.raises(ValueError, match="none twice"):
        balancer.plan(["a", "a"])
    with pytest.raises(ValueError, match="must not repeat an id"):
        RoundReport(clients=["a", "a"], samples=[1, 1], seconds=[1, 1])
    with pytest.raises(ValueError, match="seconds must have one entry for each of the 1 clients"):
        RoundReport(clients=["a"], samples=[1], seconds=[1, 1])
    with pytest.raises(ValueError, match="data must have one number for each of the 1 clients"):
        balancer.join(["a"], data=[-1.0])
    with pytest.raises(ValueError, match="must not repeat an id"):
        balancer.join(["a", "a"], devices=["x", "y"])
    with pytest.raises(ValueError, match="must come from state_dict"):
        balancer.load_state_dict({})


def test_a_round_is_an_iteration_to_all_metrics():
    plan = played(balancer_of(), [100.0, 50.0], [1.0, 0.5])
    asked = plan.as_plan()
    assert asked.sizes.tolist() == (plan.sizes * 5).tolist()
    assert asked.forecast.curves.seconds(asked.sizes) == pytest.approx(plan.seconds)
    assert asked.workers == ("c0", "c1")
    assert (asked.why, asked.iteration, asked.acted, asked.gain) == (plan.summary, 1, True, 0.0)
    assert not asked.drift_began, "nothing was compared with what a predictor was fitted on"


ROUNDS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["replies", "replies", "silent", "error", "out of memory", "not asked"]),
            st.sampled_from([160.0, 40.0, np.nan, -5.0]),
        ),
        min_size=4,
        max_size=4,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(ROUNDS, st.lists(st.none() | st.integers(0, 9), min_size=4, max_size=4))
def test_the_history_counts_what_became_of_each_client_round_by_round(rounds, data):
    """Directly, as plans are given: a client is asked or not, replies or not, and its update is used or not."""
    clients, names = Clients(9), [f"c{i}" for i in range(4)]
    clients.join(names, round_index=0)
    known = [NAN if amount is None else float(amount) for amount in data]
    clients.column("data")[:] = known

    def filled(rows):
        mean = np.nanmean([known[i] for i in rows]) if any(known[i] == known[i] for i in rows) else 1.0
        return {i: mean if known[i] != known[i] else known[i] for i in rows}

    wanted = {name: [0] * 4 for name in ("planned", "replied", "silent", "left_out", "seen", "samples", "weight")}
    for k, round_of in enumerate(rounds):
        place = np.array([i for i, (what, _) in enumerate(round_of) if what not in ("silent", "not asked")], np.intp)
        asked = np.array([what != "not asked" for what, _ in round_of])
        replied = [round_of[i] for i in place]
        report = RoundReport(
            clients=[names[i] for i in place],
            samples=[n for _, n in replied],
            seconds=[1.0] * len(place),
            failed=[what == "error" for what, _ in replied],
            out_of_memory=[what == "out of memory" for what, _ in replied],
        )
        silent = enter(clients, SimpleNamespace(asked=asked, round_index=k), report, np.arange(4), place)
        used = [i for i in place if round_of[i][0] == "replies"]
        weights, total = filled(used), sum(filled(used).values())
        for i, (what, samples) in enumerate(round_of):
            wanted["planned"][i] += 1
            wanted["left_out"][i] = wanted["left_out"][i] + 1 if what == "not asked" else 0
            wanted["silent"][i] = wanted["silent"][i] + 1 if what == "silent" else 0
            wanted["seen"][i] = k if i in place else wanted["seen"][i]
            wanted["replied"][i] += i in used
            wanted["samples"][i] += samples if i in used and samples > 0 else 0
            wanted["weight"][i] += weights[i] / total if i in used and total else 0
        assert silent.tolist() == [what == "silent" for what, _ in round_of]
        for name, values in wanted.items():
            assert clients.column(name) == pytest.approx(values), name
    shares = shares_of(clients, names[::-1])
    assert shares.clients == tuple(names[::-1])
    whole = np.array([filled(range(4))[i] for i in (3, 2, 1, 0)])
    assert shares.data == pytest.approx(whole / (whole.sum() or 1))
    assert shares.weight == pytest.approx(np.array(wanted["weight"][::-1]) / (sum(wanted["weight"]) or 1))
    assert shares.samples == pytest.approx(wanted["samples"][::-1])
    assert (shares.chosen.tolist(), shares.used.tolist()) == ([len(rounds)] * 4, wanted["replied"][::-1])


def test_a_client_is_starved_that_was_chosen_five_times_and_used_in_less_than_half():
    chosen, used = np.array([0, 4, 5, 6, 6, 5]), np.array([0, 0, 2, 3, 2, 3])
    nothing = np.zeros(6)
    shares = Shares(tuple("abcdef"), nothing, nothing, nothing, chosen, used)
    assert shares.starved.tolist() == [False, False, True, False, True, False]
    assert shares.use == pytest.approx([NAN, 0, 0.4, 0.5, 1 / 3, 0.6], nan_ok=True)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1, max_size=4), st.booleans()), max_size=12),
    st.integers(4, 6),
)
def test_those_not_seen_for_longest_make_room_and_never_those_who_come(rounds, most):
    balancer, seen = balancer_of(most_clients=most), {}
    for k, (chosen, replies) in enumerate(rounds):
        names = [f"c{i}" for i in sorted(chosen)]
        surplus = len(seen.keys() | set(names)) - most
        others = sorted((name for name in seen if name not in names), key=lambda name: seen[name])
        plan = balancer.plan(names)
        there = names if replies else names[:1]
        count = len(there)
        balancer.observe(plan, RoundReport(clients=there, samples=[160] * count, seconds=[1.0] * count))
        for name in others[: max(surplus, 0)]:
            del seen[name]
        for name in names:
            seen[name] = k if name in there or name not in seen else seen[name]
        assert set(balancer.clients) == set(seen)
    with pytest.raises(ValueError, match=f"{most + 1} clients cannot join where most_clients is {most}: make it more"):
        balancer.join([f"n{i}" for i in range(most + 1)])
