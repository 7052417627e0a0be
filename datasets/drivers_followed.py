"""Drivers of a control group that go with the process when it is moved to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.datasets.control_group import ControlGroup, Whereabouts

if TYPE_CHECKING:
    from paceline.datasets.drivers import Driver


class GroupDriver(Protocol):
    """A class of drivers that are read in a control group, or for the whole machine where there is none."""

    name: str
    unit: str
    any_group: bool
    """Whether it is read in a group without a quota as well, and not for the machine."""

    def __call__(self, group: ControlGroup | None, root: Path, /) -> Driver:
        """Make the driver of a group."""
        ...


class Followed:
    """A driver of the control group that this process is in: made anew, of another group's files, when it is moved.

    Parameters
    ----------
    kind
        The driver's class.
    where
        Where the process is; one for all drivers of a worker.
    root
        The folder under which ``proc`` and ``sys`` are looked for.
    """

    def __init__(self, kind: GroupDriver, where: Whereabouts, root: Path) -> None:
        self.name, self.unit = kind.name, kind.unit
        self._kind, self._where, self._root = kind, where, root
        self._group = where.group()
        self._driver = self._made()

    def sample(self) -> float:
        """Return the driver's value; one that tells of the time since the last boundary is NaN once after a move."""
        group = self._where.group()
        if group is not self._group:
            self._group = group
            self._driver = self._made()
        return self._driver.sample()

    def _made(self) -> Driver:
        group = self._group
        if group is not None and group.cores is None and not self._kind.any_group:
            group = None
        return self._kind(group, self._root)
