"""Calls of listeners: one that raises must neither end a training nor silence the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("paceline.asynchronous")

News = TypeVar("News")


def tell(listeners: list[Callable[[News], None]], news: News, name: str) -> None:
    """Call every listener; one that raises is logged, and taken from the list.

    Parameters
    ----------
    listeners
        Changed in place.
    news
        What they are called with.
    name
        What the list is called in the log.

    Examples
    --------
    >>> heard = []
    >>> listeners = [heard.append]
    >>> tell(listeners, "a push", "on_verdict")
    >>> heard
    ['a push']
    """
    for listener in list(listeners):
        try:
            listener(news)
        except Exception:
            listeners.remove(listener)
            logger.exception("a listener of %s raised, and is not called again", name)
