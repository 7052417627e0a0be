"""What ranks of a live experiment do in their turns, told with contestants and jobs that take no time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed

from paceline.lab.experiment import EQUAL, AsyncSetting, Setting, contestant
from paceline.lab.experiment import asynchronous_worker as async_worker
from paceline.lab.experiment import experiment_worker as worker
from paceline.lab.experiment.experiment_tasks import LiveTask
from paceline.lab.experiment.setting import CONTROL
from paceline.lab.small_models import Task
from paceline.predictors import LastValue


class Counted:
    """A contestant that counts its steps."""

    def __init__(self, scheme, setting):
        self.scheme, self.losses, self.weights, self.records = scheme, [], [], []

    def step(self):
        self.losses.append(torch.tensor(float(len(self.losses))))
        self.weights.append(0.25)


@pytest.mark.parametrize(
    ("contention", "disturbed", "between"), [("between", True, 0.04), ("between", False, 0.0), ("hogs", True, 0.0)]
)
def test_a_rank_takes_all_turns_after_a_warm_up_and_works_between_iterations_where_it_is_disturbed(
    monkeypatch, contention, disturbed, between
):
    taken = []

    def take_turn(one, *told):
        assert [len(other.losses) for other in made.values()] == [worker.WARM_UP] * 3
        taken.append((one.scheme, *told))
        return len(taken)

    made = {}
    monkeypatch.setattr(worker, "Contestant", lambda scheme, setting: made.setdefault(scheme, Counted(scheme, setting)))
    monkeypatch.setattr(worker, "take_turn", take_turn)
    setting = Setting(contention=contention, schemes=("ewma", "control"), rounds=2, seconds=0.5)
    found = worker.run(setting, 1, "finish", "bursts", disturbed)
    assert list(made) == [EQUAL, "ewma", "control"]
    assert taken == [(scheme, scheme, seed, 0.5, 1, "finish", "bursts", between) for scheme, seed in setting.turns]
    assert found.turns == list(range(1, len(setting.turns) + 1))
    assert found.losses == {scheme: [0.0, 1.0, 2.0, 3.0, 4.0] for scheme in made}
    assert found.weights == {scheme: [0.25] * 5 for scheme in made}
    assert found.records == {scheme: [] for scheme in made}


def test_a_machine_that_counts_no_cpu_seconds_has_none(monkeypatch):
    class Counted(str):
        there = True

        def exists(self):
            return self.there

        def read_text(self):
            return "cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 5 5 5\n"

    monkeypatch.setattr(worker, "Path", Counted)
    monkeypatch.setattr(worker.os, "sysconf", lambda name: {"SC_CLK_TCK": 10}[name])
    assert worker.busy_seconds() == (1 + 20 + 300 + 600000 + 7000000) / 10
    Counted.there = False
    assert worker.busy_seconds() == 0.0


# -- asynchronous ----------------------------------------------------------------------------------------------------


class Job:
    """An asynchronous job whose steps take two seconds each, and whose end takes five."""

    def __init__(self, log, clock, serves):
        self.log, self.clock, self.serves = log, clock, serves

    def __call__(self, model, optimizer, dataset, **told):
        self.model, self.optimizer, self.told = model, optimizer, told
        self.dataset, (self.listener,) = dataset, told.pop("on_verdict")
        self.flat = SimpleNamespace(row=next(model.parameters()).data.view(-1), model=model)
        self.sampler, self.ledger = (
            SimpleNamespace(applied=0),
            SimpleNamespace(wasted_share=0.25, largest_staleness=7, accounts={"rank0": SimpleNamespace(applied=30)}),
        )
        server = SimpleNamespace(
            sampler=self.sampler,
            ledger=self.ledger,
            scheme=SimpleNamespace(bound=None),
            parameters=np.zeros(1, np.float32),
        )
        self.service = SimpleNamespace(server=server, waited={"rank1": 1.5}) if self.serves else None
        return self

    def __iter__(self):
        while True:
            self.log.append("batch")
            self.optimizer.param_groups[0]["params"][0].grad = torch.full((1, 1), 9.0)
            yield torch.ones(2, 1), torch.zeros(2, 1)

    def push(self):
        (weight,) = self.optimizer.param_groups[0]["params"]
        self.log.append(("push", float(weight.grad), self.listener.over))
        self.clock[0] += 2.0
        self.sampler.applied += 10
        if self.service:
            self.service.server.parameters = self.service.server.parameters + 1

    def close(self):
        self.log.append(("close", self.listener.over))
        self.clock[0] += 5.0


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("bound", [None, 3])
def test_an_asynchronous_turn_lasts_until_its_seconds_are_over_and_its_job_is_closed(monkeypatch, serves, bound):
    log, clock = [], [100.0]
    job = Job(log, clock, serves)
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data[:] = 3.0
    inputs = torch.tensor([[1.0], [2.0]])
    task = Task("made", model, inputs, torch.zeros(2, 1), torch.nn.functional.mse_loss)
    monkeypatch.setattr(async_worker, "AsyncJob", job)
    monkeypatch.setattr(async_worker, "live_task", lambda name: log.append(name) or LiveTask(task))
    monkeypatch.setattr(async_worker, "work_for", lambda seconds: log.append(("work", seconds)))
    monkeypatch.setattr(async_worker.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(torch, "manual_seed", lambda seed: log.append(("seed", seed)))
    monkeypatch.setattr(distributed, "barrier", lambda: log.append("barrier"))
    monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
    bursts = SimpleNamespace(start=lambda seed: log.append(("start", seed)), stop=lambda: log.append("stop"))
    setting = AsyncSetting(schemes=("asp",), model="digits-mlp", global_batch=10, seconds=4.0, seed=6)
    call = job.__call__

    def made(*arguments, **options):
        call(*arguments, **options)
        if serves:
            job.service.server.scheme.bound = bound
        return job

    monkeypatch.setattr(async_worker, "AsyncJob", made)
    turn = async_worker.take_turn(setting, "asp", 8, 0.125, bursts)
    step = ["batch", ("work", 0.125), ("push", 6.0, False)]
    begun = [("seed", 6), "digits-mlp", "barrier", ("start", 8)]
    assert log == [*begun, *step * 3, ("close", True), "stop", "barrier"]
    assert job.told == {"batch": 5, "epochs": 2**30, "scheme": "asp", "seed": 6}
    assert isinstance(job.optimizer, torch.optim.Adam)
    assert job.optimizer.defaults["lr"] == 2e-3
    assert [part.tolist() for part in job.dataset.tensors] == [[[1], [2]], [[0], [0]]]
    if not serves:
        assert turn is None
        return
    assert (turn.scheme, turn.seed, turn.seconds) == ("asp", 8, 11.0)
    assert turn.applied == [0, 30]
    assert turn.losses == [0.0, pytest.approx(9 * 2.5)]
    assert turn.samples == [30, 0, 0]
    assert turn.waited == [0.0, 1.5, 0.0]
    assert (turn.largest, turn.bound) == (7, -1 if bound is None else bound)
    assert (turn.staleness, turn.wasted) == (0.0, 0.0)


# -- contestants and settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "kind"), [(EQUAL, "mean"), (CONTROL, "mean"), ("ewma:smoothing=0.5", "scaled")])
def test_a_contestant_is_balanced_as_its_scheme_says(monkeypatch, scheme, kind):
    attached, seen = [], []
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data[:] = 2.0
    inputs = torch.arange(11.0)[:, None]
    task = Task("made", model, inputs, torch.zeros(11, 1), torch.nn.functional.mse_loss)
    balance = SimpleNamespace(on_iteration=[], scale=lambda loss: seen.append("scaled") or 10 * loss)

    class Loader:
        weight = 0.75

        def __init__(self, data, global_batch, seed):
            self.data, self.told = data, (global_batch, seed)

        def __iter__(self):
            yield self.data[:4]

    monkeypatch.setattr(contestant, "live_task", lambda name: LiveTask(task, kind))
    monkeypatch.setattr(contestant, "DistributedDataParallel", lambda wrapped: wrapped)
    monkeypatch.setattr(contestant, "BalancedLoader", Loader)
    monkeypatch.setattr(contestant, "attach", lambda *given, **told: attached.append((given, told)) or balance)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronised"))
    one = contestant.Contestant(scheme, Setting(schemes=("ewma",), model="digits-mlp", global_batch=4, seed=5))
    assert one.loader.told == (4, 5)
    assert len(one.loader.data) == 8, "whole batches only"
    assert [len(group["params"]) for group in one.optimiser.param_groups] == [1]
    assert one.optimiser.defaults["lr"] == 2e-3
    if scheme == EQUAL:
        assert attached == []
    else:
        ((given, told),) = attached
        assert given == (model, one.loader)
        assert told["loss"] == kind
        assert isinstance(told["predictor"], LastValue) == (scheme == CONTROL)
        assert (told["policy"] and told["policy"].warmup) == (2**40 if scheme == CONTROL else None)
        balance.on_iteration[0]("record")
        assert one.records == ["record"]
    one.step()
    one.step()
    one.finish()
    squares = float(inputs[:4].square().mean())
    assert one.losses[0].item() == 4 * squares
    assert not one.losses[0].requires_grad
    assert one.losses[1].item() == pytest.approx((2 - 2e-3) ** 2 * squares)
    assert one.weights == [0.75, 0.75]
    assert seen == (["scaled"] * 2 if kind == "scaled" else [])
    one.device = "cuda"
    one.finish()
    assert seen[-1] == "synchronised"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "double"}, "precision must be 'single' or 'mixed', got 'double'"),
        ({"contention": "kernels"}, "the contention 'kernels' is that of a CUDA device"),
        ({"device": "tpu"}, "device must be 'cpu', or 'cuda' where torch finds a device, got 'tpu' here"),
        ({"device": "cuda"}, "got 'cuda' here"),
        ({"global_batch": 0}, "global_batch must be above 0, got 0"),
        ({"seconds": 0}, "seconds must be above 0, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(monkeypatch, options, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: options.get("device") != "cuda")
    with pytest.raises(ValueError, match=said):
        Setting(**options)


def test_a_device_that_there_is_may_have_its_kernels_and_mixed_precision(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Setting(device="cuda", contention="kernels", precision="mixed").device == "cuda"
    assert Setting(precision="mixed", schemes=(CONTROL,), rounds=1, seconds=0.1, global_batch=1).precision == "mixed"
    for options in ({"device": "cuda"}, {"precision": "mixed"}):
        with pytest.raises(ValueError, match="asynchronous schemes train on the CPU, in single precision"):
            AsyncSetting(**options)
    with pytest.raises(ValueError, match="the contention 'kernels'"):
        AsyncSetting(contention="kernels")
