"""Model files: a predictor's fitted parameters as safetensors, and everything else as JSON in the file's header.

Loading a file reads arrays and text, and never runs code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._whole import written_whole
from paceline.predictors import KINDS, FleetPredictor, Training

FORMAT_VERSION = 1


def save_model(predictor: FleetPredictor, path: str | Path, *, fitted_on: str = "") -> Path:
    """Write a predictor's fitted parameters to a file, and return its path. The file appears whole or not at all.

    Parameters
    ----------
    predictor
        Any of :mod:`paceline.predictors`; the fleet that it serves is not saved (use ``state_dict`` for that).
    path
        The file to write; an existing one is replaced.
    fitted_on
        Name of the traces it was fitted to.

    Examples
    --------
    >>> import tempfile
    >>> from paceline.predictors import EWMA
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = load_model(save_model(EWMA(smoothing=0.3), f"{folder}/model.safetensors"))
    >>> model.smoothing
    0.3
    """
    from safetensors.numpy import save

    learnt = {n[7:]: value for n, value in predictor.state_dict().items() if n.startswith("learnt/")}
    about = {
        "format_version": FORMAT_VERSION,
        "kind": type(predictor).__name__,
        "configuration": _plain(predictor.configuration()),
        "fitted_on": fitted_on,
        "text": {name: value.tolist() for name, value in learnt.items() if value.dtype.kind == "U"},
    }
    numbers = {name: np.ascontiguousarray(v) for name, v in learnt.items() if v.dtype.kind != "U"}
    path = Path(path)
    with written_whole(path) as temporary:
        temporary.write_bytes(save(numbers, metadata={"paceline": json.dumps(about)}))
    return path


def load_model(path: str | Path, *, kinds: Sequence[type[FleetPredictor]] = KINDS) -> FleetPredictor:
    """Read a predictor from a model file; it has no fleet yet.

    Parameters
    ----------
    path
        A file that :func:`save_model` wrote.
    kinds
        The classes that it may hold: by default those of this library.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, not a model file, or written by another version; the message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    about, numbers = _read(path)
    if about["kind"] not in {kind.__name__ for kind in kinds}:
        raise ValueError(
            f"{path}: holds a {about['kind']}, which is not one of {[kind.__name__ for kind in kinds]}; "
            "pass its class in kinds=[...]"
        )
    try:
        kind = {kind.__name__: kind for kind in kinds}[about["kind"]]
        predictor = kind(**_arguments(about["configuration"]))
        text = {name: np.array(value, dtype=np.str_) for name, value in about["text"].items()}
        predictor.load_state_dict({f"learnt/{n}": value for n, value in (numbers | text).items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: this model does not fit this version of paceline: {error}") from error
    return predictor


def describe_model(path: str | Path) -> dict[str, Any]:
    """Return a model file's header: kind, format version, configuration and what it was fitted on."""
    return _read(Path(path))[0]


def _plain(configuration: Mapping[str, Any]) -> dict[str, Any]:
    return {n: asdict(value) if isinstance(value, Training) else value for n, value in configuration.items()}


def _arguments(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Training(**value) if name == "training" else value for name, value in stored.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = (file.metadata() or {}).get("paceline")
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a complete model file (truncated, or another format): {error}") from error
    if header is None:
        raise ValueError(f"{path}: a safetensors file, but not one that paceline wrote")
    about: dict[str, Any] = json.loads(header)
    if about.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path}: written in model format {about.get('format_version')}, "
            f"but this version of paceline reads {FORMAT_VERSION}"
        )
    return about, numbers
