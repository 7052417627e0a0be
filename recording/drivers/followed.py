"""Drivers of a control group that follow the process when it is moved to another group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.recording.control_group import ControlGroup, Whereabouts

if TYPE_CHECKING:
    from paceline.recording.drivers.driver import Driver

    Made = Callable[[ControlGroup | None, Path], Driver]


class Followed:
    """A driver of this process's control group; a move to another group replaces it by one that reads that group.

    Parameters
    ----------
    made
        Makes the driver of a group, or of the whole machine if there is no group: the driver's class.
    where
        Where the process is; shared by all drivers of a worker.
    root
        The folder that contains ``proc`` and ``sys``.
    any_group
        Whether to read a group without a quota as well, instead of the whole machine.
    """

    def __init__(self, made: Made, where: Whereabouts, root: Path, *, any_group: bool = False) -> None:
        self._made, self._where, self._root, self._any_group = made, where, root, any_group
        self._group = where.group()
        self._driver = self._anew()
        self.name, self.unit = self._driver.name, self._driver.unit

    def sample(self) -> float:
        """Return the driver's value; a change since the last boundary is NaN once after a move."""
        group = self._where.group()
        if group is not self._group:
            self._group = group
            self._driver = self._anew()
        return self._driver.sample()

    def _anew(self) -> Driver:
        group = self._group
        if group is not None and group.cores is None and not self._any_group:
            group = None
        return self._made(group, self._root)
