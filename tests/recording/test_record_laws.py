"""What is written of a run, whatever was measured: each number once more from its definition, here and when read."""

import json
import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import iterations, written

from paceline import __version__
from paceline._wording import duration, percent
from paceline.coordinator import LoadBalancer
from paceline.datasets.waiting_time import waiting
from paceline.predictors import EWMA, Report
from paceline.recording import (
    AsyncRunReader,
    JsonLines,
    Logging,
    RunReader,
    read_async_run,
    read_run,
    round_sinks,
    summary,
)
from paceline.recording.growing_file import LARGEST, LONGEST
from paceline.recording.records import Iteration, Round
from paceline.recording.sink import of_workers, of_workers_in_round, summary_of_round

NUMBERS = st.one_of(st.floats(1e-5, 1e5), st.sampled_from([math.nan, math.inf, 0.0, 0.123456789]))
FEW = settings(max_examples=25)


@st.composite
def records(draw):
    """The iterations of a run of two to four workers, measured in any way."""
    count, length = draw(st.integers(2, 4)), draw(st.integers(1, 5))
    balancer = LoadBalancer(EWMA(), workers=[f"gpu{w}" for w in range(count)], global_batch=40)
    rows = st.lists(NUMBERS, min_size=count, max_size=count).map(np.array)
    found = []
    for index in range(length):
        used, seconds = balancer.plan, draw(rows)
        plan = balancer.step(Report(samples=used.sizes, seconds=np.where(seconds > 0, seconds, np.nan)))
        found.append(
            Iteration(
                index=3 * index,
                time=1.7e9 + draw(st.floats(0, 1)) + index,
                worker="gpu0",
                sizes=used.sizes,
                seconds=seconds,
                forecast_seconds=used.seconds,
                comm_seconds=draw(rows),
                wall_seconds=draw(NUMBERS),
                overhead_seconds=draw(st.floats(0, 1)),
                agreed=draw(st.booleans()),
                plan=replace(plan, drift=draw(st.sampled_from([math.nan, 0.25]))),
                work=draw(st.one_of(st.none(), rows)),
            )
        )
    return found


def seen(values, digits=7):
    """Numbers as a reader finds them: rounded, and NaN where they are not finite."""
    return [round(float(one), digits) if math.isfinite(one) else math.nan for one in np.ravel(values).tolist()]


@given(records())
@FEW
def test_every_number_of_an_iteration_is_read_as_it_was_measured(found):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.jsonl"
        written(path, found).close()
        run, lines = read_run(path), [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["version"] == __version__
    assert lines[0]["units"]["all others"] == "seconds, or shares"
    for name in ("sizes", "seconds", "forecast_seconds", "comm_seconds"):
        for row, record in zip(run.of_workers[name], found, strict=True):
            np.testing.assert_array_equal(row, seen(getattr(record, name)))
    for name in ("overhead_seconds", "wall_seconds"):
        np.testing.assert_array_equal(run.of_fleet[name], seen([getattr(record, name) for record in found]))
    np.testing.assert_array_equal(run.of_fleet["time"], [round(record.time, 3) for record in found])
    np.testing.assert_array_equal(run.of_fleet["index"], [record.index for record in found])
    np.testing.assert_array_equal(run.of_fleet["drift"], [record.plan.drift for record in found])
    np.testing.assert_array_equal(run.of_fleet["gain"], seen([record.plan.gain for record in found]))
    np.testing.assert_array_equal(
        run.of_fleet["equal_seconds"], seen([summary(record)["equal_seconds"] for record in found])
    )
    assert run.agreed.tolist() == [record.agreed for record in found]
    for line, record in zip(lines[1:], found, strict=False):
        assert ("work" in line, "drift" in line) == (record.work is not None, not math.isnan(record.plan.drift))
    trace = run.trace()
    assert trace.meta == {"job": "mine", "source": "live run"}
    assert trace.workers == run.workers
    np.testing.assert_array_equal(trace.start, np.tile(run.of_fleet["time"][:, None], len(run.workers)))
    np.testing.assert_array_equal(trace.wait_seconds, run.wait_seconds)
    if trace.comm_seconds is None:
        assert np.isnan(run.of_workers["comm_seconds"]).all()
    else:
        np.testing.assert_array_equal(trace.comm_seconds, run.of_workers["comm_seconds"])


def without_infinite(record):
    return replace(record, seconds=np.where(np.isfinite(record.seconds), record.seconds, np.nan))


@given(records())
@FEW
def test_a_run_says_of_each_iteration_what_the_iteration_itself_says(found):
    found = [without_infinite(record) for record in found]
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "run.jsonl", found).close()
        run = read_run(Path(folder) / "run.jsonl")
    for t, record in enumerate(found):
        known = [(one, w) for w, one in enumerate(record.seconds.tolist()) if not math.isnan(one)]
        longest = max((one for one, _ in known), default=math.nan)
        first = next((w for one, w in known if one == longest), -1)
        waits = [longest - one for one in record.seconds]
        share = sum(longest - one for one, _ in known) / (len(known) * longest) if known and longest else math.nan
        for made, given_, close in (
            (run.makespan[t], longest, 1e-6),
            (record.makespan, longest, 0),
            (record.waiting_share, share, 1e-12),
            (run.waiting_share[t], share, 1e-2 if longest < 1e-4 else 1e-5),
        ):
            assert made == pytest.approx(given_, rel=1e-2, abs=close, nan_ok=True)
        np.testing.assert_allclose(record.wait_seconds, waits)
        np.testing.assert_allclose(run.wait_seconds[t], waits, atol=2e-7)
        assert record.slowest == ("" if first < 0 else record.workers[first])
        if len({round(one, 7) for one, _ in known}) == len(known):
            assert run.slowest[t] == first
        error = [
            made / took - 1 if math.isfinite(took) and took > 0 and math.isfinite(made) else math.nan
            for made, took in zip(run.forecast_seconds[t], run.seconds[t], strict=True)
        ]
        np.testing.assert_allclose(run.forecast_error[t], error)
    assert len(run) == len(found)
    silent = []
    for w in range(len(run.workers)):
        reported = [not math.isnan(row) for row in run.seconds[:, w]]
        silent.append(len(found) - 1 - max((t for t, one in enumerate(reported) if one), default=-1))
    assert run.silent_workers.tolist() == silent
    for last in (None, 1, 2):
        of = slice(None) if last is None else slice(-last, None)
        assert str(run.waiting(last)) == str(waiting(run.seconds[of], None if run.work is None else run.work[of]))


@given(records())
@FEW
def test_a_summary_is_computed_from_what_was_reported(found):
    for record in found:
        numbers, kept = summary(record), without_infinite(record)
        curves, work = record.plan.forecast.curves, record.work
        amount = work if work is not None and np.isfinite(work).all() else record.sizes
        before, equal = curves.busy_seconds(amount), curves.busy_seconds(np.full(len(amount), amount.mean()))
        scaled = [s * e / u for s, e, u in zip(kept.seconds, equal, before, strict=True) if u > 0]
        known = [one for one in scaled if not math.isnan(one)]
        seconds = max(known, default=math.nan)
        off = [abs(f / s - 1) for f, s in zip(kept.forecast_seconds, kept.seconds, strict=True) if s > 0]
        off = [one for one in off if math.isfinite(one)]
        wanted = {
            "seconds": kept.makespan,
            "forecast_seconds": max(record.forecast_seconds),
            "equal_seconds": seconds,
            "gain": 1 - kept.makespan / seconds if seconds > 0 else math.nan,
            "forecast_error": sum(off) / len(off) if off else math.nan,
            "waiting_share": kept.waiting_share,
            "wall_seconds": record.wall_seconds,
            "overhead_seconds": record.overhead_seconds,
            "drift": record.plan.drift,
        }
        parts = waiting(kept.seconds[None], None if work is None else work[None])
        wanted |= {"waiting_from_workers": parts.from_workers, "waiting_from_work": parts.from_work}
        assert numbers == pytest.approx(wanted, nan_ok=True)
        rows = of_workers(record)
        assert ("work" in rows) == (work is not None)
        for name, row in (("samples", record.sizes), ("seconds", record.seconds), ("work", work)):
            if row is not None:
                np.testing.assert_array_equal(rows[name], row)


@given(records(), st.integers(1, 5))
@FEW
def test_the_log_has_a_line_for_each_change_and_one_every_so_many_iterations(found, every):
    sink, lines, due, wanted = Logging(every), [], 0, []
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.recording.sink.logger.info", lambda text, *told: lines.append(text % told))
        monkey.setattr("paceline.recording.sink.logger.warning", lambda text, *told: None)
        for record in found:
            sink(record)
            if record.plan.acted or record.index >= due:
                due = (record.index // every + 1) * every
                numbers = summary(record)
                wanted.append(
                    f"iteration {record.index}: {duration(numbers['seconds'])}, waiting "
                    f"{percent(numbers['waiting_share'])}, {percent(numbers['gain'])} less than with equal batches; "
                    f"sizes {record.sizes.tolist()}. {record.plan.why}"
                )
    assert lines == wanted


def a_round(index, acted, workers, draw):
    """A round of these workers, with numbers that ``draw`` gives; each of its own."""
    count = iter(range(1, 10**6))

    def row():
        return np.array([draw() + next(count) for _ in workers])

    def number():
        return 7 * next(count) + index

    rows = ("sizes", "pushes", "staleness", "expected", "done", "wasted", "waited")
    numbers = ("version", "applied", "dropped", "abandoned", "refused", "largest")
    shares = {"wasted_share": 0.125 + index, "forecast": 1.5, "actual": math.nan, "covered": 0.75}
    return Round(
        index=index,
        time=1.7e9 + index / 3,
        scheme="SaPS",
        bound=4 if index % 2 else None,
        batch=16,
        workers=tuple(workers),
        **{name: row() for name in rows},
        **{name: number() for name in numbers},
        **shares,
        stragglers=tuple(workers[:1]),
        acted=acted,
        why=f"reason {index}",
    )


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(1, 3))
@FEW
def test_every_number_of_a_round_is_logged_read_and_collected_as_it_was(acts, every):
    rng = np.random.default_rng(len(acts))
    found = [a_round(2 * k, act, ["a", "b", "c"][: 2 + k % 2], rng.random) for k, act in enumerate(acts)]
    lines, due, wanted, log = [], 0, [], Logging(every)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.recording.sink.logger.info", lambda text, *told: lines.append(text % told))
        (sink,) = round_sinks(f"{folder}/run.jsonl")
        for record in found:
            sink(record)
            log(record)
            if record.acted or record.index >= due:
                due = (record.index // every + 1) * every
                wanted.append(
                    f"round {record.index}: version {record.version}, {record.applied} samples applied, "
                    f"{percent(record.wasted_share)} wasted, stragglers ['a']; sizes {record.sizes.tolist()}. "
                    f"{record.why}"
                )
        sink.close()
        run = read_async_run(f"{folder}/run.jsonl")
        with pytest.raises(ValueError, match="is not the record of a run"):
            read_run(f"{folder}/run.jsonl")
    assert lines == wanted
    assert (run.scheme, run.bound, run.batch) == ("SaPS", found[-1].bound, 16) or len(found) > 1
    np.testing.assert_array_equal(run.of_fleet["time"], [round(one.time, 3) for one in found])
    np.testing.assert_array_equal(run.seconds, run.of_fleet["time"] - run.of_fleet["time"][0])
    for name in run.of_fleet.keys() - {"time"}:
        np.testing.assert_array_equal(run.of_fleet[name], seen([getattr(one, name) for one in found]))
    for name, rows in run.of_workers.items():
        for row, one in zip(rows, found, strict=True):
            np.testing.assert_array_equal(row[: len(one.workers)], seen(getattr(one, name)))
    assert run.acted == tuple(acts)
    assert run.stragglers == (("a",),) * len(found)
    for one in found:
        numbers = summary_of_round(one)
        plain = {name: getattr(one, name) for name in ("version", "wasted_share")}
        plain |= {f"{name}_samples": getattr(one, name) for name in ("applied", "dropped", "abandoned", "refused")}
        plain |= {"stragglers": 1, "largest_staleness": one.largest, "forecast_staleness": one.forecast}
        plain |= {"actual_staleness": one.actual, "forecast_covered": one.covered}
        assert numbers == pytest.approx(plain, nan_ok=True)
        rows = of_workers_in_round(one)
        names = {"next_samples": "sizes", "expected_staleness": "expected", "applied_samples": "done"}
        names |= {"samples_wasted": "wasted", "waited_seconds": "waited", "staleness": "staleness"}
        assert rows == {name: getattr(one, field).tolist() for name, field in names.items()}


def test_a_round_holds_nothing_that_is_not_written():
    record = a_round(0, True, ["a", "b"], lambda: 0.5)
    with tempfile.TemporaryDirectory() as folder:
        (sink,) = round_sinks(f"{folder}/run.jsonl")
        sink(record)
        sink.close()
        header, line, ended = map(json.loads, Path(folder, "run.jsonl").read_text().splitlines())
    assert {field.name for field in fields(Round)} <= header.keys() | line.keys()
    assert header["paceline_async_run"] == 1
    assert abs(ended["ended"] - record.time) < 1e10
    assert round(ended["ended"], 3) == ended["ended"]


# -- what a reader takes ---------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    """The path of a run of two iterations, with its header and lines."""
    path = tmp_path / "run.jsonl"
    written(path, iterations(2)).close()
    return path, *path.read_bytes().splitlines(keepends=True)[:3]


@pytest.mark.parametrize(("longer", "taken"), [(0, 2), (1, 1)])
def test_a_line_of_four_megabytes_is_read_and_none_that_is_longer(pair, longer, taken):
    path, header, first, second = pair
    assert LONGEST == 4 << 20
    path.write_bytes(header + first[:-2] + b" " * (LONGEST - len(first) + longer) + b"}\n" + second)
    reader = RunReader(path)
    assert (reader.poll(), reader.skipped) == (taken, 2 - taken)


@pytest.mark.parametrize(
    ("value", "taken"), [(LARGEST - 1, True), (LARGEST, False), (1 - LARGEST, True), (True, False)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_is_one_that_fits_into_a_float(pair, value, taken, sign):
    path, header, first, _ = pair
    assert LARGEST == 10**300
    path.write_bytes(
        header + json.dumps(json.loads(first) | {"gain": sign * value if value is not True else value}).encode() + b"\n"
    )
    reader = RunReader(path)
    reader.poll()
    assert (len(reader), reader.skipped) == (int(taken), int(not taken))


@pytest.mark.parametrize(("lost", "counted"), [(3, 3), (0, 0), (-1, 0), ("3", 0), (LARGEST, 0)])
def test_iterations_lost_are_counted_where_their_number_is_one(pair, lost, counted):
    path, header, first, second = pair
    path.write_bytes(header + first + json.dumps(json.loads(second) | {"lost_before": lost}).encode() + b"\n")
    run = read_run(path)
    assert (len(run), run.lost, run.skipped) == (2, counted, 0)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12))
@FEW
def test_the_last_records_are_kept_and_returned(count, keep, last):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        written(path, iterations(count)).close()
        reader = RunReader(path, keep=keep)
        assert reader.poll() == count == len(reader)
        held = list(range(count))[-keep:]
        assert reader.run().of_fleet["index"].tolist() == held
        assert [line.values[0] for line in reader.kept(last)] == (held[-last:] if last else [])


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({}, ("not known", None, 0)),
        ({"scheme": "ASP", "bound": 3, "batch": 8}, ("ASP", 3, 8)),
        ({"scheme": 5, "bound": "3", "batch": None}, ("5", None, 0)),
    ],
)
def test_what_a_header_lacks_is_not_known(tmp_path, header, told):
    path = tmp_path / "run.jsonl"
    (sink,) = round_sinks(str(path))
    sink(a_round(0, True, ["a"], lambda: 0.0))
    sink.close()
    first, *others = path.read_text().splitlines()
    kept = {name: one for name, one in json.loads(first).items() if name not in ("scheme", "bound", "batch")}
    path.write_text("\n".join([json.dumps(kept | header), *others]) + "\n")
    run = read_async_run(path)
    assert (run.scheme, run.bound, run.batch) == told


SPOILT = [{"stragglers": "a"}, {"stragglers": [1]}, {"acted": 1}, {"why": None}, {"done": [1.0]}, {"done": [True, 1]}]
SPOILT += [{"version": None}, {"version": "1"}, {"covered": "1"}, {"sizes": 5}]


@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
def test_a_round_that_lacks_something_is_skipped(tmp_path, spoilt):
    path = tmp_path / "run.jsonl"
    (sink,) = round_sinks(str(path))
    for k in range(2):
        sink(a_round(k, True, ["a", "b"], lambda: 0.0))
    sink.close()
    header, first, second, _ = path.read_text().splitlines()
    path.write_text("\n".join([header, json.dumps(json.loads(first) | spoilt), second]) + "\n")
    reader = AsyncRunReader(path)
    assert (reader.poll(), reader.skipped) == (1, 1)
    for name in spoilt:  # or lacks it altogether
        path.write_text(
            "\n".join([header, json.dumps({k: v for k, v in json.loads(first).items() if k != name})]) + "\n"
        )
        with pytest.raises(ValueError, match="holds no round yet; 1 of its lines could not be read"):
            read_async_run(path)


def test_an_unknown_number_of_a_round_is_not_a_reason_to_skip_it(tmp_path):
    path = tmp_path / "run.jsonl"
    (sink,) = round_sinks(str(path))
    sink(replace(a_round(0, True, ["a"], lambda: 0.0), forecast=math.nan, actual=math.nan, covered=math.nan))
    sink.close()
    run = read_async_run(path)
    assert len(run) == 1
    assert all(np.isnan(run.of_fleet[name]).all() for name in ("forecast", "actual", "covered"))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=6))
@FEW
def test_samples_a_second_are_those_applied_between_rounds_that_go_on(found):
    with tempfile.TemporaryDirectory() as folder:
        (sink,) = round_sinks(f"{folder}/run.jsonl")
        times = np.cumsum([seconds for _, seconds in found]).tolist()
        for k, ((applied, _), when) in enumerate(zip(found, times, strict=True)):
            sink(replace(a_round(k, False, ["a"], lambda: 0.0), applied=applied, time=float(when)))
        sink.close()
        run = read_async_run(f"{folder}/run.jsonl")
    steps = [
        (after - before, later - earlier)
        for (before, _), (after, _), earlier, later in zip(found, found[1:], times, times[1:], strict=False)
        if after >= before and later > earlier
    ]
    wanted = sum(one for one, _ in steps) / sum(one for _, one in steps) if steps else math.nan
    assert run.samples_per_second == pytest.approx(wanted, nan_ok=True)


# -- boards ----------------------------------------------------------------------------------------------------------


@given(records())
@settings(max_examples=10)
def test_prometheus_holds_the_last_numbers_and_counts_all(found):
    prometheus_client = pytest.importorskip("prometheus_client")
    from paceline.recording import Prometheus

    registry = prometheus_client.CollectorRegistry()
    sink = Prometheus(registry=registry)
    for record in found:
        sink(record)
    last, value = found[-1], registry.get_sample_value
    for name, number in summary(last).items():
        assert value(f"paceline_{name}") == pytest.approx(number, nan_ok=True)
    for name, row in of_workers(last).items():
        for worker, number in zip(last.workers, row, strict=True):
            assert value(f"paceline_worker_{name}", {"worker": worker}) == pytest.approx(number, nan_ok=True)
    counted = {
        "iterations": len(found),
        "samples": sum(record.global_batch for record in found),
        "changes": sum(record.plan.acted for record in found),
        "disagreements": sum(not record.agreed for record in found),
        "drifts": sum(record.plan.drift_began for record in found),
    }
    assert {name: value(f"paceline_{name}_total") for name in counted} == counted


def test_prometheus_counts_rounds_and_forgets_who_left():
    prometheus_client = pytest.importorskip("prometheus_client")
    from paceline.recording import Prometheus

    registry = prometheus_client.CollectorRegistry()
    sink, value = Prometheus(registry=registry), registry.get_sample_value
    for k, workers in enumerate((["a", "b"], ["a", "b"], ["a"])):
        record = a_round(k, k == 1, workers, lambda: 0.5)
        sink(record)
        for name, number in summary_of_round(record).items():
            assert value(f"paceline_async_{name}") == pytest.approx(number, nan_ok=True)
        for name, row in of_workers_in_round(record).items():
            for worker, number in zip(workers, row, strict=True):
                assert value(f"paceline_async_worker_{name}", {"worker": worker}) == number
    assert value("paceline_async_worker_staleness", {"worker": "b"}) is None
    assert (value("paceline_async_rounds_total"), value("paceline_async_changes_total")) == (3, 1)


class Board:
    """A writer of TensorBoard's that notes what it is told."""

    def __init__(self):
        self.scalars, self.texts, self.closed = [], [], 0

    def add_scalar(self, name, value, step, walltime):
        self.scalars.append((name, value, step, walltime))

    def add_text(self, name, text, step, walltime):
        self.texts.append((name, text, step, walltime))

    def close(self):
        self.closed += 1


def drawn(found, of_fleet, rows_of):
    """What a board must be told of these records."""
    for record in found:
        for name, value in of_fleet(record).items():
            if not math.isnan(value):
                yield f"paceline/{name}", value, record.index, record.time
        for name, row in rows_of(record).items():
            for worker, value in zip(record.workers, row, strict=True):
                yield f"paceline_{name}/{worker}", value, record.index, record.time


@given(records())
@settings(max_examples=10)
def test_tensorboard_gets_every_known_number_at_its_iteration_and_time(found):
    pytest.importorskip("tensorboard")
    from paceline.recording import TensorBoard

    found[-1] = replace(found[-1], plan=replace(found[-1].plan, drift_began=True))
    rounds = [a_round(k, k == 1, ["a", "b"], lambda: 0.5) for k in range(3)]
    for records_, numbers, rows in ((found, summary, of_workers), (rounds, summary_of_round, of_workers_in_round)):
        sink = TensorBoard("nowhere")
        sink.close()  # of which nothing was written
        board = sink._writer = Board()
        for record in records_:
            sink(record)
        np.testing.assert_equal(board.scalars, list(drawn(records_, numbers, rows)))
        if records_ is rounds:
            told = [one for one in rounds if one.acted]
            assert [text for _, text, *_ in board.texts] == [one.why for one in told]
        else:
            told = [one for one in found if one.plan.acted or one.plan.drift_began]
            assert [text for _, text, *_ in board.texts] == [one.plan.why for one in told]
        assert [one[2:] for one in board.texts] == [(one.index, one.time) for one in told]
        sink.close()
        assert board.closed == 1


def test_a_closed_file_goes_on_with_a_header_of_its_own_and_closing_twice_says_it_once(tmp_path):
    path, (first, second) = tmp_path / "in" / "folders" / "run.jsonl", iterations(2)
    sink = JsonLines(path)
    sink.close()  # of which nothing was written
    assert not path.parent.exists()
    sink(first)
    sink.close()
    sink.close()
    sink(second)
    sink.close()
    kinds = [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
    assert kinds == ["paceline_run", "index", "ended"] * 2
    assert sink.lost == 0
