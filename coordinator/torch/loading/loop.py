"""One loop over a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Loop:
    """Hands out the batches of one loop; once it has failed, it fails again.

    A generator that has failed ends, when it is asked again, as if all were well: a loop that goes on after an error
    would leave out the rest of the epoch on this rank alone.

    Examples
    --------
    >>> loop = Loop(1 / number for number in (1, 0))
    >>> next(loop)
    1.0
    >>> next(loop)
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    >>> next(loop)
    Traceback (most recent call last):
    RuntimeError: this loop ended with an error (ZeroDivisionError: division by zero): begin a new one, or go on with
    the batch that failed, in a new loop after loader.load_state_dict(loader.state_dict())
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._error = ""  # as text: the error itself would hold this loop, and so the loading processes

    def __iter__(self) -> Loop:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        if self._error:
            raise RuntimeError(
                f"this loop ended with an error ({self._error}): begin a new one, or go on with the batch that failed, "
                "in a new loop after loader.load_state_dict(loader.state_dict())"
            )
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}"
            raise
