"""Record an unedited script: what `paceline collect -- COMMAND` does inside each worker."""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from paceline.recording.covariates import all_covariates
from paceline.recording.place import Place
from paceline.recording.recorder import Recorder
from paceline.recording.torch.clocks import offset_from_rank_zero
from paceline.recording.torch.watch import Watch, watch


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


def _enter_place() -> None:
    # `paceline collect` passes the place of each worker and its competitors in the environment.
    places = json.loads(os.environ.get("PACELINE_PLACES", "[]"))
    if places:
        Place(**places[int(os.environ["LOCAL_RANK"])]).enter()


def _watched(model: Any, folder: Path) -> list[Watch]:
    # The training matters more than its record: if recording fails, the training continues without it.
    rank, restart = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"rank{rank}.jsonl" if restart == "0" else f"rank{rank}.{restart}.jsonl"
    try:
        _enter_place()  # only now, because libraries load slowly under a quota
        covariates = all_covariates(device=getattr(next(model.parameters(), None), "device", None))
        recorder = Recorder(folder / name, rank, covariates, meta={"host": socket.gethostname()}).__enter__()
        atexit.register(recorder.close)  # of a recording that fails below, too
        recorder.clock = offset_from_rank_zero()
        watching = watch(model, None, recorder)
    except Exception as error:
        print(f"paceline: rank {rank} is not recorded: {error!r}", file=sys.stderr)
        return []
    atexit.register(watching.close)
    return [watching]


def startup_folder() -> Path:
    """Return the folder that, if first on Python's path, makes Python record DistributedDataParallel."""
    return Path(__file__).parent / "startup"
