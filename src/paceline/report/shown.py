"""Values as a page shows them, and sentences that keep the values they state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paceline._wording import duration, percent

UNKNOWN = "not known"
MINUTE, HOUR = 60.0, 3600.0


def shown(value: Any, how: str = "text") -> str:
    """Return a value as text, in one of the ways of ``WAYS``; an unknown number is *not known*.

    Examples
    --------
    >>> shown(0.1234, "percent"), shown(0.0263, "seconds"), shown(5400.0, "seconds"), shown(None, "times")
    ('12 %', '26.3 ms', '90 min', 'not known')
    >>> shown([0.61, 0.65, 0.7], "range"), shown(12345, "count"), shown("gpu0")
    ('0.650 (0.610 to 0.700)', '12,345', 'gpu0')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    return WAYS[how](value)


def _seconds(value: float) -> str:
    if abs(value) < 10 * MINUTE:
        return duration(value) if value >= 0 else f"-{duration(-value)}"
    return f"{value / MINUTE:.0f} min" if abs(value) < 3 * HOUR else f"{value / HOUR:,.1f} h"


def _range(value: tuple[float | None, ...]) -> str:
    low, middle, high = (shown(one, "ratio") for one in value)
    return f"{middle} ({low} to {high})" if low != UNKNOWN else middle


WAYS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,.0f}",
    "number": lambda value: f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}",
    "percent": percent,
    "ratio": lambda value: f"{value:.3f}",
    "times": lambda value: f"{value:.2f}x",
    "tiny": lambda value: f"{value:.1e}",
    "seconds": _seconds,
    "range": _range,
}
"""Ways to show a value; a range is its low end, its middle and its high end."""


def say(text: str, **facts: tuple[Any, str]) -> dict[str, Any]:
    """Return a sentence with its facts: each is a value, and the way in which the sentence shows it.

    Examples
    --------
    >>> said = say("Workers wait {share} of the time.", share=(0.125, "percent"))
    >>> said["text"], said["facts"]
    ('Workers wait 12 % of the time.', {'share': 0.125})
    """
    words = {name: shown(value, how) for name, (value, how) in facts.items()}
    return {"text": text.format_map(words), "facts": {name: value for name, (value, _) in facts.items()}}


def answer(asks: str, headline: str, *said: dict[str, Any]) -> dict[str, Any]:
    """Return one row of a verdict: what it answers, the answer in a word or a figure, and its sentences."""
    facts = {name: value for one in said for name, value in one["facts"].items()}
    return {"asks": asks, "headline": headline, "text": " ".join(one["text"] for one in said), "facts": facts}
