"""Predictors of a user's own, named on the command line: ``my_file.py:Seasonal`` or ``my_package.module:Seasonal``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from paceline.predictors import FleetPredictor, Predictor
from paceline.predictors.adopted import adopted
from paceline.predictors.named import built

NAMED = re.compile(r"(?P<module>[^:]+\.py|[\w.]+):(?P<name>[A-Za-z_]\w*)(?::(?P<arguments>.*))?")
"""A module, a class and its arguments. Arguments hold ``=``, so ``ewma:smoothing=0.5`` is none of these."""


files: set[str] = set()
"""The files of a user's own predictors that were run."""


def is_user_class(text: str) -> bool:
    """Return whether a text names a class in a module, and not one of the library's predictors.

    >>> is_user_class("my_package:Seasonal:lags=4"), is_user_class("ewma:smoothing=0.5")
    (True, False)
    """
    return NAMED.fullmatch(text) is not None


def user_predictor(text: str) -> FleetPredictor:
    r"""Return a new predictor of a class in a file, or in a module that can be imported from the working folder.

    The file is run, as ``python my_file.py`` would.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If there is no such module or class, or what it makes does not keep the contract of a predictor.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mine.py"
    ...     _ = file.write_text("from paceline.predictors import EWMA\nclass Slow(EWMA):\n    pass\n")
    ...     user_predictor(f"{file}:Slow:smoothing=0.1")
    Slow(smoothing=0.1)
    """
    found = NAMED.fullmatch(text)
    assert found is not None, "is_user_class says so"
    module = _imported(found["module"])
    files.add(str(module.__file__))
    kind = getattr(module, found["name"], None)
    if not inspect.isclass(kind):
        classes = [name for name, thing in vars(module).items() if inspect.isclass(thing)]
        raise ValueError(f"{found['module']} has no class {found['name']!r}; it has {classes}")
    arguments = found["arguments"] or ""
    if issubclass(kind, FleetPredictor):
        return built(kind, arguments)
    made = kind()
    if arguments or not isinstance(made, Predictor):
        missing = [name for name in _of_contract() if not hasattr(made, name)]
        lacks = f"it lacks {missing}" if missing else "only classes that inherit from FleetPredictor take arguments"
        raise ValueError(f"{text} must implement paceline.predictors.Predictor: {lacks}")
    return adopted(made)


def user_location(error: BaseException | None) -> str:
    """Return the last place in a user's own file that an error, or what caused it, passed; empty if none.

    >>> user_location(ValueError("not raised"))
    ''
    """
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename in files:
                return f"{os.path.relpath(frame.filename)}, line {frame.lineno}, in {frame.name}"
        error = error.__cause__ or error.__context__
    return ""


def _imported(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _run(Path(name))
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # one that it imports itself
        raise ValueError(f"there is no module {name!r} here; name a file, such as my_file.py:MyPredictor") from error


def _run(file: Path) -> ModuleType:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    name = f"own_{file.stem}"  # never that of another module: a file may be called random.py
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "it is a file"
    module = importlib.util.module_from_spec(spec)
    files.add(str(module.__file__))  # before it is run, which may fail too
    sys.modules[name] = module  # its classes are copied and pickled by this name
    spec.loader.exec_module(module)
    return module


def _of_contract() -> list[str]:
    return [name for name in (*vars(Predictor), "workers") if not name.startswith("_")]
