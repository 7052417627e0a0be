"""Asynchronous training with torch: real processes on loopback, and what happens when one of them fails."""

import difflib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = 48


def problem(kind="SGD", seed=0, **options):
    """A line through points, its model and its optimizer."""
    import torch

    torch.manual_seed(seed)
    inputs = torch.randn(SAMPLES, 4)
    dataset = torch.utils.data.TensorDataset(inputs, inputs @ torch.tensor([1.0, -2.0, 3.0, 0.5]))
    model = torch.nn.Linear(4, 1)
    return model, getattr(torch.optim, kind)(model.parameters(), **options), dataset


def loss_of(model, inputs, targets):
    return ((model(inputs)[:, 0] - targets) ** 2).mean()


def trained(rank, options=None, optimizer=("SGD", {"lr": 0.05}), seconds=0.0):
    """Train, and return the final parameters, the verdicts, and the largest loss; each rank takes a time of its own."""
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem(optimizer[0], **optimizer[1])
    verdicts = []
    settings = {"batch": 8, "epochs": 6, "on_verdict": [verdicts.append]} | (options or {})
    job = AsyncJob(model, optim, dataset, **settings)
    for inputs, targets in job:
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        time.sleep(seconds * rank)
        job.push()
    told = [(v.worker, v.outcome.name, v.samples, v.staleness) for v in verdicts]
    return [p.detach().numpy().copy() for p in model.parameters()], told


def applied(told):
    counts = Counter()
    for _, outcome, samples, _ in told:
        counts[outcome] += samples
    return counts["APPLIED"] + counts["DAMPED"] + counts["GATHERED"]


SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in ("asp", "ssp", "lb-bsp", "saps-dc")]


@pytest.mark.parametrize("scheme", ["saps", *SOAK])
def test_all_ranks_end_alike_after_all_samples(scheme):
    rate = 0.01 if scheme == "saps-dc" else 0.05  # compensation may diverge where parameters move far meanwhile
    (first, told), (second, _) = run_ranks(2, trained, {"scheme": scheme}, ("SGD", {"lr": rate}), 0.002)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert applied(told) == 6 * SAMPLES
    assert {worker for worker, *_ in told} == {"rank0", "rank1"}


def told_of_epochs(rank, checkpoint, epochs):
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    losses = {}

    def on_epoch(epoch):
        losses[epoch] = loss_of(model, *dataset.tensors).item()

    job = AsyncJob(model, optim, dataset, batch=8, epochs=epochs, on_epoch=on_epoch, checkpoint=checkpoint)
    for inputs, targets in job:
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        job.push()
    return losses, loss_of(model, *dataset.tensors).item()


def test_epochs_told_once_with_parameters(tmp_path):
    path = str(tmp_path / "run.safetensors")
    (losses, final), (none, _) = run_ranks(2, told_of_epochs, path, 4)
    assert list(losses) == [1, 2, 3, 4]
    assert none == {}
    assert losses[4] == pytest.approx(final)
    assert losses[4] < losses[1]
    (losses, _), _ = run_ranks(2, told_of_epochs, path, 6)
    assert list(losses) == [5, 6]


@pytest.mark.soak
def test_bsp_equals_one_process():
    for optimizer in (("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {"lr": 0.05, "weight_decay": 0.1})):
        (found, _), _ = run_ranks(2, trained, {"scheme": "bsp", "batch": SAMPLES // 2}, optimizer)
        model, optim, dataset = problem(optimizer[0], **optimizer[1])
        for _ in range(6):
            optim.zero_grad()
            loss_of(model, *dataset.tensors).backward()
            optim.step()
        for ours, theirs in zip(found, model.parameters(), strict=True):
            assert ours == pytest.approx(theirs.detach().numpy(), rel=1e-4, abs=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_gradients_may_travel_in_half_the_bits(wire):
    (found, _), _ = run_ranks(2, trained, {"wire": wire, "epochs": 20})
    weights, _ = found
    assert weights[0] == pytest.approx([1.0, -2.0, 3.0, 0.5], abs=0.1)


def killed(rank):
    if rank == 2:
        import torch

        held = torch.Tensor.backward

        def dies(*arguments, **options):
            dies.calls += 1
            if dies.calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return held(*arguments, **options)

        dies.calls = 0
        torch.Tensor.backward = dies
    return trained(rank, {"epochs": 10}, seconds=0.001)


def test_killed_worker_samples_are_applied():
    outcomes = outcomes_of(3, killed)
    assert [outcome.exitcode for outcome in outcomes[:2]] == [0, 0], outcomes
    assert outcomes[2].exitcode == -signal.SIGKILL
    (first, told), (second, _) = (outcome.value for outcome in outcomes[:2])
    assert applied(told) == 10 * SAMPLES
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def pushing_nan(rank, times):
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    verdicts, bad = [], times if rank == 1 else 0
    job = AsyncJob(model, optim, dataset, batch=8, epochs=6, on_verdict=[verdicts.append])
    for inputs, targets in job:
        optim.zero_grad()
        (loss_of(model, inputs, targets) * (float("nan") if bad > 0 else 1.0)).backward()
        bad -= 1
        time.sleep(0.005 * (rank == 0))
        job.push()
    told = [(v.worker, v.outcome.name, v.samples, v.staleness) for v in verdicts]
    return bool(np.isfinite(job.flat.parameters).all()), told


def test_nan_gradient_refused_samples_reassigned():
    (finite, told), (other_finite, _) = run_ranks(2, pushing_nan, 2)
    assert finite
    assert other_finite
    assert [worker for worker, outcome, *_ in told if outcome == "REFUSED"] == ["rank1", "rank1"]
    assert applied(told) == 6 * SAMPLES


@pytest.mark.soak
def test_nan_worker_stops_other_finishes():
    good, bad = outcomes_of(2, pushing_nan, 10**9)
    assert "last 5 gradients of this worker were refused" in bad.error
    finite, told = good.value
    assert finite
    assert applied(told) == 6 * SAMPLES


def misbehaving(rank):
    import torch

    from paceline.coordinator.asynchronous import StepToken
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    reasons = []
    job = AsyncJob(
        model, optim, dataset, batch=8, epochs=20, on_verdict=[lambda verdict: reasons.append(verdict.reason)]
    )
    if rank == 1:
        link, good = job.link, torch.zeros(5)
        link.pull()  # as long as it holds samples, the others cannot end the training without it
        link.push(StepToken(99, 99), good, 8, 0.1, 0.0)  # from the future
        work = link.pull()
        link.push(work.stamp, torch.zeros(7), len(work.assigned), 0.1, 0.0)  # too long
        work = link.pull()
        link.push(work.stamp, good, len(work.assigned), 0.1, 0.0)
        link.pull()
        link.push(work.stamp, good, len(work.assigned), 0.1, 0.0)  # twice
    for inputs, targets in job:
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        time.sleep(0.02 * (rank == 0))
        job.push()
    return bool(np.isfinite(job.flat.parameters).all()), [reason for reason in reasons if reason]


def test_invalid_pushes_refused_one_by_one():
    (finite, reasons), _ = run_ranks(2, misbehaving)
    assert finite
    # On a busy machine further steps may be given up meanwhile, which is no refusal of a push that was wrong.
    refused = [reason for reason in reasons if "given up" not in reason]
    assert [re.sub(r"\d+|\(.*?\)", "N", reason) for reason in refused] == [
        "its stamp N is from the future; the version is N",
        "its shape is N, but that of the parameters is N",
        "its stamp N is not that of a step under way; did it push twice?",
    ]


def server_dies(rank):
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    job = AsyncJob(model, optim, dataset, batch=8, epochs=1000)
    for number, (inputs, targets) in enumerate(job):
        if rank == 0 and number == 5:
            os._exit(3)
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        job.push()


@pytest.mark.soak
def test_dead_server_ends_workers_with_advice():
    server, worker = outcomes_of(2, server_dies)
    assert server.exitcode == 3
    assert worker.exitcode == 1
    assert "LostServerError: the server on rank 0 does not answer" in worker.error


def resumed(rank, path):
    _, told_first = trained(rank, {"epochs": 2, "checkpoint": path, "scheme": "bsp", "batch": 24})
    second, told_second = trained(rank, {"epochs": 4, "checkpoint": path, "scheme": "bsp", "batch": 24})
    return second, applied(told_first), applied(told_second)


@pytest.mark.soak
def test_job_resumes_from_checkpoint(tmp_path):
    (found, before, after), _ = run_ranks(2, resumed, str(tmp_path / "run.safetensors"))
    assert (before, after) == (2 * SAMPLES, 2 * SAMPLES)
    (straight, _), _ = run_ranks(2, trained, {"epochs": 4, "scheme": "bsp", "batch": 24})
    for ours, theirs in zip(found, straight, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def hanging(rank, scheme):
    import logging

    from paceline.parameter_server import AsyncJob

    said = []
    logging.getLogger("paceline.asynchronous").addFilter(lambda record: said.append(record.getMessage()) or True)
    model, optim, dataset = problem("SGD", lr=0.05)
    job = AsyncJob(model, optim, dataset, batch=8, epochs=3, scheme=scheme, patience=0.3)
    for inputs, targets in job:
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        if rank == 1:  # at its first batch: where the machine is busy, others may take all further ones
            os.kill(os.getpid(), signal.SIGSTOP)
        job.push()
    return job.service.server.is_finished, said


@pytest.mark.parametrize("scheme", ["saps", pytest.param("asp", marks=pytest.mark.soak)])
def test_hanging_worker_does_not_block_rank_0(scheme):
    good, hung = outcomes_of(2, hanging, scheme, within=15)
    assert hung.exitcode is None
    assert (good.error, good.exitcode) == ("", 0), good
    finished, said = good.value
    assert finished
    assert any("rank1 did not fetch the final parameters" in one for one in said), said


def normalized(rank, samples, batch, scheme, slow):
    """Train a model that normalizes over batches; return the smallest step, and what was applied."""
    import torch

    from paceline.parameter_server import AsyncJob

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optim = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(samples, 4)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1))
    verdicts, sizes = [], []
    with pytest.warns(UserWarning, match="buffers"):
        job = AsyncJob(model, optim, dataset, batch=batch, epochs=3, scheme=scheme, on_verdict=[verdicts.append])
    for inputs, targets in job:
        optim.zero_grad()
        loss_of(model, inputs, targets).backward()
        time.sleep(slow * rank)
        sizes.append(len(inputs))
        job.push()
    return min(sizes, default=2), applied([(v.worker, v.outcome.name, v.samples, v.staleness) for v in verdicts])


@pytest.mark.parametrize(("samples", "batch", "scheme"), [(67, 8, "saps"), (67, 10, "asp"), (35, 4, "bsp")])
def test_batch_norm_never_gets_one_sample(samples, batch, scheme):
    (least, done), (other, _) = run_ranks(2, normalized, samples, batch, scheme, 0.01)
    assert min(least, other) >= 2
    assert done == 3 * samples


def asking_late(rank):
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    job = AsyncJob(model, optim, dataset, batch=8, epochs=2)
    for inputs, targets in job:
        loss_of(model, inputs, targets).backward()
        job.push()
        assert not job.is_abandoned(), "no step is under way"
        if rank == 1:
            raise KeyError("after a push")
    return True


@pytest.mark.soak
def test_leave_before_answer_blocks_no_rank():
    other, left = outcomes_of(2, asking_late)
    assert other.value is True
    assert "KeyError: 'after a push'" in left.error


def leaving_twice(rank):
    from paceline.parameter_server import AsyncJob

    model, optim, dataset = problem("SGD", lr=0.05)
    job = AsyncJob(model, optim, dataset, batch=8, epochs=2)
    for inputs, targets in job:
        loss_of(model, inputs, targets).backward()
        job.push()
        if rank == 1:
            break
    job.close()
    job.close()
    with pytest.raises(RuntimeError, match="create a new AsyncJob"):
        next(iter(job))
    return True


def test_break_and_repeated_close():
    assert run_ranks(2, leaving_twice) == [True, True]


def other_model(rank):
    import torch

    from paceline.parameter_server import AsyncJob

    _, _, dataset = problem("SGD", lr=0.05)
    model = torch.nn.Linear(4, 1, bias=rank == 0)
    job = AsyncJob(model, torch.optim.SGD(model.parameters(), lr=0.05), dataset, batch=8, epochs=2)
    for inputs, targets in job:
        loss_of(model, inputs, targets).backward()
        job.push()
    return True


@pytest.mark.soak
def test_rank_with_other_model_refused():
    good, bad = outcomes_of(2, other_model)
    assert good.value is True
    assert "the model of this rank has 4 parameters and that of rank 0 5" in bad.error


@pytest.mark.slow
def test_a_checkpoint_of_another_optimizer_is_refused():
    from paceline.parameter_server import TorchOptimizer

    first, second = (TorchOptimizer(*problem(kind, lr=0.1)[:2]) for kind in ("AdamW", "SGD"))
    first.step(first.flat.parameters, np.ones(5, dtype=np.float32), 1.0, 0)
    with pytest.raises(ValueError, match="with the optimizer AdamW, but this one is SGD"):
        second.load_state_dict(first.state_dict())


@pytest.mark.checkout
def test_example_changes_about_ten_lines():
    before, after = (
        (EXAMPLES / f"async_{name}.py").read_text("utf-8").splitlines()[1:] for name in ("before", "after")
    )
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- ")) and line.strip("+- ")]
    assert len([line for line in changes if line.startswith("+ ")]) <= 10


@pytest.mark.soak
@pytest.mark.checkout
def test_example_learns_digits_on_every_rank():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    script = str(EXAMPLES / "async_after.py")
    ran = subprocess.run([*command, script], capture_output=True, text=True, timeout=200, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = re.findall(r"([\d.]+)% of the digits are recognized", ran.stdout)
    assert len(found) == 2, ran.stdout
    assert min(map(float, found)) > 93
