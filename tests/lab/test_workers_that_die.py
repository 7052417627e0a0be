"""A recording whose workers or competitors die, before it begins or meanwhile: an error, and nothing is left."""

import json
from contextlib import contextmanager

import pytest

from paceline.lab import Job
from paceline.lab.collect import record_job
from paceline.recording import Recorder
from paceline.recording.place import Place

JOB = Job(
    name="tiny", model="digits-mlp", batch_size=4, pattern="steady", competitors=1, workers=2, iterations=3, seed=4
)


class Process:
    """A process of a job; which of them record, fail and end is told by name."""

    def __init__(self, role, number, folder, told):
        self.name = f"{role.rpartition('.')[2]} {number}"
        self.log.append(f"start {self.name}")
        if self.name in self.records:
            with Recorder(folder / f"rank{number}.jsonl", str(number)) as recorder:
                for _ in range(1 + 2 * number):  # the second worker is ahead
                    with recorder.iteration(samples=1):
                        pass
        (folder / f"losses{number}.json").write_text(json.dumps([1.0]))

    def tell(self, line):
        self.log.append(f"{line} {self.name}")

    def ended(self):
        self.polled.append(self.name)
        return self.name in self.over

    def failed(self):
        return self.name in self.dead

    def last_words(self):
        return f"{self.name} is gone"

    def end(self):
        self.log.append(f"end {self.name}")


@pytest.fixture
def collected(tmp_path, monkeypatch):
    """Record with processes of which these record, fail and end; return what was done and the error."""
    log, slept = [], []

    @contextmanager
    def places(workers, quota):
        yield [Place(cores=[0])] * workers
        log.append("places removed")

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) > 50:
            raise TimeoutError

    monkeypatch.setattr(record_job, "Process", Process)
    monkeypatch.setattr(record_job, "places", places)
    monkeypatch.setattr(record_job.time, "sleep", sleep)

    def run(records=(), dead=(), over=(), progress=None):
        for name, value in (("records", records), ("dead", dead), ("over", over), ("log", log), ("polled", [])):
            monkeypatch.setattr(Process, name, value, raising=False)
        with pytest.raises((RuntimeError, TimeoutError)) as raised:
            record_job.collect(JOB, tmp_path / "a.parquet", progress=progress)
        assert not list(tmp_path.iterdir())
        return log, str(raised.value), slept

    return run


BEGUN = ["start competitor 0", "start collect_worker 0", "start collect_worker 1"]
ENDED = ["end collect_worker 1", "end collect_worker 0", "end competitor 0"]
BOTH = ("collect_worker 0", "collect_worker 1")


@pytest.mark.parametrize("dead", [("collect_worker 1",), ("competitor 0",), ("competitor 0", "collect_worker 0")])
def test_who_dies_before_all_have_warmed_up_ends_the_recording_and_nobody_competes(collected, dead):
    log, error, _ = collected(records=BOTH[:1], dead=dead)
    assert log == [*BEGUN, *ENDED]
    assert error == "\n".join(f"{name} is gone" for name in dead)


@pytest.mark.parametrize("dead", [("collect_worker 1",), ("competitor 0",)])
def test_who_dies_meanwhile_ends_the_recording(collected, dead):
    log, error, slept = collected(records=BOTH, dead=dead, over=BOTH[:1])
    assert log == [*BEGUN, "begin competitor 0", *ENDED]
    assert error == f"{dead[0]} is gone"
    assert slept == []


def test_while_one_works_the_others_are_waited_for_and_told_of(collected):
    shown = []

    def progress(iterations):
        shown.append(iterations)
        if len(shown) > 99:
            raise TimeoutError

    log, _, slept = collected(records=BOTH, over=BOTH[:1], progress=progress)
    assert slept == [0.1] * 51
    assert shown == [1] * 51
    assert log[3] == "begin competitor 0"


def test_how_far_the_first_worker_is_is_told_once_more_at_the_end(tmp_path, monkeypatch):
    log, shown = [], []
    for name, value in (("records", BOTH), ("dead", ()), ("over", BOTH), ("log", log), ("polled", [])):
        monkeypatch.setattr(Process, name, value, raising=False)
    monkeypatch.setattr(record_job, "Process", Process)
    record_job._run(JOB, [], tmp_path, [Place(cores=[0])] * 2, shown.append)
    assert shown == [1]
    assert log == [*BEGUN[1:], *ENDED[:2]]
