"""A round of asynchronous training as a line of JSON, and the header that explains it."""

from __future__ import annotations

from typing import Any

from paceline._version import __version__
from paceline.recording.json_numbers import all_known, known
from paceline.recording.round import Round

SCHEMA = 1
"""The version of the format; a reader refuses later versions."""

OF_WORKERS = ("sizes", "pushes", "staleness", "expected", "done", "wasted", "waited")
OF_FLEET = (
    "index",
    "time",
    "version",
    "applied",
    "dropped",
    "abandoned",
    "refused",
    "wasted_share",
    "forecast",
    "actual",
    "covered",
    "largest",
)


def header_of_rounds(record: Round) -> dict[str, Any]:
    """Return the line that comes before the rounds of a fleet."""
    return {
        "paceline_async_run": SCHEMA,
        "version": __version__,
        "workers": list(record.workers),
        "scheme": record.scheme,
        "bound": record.bound,
        "batch": record.batch,
        "units": {
            "time": "seconds since the epoch",
            "waited": "seconds",
            "staleness, expected, forecast, actual, largest, bound": "versions",
            "sizes, done, wasted, applied, dropped, abandoned, refused, batch": "samples",
            "wasted_share, covered": "share",
        },
    }


def about_round(record: Round) -> dict[str, Any]:
    """Return the line of a round."""
    return {
        **{name: known(getattr(record, name)) for name in OF_FLEET},
        "time": round(record.time, 3),
        **{name: all_known(getattr(record, name)) for name in OF_WORKERS},
        "stragglers": list(record.stragglers),
        "acted": record.acted,
        "why": record.why,
    }
