"""Loops composed of parts at random: each is a small job that runs balanced, and alone on the same global batches."""

import random
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from job import FREE, Job, Restless, Samples, Sequences, sharded
from torch.nn.parallel import DistributedDataParallel
from verdicts import SHAPES, Shape

from paceline.predictors import Forecast
from paceline.torch import attach, gather_rows

PARTS = {
    "kind": ["samples", "tokens", "scaled", "plain sum", "own loader"],
    "rows": ["as they are", "concatenated", "graphs", "views", "parts", "random parts", "time first"],
    "sizes": ["restless", "steady"],
    "workers": [0, 1],
    "accumulate": [1, 2, 3, "micro-batches"],
    "accumulation is said": [True, False],
    "summed": ["last", "every"],
    "fetch": ["in turn", "before forward", "two ahead", "between passes", "before backward"],
    "second pass": ["none", "same", "noise", "copy"],
    "backward": ["one", "each", "each summed"],
    "inputs": ["as they are", "copied", "changed"],
    "output": ["tensor", "dict", "object", "slots", "loss"],
    "kept in the model": [False, True],
    "dropped": ["no", "to none", "to zero"],
    "skips": [False, True],
    "penalty": ["none", "slope", "parameters"],
    "evaluation": ["none", "without gradients", "evaluation mode", "training mode"],
    "peek": [False, True],
    "clip": [False, True],
    "optimizer": ["sgd", "adam", "scaled"],
    "wrapper": [
        "plain",
        "static graph",
        "views",
        "unused",
        "buckets",
        "forward",
        "sparse",
        "unfrozen later",
        "FSDP1",
        "FSDP2",
        "HSDP",
        "replicate",
    ],
    "models": ["one", "apart", "two"],
    "beside": [False, True],
    "by hand": ["nothing", "steps", "head"],
    "gathers": ["nothing", "scalars", "rows", "rows by torch"],
    "line": ["none"],
}
"""What loops are made of. The first of each is what a plain loop does."""

PLAIN = {name: values[0] for name, values in PARTS.items()}
ENGINES = ("FSDP1", "FSDP2", "HSDP", "replicate")
LINES = {
    "balance.scale(loss, count)": {"line": "scale"},
    "in place of torch.autograd.grad": {"by hand": "backward"},
    "paceline.torch.gather_rows": {"gathers": "rows"},
    "again after requires_grad_(True)": {"wrapper": "plain"},
    "or pass accumulate= a number": {"accumulate": 2},
    "make them part of the model": {"by hand": "nothing"},
    "scale every loss": {"line": "scale"},
    "the optimizer steps on gradients of this rank alone": {"by hand": "backward"},
    "`with balance.accumulating():`": {"summed": "last"},
    "fetch no batch ahead": {"fetch": "in turn"},
}
"""What a refusal tells its reader to write, and the part that does so."""


def mended(parts, error):
    """Return the parts of a loop with the line that a refusal printed; None if it printed none."""
    for line, change in LINES.items():
        if line in error and differs({**parts, **change}) != differs(parts):
            return {**parts, **change}
    return None


def composition(seed, rate=0.3, fixed=None):
    """Return the parts of a loop: most are plain, and some may be fixed."""
    chance = random.Random(seed)
    parts = {
        name: chance.choice(values[1:] or values) if chance.random() < rate else values[0]
        for name, values in PARTS.items()
    }
    if chance.random() < 0.5:  # kinds of losses, rows and engines matter most
        name = chance.choice(("kind", "rows", "wrapper"))
        parts[name] = chance.choice(PARTS[name])
    parts |= fixed or {}
    if parts["kind"] == "own loader":
        parts |= {name: PLAIN[name] for name in ("sizes", "workers", "peek")}
        parts["accumulate"] = 2 if parts["accumulate"] == "micro-batches" else parts["accumulate"]
        parts |= {"models": "one", "gathers": "nothing"}
    if parts["wrapper"] in (*ENGINES, "sparse"):
        parts |= {name: PLAIN[name] for name in ("models", "by hand", "beside", "kept in the model", "dropped")}
        if parts["accumulate"] == "micro-batches" and parts["wrapper"] != "HSDP":  # whose replicas gather apart
            parts["accumulate"] = 2
        parts["optimizer"] = "sgd"
        parts["rows"] = PLAIN["rows"] if parts["wrapper"] == "sparse" else parts["rows"]
        parts["penalty"] = "none" if parts["wrapper"] == "sparse" else parts["penalty"]
        parts["clip"] = parts["clip"] and parts["wrapper"] != "sparse"
        # An engine that gathers parameters waits for all ranks in every pass, and keeps none between two of them.
        parts |= {name: PLAIN[name] for name in ("penalty", "evaluation", "output", "second pass")}
    if parts["rows"] != PLAIN["rows"]:
        parts |= {
            name: PLAIN[name] for name in ("models", "beside", "output", "kept in the model", "penalty", "gathers")
        }
        parts |= {"second pass": "none", "by hand": "nothing", "inputs": "as they are"}
        parts["kind"] = "samples" if parts["kind"] in ("plain sum", "tokens", "own loader") else parts["kind"]
        if parts["rows"] in PIECES:  # ranks have different numbers of them
            parts["evaluation"] = "none"
        if parts["accumulate"] == "micro-batches" or (parts["rows"] in PIECES and parts["wrapper"] in ENGINES):
            parts["rows"] = "views"
    if (
        parts["accumulate"] == "micro-batches"
    ):  # ranks have different numbers of micro-batches, so they cannot gather in each
        parts |= {"gathers": "nothing", "evaluation": "none"}
    if (parts["output"] == "loss" or parts["beside"]) and parts["by hand"] == "head":
        parts["by hand"] = "nothing"
    if parts["by hand"] == "steps" and parts["optimizer"] == "scaled":
        parts["optimizer"] = "sgd"
    if parts["by hand"] == "steps" and (parts["accumulate"] != 1 or parts["kind"] == "own loader"):
        parts["by hand"] = "nothing"
    if parts["beside"]:  # terms of other rows, whose counts differ
        parts |= {"kept in the model": False, "accumulate": 1}
    parts["clip"] = parts["clip"] and parts["wrapper"] != "FSDP1"  # whose norms are those of shards
    if parts["wrapper"] == "static graph" and (parts["penalty"] == "slope" or parts["output"] in ("object", "slots")):
        parts["wrapper"] = "plain"  # torch is as wrong without balancing
    if parts["second pass"] == "none":
        parts["backward"] = "one"
        if parts["fetch"] == "between passes":
            parts["fetch"] = "before backward"
    return parts


PIECES = ("parts", "random parts")


def differs(parts):
    """Return the parts of a loop that are not plain."""
    return {name: value for name, value in parts.items() if value != PLAIN[name]}


class Steady(Restless):
    """A predictor to which every worker has a speed of its own, which stays."""

    def predict(self, *, covariates=None, horizon=1):
        count = len(self.workers)
        return Forecast(np.linspace(1.0, 2.3, count), np.full(count, 1e-3))


class Answer:
    """An output of a class of its own."""

    def __init__(self, rows):
        self.rows = rows


class Slotted:
    """One without a dictionary."""

    __slots__ = ("rows",)

    def __init__(self, rows):
        self.rows = rows


class Network(torch.nn.Module):
    """A small network whose output has the form that the parts say."""

    def __init__(self, inner, parts, loss_of):
        super().__init__()
        self.inner, self.parts, self.loss_of = inner, parts, loss_of
        if parts["wrapper"] == "unused":
            self.spare = torch.nn.Linear(2, 2).double()
        if parts["wrapper"] == "sparse":
            self.table = torch.nn.Embedding(20, 6, sparse=True).double()

    def forward(self, inputs, labels=None, beside=None):
        if self.parts["wrapper"] == "sparse":
            inputs = inputs + self.table((10 * inputs[..., 0].abs()).long().clamp(max=19))
        rows = self.inner(inputs)
        if self.parts["kept in the model"]:
            self.kept = rows
        if labels is not None:
            return self.loss_of(rows, labels)
        if beside is not None:
            return rows, self.inner(beside)
        return {"dict": lambda: {"rows": rows}, "object": lambda: Answer(rows), "slots": lambda: Slotted(rows)}.get(
            self.parts["output"], lambda: rows
        )()


class Ahead:
    """Takes batches from a loader at the moments that the parts say, each with whether it ends a step."""

    def __init__(self, loader, when):
        self.loader, self.batches, self.when, self.waiting = loader, iter(loader), when, []

    def at(self, moment):
        """Fetch, if this is a moment to do so."""
        if moment == self.when or (moment == "before forward" and self.when == "two ahead"):
            wanted = 2 if self.when == "two ahead" else 1
            while len(self.waiting) < wanted and (batch := next(self.batches, None)) is not None:
                self.waiting.append((batch, getattr(self.loader, "step_ends", True)))

    def take(self):
        """Return the next batch."""
        if self.waiting:
            return self.waiting.pop(0)
        batch = next(self.batches)
        return batch, getattr(self.loader, "step_ends", True)

    def skip(self, steps):
        """Leave out batches, each until it ends a step."""
        for _ in range(steps):
            while not self.take()[1]:
                pass


class Composed:
    """A loop made of these parts, against this job."""

    def __init__(self, job, parts):
        self.job, self.parts, self.kind = job, parts, parts["kind"]
        self.terms = self.kind in ("tokens", "own loader")
        self.scaled = self.terms or self.kind == "scaled" or parts["line"] == "scale"
        self.data = Sequences() if self.terms else Samples()
        self.every = parts["accumulate"] if isinstance(parts["accumulate"], int) else 1
        self.k = 1 if self.scaled else self.every
        self.chance = random.Random(job.rank)
        self.counted = 0
        self.heads, self.losses = [], 2 if parts["models"] == "two" else 1
        self.models = self._models()
        self.loader, self.balance = self._attached()
        networks = [model.module if isinstance(model, DistributedDataParallel) else model for model in self.models]
        self.networks = networks
        if parts["by hand"] == "head":
            self.heads = [job.keep(torch.nn.Linear(3, 3).double())]
        kind = torch.optim.Adam if parts["optimizer"] == "adam" else torch.optim.SGD
        groups = (
            [[one.parameters() for one in networks]]
            if parts["models"] == "apart"
            else [[one.parameters()] for one in networks]
        )
        groups += [[head.parameters()] for head in self.heads]
        self.optimizers = [kind([p for parameters in group for p in parameters], lr=0.02) for group in groups]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=parts["optimizer"] == "scaled")
        self.steps = 0

    # -- what there is -----------------------------------------------------------------------------------------------

    def _models(self):
        options = {
            "static graph": {"static_graph": True},
            "views": {"gradient_as_bucket_view": True},
            "unused": {"find_unused_parameters": True},
            "buckets": {"bucket_cap_mb": 0.0002},
        }.get(self.parts["wrapper"], {})

        def made(**sizes):
            network = Network(self.job.network(**sizes), self.parts, self.reduced_loss)
            if self.parts["wrapper"] in ENGINES:
                return sharded(self.job, network, self.parts["wrapper"])
            if self.parts["wrapper"] == "unfrozen later":
                network.inner[0].requires_grad_(False)
                model = self.job.ddp(network, **options)
                network.inner[0].requires_grad_(True)
                return model
            return self.job.ddp(network, **options)

        if self.parts["models"] == "apart":
            return [made(outputs=5), made(inputs=5)]
        return [made() for _ in range(2 if self.parts["models"] == "two" else 1)]

    def _attached(self):
        job, parts, data = self.job, self.parts, self.data
        if self.kind == "own loader":
            return job.own_loader(data), job.scaling(self.models[0])
        settings = {"num_workers": parts["workers"], "global_batch": 24}
        if parts["accumulate"] == "micro-batches" and parts["wrapper"] == "HSDP":
            settings |= {"global_batch": 44, "micro_batch": 2, "drop_last": True}  # ranks of a replica take as many
        elif parts["accumulate"] == "micro-batches":
            settings |= {"micro_batch": 4}
        elif parts["accumulation is said"]:
            settings |= {"accumulate": self.every}
        loader = job.loader(data, **settings)
        predictor = Steady() if parts["sizes"] == "steady" else Restless()
        balance = job.attach(self.models[0], loader, predictor=predictor, policy=FREE)
        for model in self.models[1:]:
            if not job.alone:
                attach(model, loader)
        return loader, balance

    def reduced(self, values, labels):
        """Return the loss of one value for each sample or token, reduced as this kind of loop does."""
        if self.kind == "plain sum":
            return values.sum() * self.job.world_size / 100
        if not self.terms:
            return values.mean()
        counts = (labels >= 0).double()
        total = (values * counts).sum()
        return total / counts.sum().clamp(min=float(bool(self.heads)))  # 0 / 0 where all are ignored, but for heads

    def scale(self, loss, count, times=1):
        """Return a loss with the line that scales it, if the loop has it; several backward passes are their sum."""
        if self.kind == "plain sum" and not self.scaled:
            return self.balance.scale(loss)
        return self.balance.scale(loss * (1 if self.job.alone else times), count) if self.scaled else loss

    def count(self, labels):
        """Return how many samples or tokens the loss of a batch is a mean over."""
        return (labels >= 0).sum() if self.terms else len(labels)

    def reduced_loss(self, rows, labels):
        targets = labels if not self.terms else 1.0
        return self.reduced((rows - targets).square().sum(-1), labels)

    # -- one pass ----------------------------------------------------------------------------------------------------

    def computed(self, model, inputs):
        return model.forward(inputs) if self.parts["wrapper"] == "forward" else model(inputs)

    def rows(self, inputs, number=0):
        """Return the output of the models as a tensor."""
        out = inputs
        for model in self.models if self.parts["models"] == "apart" else [self.models[number]]:
            out = self.computed(model, out)
            out = out["rows"] if isinstance(out, dict) else getattr(out, "rows", out)
        return out

    def loss(self, inputs, labels, number=0):
        """Return the loss of one forward pass."""
        parts = self.parts
        if parts["rows"] != PLAIN["rows"]:
            return self.loss_of_rows(inputs, labels, number)
        if parts["penalty"] == "slope":
            inputs = inputs.clone().requires_grad_()
        if parts["output"] == "loss" and parts["models"] != "apart":
            loss = self.models[number](inputs, labels)
        elif parts["beside"] and parts["models"] != "apart":
            rows, others = self.models[number](inputs, beside=self.unlabeled(len(labels)))
            loss = self.reduced_loss(rows, labels)
            if self.scaled:  # a mean over both
                first, second = self.count(labels), len(others)
                own = loss * first if first else 0.0 * rows.sum()  # 0 / 0 without terms
                loss = (own + others.square().mean() * second) / (first + second)
                self.counted = first + second
            else:
                loss = loss + others.square().mean()
        else:
            rows = self.rows(inputs, number)
            for head in self.heads:
                rows = head(rows)
            loss = self.reduced_loss(rows, labels)
            self.gather(rows)
            if parts["penalty"] == "slope":
                (slope,) = torch.autograd.grad(rows.sum(), inputs, create_graph=True)
                loss = loss + 0.1 * self.reduced(slope.square().sum(-1), labels)
        if parts["kept in the model"]:
            loss = loss + 0.1 * self.reduced(self.networks[number].kept.square().sum(-1), labels)
        if parts["penalty"] == "parameters" and self.kind != "plain sum":
            loss = loss + 0.01 * sum(p.square().sum() for p in self.networks[number].parameters())
        return loss

    def loss_of_rows(self, inputs, labels, number):
        """Return the loss of inputs whose rows are not this rank's samples."""
        way, model = self.parts["rows"], self.models[number]
        if way == "views":
            return mean(self.computed(model, torch.cat([inputs, -inputs])), torch.cat([labels, -labels]))
        if way in PIECES:
            return mean(self.computed(model, inputs), labels)
        if way == "time first":
            return mean(self.computed(model, torch.stack([inputs, 2 * inputs, 3 * inputs])).mean(0), labels)
        counts = 1 + (inputs[:, 0].abs() * 1000).long() % 4  # rows of each sample
        of = torch.repeat_interleave(torch.arange(len(inputs)), counts)
        place = torch.arange(len(of)) - (counts.cumsum(0) - counts)[of]
        rows = self.computed(model, inputs[of] * (1 + place)[:, None])
        if way == "graphs":  # a loss of samples
            pooled = torch.zeros_like(labels).index_add(0, of, rows)
            return mean(pooled, labels)
        self.counted = len(of)
        return mean(rows, labels[of])

    def unlabeled(self, seed):
        everybody = self.data.inputs[: 5 * dist.get_world_size()]
        return everybody if self.job.alone else everybody[5 * self.job.rank :][:5]

    def gather(self, rows):
        if self.job.alone or self.parts["gathers"] == "nothing":
            return
        if self.parts["gathers"] == "rows":
            gather_rows(rows.detach())
            return
        found = [torch.zeros(1, dtype=torch.float64) for _ in range(self.job.world_size)]
        dist.all_gather(found, rows.detach().sum().reshape(1))
        if self.parts["gathers"] == "rows by torch" and self.steps > 5:
            dist.all_gather([torch.empty_like(rows) for _ in found], rows.detach())

    # -- one batch ---------------------------------------------------------------------------------------------------

    def backward(self, loss, count, times=1):
        """Compute gradients."""
        self.scaler.scale(self.scale(loss / self.k, count, times)).backward()

    def batch(self, batch, ahead, syncs):
        """Compute one batch: one forward pass or two, with a backward pass for both or each."""
        ahead.at("before forward")
        inputs, labels, _ = batch
        if self.parts["inputs"] == "copied":
            inputs = inputs.clone()
        elif self.parts["inputs"] == "changed":
            inputs = 2 * inputs
        for number in range(self.losses):
            self.passes(inputs, labels, ahead, syncs, number)

    def passes(self, inputs, labels, ahead, syncs, number):
        second, way = self.parts["second pass"], self.parts["backward"]
        if self.parts["rows"] in PIECES and not self.job.alone:
            self.pieces(inputs, labels, ahead, syncs, number)
            return
        times = 1 if way == "one" else 2
        with self.syncing(syncs and way != "each"):
            loss = self.loss(inputs, labels, number)
            count = self.counted or self.count(labels)
            if way != "one":
                self.backward(loss, count, times)
        ahead.at("between passes")
        with self.syncing(syncs):
            if second != "none":
                again = {"same": inputs, "noise": inputs + 0.1, "copy": inputs.clone()}[second]
                other = self.loss(again, labels, number)
                loss = loss + other if way == "one" else other
            ahead.at("before backward")
            self.backward(loss, count, times)

    def pieces(self, inputs, labels, ahead, syncs, number):
        """Compute a batch in parts."""
        size = 4 if self.parts["rows"] == "parts" else self.chance.randint(1, len(inputs))
        some = list(zip(inputs.split(size), labels.split(size), strict=True))
        for place, (few, wanted) in enumerate(some, 1):
            with self.syncing(syncs and place == len(some)):
                loss = mean(self.computed(self.models[number], few), wanted)
                ahead.at("before backward")
                self.backward(loss if self.scaled else loss * len(few) / len(inputs), len(few))

    def syncing(self, syncs):
        """The context of a backward pass that sums gradients over the ranks, or not."""
        if self.job.alone or (syncs and self.parts["wrapper"] not in ENGINES):
            return nullcontext()
        if syncs:
            return self.job.no_sync(self.models[0], True)
        return _Stack([self.job.no_sync(model) for model in self.models])

    # -- one step ----------------------------------------------------------------------------------------------------

    def by_hand(self, batch):
        """Take a step's gradients by autograd.grad, and average them over the ranks."""
        inputs, labels, _ = batch
        parameters = [p for network in self.networks for p in network.parameters()]
        loss = sum(self.loss(inputs, labels, number) for number in range(self.losses))
        loss = self.scale(loss, self.counted or self.count(labels))
        if self.parts["by hand"] == "backward":
            loss.backward()
            gradients = [None if one.grad is None else one.grad.clone() for one in parameters]
        else:
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else self.job.all_reduce(gradient) / self.job.world_size

    def stepped(self):
        for head in self.heads:
            for parameter in head.parameters():
                if not self.job.alone:
                    parameter.grad = self.job.all_reduce(parameter.grad) / self.job.world_size
        for optimizer in self.optimizers:
            if self.parts["clip"]:
                self.scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.5)
            self.scaler.step(optimizer)
        self.scaler.update()
        self.zero()

    def zero(self, to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=to_none)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def evaluate(self):
        mode = self.parts["evaluation"]
        if mode == "none" or self.job.alone:
            return
        inputs = self.data.inputs[:7]
        with torch.no_grad() if mode == "without gradients" else nullcontext():
            for model in self.models:
                model.train(mode == "training mode")
            for number in range(self.losses):
                self.rows(inputs, number)
            for model in self.models:
                model.train()

    def run(self):
        """Run the loop."""
        for epoch in range(2):
            if self.kind != "own loader":
                self.loader.set_epoch(epoch)
                if self.parts["peek"]:
                    next(iter(self.loader))
                    self.loader.set_epoch(epoch)
            self.epoch()

    def epoch(self):
        ahead, left = Ahead(self.loader, self.parts["fetch"]), len(self.loader)
        while left:
            self.steps += 1
            count = min(self.every, left)
            left -= count
            if self.parts["skips"] and self.steps % 4 == 2:
                ahead.skip(count)
            elif self.parts["dropped"] != "no" and self.steps % 3 == 1:
                self.dropped(ahead, count)
            elif self.parts["by hand"] in ("steps", "backward") and self.steps % 2:
                self.by_hand(ahead.take()[0])
                self.stepped()
            else:
                self.step(ahead, count)

    def dropped(self, ahead, count):
        """Begin a step, and drop its gradients."""
        if self.job.alone:
            ahead.skip(count)
            return
        batch, ends = ahead.take()
        self.batch(batch, ahead, False)
        self.zero(self.parts["dropped"] == "to none")
        if not ends:
            ahead.skip(1)
        ahead.skip(count - 1)

    def step(self, ahead, count):
        """Train on a step's batches; alone, on their union where terms of all of them count alike."""
        if self.job.alone and self.scaled:
            group = [ahead.take()[0] for _ in range(count)]
            self.batch([torch.cat(column) for column in zip(*group, strict=True)], ahead, True)
        else:
            for number in range(1, count + 1):
                ends = False
                while not ends:
                    batch, ends = ahead.take()
                    self.batch(batch, ahead, ends and (number == count or self.parts["summed"] == "every"))
                    if number == 1:
                        self.evaluate()
        self.stepped()


class _Stack:
    """Several contexts as one."""

    def __init__(self, contexts):
        self.contexts = contexts

    def __enter__(self):
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *about):
        for context in self.contexts:
            context.__exit__(*about)


def mean(outputs, targets):
    """The mean loss over rows."""
    return (outputs - targets).square().sum(-1).mean()


def run_composed(parts):
    """Return a loop of these parts, as the table's loops are."""
    return lambda job: Composed(job, parts).run()


def composed_shapes(module):
    """Return a function that registers a loop of parts among the shapes of a module."""

    def shape(name, verdict="exact", says="", ranks=(2,), **parts):  # names of parts have no spaces here
        run = run_composed(PLAIN | {name.replace("_", " "): value for name, value in parts.items()})
        run.__name__, run.__module__ = name, module
        SHAPES.append(Shape(run, verdict, says, ranks))

    return shape


__all__ = ["PARTS", "PLAIN", "Composed", "Job", "composed_shapes", "composition", "differs", "run_composed"]
