"""CPU quota of a process: what it allows, and how long work takes if the quota lasts."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from paceline.recording.control_group import File, Whereabouts, used_seconds
from paceline.recording.covariates import CPUQuota, ThrottledTime


class Spent(NamedTuple):
    """Seconds of CPU time of a process, and in which its group had used up its quota, so far."""

    cpu: float = 0.0
    throttled: float = 0.0


class Allowance:
    """The CPU quota of this process's control group, and what the process has spent of it.

    ``cores`` is the quota; infinite without one, and NaN where other processes use a good part of it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._where = root, Whereabouts(root)
        self._quota_cores = self.cores = math.inf
        self._alone = True
        self._follow()

    def spent(self) -> Spent:
        """Return the CPU time spent so far; only differences mean something."""
        # Nothing is throttled without a quota. This is asked twice in every step, when the caches hold the model: to
        # read the kernel's count took longer than all else that is measured.
        if self._quota_cores < math.inf:
            self._stood = self._throttled.seconds()
        return Spent(time.process_time(), self._stood)

    def look(self) -> None:
        """Read the present quota."""
        if self._where.group() is not self._group:
            self._follow()
        cores = self._quota.sample()
        cores = math.inf if not cores < self._every else cores  # also without groups, where it is NaN
        if cores != self._quota_cores:  # another group's quota may bind from now on
            self._quota_cores = cores
            self._where = Whereabouts(self._root)
            self._follow()
        self.cores = math.nan if math.isfinite(cores) and not self._is_alone() else cores

    def _follow(self) -> None:
        self._group = group = self._where.group()
        self._quota, self._every = CPUQuota(group), float(os.cpu_count() or 1)
        self._throttled = ThrottledTime(group)
        self._stood = self._throttled.seconds()
        self._usage = File(group.usage) if group else None
        self._last: tuple[float, float, float] | None = None  # when, and seconds used by the process and its group

    def _is_alone(self) -> bool:
        """Return whether the quota is this process's own, by what it and its group have used since the last look."""
        now, last = time.monotonic(), self._last
        # the kernel counts a group's CPU time in ticks of some ms
        if self._usage is not None and (last is None or now - last[0] >= 0.1):
            _, process, group = self._last = now, time.process_time(), used_seconds(self._usage.text())
            if last is not None:
                # False too if the group's time is not counted, as is possible in version 1.
                # workers that share one quota are limited by it together: count it only for the
                # process that uses most of it
                self._alone = process - last[1] >= 0.8 * (group - last[2])
        return self._alone


def lasting(seconds: float, spent: Spent, cores: float, threads: int = 1) -> float:
    """Return how long work takes under a quota that lasts.

    A quota grants a budget per period, of 100 ms as a rule. Work that follows a wait finds an unspent budget and runs
    at full speed; longer work is stopped until the next period. So what one step took says little about the next: at a
    quarter of a core the same 11 ms of computing take 11 ms, or 86. In the long run they take 11 / 0.25 = 44 ms.

    ``seconds`` is what the work took, waiting for others left out, and ``cores`` the quota that holds from now on;
    infinite for none, NaN if it is not known. Throttled seconds are counted on every core that ``threads`` use.

    >>> lasting(0.011, Spent(cpu=0.011), cores=0.25), lasting(0.086, Spent(0.011, 0.075), cores=0.25)
    (0.044, 0.044)
    """
    if math.isnan(cores):
        return seconds
    running = seconds
    if spent.throttled > 0:  # a CPU second takes at least this long, whatever was counted as throttled
        running = min(seconds, max(seconds - spent.throttled / threads, spent.cpu / threads))
    return max(running, spent.cpu / cores)
