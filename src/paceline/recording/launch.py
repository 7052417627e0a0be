"""Record a job that was started by ``paceline record``: each rank finds its place and its file."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.recording.clock_offset import offset_from_rank_zero
from paceline.recording.covariates import all_covariates
from paceline.recording.recorder import Recorder
from paceline.recording.torch.watch import Watch, watch

PROBE = "PACELINE_PROBE"
"""Number of steps after which a probe ends; set by ``paceline record --probe``."""


def watch_every(ddp: Any, folder: str) -> None:
    """Record the first DistributedDataParallel of this process from its construction on.

    Parameters
    ----------
    ddp
        The class; its ``__init__`` and ``register_comm_hook`` are replaced by wrappers.
    folder
        Where ``rank<r>.jsonl`` is written; ``rank<r>.<n>.jsonl`` after the n-th restart by torchrun.
    """
    begin, register = ddp.__init__, ddp.register_comm_hook
    if os.environ.get(PROBE):
        cut_batches()
    watched: list[Watch] = []

    @functools.wraps(begin)
    def begin_watched(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        if not watched:
            watched.extend(_watched(self, Path(folder)))

    @functools.wraps(register)
    def register_timed(self: Any, state: Any, hook: Any) -> None:
        ours = [each for each in watched if each.stopwatch.model is self and not each.stopwatch.times_exchanges]
        register(self, state, ours[0].timed(hook) if ours else hook)

    ddp.__init__, ddp.register_comm_hook = begin_watched, register_timed


PROBE_BLOCK = 4
"""Batches of one size in a row: enough for a median beside each change, few enough for many changes in a short run."""


def cut_batches() -> None:
    """Let torch's batch samplers, whatever script uses them, yield half of every other block of batches.

    A probe needs batches of two sizes. Samples that are left out are not trained on.
    """
    from torch.utils.data import BatchSampler

    whole, seen = BatchSampler.__iter__, weakref.WeakKeyDictionary[Any, int]()

    @functools.wraps(whole)
    def cut(self: Any) -> Iterator[list[Any]]:
        for batch in whole(self):
            seen[self] = number = seen.get(self, -1) + 1  # over all epochs, as an epoch may be shorter than a block
            yield batch[: max(len(batch) // 2, 1)] if number // PROBE_BLOCK % 2 else batch

    BatchSampler.__iter__ = cut  # type: ignore[method-assign]


def _stop_after(steps: int, watching: Watch) -> None:
    """End this process after so many steps: all ranks take them together, so none is left waiting."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = 0

    def stepped(optimizer: Any, *args: Any) -> None:
        nonlocal done
        done += watching.is_of_model(optimizer)
        if done >= steps:
            raise SystemExit(0)

    register_optimizer_step_post_hook(stepped)


def _watched(model: Any, folder: Path) -> list[Watch]:
    # The training matters more than its record: if recording fails, the training continues without it.
    rank, restart = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"rank{rank}.jsonl" if restart == "0" else f"rank{rank}.{restart}.jsonl"
    probe, meta = os.environ.get(PROBE), {"host": socket.gethostname()}
    if probe:
        meta["probe"] = "every other block of batches is cut to half"
    try:
        covariates = all_covariates(device=getattr(next(model.parameters(), None), "device", None))
        recorder = Recorder(folder / name, rank, covariates, meta=meta).__enter__()
        atexit.register(recorder.close)  # of a recording that fails below, too
        recorder.clock = offset_from_rank_zero()
        watching = watch(model, None, recorder)
    except Exception as error:
        print(f"paceline: rank {rank} is not recorded: {error!r}", file=sys.stderr)
        return []
    atexit.register(watching.close)
    if probe:
        _stop_after(int(probe), watching)
    return [watching]


def startup_folder() -> Path:
    """Return the folder that, if first on Python's path, makes Python record DistributedDataParallel."""
    return Path(__file__).parent / "startup"


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
