"""Covariates read with psutil, which also supports macOS and Windows. They describe the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline._require import require

if TYPE_CHECKING:
    from paceline.recording.covariates.covariate import Covariate


def psutil_covariates() -> list[Covariate]:
    """Return the two covariates of the machine that LB-BSP's workers report: CPU and memory, in percent.

    Raises
    ------
    ImportError
        If psutil is not installed.

    Examples
    --------
    >>> [covariate.name for covariate in psutil_covariates()]
    ['cpu_percent', 'memory_percent']
    """
    return [CPUPercent(), MemoryPercent()]


class CPUPercent:
    """CPU time of the machine that all processes used since the last boundary."""

    name, unit = "cpu_percent", "percent of all cores"

    def __init__(self) -> None:
        self._used = _psutil().cpu_percent
        self._known = False

    def sample(self) -> float:
        """Return the percentage; NaN the first time, because there is no earlier boundary."""
        percent, known, self._known = self._used(), self._known, True
        return float(percent) if known else float("nan")


class MemoryPercent:
    """Memory of the machine that is not available."""

    name, unit = "memory_percent", "percent of memory"

    def __init__(self) -> None:
        self._memory = _psutil().virtual_memory

    def sample(self) -> float:
        """Return the percentage now."""
        return float(self._memory().percent)


def _psutil() -> Any:
    require("psutil", needed_by="psutil_covariates", extra="covariates")
    import psutil  # type: ignore[import-untyped]

    return psutil
