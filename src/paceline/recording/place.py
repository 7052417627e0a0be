"""Place of a worker, apart from the other workers on its machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """Place of one worker and its competitors: in the control group of these folders, or on these cores."""

    folders: Sequence[str] = ()
    cores: Sequence[int] = ()

    def enter(self) -> None:
        """Move the calling process here; with cores, the calling thread and threads that it starts later."""
        for folder in self.folders:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
        if self.cores:
            os.sched_setaffinity(0, self.cores)
