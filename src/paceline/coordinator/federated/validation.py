"""Plausibility of reports: clients may be broken, or lie. Axis: W clients that replied."""

from __future__ import annotations

import math

import numpy as np

from paceline._arrays import Array, Mask
from paceline.coordinator.federated.round_report import RoundReport

CLOCKS = 1.01
CLOCKS_SECONDS = 0.01
"""Two clocks may differ by this factor, and by this many seconds, and both be right."""


def plausible_speeds(report: RoundReport, usual: float, plausible: float) -> Mask:
    """Return which speeds are plausible, ``[W]``: near those of others, and within the time that the server saw pass.

    Where the server measured the round trip, any slowness within it is accepted.

    Parameters
    ----------
    report
        What the clients sent.
    usual
        The mean speed of all clients so far, in samples/s; NaN before any report.
    plausible
        The largest factor between a client's speed and the usual one.

    Examples
    --------
    >>> report = RoundReport(clients="abc", samples=[100, 100, 1e9], seconds=[1.0, 2.0, 1.0])
    >>> plausible_speeds(report, usual=math.nan, plausible=100.0)
    array([ True,  True, False])
    """
    speed_W = report.speed
    usable_W = np.isfinite(speed_W)
    if not usable_W.any():
        return usable_W
    with np.errstate(invalid="ignore"):
        usable_W &= ~(report.compute_seconds > _seen(report))
    if math.isnan(usual):
        # The lower of two medians: of two clients that disagree the faster is the one to doubt.
        known_W = np.sort(speed_W[np.isfinite(speed_W)])
        usual = float(known_W[(len(known_W) - 1) // 2])
    ratio_W = np.where(usable_W, speed_W, usual) / usual
    # A stalled client may be as slow as it likes, if the server saw that time pass.
    confirmed_W = np.isfinite(report.elapsed_seconds) | (ratio_W >= 1.0 / plausible)
    accepted_W: Mask = usable_W & (ratio_W <= plausible) & confirmed_W
    return accepted_W


def plausible_comm(report: RoundReport, accepted_W: Mask, usual: float, plausible: float) -> Mask:
    """Return which times to communicate are plausible, ``[W]``: within what the server saw pass, or not absurdly long.

    ``accepted_W`` says which speeds are plausible, ``[W]``, and ``usual`` is the mean time so far, NaN before any
    report. Where the time is the rest of a round trip after a computing time that cannot be, it cannot be either.
    """
    comm_W, seconds_W = report.communication, report.compute_seconds[accepted_W]
    usual = max(np.nan_to_num(usual), float(np.median(seconds_W)) if len(seconds_W) else 0.0)
    seen_W = _seen(report)
    most_W = np.where(np.isnan(seen_W), plausible * usual, seen_W)
    measured_W = np.isfinite(report.measured_comm) | accepted_W
    timed_W: Mask = measured_W & report.used & np.isfinite(comm_W) & (comm_W <= most_W)
    return timed_W


def _seen(report: RoundReport) -> Array:
    """Return the time that the server saw pass, with room for clocks that differ, ``[W]``; NaN if not measured."""
    return CLOCKS * report.elapsed_seconds + CLOCKS_SECONDS
