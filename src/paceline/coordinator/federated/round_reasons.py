"""Reasons for the batch of each client, in sentences."""

from __future__ import annotations

from enum import IntEnum

from paceline._wording import count, duration, percent


class ForecastSource(IntEnum):
    """Basis of a client's forecast."""

    OWN = 0
    DEVICE = 1
    FLEET = 2
    NOTHING = 3
    SILENCE = 4


class Reason(IntEnum):
    """Reason for the batch of a client."""

    BALANCED = 0
    LEAST = 1
    LARGEST = 2
    DATA = 3
    MEMORY = 4
    DEADLINE = 5
    LEFT_OUT = 6
    TRIED_AGAIN = 7
    NO_ROOM = 8
    TESTED = 9
    FLAT = 10


HELD = {
    Reason.LEAST: "; that is the smallest batch there is, and it ends after the others",
    Reason.LARGEST: "; that is the largest batch that any client gets",
    Reason.DATA: "; that is all its data",
    Reason.MEMORY: "; its memory holds no more",
    Reason.DEADLINE: "; more would miss the deadline",
}

LAST = {
    Reason.LEAST: ", even with the smallest batch",
    Reason.TRIED_AGAIN: ", which is tried again with the smallest batch",
}
"""Text added to the name of the client for which a round waits."""

SPARED = "; it gets a smaller batch, as its speed may differ"

WORTH_SAYING = 1.1
"""Factor from which the sentence about a client says that it is planned as slower than forecast."""

SOURCES = {
    ForecastSource.OWN: "by its own reports",
    ForecastSource.DEVICE: "as others of its device type, for it never reported",
    ForecastSource.FLEET: "as the clients' mean, for neither it nor its device type ever reported",
    ForecastSource.NOTHING: "",
    ForecastSource.SILENCE: "at most, for it did not reply in the time that was waited",
}


def reason_of(
    client: str,
    reason: Reason,
    *,
    size: int,
    mean: float,
    local_steps: int,
    speed: float,
    source: int,
    comm: float,
    seconds: float,
    deadline: float | None,
    silent: int,
    rejected: int,
    is_reduced: bool = False,
    caution: float = 1.0,
) -> str:
    """Return the sentence about one client; sizes in samples, times in seconds, speed in samples/s.

    >>> print(reason_of("phone", Reason.DATA, size=8, mean=16.0, local_steps=10, speed=20.0, source=ForecastSource.OWN,
    ...                 comm=1.0, seconds=5.0, deadline=None, silent=2, rejected=0))
    phone gets 8 samples a step (50 % of the mean): 20 samples/s by its own reports and 1 s to communicate make 5 s for
    10 local steps; that is all its data. It has not replied for 2 rounds.
    """
    limit = "" if deadline is None else duration(deadline)
    if reason == Reason.NO_ROOM:
        sentence = f"{client} is not asked: its data or its memory holds no sample."
    elif reason == Reason.LEFT_OUT:
        sentence = (
            f"{client} is not asked: even with the smallest batch it would miss the deadline of {limit}, at "
            f"{speed:.3g} samples/s {SOURCES[ForecastSource(source)]} and {duration(comm)} to communicate."
        )
    elif reason == Reason.TRIED_AGAIN:
        sentence = (
            f"{client} gets the smallest batch, {count(size, 'sample')}, though it may miss the deadline of "
            f"{limit}: left out for long, its data would be starved and its speed never measured again."
        )
    elif reason == Reason.TESTED:
        sentence = (
            f"{client} gets {count(size, 'sample')} a step, to see whether its time follows its batch: of late it "
            "did not, as if it trained by epochs."
        )
    elif reason == Reason.FLAT:
        sentence = (
            f"{client} gets {count(size, 'sample')} a step and is not balanced: its time, {duration(seconds)}, "
            f"does not follow its batch, as if it trained by epochs instead of {count(local_steps, 'local step')}."
        )
    elif source == ForecastSource.NOTHING:
        halved = "; as nobody has replied so far, it is less than the mean batch" if is_reduced else ""
        sentence = f"{client} gets {count(size, 'sample')} a step: nobody has reported yet{halved}."
    else:
        sentence = (
            f"{client} gets {count(size, 'sample')} a step ({percent(size / mean)} of the mean): "
            f"{speed:.3g} samples/s {SOURCES[ForecastSource(source)]} and {duration(comm)} to communicate make "
            f"{duration(seconds)} for {count(local_steps, 'local step')}{HELD.get(reason, '')}"
            f"{SPARED if caution > WORTH_SAYING and reason == Reason.BALANCED else ''}."
        )
    if silent:
        sentence += f" It has not replied for {count(silent, 'round')}."
    if rejected:
        sentence += f" It reported for {count(rejected, 'round')} a speed that cannot be, which is not used."
    return sentence
