"""Gradients that are still to be summed after a loop's last batch was fetched, as in a loop that fetches ahead."""

from __future__ import annotations


class SumsToCome:
    """Compares how often gradients were summed with how often a loop of so many batches sums them.

    Both are the same on every rank at the same place of a script. What a rank sees of its own passes is not: rows
    beside a batch may mislead one rank, and ranks that disagree here wait for each other for ever.

    Parameters
    ----------
    batches
        Batches of a step, until the loop shows how many it takes from one sum to the next.

    Examples
    --------
    >>> sums = SumsToCome(batches=1)
    >>> sums.hand_out(); sums.hand_out(); sums.sent()  # a loop of two batches that fetches one ahead
    >>> sums.waits
    True
    >>> sums.sent()
    >>> sums.waits
    False
    """

    def __init__(self, batches: int) -> None:
        self._batches, self._seen = batches, 0
        self._times = 1  # how often gradients are summed in a row, as where two models train on a batch
        self.start()

    def start(self) -> None:
        """Begin a loop; what was learned of its kind is kept."""
        self._taken = self._sums = self._taken_since = self._sums_since = 0

    def hand_out(self) -> None:
        """Count a batch that the loop is given."""
        self._times = max(self._times, self._sums_since)
        self._sums_since = 0
        self._taken += 1
        self._taken_since += 1

    def sent(self) -> None:
        """Count a sum of gradients over the ranks."""
        if self._sums:  # before the first come also the batches that are fetched ahead
            self._seen = max(self._seen, self._taken_since)
        self._taken_since = 0
        self._sums += 1
        self._sums_since += 1

    @property
    def waits(self) -> bool:
        """True if sums are to come, by the batches taken so far; False before the first sum: the loop may only read."""
        return 0 < self._sums * (self._seen or self._batches) < self._taken * self._times
