"""Pass traces through a network's serving code, and collect the windows that it is trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from paceline.predictors.fitting import FitProgress, Fitting, Survey
from paceline.predictors.networks.training_windows import Part, Windows, windows_of

if TYPE_CHECKING:
    from paceline.datasets import Trace


def collected(
    traces: Iterable[Trace],
    survey: Survey,
    fitting: Fitting,
    parts_of: Callable[[Trace], Iterable[Part]],
) -> Windows:
    """Return the windows of all traces, at most one for each measured speed."""
    total, began = len(survey.lengths), time.perf_counter()

    def each() -> Iterator[tuple[str, Iterable[Part]]]:
        for done, trace in enumerate(traces, 1):
            yield trace.meta.get("file", trace.name), parts_of(trace)
            fitting.progress(FitProgress("windows", done, total, done / (time.perf_counter() - began)))

    # A missing speed makes no window, and a worker's first speeds make none yet.
    return windows_of(each(), survey.speeds, memory=fitting.memory, seed=0)


def require_both(windows: Windows, fitting: Fitting, survey: Survey, what: str = "") -> None:
    """Raise an error unless there are windows to fit and windows that validate."""
    if not windows.too_few:
        return
    if fitting.held_out is not None and max(survey.lengths) > 10:
        raise ValueError(
            f"of {len(survey.workers)} workers {len(fitting.held_out)} are held out, and one part has no window: "
            "hold out another share, or give longer traces"
        )
    lengths = list(survey.lengths[:10])
    shown = f"{lengths}" if len(survey.lengths) <= 10 else f"{lengths[:-1]}, ..."
    raise ValueError(f"traces of {shown} iterations are too short to fit {what}".rstrip())
