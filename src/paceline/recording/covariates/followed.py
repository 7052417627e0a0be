"""Covariates of a control group that follow the process when it is moved to another group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.recording.control_group import ControlGroup, Whereabouts

if TYPE_CHECKING:
    from paceline.recording.covariates.covariate import Covariate

    Made = Callable[[ControlGroup | None, Path], Covariate]


class Followed:
    """A covariate of this process's control group; a move to another group replaces it by one that reads that group.

    Parameters
    ----------
    made
        Makes the covariate of a group, or of the whole machine if there is no group: the covariate's class.
    where
        Where the process is; shared by all covariates of a worker.
    root
        The folder that contains ``proc`` and ``sys``.
    any_group
        Whether to read a group without a quota as well, instead of the whole machine.
    """

    def __init__(self, made: Made, where: Whereabouts, root: Path, *, any_group: bool = False) -> None:
        self._made, self._where, self._root, self._any_group = made, where, root, any_group
        self._group = where.group()
        self._covariate = self._anew()
        self.name, self.unit = self._covariate.name, self._covariate.unit

    def sample(self) -> float:
        """Return the covariate's value; a change since the last boundary is NaN once after a move."""
        group = self._where.group()
        if group is not self._group:
            self._group = group
            self._covariate = self._anew()
        return self._covariate.sample()

    def _anew(self) -> Covariate:
        group = self._group
        if group is not None and group.cores is None and not self._any_group:
            group = None
        return self._made(group, self._root)
