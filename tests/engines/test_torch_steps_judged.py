"""What is judged by the reports of all ranks: norms, buffers, and the process once sizes differ."""

from types import SimpleNamespace

import numpy as np
import pytest
from lone_steps import job_maker, rows_of


@pytest.fixture
def job_of(monkeypatch):
    return job_maker(monkeypatch)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("sentence", ["", "wrong kind"])
def test_norms_are_judged_with_the_samples_that_they_are_of(job_of, delay, sentence):
    """Those of a device are of the step before, whose sizes this rank has handed out."""
    job = job_of(delay=delay, in_order=False, order=(1, 0))
    job.sentence = sentence
    for sizes in ([3, 5], [1, 7], [6, 2]):
        job.passes.handed.sizes = np.array(sizes)
        job.rows = rows_of(job, log_norm=[0.1, 0.2])
        job.steps.send()
        job.steps.finish()
    own = [[16.0, 8.0]] * 3
    assert job.normed == [(sizes, [0.2, 0.1]) for sizes in ([own[0], [5.0, 3.0], [7.0, 1.0]] if delay else own)]
    assert [one for one in job.called if one[0] == "warn"] == [("warn", sentence, sentence)] * (3 * bool(sentence))
    job.rows = rows_of(job)
    job.steps.send()
    job.steps.finish()
    assert len(job.normed) == 3, "no norm came"


def test_buffers_that_part_are_said_where_sizes_differ(job_of):
    for even in (False, True):
        job, told = job_of(), []
        samples = [8.0, 8.0] if even else [8.0, 9.0]
        job.steps._buffers.learn = lambda sums_W, uneven, told=told: told.append((sums_W.tolist(), uneven)) or "parted"
        job.rows = rows_of(job, buffers=[1.0, 2.0], samples=samples)
        job.steps.send()
        job.steps.finish()
        assert told == [([1.0, 2.0], not even)]
        assert ("warn", "parted", "parted") in job.called
        job.rows = rows_of(job)
        job.steps.send()
        job.steps.finish()
        assert len(told) == 1, "none was looked at"


def test_the_process_is_looked_at_once_sizes_are_others_than_at_first(job_of):
    job, looks = job_of(), []
    job.steps.optimizers.look_at_process = lambda: looks.append(job.planning.plan.sizes.tolist())
    for sizes in ([4, 4], [4, 4], [3, 5], [2, 6], [4, 4]):
        job.planning.plan = SimpleNamespace(sizes=np.array(sizes))
        job.steps.send()
        job.steps.finish()
        assert job.steps.optimizers.uneven == bool(looks)
    assert looks == [[3, 5]]
    job.steps.look_at_process()
    assert looks == [[3, 5]]
