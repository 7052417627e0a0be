"""Times are told to the last bit: with clocks that the test sets, every number is computed once more."""

import itertools
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_files import NESTED_2, made

from paceline.recording import control_group, kernel_files, recorder
from paceline.recording.clock_offset import clock_offset
from paceline.recording.control_group import Whereabouts
from paceline.recording.covariates import linux
from paceline.recording.covariates.linux import CPUBusy, CPUPressure, MemoryPressure, RunDelay
from paceline.recording.merging import merge, phase_table
from paceline.recording.recorder import Recorder

PARTS = st.lists(st.tuples(st.sampled_from(["own", "waiting", "communicating"]), st.integers(1, 9)), max_size=8)
shared = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


class SetClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clocks(monkeypatch):
    """Clocks of the wall, of a steady counter, and of this process's CPU time, set by the test."""
    wall, steady, cpu = SetClock(1.7e9), SetClock(), SetClock(0.0)
    for module in (recorder, kernel_files, control_group, linux):
        for name, clock in (("time", wall), ("perf_counter", steady), ("monotonic", steady), ("process_time", cpu)):
            monkeypatch.setattr(module.time, name, clock)
    return wall, steady, cpu


@shared
@given(PARTS, st.integers(1, 99), st.none() | st.integers(1, 99))
def test_seconds_are_those_in_which_a_worker_neither_waited_nor_communicated(tmp_path, clocks, parts, samples, work):
    wall, steady, _ = clocks
    path = tmp_path / "0.jsonl"
    path.unlink(missing_ok=True)
    began = wall.now
    with (
        Recorder(path, "0") as one,
        one.iteration(samples, **({} if work is None else {"work": work})) as step,
    ):
        for part, seconds in parts:
            if part == "own":
                steady.now += seconds
            else:
                with getattr(step, part)():
                    steady.now += seconds
        wall.now += 1000.0  # the clock of the wall may be set meanwhile
    spent = {name: float(sum(seconds for part, seconds in parts if part == name)) for name, _ in parts}
    row = json.loads(path.read_text().splitlines()[1])
    expected = [samples, *(spent.get(name, 0.0) for name in ("own", "communicating", "waiting")), began, work]
    assert row == [0, *expected]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=9), st.floats(-1e6, 1e6))
def test_the_offset_is_that_of_the_fastest_round_trip(ways, ahead):
    now = [0.0]
    trips = iter(ways)

    def ask():
        there, back = next(trips)
        now[0] += there
        answer = now[0] - ahead
        now[0] += back
        return answer

    found = clock_offset(ask, rounds=len(ways), clock=lambda: now[0])
    there, back = min(ways, key=sum)
    assert next(trips, None) is None, "as many questions as rounds"
    assert found.error_seconds == pytest.approx((there + back) / 2, abs=1e-8)
    assert found.offset_seconds == pytest.approx(ahead + (back - there) / 2, abs=1e-7) or len(
        {round(sum(way), 9) for way in ways}
    ) < len(ways)


def files_of(folder, phases):
    """Write a file for each worker; a row is an iteration and the seconds of its one phase."""
    for worker, rows in phases.items():
        with Recorder(folder / f"{worker}.jsonl", worker, meta={"job": worker, worker: "x"}) as one:
            one.phases = ("forward_seconds",)
            for number, seconds in rows:
                one.next_iteration, step = number, one.begin()
                step.seconds, step.phases = 2 * seconds, {"forward_seconds": seconds}
                one.write(step, 8)
    return [folder / f"{worker}.jsonl" for worker in phases]


ROWS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(sorted)


@shared
@given(st.lists(ROWS, min_size=1, max_size=3))
def test_phases_stand_in_the_order_of_iterations_and_gaps_are_counted(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("phases")
    phases = {f"w{9 - w}": [(k, k / 4 + w) for k in rows] for w, rows in enumerate(numbers)}
    table, trace = (
        read(files_of(folder, phases) if read is phase_table else sorted(folder.iterdir(), reverse=True))
        for read in (phase_table, merge)
    )
    expected = sorted((k, worker, 2 * seconds, seconds) for worker, rows in phases.items() for k, seconds in rows)
    assert list(table.itertuples(index=True, name=None)) == [(n, *row) for n, row in enumerate(expected)]
    assert trace.workers == tuple(phases)
    assert trace.meta["job"] == "w9", "the first worker's word counts"
    assert set(phases) <= set(trace.meta)
    gaps = {worker: rows[-1][0] - rows[0][0] + 1 - len(rows) for worker, rows in phases.items()}
    told = ", ".join(f"worker {worker}: {count}" for worker, count in gaps.items() if count)
    assert trace.meta.get("iterations_lost", "") == told


@pytest.mark.parametrize("broken", ["x" * 200, "[" + "1, " * 90 + "1]"])
def test_a_broken_line_is_shown_up_to_its_eightieth_character(tmp_path, broken):
    (path,) = files_of(tmp_path, {"a": [(0, 1.0)]})
    path.write_text(path.read_text() + broken + "\n")
    with pytest.raises(ValueError, match="line 3") as refused:
        merge([path])
    assert str(refused.value).endswith(repr(broken[:80]))


# -- covariates --------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=5)


@shared
@given(STEPS)
def test_growth_is_per_second_of_the_steady_clock(tmp_path, clocks, steps):
    _, steady, _ = clocks
    folder = made(tmp_path, {"proc/self/schedstat": "1 0 1\n", "proc/pressure/cpu": "some total=0\n"})
    made(folder, {"proc/pressure/memory": "some total=0\n"})
    covariates = [RunDelay(folder), CPUPressure(None, folder), MemoryPressure(None, folder)]
    assert all(np.isnan(one.sample()) for one in covariates)
    delay = stalled = 0
    for more_delay, more_stalled, seconds in steps:
        delay, stalled, steady.now = delay + more_delay, stalled + more_stalled, steady.now + seconds
        made(folder, {"proc/self/schedstat": f"1 {delay}000000000 1\n"})
        made(folder, {f"proc/pressure/{name}": f"some avg10=1 total={stalled}000000\n" for name in ("cpu", "memory")})
        expected = [more_delay / seconds, more_stalled / seconds, more_stalled / seconds]
        assert [one.sample() for one in covariates] == pytest.approx(expected)


@shared
@given(STEPS, st.booleans())
def test_cpu_of_others_is_what_this_process_did_not_use_of_its_allowance(tmp_path, clocks, monkeypatch, steps, grouped):
    _, steady, cpu = clocks
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    ticks, used, folder = os.sysconf("SC_CLK_TCK"), 0, made(tmp_path, NESTED_2)
    group = control_group.ControlGroup.of_this_process(folder) if grouped else None

    def tell():
        # user and steal of the cores 0 and 2; idle times, guests and other cores do not count
        busy = [
            f"cpu{core} {used * ticks // 2} 0 0 {77 * used} {55 * used} 0 0 {used * ticks - used * ticks // 2} 9 9\n"
            for core in (0, 2)
        ]
        made(folder, {"proc/stat": f"cpu {9 * used}\n" + busy[0] + f"cpu1 {99 * used} 0 0 0 0 0 0 0\n" + busy[1]})
        made(folder, {"groups/pod/cpu.stat": f"usage_usec {2 * used}000000\n"})

    tell()
    covariate = CPUBusy(group, folder)
    assert np.isnan(covariate.sample())
    for more, own, seconds in steps:
        used, cpu.now, steady.now = used + more, cpu.now + own, steady.now + seconds
        tell()
        cores = 0.4 if grouped else 2
        assert covariate.sample() == pytest.approx(max(0.0, (2 * more - own) / seconds / cores))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_where_a_process_is_is_looked_up_once_in_a_tenth_of_a_second(hundredths):
    with pytest.MonkeyPatch.context() as patch:
        clock, asked = SetClock(0.0), itertools.count()
        patch.setattr(control_group.time, "monotonic", clock)
        where = Whereabouts("/nowhere")
        patch.setattr(where._file, "text", lambda: b"%d" % next(asked))
        looked, expected, at = None, 0, 0
        for step in hundredths:
            at += step
            clock.now = at / 100
            where.group()
            if looked is None or round(clock.now - looked, 6) >= 0.1:
                looked, expected = clock.now, expected + 1
        assert next(asked) == pytest.approx(expected, abs=sum(step == 10 for step in hundredths))
