"""The measured columns of a trace, in memory and in files."""

COLUMNS = ("samples", "seconds", "comm_seconds", "wait_seconds", "start")
"""The measured columns, in the order of storage; the last three are optional."""

WORK = "work"
"""A further optional one: what a worker's samples cost."""

MEASURED = (*COLUMNS, WORK)

LARGEST = 1e15
"""Largest measured value (in seconds 30 million years): what is larger is an error, and no sum of it overflows."""

UNITS = {
    "samples": "samples",
    "seconds": "s",
    "comm_seconds": "s",
    "wait_seconds": "s",
    "start": "s since 1970-01-01 UTC",
    WORK: "any, the same for all workers",
}
