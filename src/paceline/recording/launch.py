"""Record a job that was started by ``paceline record``: each rank finds its file. And say which worker is slow."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline._runtime import environment_with_import_hooks, wait_at_exit
from paceline.datasets.trace import Trace
from paceline.recording.covariates import all_covariates
from paceline.recording.merging import merge, merge_skipping_faults, phase_table
from paceline.recording.recorder import Recorder
from paceline.recording.torch.watch import Watch, watch

PROBE_STEPS_ENV = "PACELINE_PROBE"
"""Number of steps after which a probe ends; set by ``paceline record --probe``."""

RECORD_FOLDER_ENV = "PACELINE_RECORD"
"""Where ``rank<r>.jsonl`` is written; ``rank<r>.<n>.jsonl`` after the n-th restart by torchrun."""

recordings: list[Watch] = []
"""The recording of this process: one, once its model is known."""


def watch_ddp(ddp_module: Any) -> None:
    """Record the first DistributedDataParallel of this process, a class of this module, from its construction on."""
    ddp = ddp_module.DistributedDataParallel
    begin, register = ddp.__init__, ddp.register_comm_hook
    if os.environ.get(PROBE_STEPS_ENV):
        halve_alternate_blocks()

    @functools.wraps(begin)
    def init_and_record(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        if not recordings:
            _start_recording(self)

    @functools.wraps(register)
    def register_timed_hook(self: Any, state: Any, hook: Any) -> None:
        ours = [each for each in recordings if each.model is self and not each.times_exchanges]
        register(self, state, ours[0].time_hook(hook) if ours else hook)

    ddp.__init__, ddp.register_comm_hook = init_and_record, register_timed_hook


def watch_models_without_ddp(optimizer_module: Any) -> None:
    """Record a model without DistributedDataParallel: the one that is called in training after the first step.

    Recording begins with the second iteration. Nothing is communicated, as not all ranks need to train this model.
    ``optimizer_module`` is that of torch's ``Optimizer``.
    """
    hooks: list[Any] = []

    def on_optimizer_step(optimizer: Any, *rest: Any) -> None:
        distributed = optimizer_module.torch.distributed
        if recordings or hooks or not distributed.is_available() or not distributed.is_initialized():
            return
        from torch.nn import Module

        # Every module that holds parameters of the optimizer; all modules, if its parameters are copies.
        modules = [each for each in gc.get_objects() if issubclass(type(each), Module)]
        models = [each for each in modules if shares_parameters(each, optimizer)] or modules
        called = functools.partial(start_on_forward, optimizer)
        hooks.extend(model.register_forward_pre_hook(called, with_kwargs=True) for model in models)

    def start_on_forward(optimizer: Any, model: Any, args: Any, kwargs: Any) -> None:
        if not hooks or not model.training or not optimizer_module.torch.is_grad_enabled():
            return
        for hook in hooks:
            hook.remove()
        hooks.clear()
        if recordings:
            return
        _require_visible_waits(model)
        _start_recording(model, None if shares_parameters(model, optimizer) else optimizer)
        for watching in recordings:
            watching.before_forward(model, args, kwargs)

    def shares_parameters(model: Any, optimizer: Any) -> bool:
        optimized_ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return any(id(parameter) in optimized_ids for parameter in model.parameters())

    optimizer_module.register_optimizer_step_post_hook(on_optimizer_step)


def _require_visible_waits(model: Any) -> None:
    # On a device no call blocks: only DistributedDataParallel and FSDP2 have hooks before and after their waits.
    parameter = next(model.parameters(), None)
    if parameter is None or not parameter.is_cuda:
        return
    from torch.distributed import fsdp, get_world_size

    if get_world_size() > 1 and not any(isinstance(each, fsdp.FSDPModule) for each in model.modules()):
        raise SystemExit(
            f"paceline cannot record {type(model).__name__} on a GPU, as it cannot see where its ranks wait for each "
            "other: wrap it in DistributedDataParallel or fully_shard, or record the loop with "
            "paceline.recording.Recorder"
        )


def halve_alternate_blocks() -> None:
    """Patch torch's batch samplers to yield half of every other block of batches.

    A probe needs batches of two sizes. Samples that are left out are not trained on.
    """
    from torch.utils.data import BatchSampler

    original, seen = BatchSampler.__iter__, weakref.WeakKeyDictionary[Any, int]()

    @functools.wraps(original)
    def iter_halved(self: Any) -> Iterator[list[Any]]:
        for batch in original(self):
            seen[self] = number = seen.get(self, -1) + 1  # over all epochs, as an epoch may be shorter than a block
            # blocks of 4 batches: a median beside each change, and many changes in a short run
            yield batch[: max(len(batch) // 2, 1)] if number // 4 % 2 else batch

    BatchSampler.__iter__ = iter_halved  # type: ignore[method-assign]


def _exit_after(steps: int, active_watch: Watch) -> None:
    """End this process after so many steps: all ranks take them together, so none is left waiting."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = 0

    def on_optimizer_step(optimizer: Any, *args: Any) -> None:
        nonlocal done
        done += active_watch.is_of_model(optimizer)
        if done >= steps:
            raise SystemExit(0)

    register_optimizer_step_post_hook(on_optimizer_step)


def _start_recording(model: Any, optimizer: Any = None) -> None:
    # The training matters more than its record: if recording fails, the training continues without it.
    rank, restart = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"rank{rank}.jsonl" if restart == "0" else f"rank{rank}.{restart}.jsonl"
    probe, meta = os.environ.get(PROBE_STEPS_ENV), {"host": socket.gethostname()}
    if probe:
        meta["probe"] = "every other block of batches is cut to half"
    wait_at_exit()  # a probe ends a job whose script would go on, with torch's threads under way
    try:
        covariates = all_covariates(device=getattr(next(model.parameters(), None), "device", None))
        recorder = Recorder(Path(os.environ[RECORD_FOLDER_ENV]) / name, rank, covariates, meta=meta).__enter__()
        atexit.register(recorder.close)  # of a recording that fails below, too
        watching = watch(model, optimizer, recorder)
    except Exception as error:
        print(f"paceline: rank {rank} is not recorded: {error!r}", file=sys.stderr)
        return
    atexit.register(watching.close)
    if probe:
        _exit_after(int(probe), watching)
    recordings.append(watching)


def describe_machine() -> dict[str, str]:
    """Return processor, cores, kernel, versions and today's date."""
    described = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: *(.*\S)", described.read_text() if described.exists() else "", re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
    }


class RecordResult(NamedTuple):
    """Result of a recorded command: exit status, the workers' files, the merged trace if any, and what is missing."""

    status: int
    files: Sequence[Path]
    trace: Trace | None
    missing: Sequence[str] = ()


def record_command(command: Sequence[str], path: str | Path, *, probe_steps: int = 0) -> RecordResult:
    """Run a command whose processes train together, and record every iteration of each.

    Neither the command nor its scripts are changed: a hook in Python's start-up records the first model that trains in
    each process that has a ``RANK``. The files ``rank<r>.jsonl`` stay in a folder named after the trace. They are
    merged into the trace even if the command fails or is interrupted; files and rows that are broken are left out and
    named.

    With ``probe_steps``, every other block of batches is cut to half, and the workers exit after so many steps: this
    shows how much of a step does not depend on the batch.
    """
    path = Path(path)
    folder = path.with_suffix("")
    for existing in (path, folder):
        if existing.is_file() or (existing.is_dir() and any(existing.iterdir())):
            raise FileExistsError(
                f"{existing} already exists, and a recording is never overwritten: choose another name"
            )
    folder.mkdir(parents=True, exist_ok=True)
    status = _run_command(command, folder, probe_steps)
    files = _last_attempt_files(folder)
    if not files:
        with suppress(OSError):  # not empty
            folder.rmdir()  # so that the next try is not refused
        return RecordResult(status, [], None)
    trace, missing = merge_skipping_faults(files)
    if trace is not None:
        meta = {"job": path.stem, "source": "recorded by paceline record", "command": " ".join(command)}
        trace = replace(trace, meta={**trace.meta, **meta, **describe_machine(), "status": str(status)})
        trace.save(path)
    return RecordResult(status, files, trace, missing)


def _run_command(command: Sequence[str], folder: Path, probe_steps: int) -> int:
    hooks = {
        "torch.nn.parallel.distributed": "paceline.recording.launch:watch_ddp",
        "torch.optim.optimizer": "paceline.recording.launch:watch_models_without_ddp",
    }
    variables = {RECORD_FOLDER_ENV: str(folder.resolve()), PROBE_STEPS_ENV: str(probe_steps or "")}
    with subprocess.Popen(command, env=environment_with_import_hooks(hooks, **variables)) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal sends Ctrl-C to the command too, but a signal to this process alone does not reach it.
            process.send_signal(signal.SIGTERM)
            try:
                return process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def _last_attempt_files(folder: Path) -> list[Path]:
    # torchrun restarts all workers together. Of each rank, the last attempt that recorded an iteration counts.
    attempts: list[tuple[int, int, Path]] = []
    for file in folder.glob("rank*.jsonl"):
        rank, _, attempt = file.stem.removeprefix("rank").partition(".")
        with file.open("rb") as lines:
            if len(list(islice(lines, 2))) == 2:
                attempts.append((int(rank), int(attempt or 0), file))
    return list({rank: file for rank, _, file in sorted(attempts)}.values())


# -- which workers of a recorded job are slow; axes: T iterations, W workers -------------------------------------------


def describe_slow_workers(paths: Iterable[str | Path]) -> str:
    """Return a sentence about which workers are slow, by how much and in which phase, or that none is.

    A worker is slow if the median of its time without waits exceeds that of the slowest of the faster half by more than
    5%, and by more than twice the uncertainty of the difference.
    """
    paths = list(paths)
    trace = merge(paths)
    seconds_TW = np.asarray(trace.seconds)[1:]  # the first iteration of many jobs compiles and allocates
    seconds_TW = seconds_TW[np.isfinite(seconds_TW).all(axis=1)]
    workers = list(trace.workers)
    if len(workers) < 2 or len(seconds_TW) < 10:
        return f"cannot tell which worker is slow from {len(seconds_TW)} iterations of {len(workers)} workers"
    median_W = np.median(seconds_TW, axis=0)
    middle = int(np.argsort(median_W)[(len(workers) - 1) // 2])
    slow = [w for w in np.argsort(-median_W).tolist() if _is_slower(seconds_TW[:, w], seconds_TW[:, middle])]
    if not slow:
        communication = np.nanmedian(np.asarray(trace.comm_seconds))
        return (
            f"no worker is slow: each takes {1e3 * median_W.min():.3g} to {1e3 * median_W.max():.3g} ms per iteration "
            f"without waits, plus {1e3 * communication:.3g} ms of communication"
        )
    sentences = [
        f"worker {workers[w]} is slow: it takes {1e3 * median_W[w]:.3g} ms per iteration without waits, worker "
        f"{workers[middle]} takes {1e3 * median_W[middle]:.3g} ms"
        f"{_slow_phase_clause(paths, workers[w], workers[middle])}"
        for w in slow[:3]
    ]
    if len(slow) > 3:
        sentences.append(f"{len(slow) - 3} further workers are slow")
    return "; ".join(sentences)


def _slow_phase_clause(paths: list[str | Path], worker: str, reference: str) -> str:
    """Return the end of a sentence: in which phase a worker is slower than another. Empty without phases."""
    try:
        table = phase_table(paths)
    except ValueError:
        return ""
    medians = table[table["iteration"] > table["iteration"].min()].groupby("worker")[list(table.columns[3:])].median()
    beyond = medians.loc[worker] - medians.loc[reference]
    phases = {
        "between_seconds": "loading data or in the loop between steps",
        "forward_seconds": "the forward pass",
        "backward_seconds": "the backward pass",
        "optimizer_seconds": "the optimizer's step",
    }
    phase = phases.get(str(beyond.idxmax()), beyond.idxmax())
    return f", with {1e3 * beyond.max():.3g} ms of the difference in {phase}"


def _is_slower(worker_T: NDArray[np.float64], other_T: NDArray[np.float64]) -> bool:
    ratio_T = np.log(worker_T) - np.log(other_T)
    median = float(np.median(ratio_T))
    standard_error = 1.2533 * 1.4826 * float(np.median(np.abs(ratio_T - median))) / len(ratio_T) ** 0.5
    return bool(np.expm1(median) > max(0.05, 2 * standard_error))
