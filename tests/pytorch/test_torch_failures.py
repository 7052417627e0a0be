"""Whatever happens to a rank, the others continue as documented or end with a clear error, in bounded time."""

import logging
import os
import signal
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from ranks import outcomes_of, run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA, NARX, Report
from paceline.torch import BalancedLoader, attach

GLOBAL_BATCH = 24


def job(timeout=20.0, predictor=None, policy=None, **options):
    """A small job: model, loader, balance and one epoch's loop over it."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    data = torch.utils.data.TensorDataset(torch.randn(20 * GLOBAL_BATCH, 4))
    loader = BalancedLoader(data, GLOBAL_BATCH)
    policy = policy or Policy(warmup=1)
    balance = attach(model, loader, predictor=predictor or EWMA(), policy=policy, timeout=timeout, **options)

    def steps():
        for (inputs,) in loader:
            yield len(inputs)
            model.zero_grad()
            model(inputs).square().mean().backward()

    return loader, balance, steps


def killed(rank, way):
    _, _, steps = job(timeout=5)
    for step, _ in enumerate(steps()):
        if rank == 1 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    return "ended"


def test_killed_rank_ends_others_with_error():
    first, lost, third = outcomes_of(3, killed, "kill", within=40)
    assert lost.exitcode == -signal.SIGKILL
    for other in (first, third):
        assert "a rank has died, or has not answered within 5 s" in other.error
        assert other.exitcode == 1, "it ended, and did not hang"


class Harmful:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def hostile(rank, folder):
    """The first rank sends something harmful when the second one's plan differs."""
    _, balance, steps = job(policy=Policy(warmup=0))
    balancer = balance.balancer
    plan, state = balancer.step, balancer.state_dict
    if rank == 0:
        balancer.state_dict = lambda: {**state(), "more": np.array([Harmful(folder)])}
    else:
        balancer.step = lambda report, *rest, **options: plan(Report(report.samples, [0.12, 1.08]), *rest, **options)
    for size in steps():
        balance.measured(0.01 * size)


def test_nothing_from_another_rank_is_unpickled(tmp_path):
    _, second = outcomes_of(2, hostile, tmp_path / "harm", within=40)
    assert "allow_pickle=False" in second.error
    assert not (tmp_path / "harm").exists()


# -- what one small fleet goes through, job after job ------------------------------------------------------------

NONSENSE = (float("nan"), -1.0, 0.0, 1e300, -1e300, float("inf"))


def nonsense(rank):
    loader, balance, steps = job()
    sizes = []
    for step, _ in enumerate(steps()):
        sizes.append(loader.batch_sizes.tolist())
        if rank == 1 and step < len(NONSENSE):
            balance.measured(NONSENSE[step])
    return sizes


def other_opinion(rank, lasting=False):
    """Once, or from then on, the second rank plans from other reports than the first."""
    warnings, agreed, sizes = [], [], []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("paceline").addHandler(handler)
    loader, balance, steps = job(policy=Policy(warmup=0))
    balance.on_iteration.append(lambda iteration: agreed.append(iteration.agreed))
    plan = balance.balancer.step

    def misled(report, *rest, **options):
        if not lasting:
            balance.balancer.step = plan
        return plan(Report(report.samples, [0.12, 1.08]), *rest, **options)

    for step, size in enumerate(steps()):
        sizes.append(loader.batch_sizes.tolist())
        balance.measured(0.01 * size)
        if rank == 1 and step == 5:
            balance.balancer.step = misled
    logging.getLogger("paceline").removeHandler(handler)
    return agreed, sizes, warnings


def lasting_opinion(rank):
    return other_opinion(rank, lasting=True)


def out_of_memory(rank):
    loader, balance, steps = job(policy=Policy(warmup=0))
    sizes = []
    for step, size in enumerate(steps()):
        balance.measured(0.001 * size)
        sizes.append(loader.batch_sizes.tolist())
        if rank == 1 and step == 2:
            balance.ran_out_of_memory()
    return sizes


def measures(rank):
    _, balance, steps = job()
    seen = []
    balance.on_iteration.append(seen.append)
    for _ in steps():
        pass
    return [(one.index, one.worker, one.sizes, one.seconds, one.comm_seconds, one.forecast_seconds) for one in seen]


class Counter:
    """A covariate that counts how often it was asked, from a number of the rank's own."""

    name, unit = "count", "samples taken"

    def __init__(self, start):
        self.value = start

    def sample(self):
        self.value += 1
        return self.value


class DrivenEWMA(EWMA):
    """Notes which covariates it is given."""

    covariate_names = ("count",)

    def reset(self, workers):
        super().reset(workers)
        self.before, self.now = [], []

    def observe(self, report):
        self.before.append(np.asarray(report.covariates).tolist())
        super().observe(report)

    def predict(self, *, covariates=None, horizon=1):
        if covariates is not None:
            self.now.append(np.asarray(covariates).tolist())
        return super().predict(covariates=None, horizon=horizon)


def driven(rank):
    predictor = DrivenEWMA()
    _, balance, steps = job(predictor=predictor, covariates=[Counter(100 * rank)])
    for _ in steps():
        balance.measured(1.0)
    balance.state_dict()  # waits for the last report
    return predictor.before, predictor.now


class KeepingEWMA(EWMA):
    """Counts its forecasts, and keeps the speeds that it is told."""

    forecasts = 0

    def predict(self, *, covariates=None, horizon=1):
        self.forecasts += 1
        return super().predict(covariates=covariates, horizon=horizon)

    def observe(self, report):
        self.speeds = [*getattr(self, "speeds", ()), report.speed[0]]
        super().observe(report)


def short_iterations(rank):
    """Return the forecasts made in 200 iterations of 1 s and of 20 us a sample, slow reports, and the last sizes.

    One rank is half as fast. In the last 200, one iteration in ten takes three times as long.
    """
    found = []
    for seconds, outlier in ((1.0, 1), (2e-5, 1), (2e-5, 3)):
        predictor = KeepingEWMA()
        loader, balance, steps = job(predictor=predictor)
        for _ in range(10):
            for step, size in enumerate(steps()):
                balance.measured(seconds * size * (2 if rank else 1) * (outlier if step % 10 == 5 else 1))
        slow = int(np.sum(np.array(predictor.speeds) < 0.5 * np.median(predictor.speeds)))
        found.append((predictor.forecasts, slow, loader.batch_sizes.tolist()))
        balance.close()
    return found


def refused(rank):
    """Return the error message of every wrong call."""
    model = torch.nn.Linear(4, 2)
    loader = BalancedLoader(range(100), GLOBAL_BATCH)
    ddp = DistributedDataParallel(model)
    fewer = BalancedLoader(range(100), GLOBAL_BATCH, rank=0, world_size=1)
    module = sys.modules["paceline.torch.setup_checks"]
    errors = []

    def refuse(call):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            call()
        errors.append(str(caught.value))

    refuse(lambda: attach(ddp, fewer))
    refuse(lambda: attach(ddp, loader, workers=["a", "a"]))
    refuse(lambda: attach(ddp, loader, policy=Policy(lower=0)))
    refuse(lambda: attach(ddp, loader, predictor=NARX(covariates=("temperature",))))
    refuse(lambda: attach(ddp, loader, policy=Policy(warmup=rank)))
    version = module.__version__
    module.__version__ = f"1.{rank}"
    refuse(lambda: attach(ddp, loader))
    module.__version__ = version
    refuse(lambda: attach(ddp, loader, workers=["a", "b"] if rank else None))
    balance = attach(ddp, loader)
    refuse(lambda: balance.scale(torch.ones(()), -1))
    return errors


def copied(rank):
    """Train a while beside a copy of the model, as averaging over iterations does."""
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loader = BalancedLoader(torch.randn(5 * GLOBAL_BATCH, 4), GLOBAL_BATCH)
    attach(model, loader, predictor=EWMA())
    copy = deepcopy(model)
    for inputs in loader:
        model(inputs).sum().backward()
    return copy.module.weight.tolist() == model.module.weight.tolist()


JOBS = (nonsense, other_opinion, lasting_opinion, out_of_memory, measures, driven, short_iterations, refused, copied)


def all_jobs(rank):
    return {job.__name__: job(rank) for job in JOBS}


@pytest.fixture(scope="module")
def ranks():
    """What both ranks of the fleet returned, by job."""
    first, second = run_ranks(2, all_jobs)
    return {name: (first[name], second[name]) for name in first}


def test_training_goes_on_whatever_a_rank_reports(ranks):
    first, second = ranks["nonsense"]
    assert first == second
    assert len(first) == 20
    assert all(sum(sizes) == GLOBAL_BATCH and min(sizes) >= 1 for sizes in first)


def test_differing_rank_adopts_first_plan(ranks):
    (agreed, sizes, warnings), (agreed_too, sizes_too, _) = ranks["other_opinion"]
    assert agreed == agreed_too
    assert agreed.count(False) == 1
    assert sizes != sizes_too
    assert sizes[-10:] == sizes_too[-10:]
    assert "The ranks computed different sizes for iteration" in warnings[0]
    assert len(warnings) == 1


def test_lasting_disagreement_logged_once(ranks):
    (agreed, sizes, warnings), (_, sizes_too, _) = ranks["lasting_opinion"]
    first = agreed.index(False)
    assert not any(agreed[first:])
    assert sizes[:first] == sizes_too[:first]
    assert sizes[first] != sizes_too[first]
    assert sizes[first + 1 :] == sizes_too[first + 1 :]
    (warning,) = warnings
    assert f"different sizes for iteration {first}, " in warning
    assert "later iterations are not affected" in warning


def test_a_rank_that_ran_out_of_memory_gets_less(ranks):
    sizes, _ = ranks["out_of_memory"]
    assert sizes[2] == [12, 12]
    assert sizes[3] == [15, 9]


def test_busy_and_communication_measured(ranks):
    for rank, records in enumerate(ranks["measures"]):
        assert [index for index, *_ in records] == list(range(19))
        assert {worker.split(":")[1] for _, worker, *_ in records} == {str(rank)}
        for index, _, sizes, seconds, comm_seconds, forecast_seconds in records:
            assert sizes.sum() == GLOBAL_BATCH
            assert (np.isnan(seconds) | (seconds > 0)).all()
            assert (comm_seconds > 0).all() or index == 0
            assert (forecast_seconds > 0).all()


def test_covariates_are_of_now_then_of_report(ranks):
    (before, now), other = ranks["driven"]
    assert (before[1:], now) == (other[0][1:], other[1])
    assert np.isnan(before[0]).all()
    asked = iter(now)
    assert all(one in asked for one in before[1:]), "a report has the covariates that its forecast had"
    counts = np.array(now)[..., 0] - [0, 100]  # how often each rank's covariate had been sampled
    assert (counts[0] == 1).all()
    # A covariate that takes long, for iterations as short as these, serves for several.
    assert set(np.diff(counts, axis=0).ravel()) <= {0, 1}


def test_short_iterations_are_planned_several_at_once(ranks):
    first, second = ranks["short_iterations"]
    assert first == second
    (every, _, long_sizes), (rarely, _, short_sizes), (_, outliers, _) = first
    assert every >= 199
    assert rarely < 50
    assert outliers < 4, "one slow iteration among others is part of their mean"
    assert long_sizes == short_sizes == [16, 8]


def test_an_attached_model_can_be_copied(ranks):
    assert ranks["copied"] == (True, True)


def test_wrong_use_is_told_with_what_to_do(ranks):
    first, second = ranks["refused"]
    assert first == second
    assert first[:4] == [
        "the loader assigns samples to 1 ranks, but 2 ranks train together: call "
        "torch.distributed.init_process_group() first, or pass rank and world_size to the loader",
        "workers must be 2 different names, one for each rank, got ['a', 'a']",
        "policy.lower must be at least 1 sample, as an empty batch has no mean loss, got 0",
        "none of the covariates that the predictor reads, ['temperature'], is sampled here (sampled: ['cpu_busy', "
        "'run_delay', 'throttled', 'cpu_pressure', 'runnable', 'memory_available', 'memory_pressure']): pass "
        "covariates=[...] with a Covariate of each of these names",
    ]
    assert first[4].startswith("the ranks must agree on the policy, got Policy(warmup=0")
    assert first[5] == "the ranks must agree on the version of paceline, got 1.0 on rank 0, 1.1 on rank 1"
    assert first[6] == "the ranks must agree on the names of the workers, got None on rank 0, ['a', 'b'] on rank 1"
    assert first[7] == "count must be a finite number of at least 0 samples or tokens, got -1"
