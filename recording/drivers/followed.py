"""Drivers of a control group that go with the process when it is moved to another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.recording.control_group import ControlGroup, Whereabouts

if TYPE_CHECKING:
    from paceline.recording.drivers.driver import Driver

    Made = Callable[[ControlGroup | None, Path], Driver]


class Followed:
    """A driver of the control group that this process is in: made anew, of another group's files, when it is moved.

    Parameters
    ----------
    made
        Makes the driver of a group, or that of the whole machine where there is none: the driver's class.
    where
        Where the process is; one for all drivers of a worker.
    root
        The folder under which ``proc`` and ``sys`` are looked for.
    any_group
        Whether a group without a quota is read as well, and not the whole machine instead.
    """

    def __init__(self, made: Made, where: Whereabouts, root: Path, *, any_group: bool = False) -> None:
        self._made, self._where, self._root, self._any_group = made, where, root, any_group
        self._group = where.group()
        self._driver = self._anew()
        self.name, self.unit = self._driver.name, self._driver.unit

    def sample(self) -> float:
        """Return the driver's value; one that tells of the time since the last boundary is NaN once after a move."""
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
