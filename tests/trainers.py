"""What the jobs of all trainers share: data, models, sizes that change in every step, and the run in one process.

Axis: R ranks.
"""

import faulthandler
import gc
import json
import multiprocessing
import os
import socket
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from paceline.coordinator import Policy
from paceline.predictors import Forecast

SAMPLES, GLOBAL_BATCH, EPOCHS, SEED, RATE, NORM = 90, 12, 2, 7, 0.1, 0.5
BATCHES = 8
"""Of an epoch: seven full ones, and one of six samples."""


class Restless:
    """A predictor to which the workers seem to have other speeds in every iteration, the same on every rank."""

    covariate_names = ()
    workers = ()
    seen = 0

    def __repr__(self):
        return "Restless()"

    def reset(self, workers):
        self.workers, self.seen = tuple(workers), 0

    def observe(self, report):
        self.seen += 1

    def state_dict(self):
        return {"seen": np.array(self.seen), "workers": np.array(self.workers, dtype=np.str_)}

    def load_state_dict(self, state):
        self.seen, self.workers = int(state["seen"]), tuple(map(str, state["workers"]))

    def predict(self, *, covariates=None, horizon=1):
        speed = np.random.default_rng(self.seen).uniform(1, 9, len(self.workers))
        return Forecast(speed, np.full(len(self.workers), 0.1))


def restless(**options):
    """Options of ``attach`` with which sizes differ in every iteration."""
    policy = Policy(warmup=0, change_cost=0, risk=0)
    return {"predictor": Restless(), "policy": policy, "timeout": 20, **options}


class Samples(torch.utils.data.Dataset):
    """Samples of 2 to 5 tokens, padded to 5, and their numbers."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(int(index))
        labels = torch.randint(0, 4, (5,), generator=chance)
        labels[: index % 4] = -100
        return {
            "x": torch.randn(5, 6, generator=chance, dtype=torch.float64),
            "labels": labels,
            "number": torch.tensor(index),
        }


class MeanNet(torch.nn.Module):
    """A model whose loss is the mean over the samples of its batch; it remembers which samples it was trained on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = self.build()
        self.seen = []

    def build(self):
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()

    def losses(self, x, labels, number=None):
        if self.training and number is not None:
            self.remember(number)
        return cross_entropy(self.layers(x).flatten(0, 1), labels.flatten(), reduction="none")

    @torch.compiler.disable
    def remember(self, number):
        self.seen.append(number.tolist())

    def forward(self, x, labels, number=None):
        return {"loss": self.losses(x, labels, number).sum() / len(x)}


LENGTHS = [1 + number % 7 for number in range(SAMPLES)]
"""A cost, and the labels that count, of each sample."""


class OwnTokensNet(MeanNet):
    """A model whose loss is the mean over the tokens of its own batch."""

    def forward(self, x, labels, number=None):
        return {"loss": self.losses(x, labels, number).sum() / (labels != -100).sum()}


class TokenNet(MeanNet):
    """A model whose loss is divided by a number of tokens that the Trainer counts on all ranks."""

    accepts_loss_kwargs = True

    def forward(self, x, labels, number=None, num_items_in_batch=None):
        return {"loss": self.losses(x, labels, number).sum() / num_items_in_batch}


class Synchronized(torch.nn.Module):
    """Normalization over the samples of all ranks, as synchronized batch normalization, which needs a GPU, does it."""

    def forward(self, rows):
        from torch.distributed.nn.functional import all_reduce

        flat = rows.flatten(0, -2)
        count = torch.tensor([float(len(flat))], dtype=rows.dtype)
        sums = torch.cat([count, flat.sum(0), flat.square().sum(0)])
        if not alone.running:
            sums = all_reduce(sums)
        mean, square = sums[1 : 1 + flat.shape[1]] / sums[0], sums[1 + flat.shape[1] :] / sums[0]
        return (rows - mean) / (square - mean.square() + 1e-5).sqrt()


class SynchronizedNet(MeanNet):
    def build(self):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(6, 8), Synchronized(), torch.nn.Tanh(), torch.nn.Linear(8, 4)]
        return torch.nn.Sequential(*layers).double()


def weights_of(model):
    full = [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in full])


def shard(plugin):
    """Let Accelerate use FSDP2, or not without a plugin: on a CPU it ignores the plugin by itself."""
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState

    for state in (PartialState(), AcceleratorState()):
        state.distributed_type = DistributedType.FSDP if plugin else DistributedType.MULTI_CPU
    AcceleratorState().fsdp_plugin = plugin


# -- the run in one process ------------------------------------------------------------------------------------------


def alone(net, seen_R, *, by_tokens=False, accumulate=1, of_whole_steps=False, batches=BATCHES, norm=NORM):
    """Train in one process, on the same global batches; return the model and the losses of its steps.

    An epoch's last step may have fewer micro-batches: its loss is their mean, unless a whole step's share is wanted.
    """
    alone.running = True
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), RATE), []
    for step in steps_of(unions_of(seen_R), accumulate, batches):
        parts = accumulate if of_whole_steps else len(step)
        tokens = sum(int((batch["labels"] != -100).sum()) for batch in step)
        shares = [model.losses(**batch).sum() / (tokens if by_tokens else len(batch["x"]) * parts) for batch in step]
        sum(shares).backward()
        if norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sum(shares).detach()))
    alone.running = False
    return model, losses


alone.running = False


def unions_of(seen_R, dataset=None):
    """Return the global batches whose parts all ranks have seen."""
    dataset = dataset or Samples()
    return [
        default_collate([dataset[number] for part in parts for number in part]) for parts in zip(*seen_R, strict=True)
    ]


def steps_of(unions, accumulate, batches=BATCHES):
    """Group the batches of every epoch into steps."""
    for begin in range(0, len(unions), batches):
        epoch = unions[begin : begin + batches]
        yield from (epoch[first : first + accumulate] for first in range(0, len(epoch), accumulate))


# -- on every rank ---------------------------------------------------------------------------------------------------


def seen_by_all(seen):
    """Return the batches of every rank."""
    if not dist.is_initialized():
        return [seen]
    seen_R = [None] * dist.get_world_size()
    dist.all_gather_object(seen_R, seen)
    return seen_R


def uneven(seen_R):
    """Return the share of batches whose ranks had different numbers of samples."""
    return float(np.mean([len({len(part) for part in parts}) > 1 for parts in zip(*seen_R, strict=True)]))


def distance(model, expected):
    """Return how far the parameters of any rank are from those expected."""
    apart = torch.tensor([float((weights_of(model) - weights_of(expected)).abs().max())])
    if dist.is_initialized():
        dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    return float(apart)


def compared(model, seen, net, **options):
    """Return how far a balanced model is from one trained alone, and how many steps that took."""
    seen_R = seen_by_all(seen)
    expected, losses = alone(net, seen_R, **options)
    return {"distance": distance(model, expected), "uneven": uneven(seen_R), "losses": losses, "batches": len(seen)}


def refusal(call):
    """Return what a call is refused with."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError, FileNotFoundError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fork(job, folder, world_size=2):
    """Run ``main(folder)`` of a job on ranks that are forked, so that what takes seconds to import is imported once.

    They find what torchrun would give them; what the first returns is written to ``outcomes.json``, with what
    ``one_device(folder)`` returns in a process of its own, which nobody gave anything.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gc.collect()
    gc.freeze()  # the Trainer collects garbage before every training, and most of what it looks at was imported
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(job, folder, rank, world_size, port)) for rank in range(world_size)]
    ranks.append(context.Process(target=_one_device, args=(job, folder)))
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("".join(path.read_text("utf-8") for path in sorted(folder.glob("said*"))))
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("ranks", "one device")}
    (folder / "outcomes.json").write_text(json.dumps({**found["ranks"], "one device": found["one device"]}))


def _begin(folder, name):
    with (folder / f"said {name}").open("w") as said:
        os.dup2(said.fileno(), sys.stderr.fileno())
    faulthandler.dump_traceback_later(90, exit=True)  # says where a rank hangs
    torch.set_num_threads(1)


def _one_device(job, folder):
    _begin(folder, "one device")
    (folder / "one device.json").write_text(json.dumps(job.one_device(folder / "one device")))


def _rank(job, folder, rank, world_size, port):
    _begin(folder, rank)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    outcomes = job.main(folder)
    if rank == 0:
        (folder / "ranks.json").write_text(json.dumps(outcomes))
    dist.destroy_process_group()
