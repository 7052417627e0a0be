"""Queue of events by their simulated times."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

What = TypeVar("What")


class Events(Generic[What]):
    """Events in the order of their times, and at equal times in the order in which they were planned.

    Attributes
    ----------
    now
        The time of the last event taken, in seconds; 0 at first.

    Examples
    --------
    >>> events = Events[str]()
    >>> events.plan(2.0, "two")
    >>> events.plan(1.0, "one")
    >>> for what in events:
    ...     if what == "one":
    ...         events.plan(0.5, "half a second later")
    ...     print(events.now, what)
    1.0 one
    1.5 half a second later
    2.0 two
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, What]] = []
        self._planned = 0

    def plan(self, delay: float, what: What) -> None:
        """Plan an event ``delay`` seconds from now.

        Raises
        ------
        ValueError
            If that is in the past, or not a time.
        """
        if not delay >= 0:
            raise ValueError(f"delay must be 0 seconds or more, got {delay}")
        # The number decides between equal times, so that what happens is never compared, and runs repeat exactly.
        heapq.heappush(self._heap, (self.now + delay, self._planned, what))
        self._planned += 1

    def __len__(self) -> int:
        """Return how many events are to come."""
        return len(self._heap)

    def __iter__(self) -> Iterator[What]:
        """Take events until none is left; more may be planned meanwhile."""
        while self._heap:
            self.now, _, what = heapq.heappop(self._heap)
            yield what
