"""What the samples of a dataset cost, and what of their loss counts. Axes: N samples, W ranks, F features."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.torch.loading.costs.numbers import Numbers, numbers_of
from paceline.coordinator.work import sum_of_products
from paceline.solver import Assignment, assign

STEADY = 0.05
"""Padded batches keep the ranks' order where that takes at most so much longer. Seen live with two equal ranks: when
the long end went now here, now there, the errors of costs looked like changing speeds, and shares followed them."""


@dataclass(frozen=True, eq=False)
class Costs:
    """The costs of all samples of a dataset, and by which rules a global batch of them is divided.

    Parameters
    ----------
    features
        What the cost of a sample is made of, ``[N, F]``, each scaled to the mean 1: its given cost alone; or its
        length, the square of that, and 1, whose coefficients are learned.
    tokens
        What each sample takes of the cap and of a budget, ``[N]``: its length, or else its cost.
    items
        How many terms of the loss each sample has, ``[N]``; None where each counts as one.
    cap
        Most tokens of a rank; infinite where there is none.
    budget
        Tokens of a global batch; None where global batches have a fixed number of samples.
    padded
        Whether a rank's samples are padded to its longest.
    """

    features: Array
    tokens: Array
    items: Array | None = None
    cap: float = np.inf
    budget: float | None = None
    padded: bool = False

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.features)

    @property
    def learned(self) -> bool:
        """Whether the cost is to be learned."""
        return int(self.features.shape[1]) > 1

    @property
    def prior(self) -> Array:
        """The coefficients before anything is learned, ``[F]``: of the first feature alone."""
        first: Array = np.eye(self.features.shape[1])[0]
        return first

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, by readable names."""
        parts = [self.features, self.tokens] + ([] if self.items is None else [self.items])
        digest = hashlib.blake2b(b"".join(np.ascontiguousarray(part).tobytes() for part in parts), digest_size=8)
        return {
            "costs of the samples": digest.hexdigest(),
            "cap": self.cap,
            "global_tokens": self.budget,
            "padded": self.padded,
            "items": self.items is not None,
        }

    def assigned(self, samples: Sizes, shares_W: Sizes, coefficients: Array, lower: int) -> Assignment:
        """Return who takes which of these samples, if ranks are to end work in these proportions at once."""
        return assign(
            sum_of_products(self.features[samples], coefficients),
            shares_W,
            tokens=self.tokens[samples],
            cap=None if self.cap == np.inf else self.cap,
            lower=lower,
            padded=self.padded,
            steady=STEADY,
        )

    def of_batch(self, samples: Sizes) -> Array:
        """Return the features of a rank's batch, ``[F]``: their sum, or padded to the longest."""
        features_NF = self.features[samples]
        total: Array = features_NF.max(axis=0) * len(samples) if self.padded else features_NF.sum(axis=0)
        return total

    def items_of(self, samples: Sizes) -> float:
        """Return how many terms of the loss these samples have."""
        return float(len(samples)) if self.items is None else float(self.items[samples].sum())

    def require_room(self, order: Sizes, ends: Sizes, ranks: int) -> None:
        """Refuse an epoch in which a global batch exceeds what all ranks may take, before it begins.

        Raises
        ------
        ValueError
            If there is such a batch.
        """
        if self.cap == np.inf:
            return
        until_N = np.concatenate([[0.0], self.tokens[order].cumsum()])
        begin = np.concatenate([[0], ends[:-1]])
        tokens_B = until_N[ends] - until_N[begin]
        if (tokens_B > self.cap * ranks).any():
            worst = int(tokens_B.argmax())
            raise ValueError(
                f"global batch {worst} of this epoch holds {tokens_B[worst]:g} tokens, more than {ranks} ranks may "
                f"take under a cap of {self.cap:g} each: draw smaller global batches, or give global_tokens, a budget"
            )


def costs_of(
    dataset: Any,
    *,
    cost: Numbers | None,
    lengths: Numbers | None,
    items: Numbers | None,
    cap: float | None,
    global_tokens: float | None,
    padded: bool,
) -> Costs | None:
    """Return what the samples cost, from the loader's arguments; None if they say nothing of it.

    Raises
    ------
    ValueError
        If an argument is out of range, or only makes sense beside one that is missing.
    """
    require_rules(cost is not None or lengths is not None, cap=cap, global_tokens=global_tokens, padded=padded)
    if cost is None and lengths is None and items is None:
        return None
    length_N = None if lengths is None else numbers_of(dataset, lengths, "lengths")
    cost_N = None if cost is None else numbers_of(dataset, cost, "cost")
    token_N = next((one for one in (length_N, cost_N) if one is not None), np.ones(len(dataset)))
    if cap is not None and (token_N > cap).any():
        number = int(token_N.argmax())
        raise ValueError(f"sample {number} takes {token_N[number]:g} tokens, more than the cap of {cap:g} for a rank")
    items_N = None if items is None else numbers_of(dataset, items, "items", zero=True)
    if items_N is not None and not items_N.any():
        raise ValueError("items are 0 for every sample: there is no loss to train on. Do they count the right labels?")
    return Costs(
        _features(cost_N, length_N, len(dataset)),
        token_N,
        items_N,
        np.inf if cap is None else float(cap),
        global_tokens,
        padded,
    )


def require_rules(costs: bool, *, cap: float | None, padded: bool, global_tokens: float | None = None) -> None:
    """Refuse rules about samples of unequal cost where there are none, and numbers that are out of range."""
    for name, value in (("cap", cap), ("global_tokens", global_tokens), ("padded", padded or None)):
        if value is not None and not costs:
            raise ValueError(f"{name} is about samples of unequal cost: give cost= or lengths= too")
    for name, value in (("cap", cap), ("global_tokens", global_tokens)):
        if value is not None and not 0 < value < np.inf:
            raise ValueError(f"{name} must be above 0 tokens and finite, got {value}")


def _features(cost_N: Array | None, length_N: Array | None, samples: int) -> Array:
    """Return what costs are made of, ``[N, F]``: a given cost is used as it is, and lengths leave it to be learned."""
    if cost_N is not None:
        columns = [cost_N]
    elif length_N is not None:
        with np.errstate(over="ignore", under="ignore"):
            columns = [length_N, length_N**2, np.ones(samples)]
    else:
        columns = [np.ones(samples)]
    # cumsum adds in one order on every processor: features are compared, and costs computed, bit for bit.
    with np.errstate(all="ignore"):
        scaled: Array = np.stack([column / (column.cumsum()[-1] / samples) for column in columns], axis=1)
    strange = ~(np.isfinite(scaled) & (scaled > 0)).all(axis=1)
    if strange.any():
        least, most = int(columns[0].argmin()), int(columns[0].argmax())
        raise ValueError(
            f"samples {least} and {most} are too unequal for floating point, {columns[0][least]:g} and "
            f"{columns[0][most]:g}: are these numbers right?"
        )
    return scaled
