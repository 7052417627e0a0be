"""Assign an epoch's samples to the ranks, batch after batch, each sample once. Axes: W ranks, F features."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.order import Order, Samples

State = Mapping[str, NDArray[Any]]


class Assigner(ABC):
    """Protocol of an assigner: it says which rank takes which samples. All ranks compute the same and exchange nothing.

    Attributes
    ----------
    rule, rank
        How an epoch is cut into global batches, and the rank whose samples are asked for.
    epoch, batches, digest
        The epoch under way, the batches taken of it, and a checksum of who took what: ranks that assigned alike have
        the same.
    remaining
        Samples of the epoch that are in no batch yet; None where it is unknown.
    coefficients
        Factors by which costs follow from features, ``[F]``; None where samples have no costs.
    min_samples
        Fewest samples of a rank in a batch, where samples have costs.
    """

    remaining: int | None = None
    coefficients: Array | None = None
    min_samples = 1

    def __init__(self, rule: GlobalBatch, rank: int) -> None:
        self.rule, self.rank = rule, rank
        self.epoch = self.batches = self.digest = 0

    @property
    @abstractmethod
    def over(self) -> bool:
        """True if the epoch has no further batch."""

    @abstractmethod
    def start(self, epoch: int) -> None:
        """Begin this epoch."""

    @abstractmethod
    def end(self) -> None:
        """Skip the rest of the epoch."""

    @abstractmethod
    def next(self, shares_W: Sizes, accumulate: int) -> tuple[RankBatch, Any]:
        """Return facts about the next batch at these shares, and this rank's samples, without counting it as taken."""

    @abstractmethod
    def advance(self) -> None:
        """Count the next batch as taken."""

    @abstractmethod
    def check(self, state: State, *, with_rest: bool) -> None:
        """Refuse a state with which the epoch, or the rest of it, cannot go on; change nothing."""

    @abstractmethod
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the epoch."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Move to the place of a saved state, at the start of a loop."""

    def adopt(self, state: State) -> None:
        """Move to the place of another rank, in the middle of a loop."""
        self.load_state_dict(state)

    def features(self, samples: Any) -> tuple[float, ...]:
        """Return the features of the work of samples of this rank; nothing where samples have no costs."""
        return ()

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the order and the rule, by readable names."""
        return {}


class EpochAssigner(Assigner):
    """The place in an epoch of a dataset, how it is saved, and how it is taken up by another number of ranks.

    Attributes
    ----------
    order
        The order of every epoch.
    numbers
        The epoch's samples in their order; the first ``place`` of them are in a batch or in a buffer.
    buffers
        Samples drawn for each rank in advance; empty where batches are cut when they are taken.
    varies
        Whether epochs have different numbers of batches.
    """

    remaining: int
    buffered = varies = False

    def __init__(self, order: Order, rule: GlobalBatch, rank: int) -> None:
        super().__init__(rule, rank)
        self.order = order
        self._min_left = rule.min_left
        self._unique = False
        self._rank_batch = RankBatch(rule.equal())
        self.end()

    @abstractmethod
    def expected(self, requested: int) -> tuple[Samples, int]:
        """Return the samples to load next, those of this rank if shares stay as they are, and how far they reach.

        ``requested`` says how far they were asked for: 0 at the start, and then what was returned beside the last ones.
        """

    def asks_for_next(self, requested: int) -> bool:
        """Return whether the next request is for samples of the next batch, none of which was requested before."""
        return requested <= self.place

    @abstractmethod
    def settled(self) -> Samples:
        """Return requested samples that the next batch settles: this rank takes them then, or not at all."""

    @property
    def over(self) -> bool:
        """True if the epoch has no further batch."""
        return self.remaining < self._min_left

    def start(self, epoch: int) -> None:
        """Begin this epoch."""
        self.end()
        numbers = self.order.of(epoch, self.rule.world_size)
        self.epoch, self.batches = epoch, 0
        self._unique = self.order.sampler is not None  # such an order may not come again: a state holds it
        self.digest = zlib.crc32(numbers.astype("<i8").tobytes()) if self._unique else 0
        self._stand(numbers, 0)

    def end(self) -> None:
        """Leave out the rest of the epoch."""
        self.buffers = [np.arange(0)] * self.rule.world_size
        self._stand(np.arange(0), 0)

    def batches_in(self, epoch: int) -> int:
        """Return the batches of a whole epoch: of the one under way, or else of this one."""
        return self.rule.batches(len(self.order))

    def check(self, state: State, *, with_rest: bool) -> None:
        """Refuse a state of other samples or another order, or a rest that is too small for so many ranks."""
        require_same(state, {name: getattr(self.order, name) for name in ("samples", "seed", "shuffle")})
        left, ranks = int(state["remaining"]), self.rule.world_size
        if with_rest and self._min_left <= left < ranks:
            raise ValueError(
                f"{left} samples are left of epoch {int(state['epoch'])}, too few for {ranks} ranks, as each "
                f"needs at least one: resume with at most {left} ranks, or skip them with load_state_dict(state, "
                "skip_rest=True)"
            )

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the epoch; the order itself follows from the seed, unless it is unique."""
        known = {name: getattr(self.order, name) for name in ("samples", "seed", "shuffle")}
        known |= {name: getattr(self, name) for name in ("epoch", "batches", "digest", "remaining")}
        known |= {  # named as in states of earlier versions
            "drawn": self.place,
            "held": np.concatenate(self.buffers),
            "buffers": [len(buffer) for buffer in self.buffers],
            "sampler": self.numbers if self._unique else np.arange(0),
        }
        return {name: np.array(value) for name, value in known.items()}

    def load_state_dict(self, state: State) -> None:
        """Move to a saved place; for another number of ranks, samples that the old ones held come first."""
        self.start(int(state["epoch"]))
        self.digest, self.batches = int(state["digest"]), int(state["batches"])
        if not int(state["remaining"]):  # before the first epoch, or after one
            self.end()
            return
        self._unique = self._unique or len(state["sampler"]) > 0
        numbers = np.array(state["sampler"]) if len(state["sampler"]) else self.numbers
        place, held, lengths = int(state["drawn"]), np.array(state["held"]), np.array(state["buffers"])
        if self.buffered and len(lengths) == self.rule.world_size:
            self.buffers = np.split(held, np.cumsum(lengths)[:-1])
        elif len(held):
            numbers, place, self._unique = np.concatenate([held, numbers[place:]]), 0, True
        self._stand(numbers, place)

    def _stand(self, numbers: Samples, place: int) -> None:
        """Move to this place in this order."""
        self.numbers, self.place = numbers, place
        self.remaining = len(numbers) - place + sum(len(buffer) for buffer in self.buffers)


def require_same(state: State, expected: Mapping[str, object]) -> None:
    """Refuse a state that was saved with other settings than these."""
    for name, value in expected.items():
        if name in state and state[name].item() != value:
            raise ValueError(
                f"the state was saved with {name}={state[name].item()}, but this loader has {value}: the epoch cannot "
                f"go on with other {name}"
            )
