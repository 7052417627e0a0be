"""Scripts whose gradients are made by a rule, so that their verdict is known: an audit of them takes milliseconds."""

import zlib
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from paceline.audit.run import AuditRun, RankRecord, Sample, StepRecord

VALUES = 6


@dataclass
class Made:
    """A script of some ranks, each with so many micro-batches a step; ``rule`` makes gradients of what they hold.

    The rule gets the micro-batches, ``[micro][rank]``, lists of samples, and the state that is carried from step to
    step; it returns the gradient, or one for each rank.
    """

    rule: object
    ranks: int = 2
    micro: int = 1
    size: int = 4
    steps: int = 3
    seed: int = 0
    facts: dict = field(default_factory=dict)
    step_facts: dict = field(default_factory=dict)
    stream: str = "data"
    spoilt: object = None
    alone: bool = True
    balanced: int = 0
    runs: int = 0

    def sample(self, ref):
        """A sample's gradient, counts and hidden weight."""
        return _sample(self.seed, tuple(ref) if isinstance(ref, list) else ref)

    def __call__(self, plan, alone):
        self.runs += 1
        if alone and not self.alone:
            return AuditRun([], error="it needs two ranks")
        ranks = 1 if alone else self.ranks
        found = self.run(plan, ranks)
        return found if self.spoilt is None else self.spoilt(self.runs, plan, alone, found)

    def run(self, plan, ranks):
        """Take the steps of a plan."""
        start = {"first": np.ones(VALUES - 2), "last": np.ones(2)}
        kind = [{"global_batch": self.balanced, "accumulate": 1, "steps": 50, "candidates": self.candidates()}]
        facts = self.facts | ({"balanced": kind} if self.balanced else {})
        records = [
            RankRecord(rank, ranks, {}, dict(start), [], {"dtypes": [plan.precision], **facts}) for rank in range(ranks)
        ]
        state, moved = {}, [np.zeros(VALUES) for _ in range(ranks)]
        for step in range(plan.steps):
            batches = self.of_loader(plan, step, ranks) if self.balanced else self.of_step(plan, step, ranks, records)
            gradient = self.rule([[list(map(self.sample, refs)) for refs in row] for row in batches], state)
            each = gradient if isinstance(gradient, list) else [gradient] * ranks
            for rank, record in enumerate(records):
                moved[rank] = moved[rank] - (0.0 if plan.frozen_parameters else 0.1) * each[rank]
                said = {**self.step_facts, "sizes": [[len(refs) for refs in batches[0]]]}
                delivered = {"balanced loader 0": step + 1} if self.balanced else {self.stream: (step + 1) * self.micro}
                record.steps.append(StepRecord(delivered, apart(each[rank]), added(start, moved[rank]), said))
        return AuditRun(records, folder="here")

    def of_step(self, plan, step, ranks, records):
        """The samples of a step's micro-batches, which are noted on the records."""
        given, found = (plan.arrangement or {}).get(self.stream, []), []
        for number in range(step * self.micro, (step + 1) * self.micro):
            own = [[(rank, number, place) for place in range(self.size)] for rank in range(ranks)]
            found.append(given[number] if number < len(given) else own)
            for record, refs in zip(records, found[-1], strict=True):
                known = [Sample(zlib.crc32(repr(ref).encode()), self.sample(ref)["counts"]) for ref in refs]
                record.streams.setdefault(self.stream, []).append(known)
        return found

    def of_loader(self, plan, step, ranks):
        """The samples of a balanced loader's step, whose ranks may get different numbers of them."""
        told = plan.balanced
        numbers = np.arange(step * self.balanced, (step + 1) * self.balanced) % 64
        if told and told.seed:
            numbers = np.random.default_rng([told.seed, step]).permutation(numbers)
        if told and step < len(told.step_samples):
            numbers = np.array(told.step_samples[step])
        uneven = np.arange(1, ranks + 1) + step % 2 if told and told.uneven_sizes else np.ones(ranks)
        ends = np.rint(np.cumsum(uneven) / uneven.sum() * self.balanced).astype(int)
        return [[part.tolist() for part in np.split(numbers, ends[:-1])]]

    def candidates(self):
        """Numbers and sizes of the samples that a balanced loader is looked at for."""
        return [(number, self.sample(number)["counts"]) for number in range(8)]


@cache
def _sample(seed, ref):
    chance = np.random.default_rng([seed, zlib.crc32(repr(ref).encode())])
    tokens = int(chance.integers(100, 400))
    counts = {"tokens": tokens, "labels": 400, "labels that count": int(chance.integers(50, tokens))}
    return {"ref": ref, "vector": chance.normal(size=VALUES), "counts": counts, "weight": chance.uniform(1, 3)}


def apart(vector):
    """A gradient by the names of its parameters."""
    return {"first": vector[: VALUES - 2].copy(), "last": vector[VALUES - 2 :].copy()}


def added(start, moved):
    """The parameters after they moved."""
    return {name: start[name] + part for name, part in apart(moved).items()}


# -- rules: the gradient of a step -----------------------------------------------------------------------------------


def mean_of(of_batch):
    """A rule that averages the gradients of batches over ranks and micro-batches."""

    def rule(batches, state):
        return np.mean([[of_batch(samples) for samples in row] for row in batches], axis=(0, 1))

    return rule


def weighted(weight):
    """The gradient of a batch: a mean of its samples with these weights."""

    def of_batch(samples):
        weights = [weight(one) for one in samples]
        return np.sum([w * one["vector"] for w, one in zip(weights, samples, strict=True)], axis=0) / sum(weights)

    return of_batch


def vectors(samples):
    """The gradients of a batch's samples."""
    return np.array([one["vector"] for one in samples])


EXACT = mean_of(lambda samples: vectors(samples).mean(axis=0))
SUMS = mean_of(lambda samples: vectors(samples).sum(axis=0))


def coupled(samples):
    """The gradient of a batch whose rows see each other."""
    mean = vectors(samples).mean(axis=0)
    return mean * np.abs(mean)


def by_place(weights, axis):
    """A rule by which ranks (axis 1) or micro-batches (axis 0) count by these weights."""

    def rule(batches, state):
        means = np.array([[vectors(samples).mean(axis=0) for samples in row] for row in batches])
        along = np.array(weights[: means.shape[axis]]).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        return (means * along).mean(axis=(0, 1))

    return rule


def over_all_tokens(batches, state):
    """A sum over the tokens of all ranks, which a balanced job weights by the ranks' sizes nevertheless."""
    (row,) = batches
    weight = [[one["counts"]["tokens"] for one in samples] for samples in row]
    parts = [np.average(vectors(samples), axis=0, weights=w) * sum(w) for samples, w in zip(row, weight, strict=True)]
    shares = [len(samples) * len(row) / sum(map(len, row)) for samples in row]
    return np.sum([share * part for share, part in zip(shares, parts, strict=True)], axis=0) / sum(map(sum, weight))


def of_ranks(of_batch, weight):
    """A rule of a balanced job: what a rank's batch gives, times a weight by its size and the global batch."""

    def rule(batches, state):
        (row,) = batches
        total = sum(map(len, row))
        return np.sum([weight(len(samples), total, len(row)) * of_batch(samples) for samples in row], axis=0)

    return rule
