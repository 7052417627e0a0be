"""Fit a predictor to recorded traces, wherever they are and however many.

Traces are read as often as a fit needs them, and never all at once: one file is in memory at a time.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline._require import require
from paceline._runtime import heartbeat, wait_at_exit
from paceline.datasets import Trace
from paceline.datasets.readers import iter_jobs, read_job
from paceline.predictors import FleetPredictor, Predictor
from paceline.predictors.fitting import FitOptions, FitProgress, TraceSummary, fit_with
from paceline.predictors.protocol import require_predictor
from paceline.training.model_files import load_model

if TYPE_CHECKING:
    from rich.progress import TaskID

PredictorT = TypeVar("PredictorT", bound=Predictor)

LoadTraces = Callable[[], Iterator[Trace]]
TraceSource = Iterable[Trace | str | Path] | Trace | str | Path


class Source:
    """Traces that can be passed over many times: one file is in memory at a time.

    Parameters
    ----------
    traces
        A trace; a file, or a folder of files, of any format that :mod:`paceline.datasets.readers` reads; a list of
        these; or an iterator of traces, which are all kept in memory.
    options
        Options of the format of the files, as :func:`paceline.datasets.read_traces` takes them.
    strict
        Whether a file that cannot be read, or holds no speed, is an error. Otherwise it is left out and listed.

    Attributes
    ----------
    trace_names
        Names of the traces that are fitted to, complete after the first pass.
    left_out
        Why files are not fitted to, by file, complete after the first pass.

    Raises
    ------
    ValueError
        If a trace in memory has no speed, measured speeds and speeds derived from resource usage are mixed, nothing is
        left to fit to, or, if strict, for any file that cannot be read. Raised while passing over the traces.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Trace([[8, 8]], [[1, 2]], meta={"job": "good"}).save(f"{folder}/good.parquet")
    ...     Path(folder, "broken.parquet").touch()
    ...     source = Source(folder)
    ...     print([trace.name for trace in source])
    ['good']
    >>> [Path(file).name for file in source.left_out]
    ['broken.parquet']
    """

    def __init__(self, traces: TraceSource, *, strict: bool = False, options: Mapping[str, Any] | None = None) -> None:
        self.strict = strict
        self.options = dict(options or {})
        self.trace_names: list[str] = []
        self.left_out: dict[str, str] = {}
        self._passed_once = False
        self._loads = self._make_loaders(traces)

    def __iter__(self) -> Iterator[Trace]:
        names: list[str] = []
        if not self._passed_once:
            self.trace_names = names
        derived: list[str] = []
        for file, load in self._loads:
            for trace in self._iter_readable(file, load):
                names.append(trace.name)
                derived += [trace.name] if "derived" in trace.meta else []
                if 0 < len(derived) < len(names):
                    raise ValueError(
                        f"traces {derived[:5]} have speeds derived from resource usage and "
                        "others have measured ones; fit the two kinds separately"
                    )
                yield trace
        if not names:
            why = "".join(f"; {left}" for left in islice(self.left_out.values(), 3))
            raise ValueError(f"traces must hold at least one trace to fit, got none{why}")
        self._passed_once = True

    def __len__(self) -> int:
        """Return the number of files, or of traces in memory."""
        return len(self._loads)

    def _iter_readable(self, file: str, load: LoadTraces) -> Iterator[Trace]:
        """Yield the traces of a file up to the first error; what is wrong is raised or noted."""
        try:
            for trace in load():
                if (trace.speed > 0).any():
                    # with its file, so that an error can name it
                    yield replace(trace, meta={**trace.meta, "file": file}) if file else trace
                else:
                    why = f"trace {trace.name!r} has no speed to fit: all its samples or seconds are missing or 0"
                    if not file:
                        raise ValueError(why)
                    self._skip_file(file, ValueError(why))
        except (ValueError, OSError) as error:
            if not file:
                raise
            self._skip_file(file, error)

    def _skip_file(self, file: str | Path, error: Exception) -> None:
        text = str(error) if str(file) in str(error) else f"{file}: {error}"
        if self.strict:
            raise ValueError(text) from error
        self.left_out.setdefault(str(file), text)

    def _make_loaders(self, traces: TraceSource) -> list[tuple[str, LoadTraces]]:
        if isinstance(traces, str | Path | Trace):
            traces = [traces]
        elif not isinstance(traces, Iterable) or hasattr(traces, "columns"):  # a frame would yield its columns' names
            raise _not_traces_error(traces)
        elif not isinstance(traces, Sequence):  # an iterator, which passes only once
            traces = list(traces)
            if wrong := [one for one in traces if not isinstance(one, Trace)]:
                raise TypeError(f"an iterator of traces must yield Trace, got {type(wrong[0]).__name__}")
        loads: list[tuple[str, LoadTraces]] = []
        for one in traces:
            loads += [("", partial(iter, [one]))] if isinstance(one, Trace) else self._load_files(one)
        return loads

    def _load_files(self, file_or_folder: str | Path) -> list[tuple[str, LoadTraces]]:
        if not isinstance(file_or_folder, str | Path):
            raise _not_traces_error(file_or_folder)
        if "://" in str(file_or_folder):
            scheme = str(file_or_folder).partition("://")[0]
            raise ValueError(f"traces must be local files or folders, got a {scheme}:// address: download them first")
        path = Path(file_or_folder)
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
        jobs = iter_jobs(path, on_skipped=self._skip_file, options=self.options)
        return [(str(files[0]), partial(read_job, chosen, files, **self.options)) for chosen, files in jobs]


def _not_traces_error(traces: object) -> TypeError:
    return TypeError(
        "traces must be a Trace, a file, a folder, or a list of these, got an object of "
        f"{type(traces).__name__}: convert a frame with Trace.from_frame"
    )


@contextmanager
def show_progress() -> Iterator[Callable[[FitProgress], None]]:
    """Yield a function that shows progress: as bars on a terminal, elsewhere as a line every ten seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        line = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        with heartbeat(line, "fitting") as update:
            yield lambda progress: update(progress_line(progress))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: FitProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(progress.stage, text="")
            task, text = tasks[progress.stage], progress_details(progress)
            bars.update(task, completed=progress.done, total=progress.total, text=text)

        yield show


def progress_line(progress: FitProgress) -> str:
    """Return a line for a log: the stage, what is done, and what :func:`progress_details` says."""
    done = f"{progress.stage}: {progress.done:,} of {progress.total:,}"
    return f"{done}, {text}" if (text := progress_details(progress)) else done


def progress_details(progress: FitProgress) -> str:
    """Return rate, remaining time and losses, as far as they are known.

    >>> progress_details(FitProgress("training", 1000, 4000, rate=250.0, loss=0.25, held_out_loss=0.5))
    '250/s, at most 12 s left, loss 0.25, held out 0.5'
    """
    known = [
        (progress.rate, f"{progress.rate:,.0f}/s"),
        (progress.seconds_left, f"at most {progress.seconds_left:,.0f} s left"),
        (progress.loss, f"loss {progress.loss:.4g}"),
        (progress.held_out_loss, f"held out {progress.held_out_loss:.4g}"),
    ]
    return ", ".join(text for value, text in known if math.isfinite(value))


def fit(
    predictor: PredictorT,
    traces: TraceSource | Source,
    *,
    start: FleetPredictor | str | Path | None = None,
    hold_out: float | Collection[str] = 0.0,
    strict: bool = False,
    progress: bool | Callable[[FitProgress], None] = False,
    device: str = "cpu",
    distributed: bool = False,
    seed: int = 0,
) -> PredictorT:
    """Return a copy of the predictor, fitted to these traces; the original is unchanged.

    Parameters
    ----------
    predictor
        Any predictor; its own ``fit`` or ``fit_streamed`` learns.
    traces
        Recorded traces with speeds: one in memory, a file or a folder of any readable format, a list of these, an
        iterator of traces, or a :class:`Source`. Files are read one at a time, more than once.
    start
        Yesterday's model, or its file: the fit continues from it instead of beginning again.
    hold_out
        Share of the workers, or their names, that are never fitted: networks decide by their last iterations when to
        stop. The same seed holds out the same names on every day. By default the end of every worker decides.
    strict
        Whether a file that cannot be read is an error; otherwise it is left out, with a warning.
    progress
        Whether to show a bar, or a function to call with every :class:`FitProgress`.
    device
        Where networks are trained, ``"cpu"`` or ``"cuda"``; other predictors ignore it.
    distributed
        Whether all processes of ``torchrun`` fit together; every one of them calls this, and gets the fitted predictor.
    seed
        Decides which workers are held out.

    Raises
    ------
    TypeError
        If ``predictor`` is no predictor or ``traces`` are no traces, such as a name or a frame.
    ValueError
        If there is no trace, a trace has no speeds at all, measured speeds and speeds derived from a model of resource
        usage are mixed, an argument is out of range, ``start`` is another kind of predictor, or a loss is not finite.

    Examples
    --------
    >>> from paceline.predictors import EWMA
    >>> fit(EWMA(smoothing=None), [Trace(samples=[[8]] * 5, seconds=[[0.9**k] for k in range(5)])]).smoothing_
    1.0
    """
    require_predictor(predictor)
    fitted = copy.deepcopy(predictor)
    if isinstance(hold_out, str) or (isinstance(hold_out, int | float) and not 0.0 <= hold_out < 1.0):
        raise ValueError(f"hold_out must be a share in [0, 1) or a list of workers' names, got {hold_out!r}")
    if device != "cpu":
        require("torch", needed_by=f"fitting on {device}", extra="torch")
        import torch

        if not device.startswith("cuda") or not torch.cuda.is_available():
            raise ValueError(f"device {device!r} is not available: torch finds no such CUDA device. Use device='cpu'")
    is_first = not distributed or _join_process_group() == 0
    if start is not None:
        _start_from(fitted, load_model(start) if isinstance(start, str | Path) else start)
    source = traces if isinstance(traces, Source) else Source(traces, strict=strict)
    with ExitStack() as stack:
        show = stack.enter_context(show_progress()) if progress is True else progress or (lambda current: None)
        is_held = held_out_predicate(hold_out, seed)
        summary = TraceSummary.from_traces(_report_reading(source, show), is_held)
        held_out = choose_held_out(hold_out, summary.workers, seed)
        if held_out != frozenset(filter(is_held, summary.workers)):  # so few workers that the share was none, or all
            summary = TraceSummary.from_traces(_report_reading(source, show), held_out.__contains__)
        if hold_out and (not held_out or len(held_out) == len(summary.workers)):
            raise ValueError(
                f"hold_out={hold_out!r} holds out {len(held_out)} of the {len(summary.workers)} workers "
                f"{list(summary.workers[:5])}: name those to hold out, or take another share or seed"
            )
        fit_options = FitOptions(
            summary=summary,
            warm_start=start is not None,
            held_out=held_out if hold_out else None,
            device=device,
            distributed=distributed,
            progress=show,
        )
        fit_with(fitted, source, fit_options)
        if unknown := [] if isinstance(hold_out, int | float) else sorted(set(hold_out) - set(summary.workers)):
            warnings.warn(
                f"hold_out names workers {unknown[:5]}, which are in none of the traces: check their spelling",
                stacklevel=2,
            )
    if (left := list(source.left_out.values())) and is_first:
        more = f"; and {len(left) - 10} more" if len(left) > 10 else ""
        warnings.warn(f"{len(left)} files were left out of the fit: {'; '.join(left[:10])}{more}", stacklevel=2)
    return fitted


def _start_from(fitted: Predictor, start: Predictor) -> None:
    kinds = f"{type(fitted).__name__} and {type(start).__name__}"
    if not isinstance(fitted, FleetPredictor) or not isinstance(start, FleetPredictor):
        raise ValueError(f"predictor and start must inherit from FleetPredictor, got {kinds}")
    if type(fitted) is not type(start):
        raise ValueError(f"predictor and start must be of one kind, got {kinds}")
    mine, theirs = fitted.get_params(deep=False), start.get_params(deep=False)
    # Training options may change from day to day; what shapes the weights may not.
    other = [name for name in mine if name not in ("training", "pretrained") and repr(mine[name]) != repr(theirs[name])]
    if other:
        different = ", ".join(f"{name}={theirs[name]!r} instead of {mine[name]!r}" for name in other)
        raise ValueError(
            f"start must have the same arguments as predictor, but has {different}: give predictor those of start"
        )
    fitted.load_state_dict({n: value for n, value in start.state_dict().items() if n.startswith("learned/")})


def held_out_predicate(hold_out: float | Collection[str], seed: int) -> Callable[[str], bool]:
    """Return a predicate: whether a worker of this name is held out."""
    if not isinstance(hold_out, int | float):
        return frozenset(hold_out).__contains__
    # By a digest of the name, so that a worker is on one side in all files, on all days and in all processes.
    threshold = int(hold_out * 2**64)
    return lambda name: _digest(name, seed) < threshold


def choose_held_out(hold_out: float | Collection[str], workers: Collection[str], seed: int) -> frozenset[str]:
    """Return the workers that are held out; of a share, some and not all, however few workers there are."""
    held = frozenset(filter(held_out_predicate(hold_out, seed), workers))
    if isinstance(hold_out, int | float) and hold_out > 0 and len(held) in (0, len(workers)) and len(workers) > 1:
        limit = min(max(round(hold_out * len(workers)), 1), len(workers) - 1)
        return frozenset(sorted(workers, key=lambda name: _digest(name, seed))[:limit])
    return held


def _digest(worker_name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{worker_name}".encode()).digest()[:8], "big")


def _join_process_group() -> int:
    """Return this process's rank in the default group, which is made if there is none."""
    require("torch", needed_by="fit(..., distributed=True)", extra="torch")
    import torch.distributed as dist

    wait_at_exit()
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise ValueError("distributed=True needs RANK in the environment: start the script with torchrun")
        dist.init_process_group("gloo")
    return dist.get_rank()


def _report_reading(source: Source, report_progress: Callable[[FitProgress], None]) -> Iterator[Trace]:
    """Yield the traces, and report after each how many were read."""
    began = time.perf_counter()
    for came, trace in enumerate(source, 1):
        yield trace
        done = len(source.trace_names)
        rate = came / max(time.perf_counter() - began, 1e-9)
        report_progress(FitProgress("read", done, max(len(source), done), rate))
