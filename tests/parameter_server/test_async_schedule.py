"""Schedulers at an asynchronous server: the rates of a single process, exactly, also after a restart."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import outcomes_of, run_ranks
from test_async_torch import SAMPLES, loss_of, problem

BATCH = 8

OPTIMIZERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.05, "amsgrad": True},
    "AdamW": {"lr": 0.05, "weight_decay": 0.1},
    "Adamax": {"lr": 0.05},
    "NAdam": {"lr": 0.05},
    "RAdam": {"lr": 0.05},
    "Adagrad": {"lr": 0.05, "lr_decay": 0.01},
    "Adadelta": {"lr": 0.5},
    "ASGD": {"lr": 0.05},
    "RMSprop": {"lr": 0.05, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.05},
    "Adafactor": {"lr": 0.05},
}


def halves(step):
    return 0.5 ** (step // 7)


def schedulers():
    from torch.optim import lr_scheduler as of

    def chained(optim):
        return of.ChainedScheduler([of.LinearLR(optim, total_iters=5), of.ExponentialLR(optim, 0.95)])

    def one_after_the_other(optim):
        return of.SequentialLR(optim, [of.LinearLR(optim, total_iters=5), of.CosineAnnealingLR(optim, 20)], [5])

    return {
        "one cycle": lambda optim: of.OneCycleLR(
            optim, max_lr=0.4, total_steps=24, cycle_momentum=bool({"momentum", "betas"} & set(optim.defaults))
        ),
        "cosine": lambda optim: of.CosineAnnealingLR(optim, 10),
        "restarts": lambda optim: of.CosineAnnealingWarmRestarts(optim, 4),
        "steps": lambda optim: of.StepLR(optim, 3, 0.5),
        "milestones": lambda optim: of.MultiStepLR(optim, [2, 9], 0.1),
        "lambda": lambda optim: of.LambdaLR(optim, halves),
        "factors": lambda optim: of.MultiplicativeLR(optim, lambda step: 0.97),
        "polynomial": lambda optim: of.PolynomialLR(optim, total_iters=20),
        "cyclic": lambda optim: of.CyclicLR(optim, 0.01, 0.3, step_size_up=3, cycle_momentum=False),
        "chained": chained,
        "one after the other": one_after_the_other,
        "own": Own,
    }


class Own:
    """Decay of weights by steps, which no learning rate tells of."""

    def __new__(cls, optim):
        from torch.optim.lr_scheduler import LambdaLR

        class Decay(LambdaLR):
            def step(self, epoch=None):
                super().step(epoch)
                for group in self.optimizer.param_groups:
                    group["weight_decay"] = 0.01 * self.last_epoch

        return Decay(optim, lambda step: 1.0)


KINDS = ["one cycle", "cosine", "restarts", "steps", "milestones", "lambda", "factors", "polynomial", "cyclic"]
KINDS += ["chained", "one after the other", "own"]


def scheduler_of(kind, optim):
    return schedulers()[kind](optim)


def made(optimizer, kind, tick):
    from paceline.parameter_server import TorchOptimizer

    model, optim, _ = problem(optimizer, **OPTIMIZERS[optimizer])
    scheduler = scheduler_of(kind, optim)
    return TorchOptimizer(model, optim, scheduler, tick), model, optim, scheduler


@given(
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    kind=st.sampled_from(KINDS),
    every=st.integers(1, 3),
    restarts=st.lists(st.integers(0, 23), max_size=3),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, derandomize=True, deadline=None)
@pytest.mark.slow
def test_server_steps_equal_one_process(optimizer, kind, every, restarts, seed):
    import torch

    ours, model, optim, scheduler = made(optimizer, kind, BATCH * every)
    rng = np.random.default_rng(seed)
    parameters = ours.flat.parameters.copy()
    for step in range(24):
        gradient = rng.standard_normal(5).astype(np.float32)
        if step in restarts:  # what was saved at some time, into an optimizer that has gone on
            state = {name: value.copy() for name, value in ours.state_dict().items()}
            ours = made(optimizer, kind, BATCH * every)[0]
            ours.load_state_dict(state)
        ours.step(parameters, gradient, 1.0, BATCH * step)
        for parameter, part in zip(model.parameters(), np.split(gradient, [4]), strict=True):
            parameter.grad = torch.from_numpy(part.copy()).view(parameter.shape)
        optim.step()
        if (step + 1) % every == 0:
            scheduler.step()
        theirs = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
        assert (parameters == theirs).all(), f"step {step}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_older_state_steps_at_its_rates(kind):
    ours, *_ = made("SGD", kind, BATCH)
    rates = []
    for step in [*range(12), *range(12)]:
        ours.step(ours.flat.parameters, np.zeros(5, np.float32), 1.0, BATCH * step)
        rates.append(ours.optimizer.param_groups[0]["lr"])
    assert rates[:12] == rates[12:]


def test_short_cycle_keeps_last_rate():
    ours, *_ = made("SGD", "one cycle", BATCH)
    ours.step(ours.flat.parameters, np.zeros(5, np.float32), 1.0, 100 * BATCH)
    assert ours.optimizer.param_groups[0]["lr"] < 1e-4


def trained(rank, stepped="at the server", restart="", scheme="bsp"):
    """Train under a one-cycle schedule; return the final parameters and the rates used, as rank 0 sees them."""
    from torch.optim.lr_scheduler import OneCycleLR

    from paceline.parameter_server import AsyncJob

    rates = []
    for epochs in (2, 4) if restart else (4,):
        model, optim, dataset = problem("SGD", lr=0.05, momentum=0.9)
        scheduler = OneCycleLR(optim, max_lr=0.1, total_steps=4 * SAMPLES // BATCH + 1)
        given = {"schedule": scheduler} if stepped == "at the server" else {"schedule": lambda applied: 1.0}
        job = AsyncJob(
            model, optim, dataset, batch=BATCH, epochs=epochs, scheme=scheme, checkpoint=restart or None, **given
        )
        for inputs, targets in job:
            optim.zero_grad()
            loss_of(model, inputs, targets).backward()
            job.push()
            if stepped == "in the loop":
                scheduler.step()
            if job.service:
                rates.append(job.service.server.store.optimizer.optimizer.param_groups[0]["lr"])
    return [p.detach().numpy().copy() for p in model.parameters()], rates


def test_one_cycle_schedule_resumes(tmp_path):
    ((straight, rates),) = run_ranks(1, trained)
    ((resumed, _),) = run_ranks(1, trained, "at the server", str(tmp_path / "run.safetensors"))
    assert max(rates) == pytest.approx(0.1, rel=0.01)
    assert rates[-1] < 0.01 * max(rates)
    assert all((one == other).all() for one, other in zip(straight, resumed, strict=True))


def test_scheduler_stepped_in_loop_refused():
    for outcome in outcomes_of(2, trained, "in the loop"):
        assert "RuntimeError: the optimizer changed (lr from" in outcome.error
        assert "as schedule=" in outcome.error


def test_scheduler_not_passed_refused():
    from paceline.parameter_server import TorchOptimizer

    model, optim, _ = problem("SGD", lr=0.1)
    scheduler_of("cosine", optim)
    with pytest.raises(ValueError, match=r"this optimizer has a scheduler.*as schedule="):
        TorchOptimizer(model, optim)


def mistakes():
    import torch

    model, optim, _ = problem("SGD", lr=0.1)
    _, other, _ = problem("SGD", lr=0.1)
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, optim)
    hooked = problem("SGD", lr=0.1)
    hooked[1].register_step_pre_hook(lambda *_: None)
    return [
        (model, optim, plateau(), "ReduceLROnPlateau follows a metric"),
        (model, optim, scheduler_of("cosine", other), "got one of another"),
        (model, optim, "cosine", "must be a torch LRScheduler or a function, got str"),
        (hooked[0], hooked[1], None, "hooks on its step"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_unfollowable_optimizers_refused(number):
    from paceline.parameter_server import TorchOptimizer

    model, optim, schedule, said = mistakes()[number]
    with pytest.raises(ValueError, match=said):
        TorchOptimizer(model, optim, schedule, 8)
    if schedule is None or isinstance(schedule, str):
        return
    model, optim, _ = problem("SGD", lr=0.1)
    with pytest.raises(ValueError, match="samples_per_schedule_step must be at least 1"):
        TorchOptimizer(model, optim, scheduler_of("cosine", optim))


def step_of(kind, scale):
    """The twentieth step along a gradient that stays as it is: the first ones of RAdam are of another kind."""
    import torch

    place = torch.zeros(1, 1, requires_grad=True)
    optimizer = getattr(torch.optim, kind)(
        [place], **{name: value for name, value in OPTIMIZERS[kind].items() if name != "weight_decay"}
    )
    for _ in range(20):
        before = place.item()
        place.grad = torch.full_like(place, scale)
        optimizer.step()
    return place.item() - before


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_linear_optimizers_recognized(kind):
    from paceline.parameter_server import TorchOptimizer

    model, optimizer, _ = problem(kind, **OPTIMIZERS[kind])
    grows = step_of(kind, 4.0) == pytest.approx(4 * step_of(kind, 1.0))
    assert TorchOptimizer(model, optimizer).is_linear == grows
