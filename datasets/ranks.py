"""Join the files of a job of which each rank wrote its own: ``rank0.csv``, ``rank1.csv``, or ``rank0/log.txt``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from paceline.datasets.trace import Trace

RANK_PATTERN = re.compile(
    r"(?<![A-Za-z])((?:local_|global_)?(?:rank|worker|node|host|gpu|client|device|proc|process|replica|machine))"
    r"([-_.]?)(\d+)(?!\d)",
    re.IGNORECASE,
)
"""A rank in the name of a file or of its folder."""


def strip_ranks(path: Path) -> str:
    """Return a path without the numbers of ranks in it: the same for all files of a job."""
    return RANK_PATTERN.sub(r"\1\2#", str(path))


def rank_in_path(path: Path) -> str:
    """Return the rank that a path names; empty if it names none.

    >>> [rank_in_path(Path(name)) for name in ("log-rank12.txt", "node1/gpu0.csv", "run1.csv")]
    ['12', '1-0', '']
    """
    return "-".join(found[3] for found in RANK_PATTERN.finditer(str(path)))


def are_ranks(workers: Sequence[Sequence[str]]) -> bool:
    """Return whether the files of a job hold one worker each: files of several are jobs of their own."""
    return len(workers) > 1 and all(len(names) == 1 for names in workers)


def merge_ranks(traces: Sequence[Trace], paths: Sequence[Path]) -> Sequence[Trace]:
    """Return one trace of files that hold one worker each, row by row, or the traces of any other files.

    A worker has the name that its file gives it, or where these are the same, the rank in the file's name. A file that
    is shorter ends in NaN.
    """
    import pandas as pd

    if not are_ranks([trace.workers for trace in traces]):
        return traces
    names = [trace.workers[0] for trace in traces]
    if len(set(names)) < len(names):
        names = [rank_in_path(path) for path in paths]
    frames = [trace.to_frame().assign(worker=name) for trace, name in zip(traces, names, strict=True)]
    meta = {**traces[0].meta, "job": job_name(paths), **merge_meta(paths)}
    joined = Trace.from_frame(pd.concat(frames, join="inner", ignore_index=True), meta=meta)
    by_number = sorted(names, key=lambda name: (tuple(map(int, re.findall(r"\d+", name))) or (0,), name))
    return [joined.select(workers=by_number)]


def merge_meta(paths: Sequence[Path]) -> dict[str, str]:
    """Return what a trace's ``meta`` says of the files that were joined."""
    return {"joined": f"{len(paths)} files, one for each rank", "source": paths[0].parent.name or paths[0].name}


def job_name(paths: Sequence[Path]) -> str:
    """Return the name of the job of several files: what they share, or their folder.

    >>> job_name([Path("run/rank0.csv"), Path("run/rank1.csv")]), job_name([Path("a-rank0.log"), Path("a-rank1.log")])
    ('run', 'a')
    """
    stem = RANK_PATTERN.sub("", paths[0].name.split(".")[0]).strip("-_. ")
    folders = [part for part in paths[0].parent.parts if not RANK_PATTERN.search(part)]
    return stem or (folders[-1] if folders else "ranks")
