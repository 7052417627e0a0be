"""A competing process: takes CPU time from the worker on the same core."""

from __future__ import annotations

import json
import sys

from paceline.lab.processes import CPUPlacement, die_with_parent


def main() -> None:
    """Enter the place in the first line of the standard input, then compute until the parent ends."""
    task = json.loads(sys.stdin.readline())
    CPUPlacement(**task["place"]).move_current_process()
    die_with_parent()
    while True:
        sum(range(5_000))


if __name__ == "__main__":
    main()
