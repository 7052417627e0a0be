"""Counts of the balancer's reasons, without their numbers and names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence


def reasons(why: Iterable[str], workers: Sequence[str]) -> Counter[str]:
    """Count reasons, without their numbers and workers' names."""
    return Counter(kind_of(sentence, workers) for sentence in why)


def kind_of(sentence: str, workers: Sequence[str]) -> str:
    """Return a reason without its numbers and names, so that similar reasons can be counted together.

    >>> kind_of("Moved 24 samples from g2 (62 % slower than the median) to g3, g1 and g0: the next ...", ["g0", "g1"])
    'Moved samples'
    >>> kind_of("Kept the sizes: the best split would gain at most 1.2 %; a change costs 5 %.", ["g0", "g1"])
    'Kept the sizes: the best split would gain …; a change costs …'
    """
    if sentence.startswith("Moved"):
        return "Moved samples"
    for worker in sorted(workers, key=len, reverse=True):  # a number is left out below anyway
        if worker in sentence:
            sentence = re.sub(rf"(?<!\w){re.escape(worker)}(?!\w)", "a worker", sentence)
    return re.sub(r"\d[\d.]*(?: (?:%|ms|us|s)(?!\w))?", "…", sentence.rstrip(".").replace("at most ", ""))
