"""Work shedding within an iteration, after FlexRR (A. Harlap et al., SoCC 2016). Axes: W workers."""

from __future__ import annotations

from paceline._arrays import Array


def shed_seconds(speed_W: Array, batch: int, chunk: float, price: float) -> float:
    """Return how long an iteration takes if whoever is done takes over work of the worker that would end last.

    It is done with foresight: every worker's speed in this iteration is known, and help is taken only if it pays.

    Parameters
    ----------
    speed_W
        Samples per second of each worker, ``[W]``.
    batch
        Samples that each worker begins with.
    chunk
        Samples that are taken over at once.
    price
        Seconds from asking for a chunk until its samples and the model are there.

    Examples
    --------
    >>> shed_seconds(np.array([10.0, 30.0]), batch=30, chunk=1, price=0.0)
    1.5
    >>> shed_seconds(np.array([10.0, 30.0]), batch=30, chunk=1, price=5.0)
    3.0
    """
    end_W = batch / speed_W
    while True:
        helper, last = int(end_W.argmin()), int(end_W.argmax())
        left = (end_W[last] - end_W[helper]) * speed_W[last]
        helped = end_W[helper] + price + chunk / speed_W[helper]
        if left < chunk or helped >= end_W[last]:
            return float(end_W[last])
        end_W[helper], end_W[last] = helped, end_W[last] - chunk / speed_W[last]
