"""CPU quota of a process, the CPU time that it uses, and how long work takes if the quota lasts."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from paceline.recording.control_group import ControlGroup, KernelFile, parse_usage_seconds
from paceline.recording.covariates import quota_cores, throttled_seconds


class CPUSnapshot(NamedTuple):
    """Seconds of CPU time that a process has used, and seconds for which its group was throttled, so far."""

    cpu: float = 0.0
    throttled: float = 0.0


class QuotaTracker:
    """Tracks the CPU quota of this process's control group, and the CPU time that the process uses.

    ``cores`` is the quota; infinite without one, and NaN where other processes use a good part of it.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._quota_cores = self.cores = math.inf
        self._uses_most_of_quota = True
        self._open_files()

    def snapshot(self) -> CPUSnapshot:
        """Return the CPU time used so far; only differences mean something."""
        # Nothing is throttled without a quota. This is asked twice in every step, when the caches hold the model: to
        # read the kernel's count took longer than all else that is measured.
        if self._quota_cores < math.inf:
            self._throttled_seconds = self._read_throttled()
        return CPUSnapshot(time.process_time(), self._throttled_seconds)

    def refresh(self) -> None:
        """Read the current quota."""
        cores = self._read_quota()
        cores = math.inf if not cores < self._machine_cores else cores  # also without groups, where it is NaN
        if cores != self._quota_cores:  # another group's quota may bind from now on
            self._quota_cores = cores
            self._open_files()
        self.cores = math.nan if math.isfinite(cores) and not self._check_uses_most_of_quota() else cores

    def _open_files(self) -> None:
        group = ControlGroup.current(self._root)
        self._read_quota, self._machine_cores = quota_cores(group), float(os.cpu_count() or 1)
        self._read_throttled = throttled_seconds(group)
        self._throttled_seconds = self._read_throttled()
        self._usage = KernelFile(group.usage) if group else None
        self._last: tuple[float, float, float] | None = None  # when, and seconds used by the process and its group

    def _check_uses_most_of_quota(self) -> bool:
        """Return whether this process uses most of the quota, by CPU times since the last check."""
        now, last = time.monotonic(), self._last
        # the kernel counts a group's CPU time in ticks of some ms
        if self._usage is not None and (last is None or now - last[0] >= 0.1):
            _, process, group = self._last = now, time.process_time(), parse_usage_seconds(self._usage.read())
            if last is not None:
                # Workers that share one quota are limited by it together: it counts only for the process that uses
                # most of it. False too if the group's time is not counted, as is possible in version 1.
                self._uses_most_of_quota = process - last[1] >= 0.8 * (group - last[2])
        return self._uses_most_of_quota


def sustained_seconds(seconds: float, cpu_used: CPUSnapshot, cores: float, threads: int = 1) -> float:
    """Return how long work takes if the quota holds for all of it.

    A quota grants a budget per period, of 100 ms as a rule. Work that follows a wait finds an unspent budget and runs
    at full speed; longer work is stopped until the next period. So what one step took says little about the next: at a
    quarter of a core the same 11 ms of computing take 11 ms, or 86. In the long run they take 11 / 0.25 = 44 ms.

    ``seconds`` is what the work took, waiting for others left out, and ``cores`` the quota that holds from now on;
    infinite for none, NaN if it is not known. Throttled seconds are counted on every core that ``threads`` use.

    >>> short, long = CPUSnapshot(cpu=0.011), CPUSnapshot(cpu=0.011, throttled=0.075)
    >>> sustained_seconds(0.011, short, cores=0.25), sustained_seconds(0.086, long, cores=0.25)
    (0.044, 0.044)
    """
    if math.isnan(cores):
        return seconds
    running = seconds
    if cpu_used.throttled > 0:  # a CPU second takes at least this long, whatever was counted as throttled
        running = min(seconds, max(seconds - cpu_used.throttled / threads, cpu_used.cpu / threads))
    return max(running, cpu_used.cpu / cores)
