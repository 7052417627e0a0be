"""The plan of one iteration: how many samples each worker processes, and why. Axis: W workers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from paceline.coordinator import reasons as why
from paceline.predictors.protocol import Forecast
from paceline.solver.split import Split


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Split):
    """The batch sizes of an iteration to come, with the forecast behind them and the reason. Its arrays are read-only.

    A :class:`~paceline.solver.Split`: the solver's own result, or an evaluation of sizes that were kept.

    Examples
    --------
    >>> from paceline.coordinator import LoadBalancer
    >>> plan = LoadBalancer("ewma", workers=["gpu0", "gpu1"], global_batch=512).plan
    >>> plan.sizes, plan.weights
    (array([256, 256]), array([0.5, 0.5]))
    >>> print(plan.why)
    Equal batches: no iteration has been reported yet.
    """

    workers: tuple[str, ...]
    """The fleet, in the order of every array."""
    forecast: Forecast
    """The forecast from which the sizes were chosen."""
    gain: float
    """Share of the iteration's time that these sizes are expected to save, compared with keeping the previous plan's; 0
    if they were kept."""
    acted: bool
    """Whether a size differs from the previous plan."""
    reasons: tuple[why.Reason, ...]
    """Parts of the sentence ``why``: the action and its reasons. The wording is made when it is read."""
    iteration: int = 0
    """Number of iterations reported when the plan was made."""

    def __repr__(self) -> str:
        sizes = self.sizes.tolist() if len(self.sizes) <= 8 else f"{self.sizes.min()} to {self.sizes.max()}"
        return f"Plan(sizes={sizes}, makespan={self.makespan:.3g}, acted={self.acted}, why={self.why!r})"

    @property
    def why(self) -> str:
        """Sentence that says what was done and why."""
        return why.join_reasons(self.reasons)

    def as_step_plan(self, micro_batches: int) -> Plan:
        """Return the plan of a step of ``micro_batches`` micro-batches, given that this plan is for one of them."""
        return replace(
            self,
            sizes=self.sizes * micro_batches,
            seconds=self.seconds * micro_batches,
            makespan=self.makespan * micro_batches,
            reasons=why.scale_to_step(self.reasons, micro_batches),
        )

    def as_unchanged(self) -> Plan:
        """Return this plan again, marked as unchanged, for an iteration that is too short to be planned by itself."""
        reason = "Kept the sizes: iterations are short, so several are planned at once"
        return replace(self, gain=0.0, acted=False, reasons=(reason,))

    @property
    def checksum(self) -> int:
        """A hash of workers, sizes and iteration, the same on every platform, for ranks to compare.

        It has 52 bits, so that a float64 holds it exactly.

        >>> from paceline.coordinator import LoadBalancer
        >>> LoadBalancer("ewma", workers=["gpu0", "gpu1"], global_batch=512).plan.checksum
        1928808633027677
        """
        fleet = hashlib.blake2b(json.dumps(self.workers).encode(), digest_size=8).digest()
        # "<i8" fixes size and byte order on every platform.
        facts = fleet + self.iteration.to_bytes(8, "little") + self.sizes.astype("<i8").tobytes()
        return int.from_bytes(hashlib.blake2b(facts, digest_size=8).digest(), "little") >> 12
