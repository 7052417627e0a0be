"""Capacity of federated clients: FedScale's table, exported as JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, header_of
from paceline.datasets.readers.files import json_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

COLUMNS = ("client", "computation", "communication")
JSON_BYTES = 1 << 29
"""Largest JSON file: JSON is read as a whole."""


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one iteration of all clients: one sample each, the time for it, and their bandwidth."""
    for path in paths:
        tally = Tally()
        clients, milliseconds_W, kbps_W = _json(path, tally) if path.suffix == ".json" else _csv(path, tally)
        bad_W = ~(milliseconds_W > 0)
        tally.cells("clients whose computation is not positive", bad_W.sum())
        yield Trace(
            samples=np.where(bad_W, np.nan, 1.0)[None, :],
            seconds=np.where(bad_W, np.nan, milliseconds_W * 1e-3)[None, :],
            covariates=kbps_W[None, :, None],
            covariate_names=["bandwidth"],
            workers=clients,
            meta={
                "source": "github.com/SymbioticLab/FedScale",
                "job": path.name.split(".")[0],
                "format": "fedscale",
                "units": "seconds: of one sample; bandwidth: kbit/s",
                "averages": "one iteration: a client's usual speed, not a series",
                **tally.meta(),
            },
        )


def _csv(path: Path, tally: Tally) -> tuple[list[str], np.ndarray, np.ndarray]:
    table = frame(path, {"client": TEXT, "computation": NUMBER, "communication": NUMBER}, tally)
    named = table["client"].notna()
    tally.rows("rows without a client", (~named).sum())
    repeated = named & table["client"].duplicated()
    tally.rows("repeated rows of a client, of which the first counts", repeated.sum())
    table = table[named & ~repeated]
    if table.empty:
        raise ValueError(f"{path}: has no row with a client")
    return table["client"].tolist(), table["computation"].to_numpy(), table["communication"].to_numpy()


def _json(path: Path, tally: Tally) -> tuple[list[str], np.ndarray, np.ndarray]:
    clients = json_of(path, JSON_BYTES, "export it as CSV")
    if not isinstance(clients, dict) or not clients:
        raise ValueError(f"{path}: must hold a JSON object with a client in each field")
    tally.read(len(clients))
    columns = [[_number(path, name, one, key) for name, one in clients.items()] for key in COLUMNS[1:]]
    return list(clients), np.array(columns[0]), np.array(columns[1])


def _number(path: Path, client: str, one: object, key: str) -> float:
    value = one.get(key) if isinstance(one, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError(f"{path}: client {client!r}: {key!r} must be a number, got {value!r:.100}")
    return float(value)


def _is(path: Path, head: str) -> bool:
    by_key = path.suffix == ".json" and '"computation"' in head and '"communication"' in head
    return by_key or set(COLUMNS) <= set(header_of(head))


FORMATS = (
    Format(
        name="fedscale",
        about="computation and bandwidth of federated clients (FedScale)",
        files="JSON {client: {computation, communication}} or CSV client,computation,communication; never the pickle",
        gives="speed",
        seen=MADE,
        read=read,
        columns=COLUMNS,
        recognises=_is,
    ),
)
