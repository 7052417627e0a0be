"""The batch time curves of one decision: plain floats for a small fleet, arrays for a large one. Axis: W workers.

A decision asks little of its curves, and asks it at every iteration of a training loop, whose own work has displaced
numpy's code from the caches. For a few workers a loop over floats then takes a fraction of a call of numpy. Both
classes answer the same, bit for bit; only the bound ``soonest`` may round its sum differently.
"""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import heapify, heapreplace
from operator import mul
from typing import Protocol

import numpy as np

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.solver.split import Split, Status, evaluate, split

FEW = 64
"""Fleets of at most this many workers are computed in plain floats."""


class DecidedCurves(Protocol):
    """Curves to compare sizes under; memory limits are those of the caller's bounds, not the curves' own."""

    def evaluate(self, sizes: Sizes) -> Split:
        """Return how long these sizes take, ``[W]``."""
        ...

    def makespan(self, sizes: Sizes) -> float:
        """Return how long the last of these sizes takes, in seconds."""
        ...

    def soonest(self, global_batch: int) -> float:
        """Return a time, in seconds, before which no split ends; 0 if there is no easy bound.

        Nothing ends sooner than if all workers ended together on their lines, with fractions of samples and without
        floors or bounds.
        """
        ...

    def proven(self, sizes: Sizes, batch_multiple: int, low: Array, high: Array) -> bool:
        """Return whether a glance proves that no split between these bounds, ``[W]``, ends sooner.

        Any other split gives a worker at least one batch multiple more, and any better one takes some from all that end
        last. So it is proven if nobody could end one batch multiple more any sooner, or if one that ends last has no
        more to give.
        """
        ...

    def split(self, global_batch: int, batch_multiple: int, low: Array, high: Array) -> Split:
        """Return the split that ends soonest between these bounds, ``[W]``: exactly that of :func:`split`."""
        ...

    def stretched(self, factor: Array) -> DecidedCurves:
        """Return curves that take this many times as long, ``[W]``."""
        ...


def decided(speed: Array, batch_time: Curves | None = None) -> DecidedCurves:
    """Return the curves of a forecast: the given ones, or those of workers whose time is samples / speed."""
    if len(speed) > FEW:
        return ManyCurves(Curves.from_speed(speed) if batch_time is None else batch_time)
    if batch_time is None:
        return FewCurves((1.0 / speed).tolist())
    return FewCurves(batch_time.slope.tolist(), batch_time.intercept.tolist(), batch_time.floor.tolist())


class FewCurves:
    """Curves in plain floats. Without intercepts and floors time is proportional to samples.

    Examples
    --------
    >>> curves = FewCurves([0.01, 0.02])
    >>> curves.evaluate(np.array([60, 60])).makespan, curves.soonest(120)
    (1.2, 0.8)
    >>> curves.split(120, 1, np.zeros(2), np.full(2, 120.0)).sizes
    array([80, 40])
    """

    def __init__(
        self, slope: list[float], intercept: list[float] | None = None, floor: list[float] | None = None
    ) -> None:
        self.slope = slope
        self.intercept = intercept
        self.floor = floor

    def evaluate(self, sizes: Sizes) -> Split:
        """Return how long these sizes take, ``[W]``."""
        seconds = self._busy(sizes.tolist())
        return Split(sizes, np.array(seconds), max(seconds), Status.GIVEN)

    def makespan(self, sizes: Sizes) -> float:
        """Return how long the last of these sizes takes, in seconds."""
        return max(self._busy(sizes.tolist()))

    def soonest(self, global_batch: int) -> float:
        """Return a time, in seconds, before which no split ends; 0 if there is no easy bound."""
        rate = started = 0.0
        intercepts = self.intercept or [0.0] * len(self.slope)
        for slope, intercept in zip(self.slope, intercepts, strict=True):
            if not 0.0 < slope < math.inf:
                return 0.0
            rate += 1.0 / slope
            started += intercept / slope
        together = (global_batch + started) / rate
        # A worker whose intercept alone takes longer would idle, which the formula ignores.
        return together if self.intercept is None or together >= max(self.intercept) else 0.0

    def split(self, global_batch: int, batch_multiple: int, low: Array, high: Array) -> Split:
        """Return the split that ends soonest between these bounds, ``[W]``: exactly that of :func:`split`."""
        found = self._straight(global_batch, batch_multiple, low.tolist(), high.tolist())
        return found or split(self._arrays(), global_batch, lower=low, upper=high, batch_multiple=batch_multiple)

    def proven(self, sizes: Sizes, batch_multiple: int, low: Array, high: Array) -> bool:
        """Return whether a glance proves that no split between these bounds, ``[W]``, ends sooner."""
        seconds, soonest = self._busy(sizes.tolist()), math.inf
        makespan = max(seconds)
        workers = zip(range(len(seconds)), sizes.tolist(), seconds, low.tolist(), high.tolist(), strict=True)
        for i, size, time, least, most in workers:
            if time == makespan and size - batch_multiple < least:
                return True
            if size + batch_multiple <= most:
                soonest = min(soonest, self._one(i, size + batch_multiple))
        return makespan <= soonest

    def stretched(self, factor: Array) -> FewCurves:
        """Return curves that take this many times as long, ``[W]``."""
        by = factor.tolist()
        if self.intercept is None or self.floor is None:
            return FewCurves(list(map(mul, self.slope, by)))
        lines = [self.slope, self.intercept, self.floor]
        return FewCurves(*([value * f for value, f in zip(line, by, strict=True)] for line in lines))

    def _busy(self, sizes: list[float]) -> list[float]:
        """Return the times of these sizes, rounded as :func:`paceline._curves.batch_seconds` does."""
        if self.intercept is None or self.floor is None:
            return list(map(mul, self.slope, sizes))
        lines = zip(self.slope, self.intercept, self.floor, sizes, strict=True)
        return [max(f, a + s * x) if x > 0 else 0.0 for s, a, f, x in lines]

    def _straight(self, global_batch: int, batch_multiple: int, low: list[float], high: list[float]) -> Split | None:
        """Return the exact split where rounding the fluid one down and adding the missing multiples finds it.

        Sizes of which each ends before any worker could end one more batch multiple are the only best ones, whatever
        the curves. So one comparison proves them; where it fails, as where times tie or bounds hold a worker back, the
        exact search has to decide.
        """
        together = self.soonest(global_batch)
        if not together:
            return None
        sizes: list[float] = []
        intercepts = self.intercept or [0.0] * len(self.slope)
        for slope, intercept, least, most in zip(self.slope, intercepts, low, high, strict=True):
            fluid = (together - intercept) / slope // batch_multiple * batch_multiple
            sizes.append(min(max(fluid, least), most))
        missing = (global_batch - sum(sizes)) / batch_multiple
        if not 0 <= missing <= len(sizes):
            return None
        more = [x + batch_multiple for x in sizes]
        later = list(zip(self._busy(more), range(len(sizes)), strict=True))
        heapify(later)
        for _ in range(int(missing)):
            i = later[0][1]
            sizes[i], more[i] = more[i], more[i] + batch_multiple
            if sizes[i] > high[i]:
                return None
            heapreplace(later, (self._one(i, more[i]), i))
        seconds = self._busy(sizes)
        makespan = max(seconds)
        proven = min(sizes) > 0 and sum(sizes) == global_batch and makespan < later[0][0]
        return Split(np.array(sizes, np.int64), np.array(seconds), makespan, Status.BALANCED) if proven else None

    def _one(self, i: int, size: float) -> float:
        if self.intercept is None or self.floor is None:
            return self.slope[i] * size
        return max(self.floor[i], self.intercept[i] + self.slope[i] * size)

    def _arrays(self) -> Curves:
        slope, none = np.array(self.slope), np.zeros(len(self.slope))
        floor, intercept = (none if one is None else np.array(one) for one in (self.floor, self.intercept))
        return Curves(floor, slope, intercept, np.full(len(slope), np.inf))


class ManyCurves:
    """Curves in arrays."""

    def __init__(self, curves: Curves) -> None:
        self._curves = replace(curves, limit=np.full(len(curves.slope), np.inf))

    def evaluate(self, sizes: Sizes) -> Split:
        """Return how long these sizes take, ``[W]``."""
        return evaluate(self._curves, sizes)

    def makespan(self, sizes: Sizes) -> float:
        """Return how long the last of these sizes takes, in seconds."""
        return self.evaluate(sizes).makespan

    def soonest(self, global_batch: int) -> float:
        """Return a time, in seconds, before which no split ends; 0 if there is no easy bound."""
        with np.errstate(all="ignore"):
            rate = 1.0 / self._curves.slope
            together = float((global_batch + (self._curves.intercept * rate).sum()) / rate.sum())
        return together if together >= self._curves.intercept.max() else 0.0  # level lines give NaN here

    def split(self, global_batch: int, batch_multiple: int, low: Array, high: Array) -> Split:
        """Return the split that ends soonest between these bounds, ``[W]``: exactly that of :func:`split`."""
        return split(self._curves, global_batch, lower=low, upper=high, batch_multiple=batch_multiple)

    def proven(self, sizes: Sizes, batch_multiple: int, low: Array, high: Array) -> bool:
        """Return whether a glance proves that no split between these bounds, ``[W]``, ends sooner."""
        now, more = self.evaluate(sizes), sizes + batch_multiple
        last_W = now.seconds == now.makespan
        later = self.evaluate(more).seconds[more <= high]
        return bool((sizes[last_W] - batch_multiple < low[last_W]).any() or now.makespan <= later.min(initial=np.inf))

    def stretched(self, factor: Array) -> ManyCurves:
        """Return curves that take this many times as long, ``[W]``."""
        c = self._curves
        return ManyCurves(Curves(c.floor * factor, c.slope * factor, c.intercept * factor, c.limit))
