"""The function that ``paceline profile`` measures: find it by its name, and check that it does what is expected.

``make_step(batch_size, device)`` builds a model and a batch, and returns a function that runs one training step of it:
:func:`paceline.training.profile.example` is one.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

Step = Callable[[], object]
MakeStep = Callable[[int, str], Step]


class StepError(ValueError):
    """The named object is not a ``make_step``; the message says why, and what is expected."""

    def __init__(self, sentence: str) -> None:
        expected = (
            "expected is make_step(batch_size, device), which returns a function that runs a training step when "
            "called:\n"
            "    def make_step(batch_size, device):\n"
            "        return lambda: train_once(images[:batch_size].to(device))"
        )
        super().__init__(f"{sentence}; {expected}")


def load_make_step(text: str) -> MakeStep:
    """Return the function that ``package.module:make_step`` names; the working folder is searched too.

    Raises
    ------
    ValueError
        If the text does not have this form, there is no such module or function, the module fails when it is imported,
        or the function does not take a batch size and a device.
    ModuleNotFoundError
        If the module exists, but one that it imports does not.

    Examples
    --------
    >>> load_make_step("paceline.training.profile:example").__name__
    'example'
    """
    module_name, _, function = text.partition(":")
    if not module_name or not function or module_name.startswith("."):
        raise StepError(f"the model must be named like package.module:make_step, got {text!r}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _imported(module_name, folder)
    if not hasattr(module, function):
        close = difflib.get_close_matches(function, vars(module), n=1)
        hint = f", but it has {close[0]!r}" if close else ""
        raise StepError(f"module {module_name!r} has no function {function!r}{hint}")
    make_step: MakeStep = getattr(module, function)
    if not callable(make_step):
        raise StepError(f"{text} must be a function make_step(batch_size, device), got a {type(make_step).__name__}")
    if wrong := _refused(make_step, 8, "cpu"):
        raise StepError(f"{text}{wrong[0]} cannot be called with a batch size and a device: {wrong[1]}")
    return make_step


class CheckedStep:
    """The step that ``make_step`` returns, which notices if it does nothing.

    Its own overhead, .3 us, is far below the time of a training step.

    Parameters
    ----------
    make_step, batch_size, device
        The function to call, and its arguments.

    Raises
    ------
    ValueError
        If the result is not a function, or is one that needs arguments.
    """

    def __init__(self, make_step: MakeStep, batch_size: int, device: str) -> None:
        self._call = f"make_step({batch_size}, {device!r})"
        step: Any = make_step(batch_size, device)
        if inspect.iscoroutine(step):
            step.close()  # otherwise Python warns that it was never awaited
            raise StepError(f"{self._call} is async, and must be a plain function")
        if not callable(step):
            returned = "None" if step is None else f"a {type(step).__name__}"
            raise StepError(f"{self._call} returned {returned}, and must return a function")
        if wrong := _refused(step):
            raise StepError(
                f"{self._call} returned a function{wrong[0]}, which cannot be called without arguments: {wrong[1]}"
            )
        self._step: Step = step
        self._seconds: list[float] = []

    def __call__(self) -> None:
        """Run the step."""
        begin = time.perf_counter()
        result: Any = self._step()
        self._seconds.append(time.perf_counter() - begin)
        # not run yet: a function to call, a generator to exhaust, a coroutine to await
        unfinished: tuple[type, ...] = (
            types.FunctionType,
            types.MethodType,
            types.GeneratorType,
            types.CoroutineType,
            types.AsyncGeneratorType,
        )
        if isinstance(result, unfinished):
            if inspect.iscoroutine(result):
                result.close()
            kind = type(result).__name__.replace("_", " ")
            raise StepError(f"the step that {self._call} returned returns a {kind} instead of doing its work")

    def require_work(self) -> None:
        """Raise an error if most steps ended at once.

        Raises
        ------
        ValueError
            If the median step took less than 1 us.
        """
        median = statistics.median(self._seconds)
        # seconds; an empty call takes 0.1 us, starting any kernel more than 1 us
        if median < 1e-6:
            raise StepError(
                f"the step that {self._call} returned does no work: it ends after {1e6 * median:.2f} us, like "
                "an empty function"
            )


def failure(what: str, error: BaseException, make_step: object = None) -> str:
    """Return what failed, with which error, and where in the file of ``make_step``, if known."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(make_step, "__code__", None), "co_filename", None)
    in_file = [frame for frame in frames if frame.filename == file] or list(frames)
    place = f" ({Path(in_file[-1].filename).name}, line {in_file[-1].lineno})" if in_file else ""
    if isinstance(error, SyntaxError):  # its message says where it is
        place = ""
    message = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"{what} {message}{place}"


def _imported(name: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            hint = (
                f"; give the module's name, not its file: {Path(name).stem}"
                if name.endswith(".py") or "/" in name
                else ""
            )
            raise StepError(f"there is no module {name!r}, neither installed nor in {folder}{hint}") from error
        sentence = f"module {name!r} cannot be imported: {error}"  # the module exists, but one of its imports does not
        raise ModuleNotFoundError(sentence, name=error.name) from error
    except (Exception, SystemExit) as error:  # a script that parses its arguments exits when it is imported
        raise StepError(failure(f"module {name!r} cannot be imported, it raised", error)) from error


def _refused(function: Callable[..., object], *arguments: object) -> tuple[str, str] | None:
    """Return a function's signature and why it does not take these arguments; ``None`` if it does, or has none."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions written in C have no signature
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(signature), str(error)
    return None
