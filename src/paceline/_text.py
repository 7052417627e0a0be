"""Format numbers and names for sentences, the same in every record, warning and page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

MAX_NAMES = 3
"""Names in a sentence; the others are counted."""


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.0123), percent(0.03), percent(0.618)
    ('1.2%', '3%', '62%')
    """
    value = 100 * share
    return f"{value:z.1f}".removesuffix(".0") + "%" if abs(value) < 9.95 else f"{value:.0f}%"


def duration(seconds: float) -> str:
    """Return a time with its unit, with three digits; a dash if it is not known.

    >>> duration(0.0414), duration(0.00033), duration(7.2), duration(5400.0), duration(float("nan"))
    ('41.4 ms', '330 us', '7.2 s', '90 min', '-')
    """
    if not isfinite(seconds):
        return "-"
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> count(1, "sample"), count(24, "sample")
    ('1 sample', '24 samples')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join_names(names: Sequence[str], limit: int = MAX_NAMES) -> str:
    """Return the first names joined by commas and "and", and how many others there are.

    >>> join_names(["a"]), join_names(["a", "b"]), join_names(list("abcde"), limit=2)
    ('a', 'a and b', 'a, b and 3 others')
    """
    more = len(names) - limit
    words = [*names[:limit], "1 other" if more == 1 else f"{more} others"] if more > 0 else list(names)
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def to_printable(text: str) -> str:
    r"""Return a text with every unprintable character escaped, so that a terminal shows it and does not act on it.

    A name in a file may hold escape sequences that clear the screen, set the clipboard (OSC 52) or rename the window;
    marks that reverse the direction of writing; or a lone surrogate, which cannot be printed at all.

    >>> print(to_printable("gpu0\x1b]52;c;aGk=\x07 on host\u202e7"))
    gpu0\x1b]52;c;aGk=\x07 on host\u202e7
    >>> to_printable("Zürich-7")
    'Zürich-7'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def escape_surrogates(text: str) -> str:
    r"""Return a text with each lone surrogate escaped, which no protocol can transfer; JSON from anybody may hold one.

    >>> escape_surrogates("gpu\ud800"), escape_surrogates("Zürich-7")
    ('gpu\\ud800', 'Zürich-7')
    """
    return text.encode("utf-8", "backslashreplace").decode()
