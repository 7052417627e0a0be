"""Model files: a predictor's fitted parameters as safetensors, and everything else as JSON in the file's header.

Loading a file reads arrays and text, and never runs code.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._files import atomic_write
from paceline.predictors import KINDS, FleetPredictor, Report, Training
from paceline.predictors.fleet import DAMAGED

FORMAT_VERSION = 1

MAX_HEADER_CHARS = 4 << 20
"""Characters of a header: enough for the names of 100,000 workers, and parsed in less than 200 MB."""


def save_model(predictor: FleetPredictor, path: str | Path, *, fitted_on: str = "") -> Path:
    """Write a predictor's fitted parameters to a file, and return its path. The file is written atomically.

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

    state, params = predictor.state_dict(), predictor.get_params(deep=False)
    learned = {n.removeprefix("learned/"): value for n, value in state.items() if n.startswith("learned/")}
    about = {
        "format_version": FORMAT_VERSION,
        "kind": type(predictor).__name__,
        "configuration": {n: asdict(one) if isinstance(one, Training) else one for n, one in params.items()},
        "fitted_on": fitted_on,
        "text": {name: value.tolist() for name, value in learned.items() if value.dtype.kind == "U"},
    }
    numbers = {name: np.ascontiguousarray(v) for name, v in learned.items() if v.dtype.kind != "U"}
    path = Path(path)
    with atomic_write(path) as temporary:
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
        If the file is cut off, no model file, written by another version, or asks for what no model can be: an unknown
        argument, a number out of range, weights of a wrong shape. The sentence names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    about, numbers = _read_file(path)
    known = {kind.__name__: kind for kind in kinds}
    if about["kind"] not in known:
        raise ValueError(f"{path} holds a {about['kind']}, not one of {list(known)}; pass its class in kinds=[...]")
    try:
        arguments = dict(about["configuration"])
        if training := arguments.get("training"):
            arguments["training"] = Training(**training)
        predictor = known[about["kind"]](**arguments)
        text = {name: np.array(value, dtype=np.str_) for name, value in about["text"].items()}
        predictor.load_state_dict({f"learned/{n}": value for n, value in (numbers | text).items()})
        _check_on_small_fleets(predictor)
    except Exception as error:  # anything may go wrong in a constructor that is given anything
        advice = "it is damaged or was saved by another version of paceline; fit and save the model again"
        advice = "" if DAMAGED in str(error) else f": {advice}"
        raise ValueError(f"{path} cannot be loaded: {_describe_error(error)}{advice}") from error
    return predictor


def describe_model(path: str | Path) -> dict[str, Any]:
    """Return a model file's header: kind, format version, configuration and what it was fitted on."""
    return _read_file(Path(path))[0]


def _check_on_small_fleets(predictor: FleetPredictor) -> None:
    """Try a copy on small fleets, so that weights of a wrong shape fail here and not during training.

    Two sizes are tried because an array of a wrong shape may happen to fit one of them.
    """
    trial = copy.deepcopy(predictor)
    for workers in (3, 4):
        named = list(getattr(trial, "devices", ()))  # of a BatchTime, which refuses a fleet of other workers
        trial.reset([*named, *(f"worker {w}" for w in range(workers))][:workers])
        covariates_WD = np.full((workers, len(trial.covariate_names)), 0.5)
        with np.errstate(all="ignore"):
            for horizon, silent in ((1, 0), (2, 1)):
                seconds_W = np.where(np.arange(workers) == silent, np.nan, 1.5)
                trial.observe(Report(samples=np.full(workers, 8.0), seconds=seconds_W, covariates=covariates_WD))
                forecast = trial.predict(covariates=covariates_WD, horizon=horizon)
                if forecast.speed.shape != (workers,) or forecast.spread.shape != (workers,):
                    raise ValueError(
                        f"the forecast of {workers} workers must have speed and spread of the shape ({workers},), got "
                        f"{forecast.speed.shape} and {forecast.spread.shape}"
                    )


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = (file.metadata() or {}).get("paceline")
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:  # numpy lacks some types
        raise ValueError(
            f"{path} is not a complete model file: copy it or fit it again ({_describe_error(error)})"
        ) from error
    if header is None:
        raise ValueError(
            f"{path} is a safetensors file that paceline did not write: pass one of save_model or paceline fit"
        )
    return _parse_header(path, header), numbers


def _parse_header(path: Path, header: str) -> dict[str, Any]:
    """Return what a header says, once every part of it is of the type that it must have."""

    def damaged(why: str) -> ValueError:
        return ValueError(f"{path}: the model's header {why}: fit and save the model again")

    if len(header) > MAX_HEADER_CHARS:
        raise damaged(f"is longer than {MAX_HEADER_CHARS} characters, so the file is damaged or no model")
    try:
        about: dict[str, Any] = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise damaged(f"is not complete JSON ({_describe_error(error)})") from error
    version = about.get("format_version") if isinstance(about, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} was written with model format {version!r}, but this version of paceline reads format "
            f"{FORMAT_VERSION}: fit the model again, or install a matching version"
        )
    for name, kind in (("kind", str), ("configuration", dict), ("text", dict), ("fitted_on", str)):
        if not isinstance(about.get(name), kind):
            raise damaged(f"must hold {name}, a {kind.__name__}, got {about.get(name)!r}")
    for name, words in about["text"].items():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise damaged(f"must hold a list of texts as {name!r}, got {words!r:.80}")
        longest = max(map(len, words), default=0)  # an array takes as much for each
        if len(words) * longest > MAX_HEADER_CHARS:
            raise damaged(f"holds texts {name!r} that are too long")
    return about


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.400}"
