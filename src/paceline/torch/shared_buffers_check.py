"""Buffers that all ranks share, such as the center of a loss, and that part once batches differ. Axis: W ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from paceline._arrays import Array


class SharedBuffersCheck:
    """Check of the buffers of the attached models but those of batch normalization, which are each rank's own."""

    def __init__(self) -> None:
        self._name = "buffer"
        self._last_sum = math.nan
        self._times_equal = 0
        self.has_ended = False
        """Whether checks have ended: the buffers differ between ranks, or there are none."""

    def sum_buffers(self, models: Sequence[torch.nn.Module], exchange_index: int) -> float:
        """Return the sum of all numbers in the buffers; NaN where there are none, or this exchange has no look."""
        # each look reads all buffers: at the first 8 exchanges, then at every 16th
        if self.has_ended or (exchange_index >= 8 and exchange_index % 16):
            return math.nan
        found = [
            (f"{name}.{part}".strip("."), buffer)
            for model in models
            for name, module in model.named_modules()
            if not hasattr(module, "running_mean")
            for part, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point() and not buffer.is_cuda  # a device would be waited for
        ]
        if not found:
            self.has_ended = True  # nothing to look at, from now on
            return math.nan
        self._name = found[0][0]
        return float(sum(buffer.double().sum() for _, buffer in found))

    def learn(self, sum_W: Array, *, is_uneven: bool) -> str:
        """Return a warning if sums that ranks shared have parted; ``is_uneven`` is whether batches differed in size."""
        sums = sum_W.tolist()
        if math.isnan(sum(sums)) or self.has_ended:
            return ""
        changed, self._last_sum = sums[0] != self._last_sum, sums[0]
        # beyond rounding
        if max(sums) - min(sums) <= 1e-6 * max(abs(each) for each in sums):
            self._times_equal += changed and not is_uneven
            return ""
        self.has_ended = True
        if not is_uneven or self._times_equal < 2:  # shared only if equal batches left them equal twice
            return ""
        return (
            f"Buffers of the model (such as {self._name}) were the same on all ranks with equal batches, and are not "
            "with unequal ones: they seem to be averaged by hand, as all_reduce(sum) / (len(batch) * world_size). "
            "Divide by the samples of all ranks, loader.batch_sizes.sum()."
        )
