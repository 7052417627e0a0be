"""The ranks of a live experiment, one of them alone in this process: what they train, note and disturb."""

import json
import os
import signal
import struct
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from torch import distributed

from paceline.coordinator.asynchronous.verdict import Outcome
from paceline.lab.contention import stress
from paceline.lab.contention.disturbance import Bursts, Hogs, Quota
from paceline.lab.experiment import EQUAL, AsyncSetting, Setting, conduct
from paceline.lab.experiment import asynchronous_worker as async_worker
from paceline.lab.experiment import experiment_worker as worker
from paceline.lab.experiment.experiment_tasks import live_task
from paceline.lab.experiment.result import RankResult
from paceline.recording.place import Place


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """This process as the only rank."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield tmp_path
    distributed.destroy_process_group()


def finish_of(folder):
    (folder / "finish").write_bytes(struct.pack("q", 0))
    return worker.Finish(folder / "finish")


def test_the_end_of_a_turn_is_seen_by_all_ranks(tmp_path):
    one, other = finish_of(tmp_path), worker.Finish(tmp_path / "finish")
    for number in (0, 7, worker.NOT_YET):
        one.iteration = number
        assert other.iteration == number


def plain_losses(setting, count):
    """The losses of a plain loop over the same batches."""
    from paceline.engines.torch import BalancedLoader

    torch.manual_seed(setting.seed)
    task = live_task(setting.model).task
    whole = len(task.inputs) // setting.global_batch * setting.global_batch
    data = torch.utils.data.TensorDataset(task.inputs[:whole], task.targets[:whole])
    optimiser, losses = torch.optim.Adam(task.model.parameters(), lr=2e-3), []
    loader = BalancedLoader(data, setting.global_batch, seed=setting.seed)
    while len(losses) < count:
        for inputs, targets in loader:
            optimiser.zero_grad()
            loss = task.loss(task.model(inputs), targets)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses[:count]


@pytest.mark.slow
def test_a_rank_trains_every_scheme_on_the_same_samples_in_its_turns(alone):
    setting = Setting(schemes=("control",), model="digits-mlp", global_batch=600, rounds=2, seconds=0.1, seed=3)
    found = worker.run(setting, 0, finish_of(alone), None, disturbed=False)
    assert [(turn.scheme, turn.seed) for turn in found.turns] == setting.turns
    taken = {EQUAL: worker.WARM_UP, "control": worker.WARM_UP}
    for turn in found.turns:
        assert turn.first == taken[turn.scheme]
        taken[turn.scheme] += len(turn.seconds)
        assert sum(turn.seconds) > setting.seconds
        assert sum(turn.seconds[:-2]) <= setting.seconds, "it ends with the iteration behind the one that is over"
        assert 0 < turn.own < 2 * sum(turn.seconds)
    for scheme, count in taken.items():
        assert found.losses[scheme] == plain_losses(setting, count)
        assert found.weights[scheme] == [1.0] * count
    assert found.records[EQUAL] == []
    assert {tuple(record.sizes) for record in found.records["control"]} == {(600,)}
    assert not any(record.acted for record in found.records["control"])


class Trained:
    """A contestant whose steps take no time, and that ends late."""

    def __init__(self, late=0.0):
        self.losses, self.finished, self.late = [], 0, late

    def step(self):
        self.losses.append(0.0)

    def finish(self):
        self.finished += 1
        time.sleep(self.late)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_turn_ends_where_the_first_rank_says(tmp_path, monkeypatch, rank):
    finish, barriers, switched = finish_of(tmp_path), [], []
    bursts = SimpleNamespace(start=lambda seed: switched.append(seed), stop=lambda: switched.append("off"))

    def barrier():
        barriers.append(finish.iteration)
        if len(barriers) == 2 and rank:
            finish.iteration = 9

    monkeypatch.setattr(distributed, "barrier", barrier)
    finish.iteration = 5
    one = Trained(late=0.05)
    one.losses = [0.0] * 4
    turn = worker.take_turn(one, "auto", 11, 0.05, rank, finish, bursts, between=0.005)
    assert (turn.scheme, turn.seed, turn.first) == ("auto", 11, 4)
    assert barriers[0] == 5
    assert barriers[1] == (5 if rank else worker.NOT_YET)
    assert len(one.losses) == finish.iteration == 4 + len(turn.seconds)
    assert (one.finished, switched) == (1, [11, "off"])
    assert min(turn.seconds) >= 0.005
    assert turn.seconds[-1] >= 0.05, "a device that lags behind is waited for"
    if rank:
        assert len(turn.seconds) == 5
    else:
        assert sum(turn.seconds[:-1]) > 0.05
        assert sum(turn.seconds[:-2]) < 0.05 + max(turn.seconds[:-1])
    plain = worker.take_turn(Trained(), "auto", 0, 0.001, 0, finish, None)
    assert plain.first == 0
    assert len(plain.seconds) >= 2


def test_cpu_seconds_of_the_machine_are_those_that_the_system_counts():
    def counted():
        now = psutil.cpu_times()
        return now.user + now.nice + now.system + now.irq + now.softirq

    before, found, after = counted(), worker.busy_seconds(), counted()
    assert before - 0.1 <= found <= after + 0.1


def test_other_work_takes_its_time_and_no_other():
    began = time.perf_counter()
    worker.work_for(0.02)
    assert time.perf_counter() - began >= 0.02
    began = time.process_time()
    worker.work_for(0.0)
    assert time.process_time() - began < 0.01


@pytest.mark.parametrize("contention", ["none", "between", "hogs", "bursty-hogs", "quota", "bursty"])
def test_only_the_disturbed_rank_is_disturbed_all_the_time_or_in_bursts(contention, tmp_path, monkeypatch):
    setting, switched = Setting(contention=contention, schemes=("ewma",)), []
    monkeypatch.setattr(Hogs, "turn", lambda hogs, on: switched.append((list(hogs.pids), on)))
    monkeypatch.setattr(Quota, "turn", lambda quota, on: switched.append((quota.folder, quota.cores, on)))
    told = {"disturbed": False, "hogs": [4, 5], "place": {"folders": ["/group"]}}
    assert worker.disturbed(told, setting) is None
    assert switched == []
    found = worker.disturbed(told | {"disturbed": True}, setting)
    steady = {"hogs": [([4, 5], True)], "quota": [("/group", 0.5, True)]}
    steady |= {"bursty-hogs": [([4, 5], False)], "bursty": [("/group", 0.25, False)]}
    assert switched == steady.get(contention, [])
    assert (found is not None) == ("bursty" in contention)
    if isinstance(found, Bursts):
        assert found.mean == 2.0
        assert type(found.switch) is (Hogs if "hogs" in contention else Quota)


def test_hogs_are_stopped_and_go_on(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *one: sent.append(one))
    Hogs([3, 4]).turn(True)
    Hogs([3]).turn(False)
    assert sent == [(3, signal.SIGCONT), (4, signal.SIGCONT), (3, signal.SIGSTOP)]


# -- tasks whose ranks wait for each other ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional.all_reduce is deprecated")
def test_normalisation_over_all_ranks_is_that_of_one_process_with_its_gradient(alone):
    """On one rank it is batch normalisation without weights."""
    from paceline.lab.experiment.experiment_tasks import _synchronised

    images = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double() * 3 + 1
    one, other = images.clone().requires_grad_(), images.clone().requires_grad_()
    ours, theirs = _synchronised(3)(one), torch.nn.functional.batch_norm(other, None, None, training=True)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).double()
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)
    model = live_task("digits-sync-batch-norm").task.model
    names = [type(layer).__name__ for layer in model.children()]
    plain = [type(layer).__name__ for layer in live_task("digits-batch-norm").task.model.children()]
    assert [name.replace("Synchronised", "BatchNorm2d") for name in names] == plain
    assert plain[1:4] == ["Conv2d", "BatchNorm2d", "ReLU"]
    assert plain.count("BatchNorm2d") == 2


@pytest.mark.slow
def test_a_contrastive_loss_compares_each_half_with_those_of_all_samples(alone):
    torch.manual_seed(0)
    found = live_task("digits-contrastive")
    task = found.task
    rows = torch.tensor([5, 2, 9, 30])
    with torch.no_grad():
        upper, lower = task.model(task.inputs[rows])
        loss = float(task.loss((upper, lower), task.targets[rows]))
        halves = task.inputs[rows].reshape(4, 8, 8)
        top = torch.nn.functional.normalize(task.model.upper(halves[:, :4].flatten(1)))
        bottom = torch.nn.functional.normalize(task.model.lower(halves[:, 4:].flatten(1)))
    torch.testing.assert_close((upper, lower), (top, bottom))
    wanted = torch.nn.functional.cross_entropy(20 * top @ bottom.T, torch.arange(4))
    assert loss == pytest.approx(float(wanted), rel=1e-5)
    assert task.targets.tolist() == list(range(1797))
    assert sum(one.numel() for one in task.model.parameters()) == 2297984
    kinds = {name: live_task(name).loss for name in ("digits-mlp", "digits-batch-norm", "digits-sync-batch-norm")}
    kinds["digits-contrastive"] = found.loss
    assert list(kinds.values()) == ["mean", "mean", "scaled", "scaled"]


# -- asynchronous schemes --------------------------------------------------------------------------------------------


def test_looks_are_kept_where_something_was_applied_and_enough_time_has_passed(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(async_worker.time, "monotonic", lambda: clock[0])
    looks = async_worker.Looks(12.0)
    assert (looks.wasted, looks.mean_staleness) == (0.0, 0.0)
    outcome = next(one for one in Outcome if one not in async_worker.WASTED)
    lost = next(one for one in Outcome if one in async_worker.WASTED)

    def tell(applied, when, kind=outcome, staleness=2):
        looks.service.server.sampler.applied, clock[0] = applied, when
        looks.service.server.ledger.wasted_share = applied / 1000
        looks(SimpleNamespace(outcome=kind, staleness=staleness))

    looks(SimpleNamespace(outcome=outcome, staleness=9))  # before there is a server
    parameters = np.zeros(2)
    server = SimpleNamespace(
        sampler=SimpleNamespace(applied=0), ledger=SimpleNamespace(wasted_share=0.0), parameters=parameters
    )
    looks.service = SimpleNamespace(server=server)
    looks.look()
    tell(8, 0.5)  # too early
    tell(8, 1.0)
    tell(8, 5.0)  # nothing new
    tell(16, 5.0, lost, 7)
    tell(24, 5.5)
    tell(24, 6.0)
    looks.over = True
    tell(99, 99.0)
    assert looks.applied == [0, 8, 16, 24]
    assert looks.staleness == [2, 2, 2, 2, 2]
    assert looks.wasted == 0.024
    looks.staleness = [3]
    assert looks.mean_staleness == 3.0
    assert len(looks.rows) == 4


@pytest.mark.slow
def test_an_asynchronous_turn_says_what_was_applied_and_the_loss_with_it(alone):
    setting = AsyncSetting(schemes=("asp",), model="digits-mlp", global_batch=128, seconds=0.3, seed=2)
    assert setting.batch == 64
    switched = []
    bursts = SimpleNamespace(start=lambda seed: switched.append(seed), stop=lambda: switched.append("off"))
    turn = async_worker.take_turn(setting, "asp", 6, 0.002, bursts)
    assert (turn.scheme, turn.seed, turn.bound, switched) == ("asp", 6, -1, [6, "off"])
    assert 0.3 < turn.seconds < 10
    assert turn.applied[0] == 0
    assert turn.applied == sorted(turn.applied)
    assert turn.samples == [turn.applied[-1]]
    assert turn.applied[-1] % 64 == 0
    assert len(turn.losses) == len(turn.applied) <= async_worker.LOOKS + 2
    assert len(turn.waited) == 1
    assert (turn.staleness, turn.largest, turn.wasted) == (0.0, 0, 0.0)
    torch.manual_seed(2)
    task = live_task("digits-mlp").task
    with torch.no_grad():
        start = float(task.loss(task.model(task.inputs), task.targets))
    assert turn.losses[0] == pytest.approx(start, rel=1e-5)
    assert turn.losses[-1] < start  # how far it comes in this time depends on the machine
    assert async_worker.take_turn(setting, "saps", 0, 0.0, None).bound >= 0


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_workers_full_batch_is_its_share(size):
    assert AsyncSetting(global_batch=size).batch == max(size // 2, 1)


# -- the process that starts them ------------------------------------------------------------------------------------

LIGHT = """
import json, sys, time
from pathlib import Path
told = json.loads(sys.stdin.readline())
folder = Path(told["folder"])
(folder / f"result{told['rank']}.json").write_text(json.dumps(told))
time.sleep(0.05)
"""


@pytest.mark.processes
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
def test_ranks_are_told_their_places_and_only_one_is_disturbed(tmp_path, monkeypatch):
    (tmp_path / "light_rank.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(conduct, "WORKER", "light_rank")
    monkeypatch.setattr(RankResult, "read", lambda path: json.loads(path.read_text()))
    hogs = []

    def hogs_of(setting, core, folder, running):
        hogs.append(core)
        return [SimpleNamespace(pid=77)]

    monkeypatch.setattr(conduct, "_hogs", hogs_of)
    setting, shares = Setting(contention="hogs", schemes=("ewma",), rounds=1, seconds=0.1), []
    told_to = conduct.experiment(setting, progress=shares.append).results
    cores = sorted(os.sched_getaffinity(0))[:2]
    assert hogs == [cores[1]]
    for rank, told in enumerate(told_to):
        assert (told["rank"], told["ranks"], told["cores"]) == (rank, 2, [cores[rank]])
        assert (told["disturbed"], told["hogs"], told["place"]) == (rank == 1, [77], None)
        assert told["setting"] == json.loads(json.dumps(asdict(setting)))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert not Path(told_to[0]["folder"]).exists()


def test_competitors_of_an_experiment_share_the_disturbed_core(tmp_path, monkeypatch):
    started, running = [], []

    class Started:
        def __init__(self, module, number, folder, told):
            started.append((module, number, folder, told))
            self.lines = []

        def tell(self, line):
            self.lines.append(line)

        def end(self):
            running.append("ended")

    monkeypatch.setattr(conduct, "Process", Started)
    from contextlib import ExitStack

    with ExitStack() as stack:
        hogs = conduct._hogs(Setting(contention="hogs", schemes=("ewma",)), 5, tmp_path, stack)
        assert [hog.lines for hog in hogs] == [["begin"]] * 3
        assert not running
    assert running == ["ended"] * 3
    told = {"place": asdict(Place(cores=[5])), "kind": "cpu", "spans": [[0.0, 1e9]]}
    assert started == [(conduct.COMPETITOR, number, tmp_path, told) for number in range(3)]


@pytest.mark.parametrize("folders", [[], ["/group"]])
def test_a_quota_needs_control_groups(monkeypatch, folders):
    from contextlib import ExitStack, contextmanager

    asked = []

    @contextmanager
    def given(*arguments):
        asked.append(arguments)
        yield [Place(folders=folders)]

    monkeypatch.setattr(conduct, "places", given)
    assert conduct.can_set_quotas() == bool(folders)
    with ExitStack() as stack:
        assert conduct._place(Setting(contention="hogs", schemes=("ewma",)), stack) is None
        assert asked == [(1, 1.0)]
        setting = Setting(contention="quota", schemes=("ewma",))
        if folders:
            assert conduct._place(setting, stack).folders == folders
        else:
            with pytest.raises(RuntimeError, match="'quota' needs control groups that can be written"):
                conduct._place(setting, stack)


def test_ranks_are_waited_for_with_the_share_of_the_time_that_is_over(monkeypatch):
    clock, shares, looked = [10.0], [], []
    monkeypatch.setattr(conduct.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(conduct.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + 1.5))
    monkeypatch.setattr(conduct, "require_alive", lambda ranks: looked.append(len(ranks)))
    ends = (11.0, 16.0)
    ranks = [SimpleNamespace(ended=lambda end=end: clock[0] >= end) for end in ends]
    conduct._wait(ranks, 3.0, shares.append)
    assert shares == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert looked == [2] * 4


# -- stress-ng -------------------------------------------------------------------------------------------------------


def test_a_stressor_goes_on_and_stops_as_planned(monkeypatch):
    clock, sent = [100.0], []
    monkeypatch.setattr(stress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stress.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    one = object.__new__(stress.Stressor)
    monkeypatch.setattr(stress.Stressor, "signal", lambda _, number: sent.append((round(clock[0] - 100, 6), number)))
    one.compete([(0.5, 1.0), (3.0, 4.5)])
    on, off = signal.SIGCONT, signal.SIGSTOP
    assert sent == [(0.5, on), (1.0, off), (3.0, on), (4.5, off)]
