"""Batch multiple of a job on PyTorch that names none: for replays, which know nothing of engines."""

from __future__ import annotations

STEPS = 30
"""A worker's share of the batch has at least so many steps."""


def usual_multiple(global_batch: int, workers: int) -> int:
    """Return the largest power of two that divides the batch and fits :data:`STEPS` times into a worker's share of it.

    >>> [usual_multiple(batch, workers=2) for batch in (896, 1000, 30)]
    [8, 8, 1]
    """
    most, multiple = global_batch / workers / STEPS, 1
    while 2 * multiple <= most and global_batch % (2 * multiple) == 0:
        multiple *= 2
    return multiple
