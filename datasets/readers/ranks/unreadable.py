"""Logs that people have and that do not say how fast each rank is: what to log instead."""

from __future__ import annotations

import re

RECORD = "record busy times instead: paceline record -- <your command>"

KNOWN = (
    (
        re.compile(r"\b(?:RunningAvg|Curr)SamplesPerSec="),
        f"is a log of DeepSpeed, whose samples per second are those of the whole job; {RECORD}",
    ),
    (
        re.compile(r'"log_history"|"current_steps": *\d+, *"total_steps"'),
        f"is the log of a trainer, which one process writes, without the times of each rank; {RECORD}",
    ),
    (
        re.compile(r"\bstep: *\d+ .*\btps: *[\d,]+"),
        "is a log of torchtitan, whose ranks all show the same tps, as each waits for the slowest: profile some steps "
        "(its option to enable profiling) and name the folder of the exported traces",
    ),
    (
        re.compile(r"(?:\bmax|\(min, max\)) time across ranks \(ms\):"),
        "is a log of Megatron-LM with the times of no single rank: log with --timing-log-level 2 "
        "--timing-log-option all",
    ),
    (
        re.compile(r"MnRtt/Rnk: "),
        "is the straggler log of Megatron-LM, which names the fastest and the slowest rank alone: log with "
        "--timing-log-level 2 --timing-log-option all",
    ),
)


def instead(text: str) -> str:
    """Return what is wrong with a log, and what to log instead; empty if it is none of these.

    >>> instead("0: | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 |")[:65]
    'is the straggler log of Megatron-LM, which names the fastest and '
    """
    return next((sentence for pattern, sentence in KNOWN if pattern.search(text)), "")
