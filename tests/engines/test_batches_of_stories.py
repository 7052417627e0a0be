"""What is said of every pass in long stories of loops that fetch, skip, copy, repeat and mix batches: kept results."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kept import require_kept

from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition

KEPT = Path(__file__).with_name("batches_of_stories.json")
STORIES, STEPS = 40, 16


class Story:
    """A loop that does something else at every step; the memory of its tensors is used once."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.handed = Handed(seed % 2, 12, counts=seed % 3 == 0, behind=self.behind)
        self.recognitions = [Recognition() for _ in range(1 + seed % 2)]
        self.layout, self.columns = seed % 5, self.chance.choice([2, 3])
        self.memory, self.held, self.made, self.fetched = [], [], [], 0
        self.table = self.tensor(5, self.columns)

    def tensor(self, *shape):
        found = torch.zeros(shape)
        self.memory.append(found.untyped_storage())
        return found

    def behind(self, tensors):
        return [SimpleNamespace(turn=turn) for one in tensors for made, turn in self.made if one is made]

    def fetch(self):
        self.fetched += 1
        sizes = np.array([self.chance.choice([1, 2, 3] if self.layout < 3 else [2, 4, 6]), 3])
        samples = int(sizes[self.handed.rank])
        batch = [self.tensor(samples, self.columns), self.tensor(samples)]
        facts = RankBatch(sizes, self.fetched / 100, self.fetched / 50, features=(self.fetched,))
        self.handed.add(sizes, facts if self.chance.random() < 0.8 else None, batch)
        self.held.append((samples, batch))

    def inputs(self):
        """Return what a model is given: a batch, part of one, a copy, what was made of one, or data from elsewhere."""
        samples, batch = self.chance.choice(self.held[-4:])
        rows, copy = self.chance.choice([1, 2, 5, 7]), self.tensor(samples, self.columns)
        if self.layout == 1:
            copy = self.tensor(self.columns, samples)
        if self.layout == 2:
            copy = self.tensor(3 * samples)
        choices = [
            lambda: [batch[0]],
            lambda: [copy],
            lambda: [copy, self.tensor(samples)],
            lambda: [batch[0][:, 1:], batch[1]],
            lambda: [batch[0][:1]],
            lambda: [batch[0], self.tensor(rows, self.columns)],
            lambda: [copy, self.table],
            lambda: [self.table, copy],
            lambda: [self.chance.choice(self.held)[1][0], batch[1]],
            lambda: [self.tensor(rows, self.columns)],
            lambda: [],
            lambda: [self.made[-1][0]] if self.made else [copy],
            lambda: [self.made[-1][0].detach(), copy] if self.made else [copy],
        ]
        return self.chance.choice(choices[:4] if self.chance.random() < 0.5 else choices)()

    def compute(self):
        given, handed = self.inputs(), self.handed
        named = {"mask": given.pop()} if len(given) > 1 and self.chance.random() < 0.3 else {}
        turn = handed.given(handed.look(given, named), self.chance.choice(self.recognitions))
        flags = [handed.fresh, handed.guessed, handed.disordered, handed.whole, turn.known, handed.turn is turn]
        told = "".join(letter if flag else "-" for letter, flag in zip("fgdwko", flags, strict=True))
        if self.chance.random() < 0.7:
            handed.note(turn, [*given, *named.values()])
            made = self.tensor(turn.samples, 4).requires_grad_() * 1.0
            self.memory.append(made.untyped_storage())
            self.made.append((made, turn))
            handed.note(turn, [made], made=True)
        numbers = [turn.samples, turn.share, turn.part, turn.total, *turn.features, handed.beside, handed.in_flight]
        return told + "".join(f" {number:.3g}" for number in numbers)

    def told(self):
        found = []
        for _ in range(STEPS):
            while not self.held or self.chance.random() < 0.4:
                self.fetch()
            if len(self.held) > 1 and self.chance.random() < 0.3:
                self.held.pop(self.chance.randrange(len(self.held)))
            if self.chance.random() < 0.05:
                self.handed.clear()
            found.append(self.compute())
        sizes = self.handed.sizes
        return [*found, None if sizes is None else sizes.tolist()]


@pytest.mark.slow
def test_what_is_said_of_every_pass_stays():
    require_kept(KEPT, "stories", [Story(seed).told() for seed in range(STORIES)])
