"""Report of one round, from the replies of its clients. Axis: W clients that replied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Mask


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundReport:
    """The replies of one round. A client that was asked and is not listed did not reply; an error is a reply with NaN.

    Parameters
    ----------
    clients
        Ids of the clients that replied, in any order, none twice.
    samples
        Samples each processed in all its local steps, ``[W]``.
    seconds
        Own compute time for them, ``[W]``, in seconds; NaN where it reported none.
    comm_seconds
        Time to fetch the model and send the update, ``[W]``, in seconds; NaN where it is not known. ``None`` if
        nobody's is.
    elapsed
        Time from asking to having the reply, by the server's clock, ``[W]``, in seconds. Where ``comm_seconds`` are
        missing they are the rest of it.
    out_of_memory
        Which clients ran out of memory, ``[W]`` of bool.
    failed
        Which replies are errors and enter no aggregate, ``[W]`` of bool.
    waited
        For how long the server waited for those that did not reply, in seconds; NaN if it is not known.

    Raises
    ------
    ValueError
        If a client is listed twice, or an array does not have one entry for each.

    Examples
    --------
    >>> report = RoundReport(clients=["a", "b"], samples=[320, 320], seconds=[4.0, 8.0], elapsed=[5.0, 10.0])
    >>> report.speed, report.communication
    (array([80., 40.]), array([1., 2.]))
    """

    clients: Sequence[object]
    samples: ArrayLike
    seconds: ArrayLike
    comm_seconds: ArrayLike | None = None
    elapsed: ArrayLike | None = None
    out_of_memory: ArrayLike | None = None
    failed: ArrayLike | None = None
    waited: float = float("nan")

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError("clients must not repeat an id: sum up or drop the second reply of a client")
        for name in ("samples", "seconds", "comm_seconds", "elapsed", "out_of_memory", "failed"):
            given = getattr(self, name)
            if given is not None and np.shape(given) != (len(self.names),):
                raise ValueError(
                    f"{name} must have one entry for each of the {len(self.names)} clients that replied, got the "
                    f"shape {np.shape(given)}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The ids as text."""
        return tuple(map(str, self.clients))

    @property
    def processed(self) -> Array:
        """Samples processed, ``[W]``."""
        return np.asarray(self.samples, dtype=np.float64)

    @property
    def compute_seconds(self) -> Array:
        """Own compute time, ``[W]``, in seconds."""
        return np.asarray(self.seconds, dtype=np.float64)

    @property
    def measured_comm(self) -> Array:
        """Time to communicate as far as it was measured, ``[W]``, in seconds; NaN elsewhere."""
        return self._optional(self.comm_seconds)

    @property
    def elapsed_seconds(self) -> Array:
        """Time from asking to having the reply, ``[W]``, in seconds; NaN where it is not known."""
        return self._optional(self.elapsed)

    @property
    def ran_out(self) -> Mask:
        """Mask of the clients that ran out of memory, ``[W]``."""
        ran_out_W: Mask = self._optional(self.out_of_memory) == 1
        return ran_out_W

    @property
    def used(self) -> Mask:
        """Mask of the clients whose update can enter the aggregate, ``[W]``: neither an error nor out of memory."""
        used_W: Mask = (self._optional(self.failed) != 1) & ~self.ran_out
        return used_W

    @property
    def speed(self) -> Array:
        """Samples per second of computing, ``[W]``; NaN where the report makes none, or memory ran out."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            speed_W = self.processed / self.compute_seconds
        usable_W = np.isfinite(speed_W) & (speed_W > 0) & (self.processed > 0) & self.used
        return np.where(usable_W, speed_W, np.nan)

    @property
    def communication(self) -> Array:
        """Time to communicate, ``[W]``, in seconds; NaN where the report makes none."""
        with np.errstate(invalid="ignore"):
            rest_W = np.maximum(self.elapsed_seconds - self.compute_seconds, 0.0)
        comm_W = np.where(np.isnan(self.measured_comm), rest_W, self.measured_comm)
        return np.where(np.isfinite(comm_W) & (comm_W >= 0), comm_W, np.nan)

    def _optional(self, values: ArrayLike | None) -> Array:
        return np.full(len(self.names), np.nan) if values is None else np.asarray(values, dtype=np.float64)
