"""Replicas are killed and return at a constant global batch: parameters are those of one process. Needs torchft."""

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from ranks import started  # noqa: E402

from paceline.coordinator import Policy  # noqa: E402
from paceline.integrations.torchft import ReplicaLoader  # noqa: E402
from paceline.predictors import LastValue  # noqa: E402
from paceline.torch import BalancedLoader, LoopError  # noqa: E402

# torchft's manager logs with a method of before Python 3.13
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")]

SAMPLES, BATCH = 98, 24  # the last step of an epoch has 2 samples, fewer than there are replicas
SLOW = {"a": 0.0005, "b": 0.0005, "c": 0.0015}
"""Seconds that a sample takes on each replica."""


def network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, inputs, step):
    """A mean over samples, or in every other step over some of them, and its number of terms."""
    errors = (model(inputs) - inputs.sin()).square()
    counts = inputs > -0.5 if step % 2 else torch.ones_like(inputs)
    return (errors * counts).sum() / counts.sum().clamp(min=1), counts.sum()


def data():
    return torch.linspace(-1, 1, SAMPLES, dtype=torch.float64)[:, None]


def parameters(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def of_one_process(epochs):
    """The parameters after the same epochs in one process."""
    model, optimizer = network()
    loader = BalancedLoader(data(), BATCH, rank=0, world_size=1)
    for step, inputs in enumerate(batch for _ in range(epochs) for batch in loader):
        optimizer.zero_grad()
        loss_of(model, inputs, step)[0].backward()
        optimizer.step()
    return parameters(model)


def manager_of(name, lighthouse, model, optimizer):
    """A torchft manager whose waits are short."""
    from torchft import Manager, ProcessGroupGloo

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=5),
        quorum_timeout=timedelta(seconds=20),
        connect_timeout=timedelta(seconds=5),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr="http://localhost:" + lighthouse.rpartition(":")[2],
        replica_id=name,
        hostname="localhost",
        max_retries=20,
    )
    return manager, store


def replica(name, lighthouse, folder, epochs):
    """Train as one replica. Where there is a file for it, it kills itself between the sums of two gradients."""
    torch.set_num_threads(1)
    model, optimizer = network()
    dies = folder / f"{name}.dies"
    manager, _store = manager_of(name, lighthouse, model, optimizer)
    loader = ReplicaLoader(
        data(), BATCH, manager, epochs=epochs, predictor=LastValue(), policy=Policy(warmup=1), name=name
    )
    with (folder / f"{name}.jsonl").open("a", buffering=1) as log:
        for inputs in loader:
            if not (folder / "hurry").exists():
                time.sleep(0.002 + SLOW[name] * len(inputs))
            optimizer.zero_grad()
            step = manager.current_step()
            loss, count = loss_of(model, inputs, step)
            loader.scale(loss, count if step % 2 else None).backward()
            for number, parameter in enumerate(model.parameters()):
                if number == 2 and dies.exists():
                    dies.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                manager.allreduce(parameter.grad).wait()
            if committed := manager.should_commit():
                optimizer.step()
            log.write(json.dumps([manager.current_step(), committed, loader.replicas, loader.sizes.tolist()]) + "\n")
    np.save(folder / f"{name}.npy", parameters(model).numpy())


class Job:
    """Three replicas; a replica that dies is started again."""

    def __init__(self, folder, epochs, lighthouse):
        self.folder, self.epochs, self.lighthouse = folder, epochs, lighthouse
        self.processes = {}

    def start(self, name):
        self.processes[name] = started(replica, name, self.lighthouse, self.folder, self.epochs)

    def log(self, name):
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, condition, within=60):
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, {name: self.log(name)[-2:] for name in SLOW}
            time.sleep(0.02)

    def joined(self):
        """Wait until all replicas take steps together."""
        done = {name: len(self.log(name)) for name in SLOW}
        self.until(lambda: all(len(log := self.log(name)) > done[name] and len(log[-1][2]) == 3 for name in SLOW))

    def dies(self, name, *, in_a_sum):
        """Kill a replica, at any time or between the sums of two gradients."""
        process = self.processes[name]
        if in_a_sum:
            (self.folder / f"{name}.dies").touch()
        else:
            process.kill()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL

    def ends(self):
        """Let the replicas finish, and return their parameters."""
        (self.folder / "hurry").touch()
        for process in self.processes.values():
            process.join(100)
        assert [process.exitcode for process in self.processes.values()] == [0, 0, 0]
        return [torch.from_numpy(np.load(self.folder / f"{name}.npy")) for name in SLOW]


@contextmanager
def lighthouse_for(replicas):
    """The address of a lighthouse that waits for so many replicas."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=replicas, join_timeout_ms=500, quorum_tick_ms=20, heartbeat_timeout_ms=1000
    )
    yield server.address()
    server.shutdown()


@pytest.fixture
def lighthouse():
    with lighthouse_for(1) as address:
        yield address


@pytest.fixture
def job(tmp_path, lighthouse):
    jobs = []

    def begin(epochs):
        jobs.append(job := Job(tmp_path, epochs, lighthouse))
        for name in SLOW:
            job.start(name)
        job.joined()
        return job

    yield begin
    for one in jobs:
        for process in one.processes.values():
            process.kill()


def check(job, epochs):
    """What must hold for a job that has lost replicas."""
    ends = job.ends()
    expected = of_one_process(epochs)
    for end in ends:
        torch.testing.assert_close(end, expected, rtol=1e-10, atol=1e-10)
    lines = [line for name in SLOW for line in job.log(name)]
    assert {sum(sizes) for _, _, _, sizes in lines} == {BATCH, SAMPLES % BATCH}
    assert any(not committed for _, committed, _, _ in lines)


def test_replica_leaves_and_returns(job):
    begun = job(epochs=40)
    begun.dies("b", in_a_sum=True)
    begun.until(lambda: begun.log("a")[-1][2] == ["a", "c"])
    begun.start("b")
    begun.joined()
    check(begun, 40)


def is_slower(name, lines):
    """Whether a replica has had less than two thirds of the samples of each other one, in most of these steps."""
    full = [dict(zip(names, sizes, strict=True)) for _, _, names, sizes in lines if sum(sizes) == BATCH]
    shares = [
        sizes[name] / min(size for other, size in sizes.items() if other != name) for sizes in full if name in sizes
    ]
    return len(shares) > len(lines) / 2 and np.median(shares) < 2 / 3


def together(*options):
    """What becomes of the first batch of replicas with these options."""

    def first(number):
        manager, _store = manager_of(f"replica{number}", lighthouse, *network())
        try:
            return next(iter(ReplicaLoader(**{"manager": manager, "name": str(number), **options[number]})))
        except ValueError as error:
            return str(error)
        finally:
            manager.shutdown(wait=False)

    with lighthouse_for(len(options)) as lighthouse, ThreadPoolExecutor() as pool:
        return list(pool.map(first, range(len(options))))


def test_replicas_of_other_data_are_refused():
    found = together({"dataset": range(9), "global_batch": 4}, {"dataset": range(8), "global_batch": 4})
    assert found == ["samples in the dataset must be the same on every replica, got [9, 8]"] * 2


def test_replicas_of_one_name_are_refused():
    options = {"dataset": range(9), "global_batch": 4, "name": "one"}
    found = together(options, options)
    assert found == ["replicas must have different names, got ['one', 'one']: pass name= or set REPLICA_GROUP_ID"] * 2


def test_gradients_of_unscaled_loss_are_refused(lighthouse):
    manager, _store = manager_of("forgets", lighthouse, *network())
    batches = iter(loader := ReplicaLoader(range(9), 4, manager))
    for _ in range(2):
        next(batches)
        with pytest.raises(LoopError, match=r"write loss = loader.scale\(loss\) before backward\(\)"):
            manager.allreduce(torch.ones(1))
        loader.scale(torch.ones(1))
        manager.allreduce(torch.ones(1)).wait()
        assert manager.should_commit()
    manager.shutdown(wait=False)


def test_resumed_replica_goes_on_with_the_rest(lighthouse):
    found, state = [], None
    for name, steps in (("first", 3), ("second", 8)):
        manager, _store = manager_of(name, lighthouse, *network())
        loader = ReplicaLoader(range(30), 4, manager)
        if state is not None:
            manager.load_state_dict(state["manager"])
            loader.load_state_dict(state["loader"])
        for inputs in loader:
            found += inputs.tolist()
            assert manager.should_commit()
            if manager.current_step() == steps:
                break
        state = {"manager": manager.state_dict(), "loader": loader.state_dict()}
        manager.shutdown(wait=False)
    assert sorted(found) == list(range(30))


def test_other_managers_are_refused():
    with pytest.raises(TypeError, match=r"manager must be a torchft.Manager, got NoneType"):
        ReplicaLoader(range(9), 4, None)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_twenty_kills(job):
    begun, chance = job(epochs=500), random.Random(0)
    for number in range(20):
        name = chance.choice(sorted(SLOW))
        begun.dies(name, in_a_sum=number % 2 == 0)
        begun.start(name)
        if chance.random() < 0.7:  # else the next one dies before this one is back
            begun.joined()
        time.sleep(chance.uniform(0, 0.5))
    begun.joined()
    begun.until(lambda: is_slower("c", begun.log("a")[-20:]))
    check(begun, 500)
