"""What writes, as cases to be killed: how each begins or goes on in a folder, and what must hold after every kill.

``python kill_cases.py CASE FOLDER KILLS SEED`` kills one at random moments. Children are forked from a process that has
imported the library, because that takes longer than most of them. Each writes into ``out``, and a new one where it
ended by itself; the folder for temporary files is ``tmp``.
"""

import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import psutil

from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
from paceline.parameter_server.service import Service

FORK = multiprocessing.get_context("fork")


class Report:
    """Leaves a whole page, and whole numbers, or those of before."""

    share = 1.2

    def prepare(self, place):
        from made_pages import slowed_run

        slowed_run(place / "run.jsonl", ["a", "b", "c", "d"], iterations=400)
        (place / "first").mkdir()
        self.run(place, place / "first")

    def run(self, place, out):
        from paceline.recording import read_run
        from paceline.report import run_page, write_page

        write_page(run_page(read_run(place / "run.jsonl"), command=""), out / "page.html")

    def check(self, place, out, ended):
        for name in ("page.html", "page.json"):
            if ended or (out / name).exists():
                assert (out / name).read_bytes() == (place / "first" / name).read_bytes()


class SaPS:
    """Resumes with every update that was applied at the last interval."""

    share, batch, every = 0.2, 5, 10

    def prepare(self, place):
        pass

    def service(self, out):
        server = Server(
            np.zeros(2), SGD(0.1), scheme("saps", 2), EpochSampler(800, epochs=1), batch=self.batch, workers="ab"
        )
        return Service(server, checkpoint=out / "run.safetensors", checkpoint_every=self.every)

    def run(self, place, out):
        service = self.service(out)
        service.resume()
        with (out / "told").open("a", buffering=1) as told:
            while any(self.step(service, worker) for worker in "ab"):
                told.write(f"{service.server.sampler.applied}\n")

    def step(self, service, worker):
        work = service.pull(worker)
        return None if work.ended else service.push(worker, work.stamp, np.ones(2))

    def check(self, place, out, ended):
        told = (out / "told").read_text("utf-8").split() if (out / "told").exists() else []
        service = self.service(out)
        resumed = service.resume()
        behind = int(told[-1]) - service.server.sampler.applied if told else 0
        assert behind <= self.every + 2 * self.batch, (behind, resumed)
        assert service.server.is_finished or not ended


class Federated:
    """Resumes after the last round that was over. Needs flwr."""

    share = 0.3

    def prepare(self, place):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def run(self, place, out):
        import pytest
        import test_flower as flower

        strategy = flower.BalancedStrategy(flower.fedavg(), state=out / "state.npz")
        with (out / "told").open("a", buffering=1) as told, pytest.MonkeyPatch.context() as patch:
            for _ in range(10):
                clients = dict(enumerate([flower.Client(100.0), flower.Client(50.0)], start=11))
                flower.run(strategy, flower.InMemoryGridOfTests(clients, patch), rounds=1)
                told.write(f"{strategy.balancer.rounds}\n")

    def check(self, place, out, ended):
        told = (out / "told").read_text("utf-8").split() if (out / "told").exists() else []
        if told:
            with np.load(out / "state.npz") as state:
                assert int(state["rounds"]) >= int(told[-1])


class Live:
    """Leaves no process."""

    share = 1.2

    def prepare(self, place):
        pass

    def run(self, place, out):
        from paceline.lab import ExperimentSetting, experiment

        experiment(ExperimentSetting(contention="hogs", schemes=("ewma",), rounds=1, seconds=0.3))

    def check(self, place, out, ended):
        pass


CASES = {case.__name__.lower(): case for case in (Report, SaPS, Federated, Live)}


def quietly(run, place, out):
    """Run a case, as a child: a failure ends the process with its traceback."""
    os.environ |= {"KILLED": str(place)}
    warnings.simplefilter("ignore")
    tempfile.tempdir = os.environ["TMPDIR"] = str(place / "tmp")
    run(place, out)


def started(case, place, out):
    out.mkdir(exist_ok=True)
    process = FORK.Process(target=quietly, args=(case.run, place, out))
    process.start()
    return process


def killed(case, place, kills, seed):
    """Kill a case at random moments, and check what it left; at last let it end, and look for what is left behind."""
    (place / "tmp").mkdir()
    case.prepare(place)
    began = time.monotonic()
    whole = started(case, place, place / "unkilled")
    whole.join()
    took, rng, number = time.monotonic() - began, random.Random(seed), 0
    assert whole.exitcode == 0
    for _ in range(kills):
        out = place / f"out{number}"
        process = started(case, place, out)
        process.join(rng.uniform(0.0, case.share * took))
        process.kill()
        process.join()
        assert process.exitcode in (0, -9), process.exitcode
        case.check(place, out, ended=process.exitcode == 0)
        number += process.exitcode == 0
    last = started(case, place, out := place / f"out{number}")
    last.join()
    assert last.exitcode == 0
    case.check(place, out, ended=True)
    require_nothing_left(place)


def require_nothing_left(place):
    """Require that no temporary file, and no process, is left; processes that lost their parent end soon."""
    left = [path for path in place.rglob("*") if ".paceline-" in path.name]
    assert not left, left
    deadline = time.monotonic() + 20
    while alive := [process.cmdline() for process in psutil.process_iter() if is_of(process, place)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def is_of(process, place):
    """Return whether a case started the process, or this one did; what is forked shows no new environment."""
    try:
        return process.environ().get("KILLED") == str(place) or (
            process.pid != os.getpid() and process.ppid() == os.getpid()
        )
    except psutil.Error:
        return False


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - what an optimizer imports, once for all children

    name, folder, number, seed = sys.argv[1:]
    killed(CASES[name](), Path(folder), int(number), int(seed))
