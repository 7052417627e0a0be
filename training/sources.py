"""Traces to fit to, wherever they are: in memory, in files of any readable format, or made on the go.

They are read as often as a fit needs them, and never all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.datasets import Trace
from paceline.datasets.readers import iter_jobs, read_job

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
                    yield _add_file_name(trace, file)
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


def _add_file_name(trace: Trace, file: str) -> Trace:
    """Return the trace with its file in ``meta``, so that an error can name it."""
    return replace(trace, meta={**trace.meta, "file": file}) if file else trace
