"""Libraries that only some parts of the package need, and what to install when one is missing."""

from __future__ import annotations

from importlib.util import find_spec


def require(library: str, needed_by: str, extra: str) -> None:
    """Raise an error that says what to install, unless the library is installed.

    >>> require("numpy", needed_by="everything", extra="all")
    >>> require("not_there", needed_by="NARX.fit", extra="torch")
    Traceback (most recent call last):
    ImportError: `not_there` is needed by NARX.fit; install it in your clone of paceline: pip install ".[torch]"
    """
    # find_spec looks without importing: torch alone takes seconds to import.
    if find_spec(library) is None:
        raise ImportError(
            f'`{library}` is needed by {needed_by}; install it in your clone of paceline: pip install ".[{extra}]"'
        )
