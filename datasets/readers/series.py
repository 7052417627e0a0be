"""TensorBoard's CSV export of a scalar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.datasets.readers.csv_rows import NUMBER, frame, header_of
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

TENSORBOARD = ("Wall time", "Step", "Value")
"""The columns used; some exports have others between them, such as ``Relative time (s)``."""


MOSTLY, NEAR, VALUE_DIGITS = 0.9, 2.0, 6
"""Two files are of one training if this share of the rows agrees: steps within so many of the usual increments at the
same time, or values to so many digits."""


def read_tensorboard(paths: Sequence[Path], *, value_is_rate: bool = False) -> Iterator[Trace]:
    """Yield one trace per training, with steps and their seconds; rows with the same clock reading are merged.

    Several scalars of one training lie in one folder: it is read from the one with the most rows. With
    ``value_is_rate`` the value itself is the speed, steps in one second, and every file is read.
    """
    tables = {path: (tally := Tally(), frame(path, dict.fromkeys(TENSORBOARD, NUMBER), tally)) for path in paths}
    groups = [[path] for path in paths] if value_is_rate else trainings({p: t for p, (_, t) in tables.items()})
    for path, *others in groups:
        tally, table = tables[path]
        table = table.iloc[_in_order(path, table["Wall time"].to_numpy(), tally, repeats=value_is_rate)]
        wall_T, step_T = table["Wall time"].to_numpy(), table["Step"].to_numpy()
        tally.restarts((np.diff(step_T) < 0).sum())
        rates = _rates(table["Value"].to_numpy(), tally) if value_is_rate else None
        start_T, steps_T, seconds_T = (wall_T, *rates) if rates else _differences(path, wall_T, step_T, tally)
        yield Trace(
            samples=steps_T[:, None],
            seconds=seconds_T[:, None],
            start=start_T[:, None],
            meta={
                "job": path.parent.name if others and path.parent.name else path.name.split(".")[0],
                "format": "tensorboard",
                **({"same_training": ", ".join(other.name for other in others)} if others else {}),
                "units": "samples: steps; " + ("of one second" if value_is_rate else "between two rows"),
                **tally.meta(),
            },
        )


def trainings(tables: Mapping[Path, pd.DataFrame]) -> list[list[Path]]:
    """Return the files of each training, that with the most rows first.

    Two files are of one training if they give the same steps at the same times, or hold the same values at the same
    steps, as a copy does whose times were processed.
    """
    groups: list[list[Path]] = []
    for path in sorted(tables, key=lambda one: (-len(tables[one]), one.name)):
        same = (g for g in groups if any(_is_same_training(tables[one], tables[path]) for one in g))
        if (group := next(same, None)) is None:
            groups.append([path])
        else:
            group.append(path)
    return groups


def _is_same_training(long: pd.DataFrame, short: pd.DataFrame) -> bool:
    long, short = (table.dropna(subset=["Wall time", "Step"]).sort_values("Wall time") for table in (long, short))
    if len(short) < 2:
        return False
    wall_T, step_T = long["Wall time"].to_numpy(), long["Step"].to_numpy()
    wall_S, step_S = short["Wall time"].to_numpy(), short["Step"].to_numpy()
    row = np.median(np.diff(wall_T))
    within_S = (wall_S >= wall_T[0] - row) & (wall_S <= wall_T[-1] + row)
    off_S = np.abs(np.interp(wall_S, wall_T, step_T) - step_S)
    if within_S.mean() >= MOSTLY and np.median(off_S) <= NEAR * np.median(np.abs(np.diff(step_T))):
        return True
    held = set(zip(step_T, long["Value"].round(VALUE_DIGITS), strict=True))
    copied = [pair in held for pair in zip(step_S, short["Value"].round(VALUE_DIGITS), strict=True)]
    return bool(abs(wall_S[0] - wall_T[0]) < 1.0 and np.mean(copied) >= MOSTLY)


def _in_order(path: Path, time_T: Array, tally: Tally, *, repeats: bool = True) -> NDArray[np.int64]:
    """Return the rows to keep, sorted by time; of rows that repeat a time, the first counts."""
    timed_T = np.flatnonzero(np.isfinite(time_T))
    tally.rows("rows without a time", len(time_T) - len(timed_T))
    tally.notes("rows whose time went backwards were put in order", (np.diff(time_T[timed_T]) < 0).sum())
    order_T = timed_T[np.argsort(time_T[timed_T], kind="stable")]
    if repeats and len(order_T):
        first_T = np.concatenate([[True], np.diff(time_T[order_T]) != 0])
        tally.rows("repeated rows of a time, of which the first counts", (~first_T).sum())
        order_T = order_T[first_T]
    if not len(order_T):
        raise ValueError(f"{path}: has no row with a time")
    return order_T


def _rates(value_T: Array, tally: Tally) -> tuple[Array, Array]:
    bad_T = ~(value_T > 0)
    tally.cells("rates that are not positive", bad_T.sum())
    return np.where(bad_T, np.nan, value_T), np.where(bad_T, np.nan, 1.0)


def _differences(path: Path, wall_T: Array, step_T: Array, tally: Tally) -> tuple[Array, Array, Array]:
    """Return start, steps and seconds between rows whose clocks differ."""
    last_T = np.concatenate([np.diff(wall_T) > 0, [True]])  # a clock of whole seconds repeats its readings
    tally.notes("rows of the same clock reading were put together", (~last_T).sum())
    wall_T, steps_T = wall_T[last_T], np.diff(step_T[last_T])
    if len(wall_T) < 2:
        raise ValueError(f"{path}: needs two rows at different times for a rate")
    backwards_T = ~(steps_T >= 0)
    tally.cells("differences of steps that went backwards or are unknown", backwards_T.sum())
    return wall_T[:-1], np.where(backwards_T, np.nan, steps_T), np.where(backwards_T, np.nan, np.diff(wall_T))


FORMATS = (
    Format(
        name="tensorboard",
        about="a scalar exported from TensorBoard: steps over wall time, or a rate",
        files="CSV with the columns Wall time, Step and Value",
        gives="speed",
        seen=real("cake-lab/CM-DARE and cake-lab/Sync-Switch"),
        read=read_tensorboard,
        columns=TENSORBOARD,
        job=lambda path: "",
        recognises=lambda path, head: set(TENSORBOARD) <= set(header_of(head)),
    ),
)
