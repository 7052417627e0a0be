"""Say of a file that no reader recognises which formats come nearest, by its columns or keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from paceline.datasets.readers.csv_rows import delimiter_of, header_of

MOST_NEAREST, MOST_NAMED = 3, 4
"""Formats that are proposed, and columns that are named of each."""

KEY = re.compile(r'("(?:[^"\\]|\\.){1,60}")\s*:')


def names_in(text: str) -> list[str]:
    """Return the keys of JSON, or the names in the first line of a table, whatever separates them.

    >>> names_in('[{"jobid": "a", "attempts": []}]'), names_in("# hostname;interval;timestamp")
    (['jobid', 'attempts'], ['hostname', 'interval', 'timestamp'])
    """
    if text.lstrip()[:1] in ("{", "["):
        return list(dict.fromkeys(map(_unquoted, KEY.findall(text))))
    first = text.lstrip("# ")
    return header_of(first, delimiter_of(first))


def _unquoted(key: str) -> str:
    try:
        return str(json.loads(key))
    except ValueError:
        return key.strip('"')


def nearest(text: str, columns: Mapping[str, tuple[str, ...]]) -> str:
    r"""Return a sentence about the formats of whose columns a file has at least half; empty if there is none.

    Parameters
    ----------
    text
        The beginning of the file.
    columns
        The columns of each format.

    Examples
    --------
    >>> columns = {"csv": ("worker", "iteration", "samples", "seconds"), "tensorboard": ("Wall time", "Step", "Value")}
    >>> nearest("rank,iteration,samples\n", columns)
    "nearest is 'csv' (lacks worker, seconds)"
    """
    found = {name.lower() for name in names_in(text)}
    missing = {name: [one for one in names if one.lower() not in found] for name, names in columns.items() if names}
    shared = {name: 1.0 - len(lacking) / len(columns[name]) for name, lacking in missing.items()}
    best = sorted((name for name in shared if shared[name] >= 0.5), key=lambda name: -shared[name])[:MOST_NEAREST]
    if best:
        return f"nearest {'is' if len(best) == 1 else 'are'} " + ", ".join(
            f"{name!r} ({_lacking(missing[name])})" for name in best
        )
    return ""


def _lacking(names: list[str]) -> str:
    if not names:
        return "all its columns are there"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"lacks {', '.join(names[:MOST_NAMED])}{more}"
