"""Join the files of a job of which each rank wrote its own: ``rank0.csv``, ``rank1.csv``, or ``rank0/log.txt``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

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


def have_one_worker_each(workers: Sequence[Sequence[str]]) -> bool:
    """Return whether the files of a job hold one worker each: files of several are jobs of their own."""
    return len(workers) > 1 and all(len(names) == 1 for names in workers)


def join_ranks(frames: Sequence[pd.DataFrame], paths: Sequence[Path]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the rows of files that hold one worker each, and what a trace's ``meta`` says of these files.

    A worker has the name that its file gives it, or where these are the same, the rank in the file's name.
    """
    import pandas as pd

    names = [str(frame["worker"].iloc[0]) for frame in frames]
    if len(set(names)) < len(names):
        names = [rank_in_path(path) for path in paths]
    rows = pd.concat([frame.assign(worker=name) for frame, name in zip(frames, names, strict=True)], ignore_index=True)
    source = paths[0].parent.name or paths[0].name
    return rows, {"job": job_name(paths), "joined": f"{len(paths)} files, one for each rank", "source": source}


def merge_ranks(traces: Sequence[Trace], paths: Sequence[Path]) -> Sequence[Trace]:
    """Return one trace of files that hold one worker each, row by row, or the traces of any other files.

    A file that is shorter ends in NaN.
    """
    if not have_one_worker_each([trace.workers for trace in traces]):
        return traces
    rows, about = join_ranks([trace.to_frame() for trace in traces], paths)
    joined = Trace.from_frame(rows, meta={**traces[0].meta, **about})
    numbers = {name: [int(number) for number in re.findall(r"\d+", name)] or [0] for name in joined.workers}
    return [joined.select(workers=sorted(joined.workers, key=lambda name: (numbers[name], name)))]


def job_name(paths: Sequence[Path]) -> str:
    """Return the name of the job of several files: what they share, or their folder.

    >>> job_name([Path("run/rank0.csv"), Path("run/rank1.csv")]), job_name([Path("a-rank0.log"), Path("a-rank1.log")])
    ('run', 'a')
    """
    stem = RANK_PATTERN.sub("", paths[0].name.split(".")[0]).strip("-_. ")
    folders = [part for part in paths[0].parent.parts if not RANK_PATTERN.search(part)]
    return stem or (folders[-1] if folders else "ranks")
