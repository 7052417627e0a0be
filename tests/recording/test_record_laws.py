"""What is written of a run, whatever was measured: each number once more from its definition, here and when read."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import written

import paceline
from paceline.coordinator import LoadBalancer
from paceline.predictors import EWMA, Report
from paceline.recording import (
    Iteration,
    Logging,
    Prometheus,
    Round,
    RunReader,
    read_async_run,
    read_run,
    sinks,
    summary,
)

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
                plan=plan,
                work=draw(st.one_of(st.none(), rows)),
            )
        )
    return found


def seen(values, digits=7):
    """Numbers as a reader finds them: rounded, and NaN where they are not finite."""
    return [round(float(one), digits) if math.isfinite(one) else math.nan for one in np.ravel(values).tolist()]


@given(records())
@FEW
def test_iteration_numbers_round_trip(found):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.jsonl"
        written(path, found).close()
        run, lines = read_run(path), [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0]["version"] == paceline.__version__
    assert lines[0]["units"]["all others"] == "seconds, or shares"
    for name in ("sizes", "seconds", "forecast_seconds", "comm_seconds"):
        for row, record in zip(run.worker_columns[name], found, strict=True):
            np.testing.assert_array_equal(row, seen(getattr(record, name)))
    for name in ("overhead_seconds", "wall_seconds"):
        np.testing.assert_array_equal(run.fleet_columns[name], seen([getattr(record, name) for record in found]))
    np.testing.assert_array_equal(run.fleet_columns["time"], [round(record.time, 3) for record in found])
    np.testing.assert_array_equal(run.fleet_columns["index"], [record.index for record in found])
    np.testing.assert_array_equal(run.fleet_columns["gain"], seen([record.plan.gain for record in found]))
    np.testing.assert_array_equal(
        run.fleet_columns["equal_seconds"], seen([summary(record)["equal_seconds"] for record in found])
    )
    assert run.agreed.tolist() == [record.agreed for record in found]
    for line, record in zip(lines[1:], found, strict=False):
        assert ("work" in line) == (record.work is not None)
    trace = run.trace()
    assert trace.meta == {"job": "mine", "source": "live run"}
    assert trace.workers == run.workers
    np.testing.assert_array_equal(trace.start, np.tile(run.fleet_columns["time"][:, None], len(run.workers)))
    np.testing.assert_array_equal(trace.wait_seconds, run.wait_seconds)
    if trace.comm_seconds is None:
        assert np.isnan(run.worker_columns["comm_seconds"]).all()
    else:
        np.testing.assert_array_equal(trace.comm_seconds, run.worker_columns["comm_seconds"])


def a_round(index, acted, workers, draw):
    """A round of these workers, with numbers that ``draw`` gives; each of its own."""
    count = iter(range(1, 10**6))

    def row():
        return np.array([draw() + next(count) for _ in workers])

    def number():
        return 7 * next(count) + index

    rows = ("sizes", "staleness", "expected", "done", "wasted", "waited")
    numbers = ("version", "applied", "dropped", "abandoned", "refused", "largest")
    return Round(
        index=index,
        time=1.7e9 + index / 3,
        scheme="SaPS",
        bound=4 if index % 2 else None,
        batch=16,
        workers=tuple(workers),
        **{name: row() for name in rows},
        **{name: number() for name in numbers},
        wasted_share=0.12 + index,
        stragglers=tuple(workers[:1]),
        acted=acted,
        why=f"reason {index}",
    )


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(1, 3))
@FEW
def test_round_numbers_round_trip(acts, every):
    rng = np.random.default_rng(len(acts))
    found = [a_round(2 * k, act, ["a", "b", "c"][: 2 + k % 2], rng.random) for k, act in enumerate(acts)]
    lines, due, wanted, log = [], 0, [], Logging(every)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.recording.sink.logger.info", lambda text, *told: lines.append(text % told))
        (sink,) = sinks(f"{folder}/run.jsonl")
        for record in found:
            sink(record)
            log(record)
            if record.acted or record.index >= due:
                due = (record.index // every + 1) * every
                wanted.append(
                    f"round {record.index}: version {record.version}, {record.applied} samples applied, "
                    f"{100 * record.wasted_share:.0f}% wasted, stragglers ['a']; sizes {record.sizes.tolist()}. "
                    f"{record.why}"
                )
        sink.close()
        run = read_async_run(f"{folder}/run.jsonl")
        with pytest.raises(ValueError, match="is the record of an asynchronous run"):
            read_run(f"{folder}/run.jsonl")
    assert lines == wanted
    assert (run.scheme, run.bound, run.batch) == ("SaPS", found[-1].bound, 16) or len(found) > 1
    np.testing.assert_array_equal(run.fleet_columns["time"], [round(one.time, 3) for one in found])
    np.testing.assert_array_equal(run.seconds, run.fleet_columns["time"] - run.fleet_columns["time"][0])
    for name in run.fleet_columns.keys() - {"time"}:
        np.testing.assert_array_equal(run.fleet_columns[name], seen([getattr(one, name) for one in found]))
    for name, rows in run.worker_columns.items():
        for row, one in zip(rows, found, strict=True):
            np.testing.assert_array_equal(row[: len(one.workers)], seen(getattr(one, name)))
    assert run.acted.tolist() == list(acts)
    assert run.stragglers == (("a",),) * len(found)


# -- what a reader takes ---------------------------------------------------------------------------------------------


SPOILT = [{"stragglers": "a"}, {"acted": 1}, {"why": None}, {"done": [1.0]}, {"done": [True, 1]}]
SPOILT += [{"version": None}, {"version": "1"}, {"wasted_share": "1"}, {"sizes": 5}]


@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
def test_a_round_that_lacks_something_is_skipped(tmp_path, spoilt):
    path = tmp_path / "run.jsonl"
    (sink,) = sinks(str(path))
    for k in (0, 2):
        sink(a_round(k, True, ["a", "b"], lambda: 0.0))
    sink.close()
    header, first, second, _ = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([header, json.dumps(json.loads(first) | spoilt), second]) + "\n")
    reader = RunReader(path)
    assert (reader.poll(), reader.skipped_lines) == (1, 1)
    for name in spoilt:  # or lacks it altogether
        path.write_text(
            "\n".join([header, json.dumps({k: v for k, v in json.loads(first).items() if k != name})]) + "\n"
        )
        with pytest.raises(ValueError, match="holds no round yet; 1 line could not be read"):
            read_async_run(path)


# -- boards ----------------------------------------------------------------------------------------------------------


def test_prometheus_counts_rounds_forgets_left(monkeypatch):
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    sink, value = Prometheus(), registry.get_sample_value
    for k, workers in enumerate((["a", "b"], ["a", "b"], ["a"])):
        one = a_round(k, k == 1, workers, lambda: 0.5)
        sink(one)
        names = ("version", "wasted_share", "applied", "dropped", "abandoned", "refused", "largest")
        plain = {name: getattr(one, name) for name in names} | {"stragglers": 1}
        assert {name: value(f"paceline_async_{name}") for name in plain} == plain
        for name in ("sizes", "expected", "done", "wasted", "waited", "staleness"):
            for worker, number in zip(workers, getattr(one, name), strict=True):
                assert value(f"paceline_async_worker_{name}", {"worker": worker}) == number
    assert value("paceline_async_worker_staleness", {"worker": "b"}) is None
    assert (value("paceline_async_rounds_total"), value("paceline_async_changes_total")) == (3, 1)
