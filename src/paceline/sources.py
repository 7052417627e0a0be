"""What a user names on the command line: traces (recorded, or files) and predictors (kinds, or model files)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.datasets import Trace, from_frame, load, recorded
from paceline.predictors import FleetPredictor, named
from paceline.training import load_model


def trace(name: str) -> Trace:
    """Return the trace of a recorded job's name, or of a ``.parquet`` or tidy ``.csv`` file."""
    path = Path(name)
    if path.suffix == ".parquet":
        return load(path)
    if path.suffix == ".csv":
        return _from_csv(path)
    if name not in recorded.names():
        raise ValueError(
            f"{name!r} is neither a recorded trace nor a .parquet or .csv file; recorded are {recorded.names()}"
        )
    return recorded.load(name)


def traces(names: Sequence[str] | None, split: str) -> list[Trace]:
    """Return the traces named, or the recorded ones of a split when none is named."""
    return [trace(name) for name in names] if names else recorded.load_split(split)


def predictor(text: str) -> FleetPredictor:
    """Return a predictor from a model file, or from its name and arguments: ``ewma:smoothing=0.5``."""
    return load_model(text) if text.endswith(".safetensors") else named(text)


def _from_csv(path: Path) -> Trace:
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"there is no trace file {path}")
    try:
        return from_frame(pd.read_csv(path), meta={"job": path.stem, "source": path.name})
    except (ValueError, pd.errors.ParserError) as error:
        raise ValueError(f"{path}: {error}") from error
