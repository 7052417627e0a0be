"""Load batches: when they are asked for, or ahead of time in other processes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from functools import partial
from itertools import groupby
from typing import Any
from weakref import WeakMethod, finalize

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from paceline.torch.assigner import EpochAssigner, SampleIndices
from paceline.torch.loader_options import require_int


def contiguous_slices(row_positions: Sequence[tuple[Any, int]]) -> list[tuple[Any, slice]]:
    """Return the chunks that these rows lie in, with the slice of each.

    >>> first, second = ["a", "b", "c"], ["d", "e"]
    >>> contiguous_slices([(first, 1), (first, 2), (second, 0)])
    [(['a', 'b', 'c'], slice(1, 3, None)), (['d', 'e'], slice(0, 1, None))]
    """
    numbered = [(chunk, row, row - index) for index, (chunk, row) in enumerate(row_positions)]
    groups = [list(group) for _, group in groupby(numbered, key=lambda place: (id(place[0]), place[2]))]
    return [(group[0][0], slice(group[0][1], group[-1][1] + 1)) for group in groups]


def join_slices(slices: Sequence[tuple[Any, slice]]) -> Any:
    """Join these rows of chunks to a batch.

    >>> join_slices([([torch.tensor([0, 1]), ["x", "a"]], slice(1, 2)), ([torch.tensor([2]), ["b"]], slice(0, 1))])
    [tensor([1, 2]), ['a', 'b']]
    """
    first, rows = slices[0]
    if isinstance(first, torch.Tensor):
        return first[rows] if len(slices) == 1 else torch.cat([chunk[rows] for chunk, rows in slices])
    if _is_text(first):
        return type(first)([text for chunk, rows in slices for text in chunk[rows]])
    if isinstance(first, Mapping):
        return _mapping_like(first, {key: join_slices([(chunk[key], rows) for chunk, rows in slices]) for key in first})
    places = range(len(first))
    return _sequence_like(first, [join_slices([(chunk[place], rows) for chunk, rows in slices]) for place in places])


def _is_text(batch: Any) -> bool:
    """Texts are not stacked: a batch of them is a list."""
    return isinstance(batch, Sequence) and len(batch) > 0 and isinstance(batch[0], str | bytes)


def _mapping_like(original: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return the parts in a mapping of the original's kind, with whatever else that holds, as torch does."""
    if type(original) is dict:
        return values
    if not isinstance(original, MutableMapping):
        return type(original)(values)  # type: ignore[call-arg]  # made of a dict, as torch made it
    alike = copy(original)
    alike.update(values)
    return alike


def _sequence_like(original: Any, values: list[Any]) -> Any:
    """Return the parts in a sequence of the original's kind; a named tuple wants them one by one."""
    kind = type(original)
    return kind(*values) if hasattr(original, "_fields") else kind(values)


Collate = Callable[[list[Any]], Any]
Request = tuple[int, SampleIndices]
"""Request to a loading process: the generation that asks, and its samples."""


class ChunkDataset(Dataset[Any]):
    """A dataset whose samples are chunks of another's samples."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self.dataset = dataset
        self.collate = collate

    def __getitem__(self, request: Request) -> tuple[int, SampleIndices, Any, float]:
        """Load what is asked for, and say how long it took; an error travels like a chunk, to the loop that asked."""
        generation, samples = request
        began = time.perf_counter()
        try:
            chunk = self.load(samples) if len(samples) else None
        except Exception:
            chunk = ExceptionWrapper(where="in a loading process")
        return generation, samples, chunk, time.perf_counter() - began

    def load(self, samples: SampleIndices) -> Any:
        """Load these samples and make a chunk of them."""
        if hasattr(self.dataset, "__getitems__") and len(samples):  # a packed micro-batch may be empty
            return self.collate(self.dataset.__getitems__(samples.tolist()))
        return self.collate([self.dataset[sample] for sample in samples.tolist()])


def init_worker(worker_init_fn: Callable[[int], None] | None, worker_id: int) -> None:
    """Let torch's ``get_worker_info`` show the dataset that the user gave, then call the user's function."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.dataset)  # torch protects its attributes
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


class Prefetcher:
    """Lets other processes load the samples that this rank is expected to take, and makes batches of what has arrived.

    Samples are asked for in chunks that are batches if sizes stay as they are: then nothing is copied. If sizes change,
    batches are cut out of the chunks already loaded, this process loads what nobody was asked for, and what others
    take is dropped. What a batch holds does not depend on what was loaded. When samples come that do not follow those
    before, a new generation begins; what an older one asked for is dropped when it arrives.

    ``load_seconds`` are those of waiting for the last batch, and of the processes for it, divided by their number.
    """

    def __init__(
        self,
        dataset: Any,
        assigner: EpochAssigner,
        collate: Collate | None,
        *,
        pin_memory: bool,
        num_workers: int,
        worker_init_fn: Callable[[int], None] | None,
        **options: Any,
    ) -> None:
        self.assigner = assigner
        self.collate = collate
        self.generation = self._requested = 0
        self._under_way: set[int] = set()
        self._stock: dict[int, tuple[Any, int, float]] = {}  # chunk, row and seconds of each sample that has arrived
        self._processes = num_workers
        self._waited, self.load_seconds = 0.0, (0.0, 0.0)
        self._pin = pin_memory
        self._here = ChunkDataset(dataset, default_collate if collate is None else list)
        self._loader = DataLoader(
            self._here,
            batch_size=None,
            sampler=RequestSampler(WeakMethod(self._next_request)),
            collate_fn=_identity,
            num_workers=num_workers,
            # Single samples are copied once more, by the collate_fn: pinning them would be of no use.
            pin_memory=pin_memory and collate is None,
            worker_init_fn=partial(init_worker, worker_init_fn),
            **options,
        )
        self._arrivals: Any = None

    def restart(self) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._requested, self._under_way, self._stock = 0, set(), {}

    def take(self, parts: Sequence[SampleIndices]) -> list[Any]:
        """Return a batch of each of these lists of samples; wait for those not yet there."""
        wanted, self._waited = np.concatenate(parts).tolist(), 0.0
        if self._arrivals is None:
            self._arrivals = iter(self._loader)
            # Held by this, the queues to the processes still work when this object is collected in a cycle: without
            # them, each process is waited for in vain for five seconds.
            self._end = finalize(self, self._arrivals._shutdown_workers)
            self._end.atexit = False  # torch ends them then
        while self.assigner.may_request_next(self._requested) and not self._under_way.issuperset(wanted):
            self._receive()
        if missing := [sample for sample in wanted if sample not in self._under_way]:
            self._under_way.update(missing)
            began = time.perf_counter()
            chunk = self._here.load(np.array(missing))
            # Only right after a change of sizes: later batches of these sizes come from the loading processes.
            self._waited += (took := time.perf_counter() - began)
            self._store(missing, chunk, took)
        for sample in wanted:
            while sample not in self._stock:
                self._receive()
        self.load_seconds = self._waited, sum([self._stock[sample][2] for sample in wanted]) / self._processes
        batches = [self._make_batch(samples.tolist()) for samples in parts]
        settled = self.assigner.settled_samples().tolist()
        self._under_way.difference_update(settled)
        for sample in self._stock.keys() & settled:
            del self._stock[sample]
        return pinned(batches) if self._pin else batches  # what lies in pinned memory already stays there

    def _make_batch(self, samples: list[int]) -> Any:
        row_positions = [self._stock[sample][:2] for sample in samples]
        if self.collate is not None:
            return self.collate([chunk[row] for chunk, row in row_positions])
        return join_slices(contiguous_slices(row_positions))

    def _receive(self) -> None:
        """Keep the chunk that arrives next; a request for another takes its place."""
        began = time.perf_counter()
        try:
            assert self._arrivals is not None
            generation, samples, chunk, seconds = next(self._arrivals)
        except BaseException:
            self._arrivals = None  # a process died or did not answer in time: the next loop starts new ones
            self._end.detach()
            raise
        self._waited += time.perf_counter() - began
        if generation != self.generation:
            return
        if isinstance(chunk, ExceptionWrapper):
            reraise_worker_error(chunk)
        self._store(samples.tolist(), chunk, seconds)

    def _store(self, samples: list[int], chunk: Any, seconds: float) -> None:
        """Keep the samples of a chunk that are still wanted, and what each took to load."""
        each = seconds / max(len(samples), 1)
        arrived = {sample: (chunk, row, each) for row, sample in enumerate(samples)}
        for sample in arrived.keys() - self._under_way:
            del arrived[sample]
        self._stock.update(arrived)

    def _next_request(self) -> Request:
        expected, self._requested = self.assigner.samples_to_load(self._requested)
        # What another rank was given near the end of the epoch can come back: it has been asked for already.
        samples = [sample for sample in expected.tolist() if sample not in self._under_way]
        self._under_way.update(samples)
        return self.generation, np.array(samples, dtype=expected.dtype)


class RequestSampler:
    """Requests to the loading processes, as long as the object that makes them exists: it owns the processes."""

    def __init__(self, next_request: WeakMethod[Callable[[], Request]]) -> None:
        self.next_request = next_request

    def __iter__(self) -> Iterator[Request]:
        """Ask for a chunk whenever one is taken away."""
        while (ask := self.next_request()) is not None:
            request = ask()
            del ask
            yield request


def reraise_worker_error(wrapper: ExceptionWrapper) -> None:
    """Raise the error of another process, without the frame that raises it first.

    That frame and the error hold each other: a cycle that would keep the loader's processes until it is collected.
    """
    try:
        wrapper.reraise()
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _identity(chunk: Any) -> Any:
    return chunk


def make_batch_source(
    dataset: Any,
    assigner: EpochAssigner,
    collate: Collate | None,
    *,
    num_workers: int,
    pin_memory: bool,
    **process_options: Any,
) -> BatchSource:
    """Return the source of a rank's batches for these options of torch's ``DataLoader``; refuse what has no effect."""
    require_int("num_workers", num_workers, 0)
    if process_options["prefetch_factor"] is not None:
        require_int("prefetch_factor", process_options["prefetch_factor"], 1, "batch")
    if not process_options["timeout"] >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, got {process_options['timeout']}")
    for name in ("timeout", "multiprocessing_context"):
        if process_options[name] and not num_workers:
            raise ValueError(f"{name} applies to loading processes only: set num_workers above 0, or leave it out")
    pin = pin_memory and torch.cuda.is_available()
    if pin_memory and not pin:
        warnings.warn("pin_memory=True has no effect, as no CUDA device is available", stacklevel=3)
    if num_workers:
        return Prefetcher(dataset, assigner, collate, pin_memory=pin, num_workers=num_workers, **process_options)
    return OnDemandSource(dataset, collate, pin_memory=pin)


class OnDemandSource:
    """Loads batches in this process, when they are asked for; without a dataset, samples come as they are."""

    load_seconds = (0.0, 0.0)

    def __init__(self, dataset: Any, collate: Collate | None, *, pin_memory: bool = False) -> None:
        collate = collate or default_collate
        self._load = collate if dataset is None else ChunkDataset(dataset, collate).load
        self._pin = pin_memory

    def take(self, parts: Sequence[Any]) -> list[Any]:
        """Return a batch of each of these lists of samples."""
        batches = [self._load(samples) for samples in parts]
        return pinned(batches) if self._pin else batches

    def restart(self) -> None:
        """Do nothing: no samples were loaded ahead."""


BatchSource = OnDemandSource | Prefetcher
