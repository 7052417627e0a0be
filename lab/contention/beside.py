"""Run competitors beside the workers of an unedited command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from paceline._whole import TemporaryFolder
from paceline.lab.contention.contention import Contention
from paceline.lab.processes.places import places
from paceline.lab.processes.process import Process
from paceline.recording.place import Place

LONGEST_COMMAND = 4 * 3600.0  # seconds; contention is planned for a command of this length


@contextmanager
def beside(contention: Contention) -> Iterator[Sequence[Place]]:
    """Make a place for each worker, and start its competitors there; everything ends with the block."""
    planned = contention.planned(LONGEST_COMMAND)
    with ExitStack() as running:
        where = running.enter_context(places(contention.workers, contention.quota))
        folder = Path(running.enter_context(TemporaryFolder()))
        for number, one in enumerate(planned):
            told = {"place": asdict(where[one.worker]), "spans": one.spans, "kind": contention.kind}
            competitor = Process("paceline.lab.contention.competitor", number, folder, told)
            running.callback(competitor.end)
            competitor.tell("begin")
        yield where
