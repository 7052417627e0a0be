"""Frames that become traces, against a slow reading of their rows, and each limit on both of its sides."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.datasets.columns import MEASURED
from paceline.datasets.frame import in_seconds, renamed

NAN = float("nan")
REQUIRED = ["worker", "iteration", "samples", "seconds"]
ROWS = pd.DataFrame({"worker": ["a", "b"], "iteration": [0, 0], "samples": [8, 4], "seconds": [1.0, 2.0]})


def slow(rows):
    """Return workers and the panel of numbers of rows (iteration, worker, number), one cell at a time."""
    workers = sorted({worker for _, worker, _ in rows})
    first, last = min(k for k, _, _ in rows), max(k for k, _, _ in rows)
    panel = [[NAN] * len(workers) for _ in range(first, last + 1)]
    for k, worker, number in rows:
        panel[k - first][workers.index(worker)] = number
    return tuple(workers), panel


@st.composite
def tables(draw):
    """Rows of a whole panel in some order of workers, of which some are moved, left out, or of another iteration."""
    workers = draw(st.permutations(["a", "b", "c"]))[: draw(st.integers(1, 3))]
    keys = [(k, worker) for k in range(draw(st.integers(1, 4))) for worker in workers]
    for change in draw(st.lists(st.sampled_from(["swap", "drop", "later", "other"]), max_size=2)):
        at = draw(st.integers(0, len(keys) - 1))
        k, worker = keys[at]
        if change == "swap":
            keys[at], keys[-1] = keys[-1], keys[at]
        elif change == "drop" and len(keys) > 1:
            del keys[at]
        elif change == "later":
            keys = [(n + 2 * (n >= k), name) for n, name in keys]
        elif change == "other" and (k + 9, worker) not in keys:
            keys[at] = (k + 9, worker)
    return [(k + 5, worker, float(number)) for number, (k, worker) in enumerate(keys, start=1)]


@pytest.mark.slow
@given(tables(), st.booleans())
@settings(max_examples=50)
def test_a_table_is_the_panel_that_a_slow_reading_makes(rows, as_categories):
    frame = pd.DataFrame(rows, columns=["iteration", "worker", "samples"]).assign(seconds=1.0)
    frame["load"] = -frame["samples"]
    if as_categories:
        frame["worker"] = pd.Categorical(frame["worker"], categories=["unused", "c", "a", "b"])
    trace, (workers, panel) = Trace.from_frame(frame), slow(rows)
    assert trace.workers == workers
    np.testing.assert_array_equal(trace.samples, panel)
    np.testing.assert_array_equal(trace.covariates[:, :, 0], -np.array(panel))
    silent = int(np.isnan(panel).all(axis=1).sum())
    assert trace.meta.get("absent") == (f"{silent} of {len(panel)} iterations, for all workers" if silent else None)


def test_iterations_that_lie_backwards_are_put_in_their_order():
    frame = pd.DataFrame({"iteration": [2, 2, 1, 1, 0, 0], "worker": list("bababa")})
    trace = Trace.from_frame(frame.assign(samples=range(6), seconds=1))
    np.testing.assert_array_equal(trace.samples, [[5, 4], [3, 2], [1, 0]])


def test_a_trace_as_a_frame_has_a_row_for_each_worker_of_each_iteration_and_a_column_for_each_panel():
    shape = (2, 3)
    panels = {name: np.arange(6.0).reshape(shape) + n for n, name in enumerate(MEASURED)}
    covariates = np.stack([np.arange(6.0).reshape(shape) * 2, np.arange(6.0).reshape(shape) * 3], axis=-1)
    trace = Trace(**panels, covariates=covariates, covariate_names=["x", "y"], workers=["b", "a", "c"])
    expected = {"iteration": [0, 0, 0, 1, 1, 1], "worker": list("bacbac")}
    expected |= {name: np.arange(6.0) + n for n, name in enumerate(MEASURED)}
    expected |= {"x": np.arange(6.0) * 2, "y": np.arange(6.0) * 3}
    pd.testing.assert_frame_equal(trace.to_frame(), pd.DataFrame(expected))
    assert list(Trace([[1]], [[1]]).to_frame().columns) == ["iteration", "worker", "samples", "seconds"]


def test_every_column_of_a_trace_can_be_mapped_and_no_other():
    for name in (*REQUIRED, *MEASURED):
        frame = ROWS.drop(columns=name, errors="ignore").assign(mine=1)
        assert renamed(frame, {name: "mine"})[name].tolist() == [1, 1]
        assert renamed(frame, {name: 3})[name].tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match=r"^columns \['load'\] are not a trace's; they can be mapped: \['worker', 'it"):
        renamed(ROWS, {"load": "samples"})
    assert renamed(ROWS, {"samples": "samples"}).equals(ROWS)


@pytest.mark.parametrize("unit", ["s", "ms", "h"])
@pytest.mark.parametrize("start_unit", ["s", "us", "min"])
def test_units_hold_for_durations_and_starts_alone(unit, start_unit):
    times = {"s": 1.0, "ms": 1e-3, "h": 3600.0, "us": 1e-6, "min": 60.0}
    frame = ROWS.assign(comm_seconds=3, wait_seconds=5, start=7, work=11, load=13)
    found = in_seconds(frame, unit, start_unit)
    scale = dict.fromkeys(["seconds", "comm_seconds", "wait_seconds"], times[unit]) | {"start": times[start_unit]}
    for name in frame.columns[1:]:
        assert found[name].tolist() == [value * scale.get(name, 1.0) for value in frame[name]], name
    assert frame["seconds"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", [*REQUIRED[1:], *MEASURED[2:], "load"])
def test_dates_and_durations_stand_where_they_have_a_meaning(name):
    dates, spans = pd.to_datetime(["1970-01-01 00:00:02", "1970-01-01 00:01:00"]), pd.to_timedelta([2, 60], unit="s")
    if name in ("start", "work", "load"):
        assert in_seconds(ROWS.assign(**{name: dates}))[name].tolist() == [2.0, 60.0]
        assert in_seconds(ROWS.assign(**{name: dates.tz_localize("UTC")}))[name].tolist() == [2.0, 60.0]
    else:
        with pytest.raises(ValueError, match=rf"^column '{name}' must not hold dates \(datetime64"):
            in_seconds(ROWS.assign(**{name: dates}))
    if name in ("iteration", "samples", "start"):
        with pytest.raises(ValueError, match=rf"^column '{name}' must not hold durations \(timedelta64"):
            in_seconds(ROWS.assign(**{name: spans}))
    else:
        assert in_seconds(ROWS.assign(**{name: spans}), unit="ms")[name].tolist() == [2.0, 60.0]


def test_a_start_lies_before_the_year_2100_or_at_its_first_second():
    latest = float(pd.Timestamp("2100-01-01", tz="UTC").timestamp())
    assert Trace.from_frame(ROWS.assign(start=[NAN, latest])).start[0, 1] == latest
    with pytest.raises(
        ValueError, match=r"^column 'start' must hold seconds since 1970, but row 1 holds 4102444801\.0,"
    ):
        Trace.from_frame(ROWS.assign(start=[-5.0, latest + 1]))


@pytest.mark.parametrize("name", ["samples", "seconds", "comm_seconds", "wait_seconds", "work"])
def test_no_amount_is_negative_and_a_start_or_a_covariate_may_be(name):
    frame = ROWS.assign(start=-3, load=-4, comm_seconds=0, wait_seconds=0, work=0)
    trace = Trace.from_frame(frame)
    assert (trace.start == -3).all()
    assert (trace.covariates == -4).all()
    with pytest.raises(ValueError, match=f"^column '{name}' must not be negative, but row 1 is$"):
        Trace.from_frame(frame.assign(**{name: [0.0, -1e-9]}))


def test_what_is_missing_of_a_frame_is_named():
    with pytest.raises(ValueError, match=r"^columns \['worker', 'samples'\] are missing; a trace needs \['worker', 'i"):
        Trace.from_frame(ROWS.drop(columns=["worker", "samples"]))
    with pytest.raises(ValueError, match=r"^the frame has no rows; a trace needs at least one$"):
        Trace.from_frame(ROWS[:0])
    with pytest.raises(ValueError, match=r"name a worker in every row, but row 1 is empty$"):
        Trace.from_frame(pd.concat([ROWS, ROWS]).assign(worker=["a", None, "b", None]))


@pytest.mark.parametrize(
    ("iterations", "said"),
    [
        ([0, 1.5], r"row 1 holds 1\.5"),
        ([0.25, 1.5], r"row 0 holds 0\.25"),
        ([-(2**53) - 2, 0], "row 0 holds -9007199254740994"),
        (np.array([0, 2**63], dtype=np.uint64), "row 1 holds 9223372036854775808"),
        ([0, NAN], "row 1 holds nan"),
    ],
)
def test_the_first_iteration_that_is_no_whole_number_is_named_as_it_was_written(iterations, said):
    with pytest.raises(ValueError, match=rf"^column 'iteration' .* of at most 9007199254740992, but {said}$"):
        Trace.from_frame(ROWS.assign(iteration=iterations))


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "str", "Int64", "object"])
def test_iterations_may_be_of_any_type_that_holds_whole_numbers(kind):
    frame = ROWS.assign(iteration=pd.Series([7, 9]).astype(kind))
    assert np.isfinite(Trace.from_frame(frame).speed).tolist() == [[True, False], [False, False], [False, True]]


def test_names_are_in_the_order_of_their_numbers_up_to_eighteen_digits_and_of_their_text_beyond():
    for names, expected in (
        (["10", "9", "08"], ["08", "9", "10"]),
        (["1" + "0" * 17, "9"], ["9", "1" + "0" * 17]),
        (["1" + "0" * 18, "9"], ["1" + "0" * 18, "9"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        (["10", "9", "-1"], ["-1", "10", "9"]),
        (["10", "9", "²"], ["10", "9", "²"]),
    ):
        frame = pd.DataFrame({"worker": names, "iteration": 0, "samples": range(len(names)), "seconds": 1})
        trace = Trace.from_frame(frame)
        assert trace.workers == tuple(expected)
        assert trace.samples[0].tolist() == [names.index(name) for name in expected]


def test_names_of_one_number_are_in_the_order_of_their_text():
    names = [str(n).zfill(digits) for digits in range(1, 18) for n in (3, 1, 2)]
    frame = pd.DataFrame({"worker": names, "iteration": 0, "samples": range(51), "seconds": 1})
    trace = Trace.from_frame(frame)
    assert list(trace.workers) == sorted(names, key=lambda name: (int(name), name))
    assert trace.samples[0].tolist() == [names.index(name) for name in trace.workers]


def test_a_number_and_its_text_are_one_worker():
    frame = pd.DataFrame({"worker": [1, "1", 10, 2], "iteration": [0, 1, 0, 0], "samples": [5, 6, 7, 8], "seconds": 1})
    trace = Trace.from_frame(frame)
    assert trace.workers == ("1", "2", "10")
    np.testing.assert_array_equal(trace.samples, [[5, 8, 7], [6, NAN, NAN]])


@pytest.mark.parametrize("length", [1000, 1001])
def test_a_name_has_a_thousand_characters_at_most(length):
    frame = ROWS.assign(worker=["a", "b" * length])
    if length == 1000:
        assert Trace.from_frame(frame).workers == ("a", "b" * 1000)
        return
    with pytest.raises(
        ValueError, match=r"^column 'worker' must hold names of at most 1000 characters, got one of 1001$"
    ):
        Trace.from_frame(frame)


def test_the_first_pair_that_repeats_is_named():
    frame = pd.DataFrame(
        {"worker": list("bbabbcc"), "iteration": [3, 4, 3, 4, 5, 9, 9], "samples": 1, "seconds": 1},
        index=[5, 5, 5, 5, 5, 5, 5],
    )
    with pytest.raises(ValueError, match=r"^worker b reports iteration 4 more than once; each pair \(worker, iterat"):
        Trace.from_frame(frame)


def test_the_first_cell_that_is_no_number_is_named_as_it_was_written():
    for cells, said in ((["1", "x"], "row 1 holds 'x'"), ([[1], [2]], r"row 0 holds \[1\]")):
        with pytest.raises(ValueError, match=f"^column 'load' must hold numbers, but {said}$"):
            Trace.from_frame(ROWS.assign(load=cells))
    assert Trace.from_frame(ROWS.assign(load=["7", None])).covariates[0, 0, 0] == 7.0
    assert Trace.from_frame(ROWS.assign(load=[True, False])).covariates[0, :, 0].tolist() == [1.0, 0.0]
