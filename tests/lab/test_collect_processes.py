"""What a recorded job starts, tells and ends, and what its workers do: all in this process."""

import json
import os
import runpy
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed

from paceline.datasets import load
from paceline.lab.collect import collect_worker, record_job
from paceline.lab.collect.jobs import Job
from paceline.lab.collect.machine import machine
from paceline.lab.processes import orphan
from paceline.lab.small_models import MODELS
from paceline.recording import Recorder
from paceline.recording.merging import merge
from paceline.recording.place import Place

JOB = Job(
    name="tiny",
    model="digits-mlp",
    batch_size=(3, 5),
    pattern="steady",
    competitors=2,
    workers=2,
    iterations=7,
    quota=0.3,
    seed=4,
)


@pytest.fixture
def reduced(monkeypatch):
    """Gradients that this rank summed with another's, of which each number is 0.01, and the barriers before them."""
    found = []

    def all_reduce(gradient):
        found.append(gradient.clone())
        gradient += 0.01

    monkeypatch.setattr(distributed, "barrier", lambda: found.append("barrier"))
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return found


def trained(job, rank):
    """The losses and gradients of the same training in a plain loop."""
    torch.manual_seed(job.seed)
    task, rng = MODELS[job.model](), np.random.default_rng([job.seed, rank])
    optimiser, losses, gradients = torch.optim.Adam(task.model.parameters(), lr=2e-3), [], []
    for _ in range(5 + job.iterations):
        rows = rng.integers(len(task.inputs), size=job.batch_sizes[rank])
        task.model.zero_grad()
        loss = task.loss(task.model(task.inputs[rows]), task.targets[rows])
        loss.backward()
        losses.append(loss.item())
        share = job.batch_sizes[rank] / sum(job.batch_sizes)
        for one in task.model.parameters():
            one.grad *= share
        gradients.append(torch.cat([one.grad.flatten().clone() for one in task.model.parameters()]))
        for one in task.model.parameters():
            one.grad += 0.01
        optimiser.step()
    return losses, gradients


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_trains_with_its_share_of_the_gradient_and_records_behind_its_warm_up(tmp_path, reduced, rank):
    job = replace(JOB, iterations=3)
    losses, gradients = trained(job, rank)
    assert collect_worker.record(job, rank, tmp_path) == losses
    assert reduced[::2] == ["barrier"] * len(losses)
    assert all(torch.equal(one, other) for one, other in zip(reduced[1::2], gradients, strict=True))
    for name, count in ((f"warm-up-{rank}", 5), (f"rank{rank}", 3)):
        trace = merge([tmp_path / f"{name}.jsonl"])
        assert trace.workers == (str(rank),)
        assert trace.samples[:, 0].tolist() == [job.batch_sizes[rank]] * count
        assert (trace.wait_seconds > 0).all()
        assert (trace.comm_seconds > 0).all()


class ExitedError(Exception):
    """Raised instead of an exit, which nothing follows."""


@pytest.mark.slow
def test_a_workers_process_joins_in_its_place_writes_its_losses_and_exits_at_once(tmp_path, reduced, monkeypatch):
    calls = []

    def note(name):
        return lambda *given, **named: calls.append((name, given, named))

    def leave(status):
        calls.append(("exit", (status,), {}))
        raise ExitedError

    monkeypatch.setattr(orphan, "die_with_parent", note("die with parent"))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(Place, "enter", note("enter"))
    monkeypatch.setattr(distributed, "init_process_group", note("join"))
    monkeypatch.setattr(distributed, "destroy_process_group", note("part"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    job, place = replace(JOB, iterations=1), Place(cores=[1])
    told = {"job": asdict(job), "rank": 1, "folder": str(tmp_path), "place": asdict(place)}
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: json.dumps(told)))
    with pytest.raises(ExitedError):
        runpy.run_path(collect_worker.__file__, run_name="__main__")
    assert json.loads((tmp_path / "losses1.json").read_text()) == trained(job, 1)[0]
    at = {"init_method": f"file://{tmp_path}/rendezvous", "rank": 1, "world_size": 2}
    assert calls == [
        ("die with parent", (), {}),
        ("enter", (Place(folders=[], cores=[1]),), {}),
        ("join", ("gloo",), at),
        ("part", (), {}),
        ("exit", (0,), {}),
    ]


LOSSES = [float(k) for k in range(29)]


class Started:
    """A process of a job; a worker has recorded all of its iterations as soon as it is started."""

    log: list

    def __init__(self, role, number, folder, told):
        self.role, self.number, self.left = role.rpartition(".")[2], number, 2
        self.log.append(("start", self.role, number, told))
        if role == record_job.WORKER:
            with Recorder(folder / f"rank{number}.jsonl", str(number)) as recorder:
                for _ in range(4):
                    with recorder.iteration(samples=number + 1):
                        pass
            (folder / f"losses{number}.json").write_text(json.dumps(LOSSES))

    def tell(self, line):
        self.log.append((line, self.role, self.number))

    def ended(self):
        self.left -= 1
        return self.left < 0

    def failed(self):
        return False

    def end(self):
        self.log.append(("end", self.role, self.number))


@pytest.mark.slow
def test_a_job_starts_competitors_and_workers_in_their_places_and_says_what_it_was(tmp_path, monkeypatch):
    log, shown = [], []
    where = [Place(cores=[0]), Place(cores=[1])]

    @contextmanager
    def places(workers, quota):
        log.append(("places", workers, quota))
        yield where
        log.append("places removed")

    monkeypatch.setattr(Started, "log", log, raising=False)
    monkeypatch.setattr(record_job, "Process", Started)
    monkeypatch.setattr(record_job, "places", places)
    monkeypatch.setattr(record_job.time, "sleep", lambda seconds: None)
    trace = record_job.collect(JOB, tmp_path / "tiny.parquet", progress=shown.append)
    planned = JOB.contention().planned(7.0)
    assert len(planned) == 2
    competitors = [
        ("start", "competitor", c, {"place": asdict(where[one.worker]), "spans": one.spans, "kind": "cpu"})
        for c, one in enumerate(planned)
    ]
    folder = log[3][3]["folder"]
    workers = [
        ("start", "collect_worker", rank, {"place": asdict(where[rank]), "job": asdict(JOB), "rank": rank})
        for rank in range(2)
    ]
    for *_, told in workers:
        told["folder"] = folder
    begun = [("begin", "competitor", 0), ("begin", "competitor", 1)]
    ended = [("end", role, number) for role in ("collect_worker", "competitor") for number in (1, 0)]
    assert log == [("places", 2, 0.3), *competitors, *workers, *begun, *ended, "places removed"]
    assert shown == [4] * len(shown)
    assert len(shown) > 1
    assert not Path(folder).exists()
    known = {
        "job": "tiny",
        "source": "recorded by paceline collect",
        "licence": "Apache-2.0",
        "split": "fit",
        **JOB.contention().meta(where[0]),
        "model": "digits-mlp",
        "data": MODELS["digits-mlp"]().data,
        "batch_size": "3 5",
        "loss": "0.5 in the first tenth, 27.5 in the last",
        **machine(),
    }
    assert trace.meta == load(tmp_path / "tiny.parquet").meta == known
    assert trace.samples.tolist() == [[1, 2]] * 4
