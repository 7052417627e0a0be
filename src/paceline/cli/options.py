"""Names given on the command line: traces (recorded, or files) and predictors (kinds, or model files)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.datasets import Trace, readers, recorded
from paceline.datasets.readers import iter_jobs, read_job
from paceline.predictors import FleetPredictor, named
from paceline.predictors.named import build_predictor
from paceline.predictors.nested import as_fleet_predictor
from paceline.predictors.protocol import missing_members
from paceline.training import Source, load_model

DEFAULT_PREDICTORS = ("last-value", "ewma", "narx:covariates=()", "narx", "arima", "mixture", "auto")
"""Predictors that are replayed unless others are named."""


def find_traces(name: str, file_format: str | None = None, options: Sequence[str] | None = None) -> Iterator[Trace]:
    """Yield the trace of a recorded job's name, or the traces of a file or a folder of any format."""
    path, known = Path(name), parse_options(options)
    if path.exists():
        yield from readers.iter_traces(path, file_format, **known)
    elif name in recorded.names():
        yield recorded.load(name)
    elif path.suffix or len(path.parts) > 1:
        raise FileNotFoundError(f"there is no trace file {path}")
    else:
        raise ValueError(
            f"there is no recorded trace, file or folder {name!r}: pass the path of a trace file, or one of the "
            f"recorded traces {recorded.names()}"
        )


def parse_options(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of a format, as ``--with`` gives them: numbers, booleans, texts, or ``workers``, a list."""
    options: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--with takes NAME=VALUE, such as period=300, got {text!r}")
        options[name] = value.split(",") if name == "workers" else value
        if name != "workers":
            with suppress(ValueError, SyntaxError):
                options[name] = ast.literal_eval(value)
    return options


def load_traces(names: Sequence[str] | None, split: str, options: Sequence[str] | None = None) -> list[Trace]:
    """Return all traces of those named, or the recorded ones of a split when none is named.

    ``options`` are those of the format of named files. Traces of different files that have the same name are named by
    as much of their paths as tells them apart.
    """
    if not names:
        return recorded.load_split(split)
    known, found = parse_options(options), list[tuple[Trace, Path | None]]()
    files: dict[str, set[Path]] = {}
    for name in names:
        if not Path(name).exists():
            found += [(one, None) for one in find_traces(name)]
            continue
        for chosen, paths in iter_jobs(Path(name), options=known):
            for one in read_job(chosen, paths, **known):
                found.append((one, paths[0].resolve()))
                files.setdefault(one.name, set()).add(paths[0].resolve())
    return [
        one if file is None or len(files[one.name]) == 1 else _named_by_path(one, file, files[one.name] - {file})
        for one, file in found
    ]


def _named_by_path(trace: Trace, file: Path, other_files: set[Path]) -> Trace:
    tails = ("/".join(file.parts[-depth:]) for depth in range(1, len(file.parts) + 1))
    tail = next(tail for tail in tails if not any(other.as_posix().endswith(f"/{tail}") for other in other_files))
    # A file may hold several traces: then its path alone is no name.
    name = tail if file.name.startswith(f"{trace.name}.") else f"{tail}/{trace.name}"
    return replace(trace, meta={**trace.meta, "job": name})


def fit_source(
    names: Sequence[str] | None, split: str, *, strict: bool = False, options: Sequence[str] | None = None
) -> Source:
    """Return the traces to fit to: recorded ones, files and folders, of which files are read one by one."""
    found_traces: list[Trace | str | Path] = []
    for name in names or ():
        is_place = "://" in name or Path(name).exists()
        found_traces += [name] if is_place else list(find_traces(name))
    return Source(found_traces or recorded.load_split(split), strict=strict, options=parse_options(options))


def load_predictor(text: str) -> FleetPredictor:
    """Return a predictor: a model file, a name with arguments (``ewma:smoothing=0.5``), or a class of the user's."""
    if text.endswith(".safetensors"):
        return load_model(text)
    found = CLASS_PATTERN.fullmatch(text)
    return named(text) if found is None else _user_predictor(found)


CLASS_PATTERN = re.compile(r"(?P<module>[^:]+\.py|\w[\w.]*):(?P<name>[A-Za-z_]\w*)(?::(?P<arguments>.*))?")
"""A module, a class and its arguments. Arguments hold ``=``, so ``ewma:smoothing=0.5`` is none of these."""


files: set[str] = set()
"""The files of a user's own modules that were run."""


def _user_predictor(match: re.Match[str]) -> FleetPredictor:
    module = import_module(match["module"])
    kind = getattr(module, match["name"], None)
    if not inspect.isclass(kind):
        classes = [name for name, thing in vars(module).items() if inspect.isclass(thing)]
        raise ValueError(f"{match['module']} has no class {match['name']!r}; it has {classes}")
    arguments = match["arguments"] or ""
    if issubclass(kind, FleetPredictor):
        return build_predictor(kind, arguments)
    made: Any = kind()
    missing = missing_members(made)
    if arguments or missing:
        lacks = f"it lacks {missing}" if missing else "only classes that inherit from FleetPredictor take arguments"
        raise ValueError(f"{match[0]} must implement paceline.predictors.Predictor: {lacks}")
    return as_fleet_predictor(made)


def user_location(error: BaseException | None) -> str:
    """Return the last place in a user's own file that an error, or what caused it, passed; empty if none."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename in files:
                return f"{os.path.relpath(frame.filename)}, line {frame.lineno}, in {frame.name}"
        error = error.__cause__ or error.__context__
    return ""


def import_module(name: str) -> ModuleType:
    """Return a module of the user's: a file, which is run, or one that can be imported from the working folder."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        if name.endswith(".py"):
            return _run_file(Path(name))
        if (spec := importlib.util.find_spec(name)) is None:
            raise ModuleNotFoundError(name=name)
        if name.partition(".")[0] != "paceline":
            files.add(str(spec.origin))
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # one that it imports itself
        raise ValueError(
            f"no module {name!r} can be imported from this folder: pass a file, such as my_file.py"
        ) from error
    except SystemExit as error:
        raise ValueError(
            f"{name} exits when it is imported: move what it runs under if __name__ == '__main__'"
        ) from error


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"own_{path.stem}"  # never that of another module: a file may be called random.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "it is a file"
    module = importlib.util.module_from_spec(spec)
    files.add(str(module.__file__))  # before it is run, which may fail too
    sys.modules[name] = module  # its classes are copied and pickled by this name
    spec.loader.exec_module(module)
    return module
