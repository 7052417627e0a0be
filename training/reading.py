"""The first pass of a fit over its traces, from which a killed one goes on after the last file that it noted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline._whole import written_whole
from paceline.datasets import Trace
from paceline.predictors.fitting.survey import Survey, Surveying
from paceline.predictors.reference import Spread
from paceline.training.sources import Source

FILE = "survey.json"


def surveyed(
    source: Source,
    held_out: Callable[[str], bool],
    tell: Callable[[Trace], None],
    folder: Path | None,
    identity: str,
    checkpoint_seconds: float,
) -> Survey:
    """Return the survey of the traces, made in one pass that can be resumed.

    Parameters
    ----------
    source, held_out
        The traces, and whether a worker of this name is left out of the spreads.
    tell
        Called with each trace.
    folder
        Where it is noted how far the pass is; ``None`` notes nothing. Only files of this machine are noted, and read
        again if they changed.
    identity
        What else the result depends on.
    checkpoint_seconds
        Seconds between two notes; each is made between two files.
    """
    path = None if folder is None else folder / FILE
    noted = {} if path is None else _noted(path, identity)
    begun = _restored(noted["survey"]) if noted and source.resume(noted["source"]) else None
    surveying, last = Surveying(held_out, begun), time.monotonic()
    for trace in source:
        between_files = source.at_first_of_file and len(source.facts) > 1
        if path is not None and between_files and time.monotonic() - last >= checkpoint_seconds:
            about = {"identity": identity, "source": source.so_far(), "survey": asdict(surveying.survey(Survey))}
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as temporary:
                temporary.write_text(json.dumps(about))
            last = time.monotonic()
        surveying.add(trace)
        tell(trace)
    return surveying.survey(Survey)


def _noted(path: Path, identity: str) -> dict[str, Any]:
    """Return the last note, empty if there is none, or of another fit: it only saves time."""
    try:
        about: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return about if about.get("identity") == identity else {}


def _restored(about: dict[str, Any]) -> Survey:
    return Survey(
        lengths=tuple(about["lengths"]),
        speeds=about["speeds"],
        workers=tuple(about["workers"]),
        covariates={name: Spread(**spread) for name, spread in about["covariates"].items()},
        change=Spread(**about["change"]),
        shared=tuple(about["shared"]),
    )
