"""Federated rounds at their limits: the last number that is taken, the first that is not, and what is not said."""

import math

import numpy as np
import pytest
from federated_rounds import names_of

from paceline.coordinator.federated import ForecastSource, Reason, RoundReport
from paceline.coordinator.federated.clients import COLUMNS, MOMENTS, Clients
from paceline.coordinator.federated.history import enter, shares_of
from paceline.coordinator.federated.unseen import drawn
from paceline.coordinator.federated.validation import plausible_comm, plausible_speeds

NAN, INF = math.nan, math.inf
MORE = 1 + 1e-9


def report_of(samples, seconds, **more):
    return RoundReport(clients=names_of(len(samples)), samples=samples, seconds=seconds, **more)


# -- what can be ---------------------------------------------------------------------------------------------------


def test_a_speed_may_be_as_many_times_the_usual_as_is_plausible_and_no_more():
    report = report_of([400.0, 400.0 * MORE, 25.0, 25.0 / MORE, 1.0], [1.0] * 5)
    assert plausible_speeds(report, 100.0, 4.0).tolist() == [True, False, True, False, False]
    seen = report_of([400.0, 400.0 * MORE, 25.0, 25.0 / MORE, 1.0], [1.0] * 5, elapsed=[1.0] * 5)
    assert plausible_speeds(seen, 100.0, 4.0).tolist() == [True, False, True, True, True]


def test_of_speeds_alone_the_lower_of_two_medians_is_the_usual():
    for speeds, plausible, wanted in (
        ([1.0, 5.0], 4.0, [True, False]),
        ([1.0, 2.0, 7.0], 4.0, [True, True, True]),
        ([1.0, 2.0, 9.0], 4.0, [True, True, False]),
        ([1.0, 2.0, 9.0, 9.0], 4.0, [True, True, False, False]),
        ([NAN, 3.0], 4.0, [False, True]),
        ([NAN, NAN], 4.0, [False, False]),
    ):
        assert plausible_speeds(report_of(speeds, [1.0] * len(speeds)), NAN, plausible).tolist() == wanted


def test_clocks_may_differ_by_a_hundredth_and_a_hundredth_of_a_second():
    for elapsed in (0.0, 1.0, 50.0):
        most = 1.01 * elapsed + 0.01
        report = report_of([100.0, 100.0], [most, most * MORE], elapsed=[elapsed, elapsed])
        assert plausible_speeds(report, 100.0 / most, 4.0).tolist() == [True, False]
        told = report_of([1.0, 1.0], [1e-9, 1e-9], elapsed=[elapsed, elapsed], comm_seconds=[most, most * MORE])
        assert plausible_comm(told, np.ones(2, bool), NAN, 4.0).tolist() == [True, False]


def test_a_time_to_communicate_may_be_as_many_times_the_usual_or_the_median_of_computing_as_is_plausible():
    def timed(comm, usual, accepted=(True, True, True), **more):
        report = report_of([1.0] * 3, [1.0, 2.0, 9.0], comm_seconds=comm, **more)
        return plausible_comm(report, np.array(accepted), usual, 4.0).tolist()

    assert timed([8.0, 8.0 * MORE, 0.0], NAN) == [True, False, True]
    assert timed([8.0, 12.0, 12.0 * MORE], 3.0) == [True, True, False]
    assert timed([NAN, -1.0, INF], 3.0) == [False] * 3
    assert timed([0.0, 0.5, 0.5], NAN, accepted=[False] * 3) == [True, False, False], "nobody's time is usual"
    assert timed([1.0] * 3, NAN, failed=[1, 0, 0], out_of_memory=[0, 1, 0]) == [False, False, True]
    assert timed(None, NAN, accepted=[True, False, True], elapsed=[2.0, 4.0, 20.0]) == [True, False, True]


# -- who they are --------------------------------------------------------------------------------------------------


def test_the_numbers_of_reasons_and_sources_stay_as_they_are_in_records():
    assert {one.name: one.value for one in Reason} == {
        **{"BALANCED": 0, "LEAST": 1, "LARGEST": 2, "DATA": 3, "MEMORY": 4, "DEADLINE": 5, "LEFT_OUT": 6},
        **{"TRIED_AGAIN": 7, "NO_ROOM": 8, "TESTED": 9, "FLAT": 10},
    }
    wanted = {"OWN": 0, "DEVICE": 1, "FLEET": 2, "NOTHING": 3, "SILENCE": 4}
    assert {one.name: one.value for one in ForecastSource} == wanted


def test_a_client_that_is_not_known_is_as_a_new_one_in_every_column():
    fresh = dict.fromkeys(COLUMNS, 0.0) | {"data": NAN, "memory": INF, "fits": INF, "seen": -1.0, "ceiling": INF}
    clients = Clients(3)
    clients.join(["a"], round_index=5)
    for name, value in fresh.items():
        found = clients.taken(name, np.array([-1, 0, -1]))
        assert found == pytest.approx([value, 5.0 if name == "seen" else value, value], nan_ok=True)
        assert found.dtype == np.float64
        whole = name not in {"data", "memory", "fits", "samples", "weight", "ceiling", "base", *MOMENTS}
        assert clients.column(name).dtype == (np.int64 if whole else np.float64)
    assert clients.devices == {"": 0}


@pytest.mark.parametrize(("most", "gone"), [(3, 1), (199, 1), (200, 2), (350, 3)])
def test_a_hundredth_is_forgotten_at_once_and_never_one_of_those_who_come(most, gone):
    clients = Clients(most)
    clients.join([f"c{i}" for i in range(most)], round_index=0)
    clients.column("seen")[:] = np.arange(most)[::-1]
    assert clients.in_the_way(["c0", "c1"]) == []
    assert clients.in_the_way([f"c{most - 1}", "new"]) == [f"c{most - 2 - k}" for k in range(gone)]
    others = [f"n{k}" for k in range(most - 1)]
    assert sorted(clients.in_the_way([*others, "c0"])) == sorted(f"c{k}" for k in range(1, most))
    assert clients.in_the_way([*others, "n"])[0] == f"c{most - 1}"
    with pytest.raises(ValueError, match=f"{most + 1} clients cannot join where most_clients is {most}: make it more"):
        clients.in_the_way([*others, "n", "m"])


def test_rows_move_up_and_columns_with_them_when_clients_leave():
    clients = Clients(9)
    clients.join(["a", "b", "c"], round_index=0)
    clients.join(["d"], round_index=7)
    clients.column("samples")[:] = [1, 2, 3, 4]
    clients.leave(["a", "c", "stranger"])
    assert (clients.names, len(clients), "b" in clients, "a" in clients) == (["b", "d"], 2, True, False)
    assert clients.rows(["d", "a", "b"]).tolist() == [1, -1, 0]
    assert clients.column("samples").tolist() == [2, 4]
    assert clients.column("seen").tolist() == [0, 7]
    clients.join(["a"], round_index=8)
    assert clients.rows(["a"]).tolist() == [2]
    assert clients.new(["x", "a", "y"]) == ["x", "y"]
    assert clients.device_indices(["p", "", "q", "p"]).tolist() == [1, 0, 2, 1]
    assert clients.device_indices(["q"]).tolist() == [2]


def test_ten_thousand_device_types_are_told_apart_and_no_more():
    clients = Clients(1)
    found = clients.device_indices([f"d{number}" for number in range(10_001)])
    assert found.tolist() == [*range(1, 10_000), 0, 0]
    assert clients.device_indices(["d9998", "d9999", ""]).tolist() == [9999, 0, 0]
    assert len(clients.devices) == 10_000


def test_the_state_of_clients_is_whole_or_refused():
    clients = Clients(9)
    clients.join(["a", "b"], round_index=3)
    clients.device_indices(["p"])
    clients.column("data")[:] = [5.0, NAN]
    state = clients.state_dict()
    assert (state["names"].tolist(), state["devices"].tolist()) == (["a", "b"], ["", "p"])
    assert {state[name].dtype.kind for name in ("names", "devices")} == {"U"}
    assert Clients(9).state_dict()["names"].dtype.kind == "U"
    again = Clients(9)
    again.load_state_dict({**state, "rejected": state["rejected"].astype(float)})
    assert (again.names, again.devices, again.column("seen").tolist()) == (["a", "b"], {"": 0, "p": 1}, [3, 3])
    assert again.column("rejected").dtype == np.int64
    state["data"][:] = 9.0
    assert clients.column("data")[0] == 5.0
    with pytest.raises(ValueError, match=r"one entry a client in every column, but \['data', 'turn'\] do not"):
        again.load_state_dict({**state, "data": state["data"][:1], "turn": state["turn"][:0]})


# -- what became of them -------------------------------------------------------------------------------------------


def test_no_data_at_all_make_no_shares():
    clients = Clients(9)
    clients.join(["a", "b"], round_index=0)
    shares = shares_of(clients, ["a", "b", "x"])
    assert shares.data == pytest.approx([1 / 3] * 3)
    assert (shares.weight.tolist(), shares.samples.tolist(), shares.chosen.tolist()) == ([0.0] * 3, [0.0] * 3, [0] * 3)
    assert {shares.chosen.dtype, shares.used.dtype} == {np.dtype(np.int64)}
    clients.column("data")[:] = 0.0
    assert shares_of(clients, ["a", "b"]).data.tolist() == [0.0, 0.0]
    clients.column("data")[:] = [3.0, NAN]
    assert shares_of(clients, ["a", "b"]).data.tolist() == [0.5, 0.5]
    assert np.isnan(shares_of(clients, ["a"]).use).all()


def test_a_client_in_a_plan_that_was_left_out_and_one_that_is_silent_are_booked_apart():
    class Plan:
        asked, round_index = np.array([True, True, False]), 6

    clients = Clients(9)
    clients.join(["z", "a", "b", "c"], round_index=0)
    report = report_of([40.0], [1.0])
    silent = enter(clients, Plan, report, np.array([1, 2, 3]), np.array([0]))
    assert silent.tolist() == [False, True, False]
    booked = ("planned", "seen", "silent", "left_out", "replied", "samples")
    assert [clients.column(name).tolist() for name in booked] == [
        [0, 1, 1, 1],
        [0, 6, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 1, 0, 0],
        [0, 40, 0, 0],
    ]


# -- who was never seen --------------------------------------------------------------------------------------------


def test_one_client_of_a_type_is_all_that_is_known_of_it():
    mean, deviation, source = drawn(np.array([1.0]), np.array([3]), np.array([3, 1, 0]), prior=9.0)
    assert mean.tolist() == [1.0, 1.0, 1.0]
    # Where nothing was compared, both between clients and of a client, the deviation is 0.2.
    assert deviation == pytest.approx([0.2 * math.sqrt(2)] * 3)
    assert source.tolist() == [ForecastSource.DEVICE, ForecastSource.FLEET, ForecastSource.FLEET]
    mean, deviation, source = drawn(np.empty(0), np.empty(0, np.int64), np.array([0, 2]), prior=9.0)
    assert (mean.tolist(), deviation.tolist(), source.tolist()) == (
        [9.0, 9.0],
        [INF, INF],
        [ForecastSource.NOTHING] * 2,
    )
