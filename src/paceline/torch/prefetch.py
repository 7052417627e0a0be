"""Load ahead of time: other processes load what this rank will take, whatever its batches will be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakMethod

import numpy as np
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, default_collate

from paceline.torch.assigner import EpochAssigner
from paceline.torch.chunks import Begin, Chunks, Collate, Request
from paceline.torch.options import Loading
from paceline.torch.order import Samples
from paceline.torch.rows import cut, joined, runs


class Prefetcher:
    """Lets other processes load the samples that this rank is expected to take, and makes batches of what has arrived.

    Samples are asked for in chunks that are batches if sizes stay as they are: then nothing is copied. If sizes change,
    batches are cut out of the chunks already loaded, this process loads what nobody was asked for, and what others
    take is dropped. What a batch holds does not depend on what was loaded.

    When samples come that do not follow those before, a new generation begins, which has asked for nothing. Requests
    and what arrives carry their generation; what an older one asked for is dropped when it arrives.

    Parameters
    ----------
    dataset, collate
        The dataset, and the function that makes a batch of samples; None stacks them as torch does.
    assigner
        Says which samples this rank is expected to take.
    loading
        The processes that load.

    Attributes
    ----------
    ahead
        Seconds that the last batch was waited for, and that the processes took for it, divided by their number.
    """

    def __init__(self, dataset: Any, assigner: EpochAssigner, collate: Collate | None, loading: Loading) -> None:
        self.assigner = assigner
        self.collate = collate
        self.generation = self._requested = 0
        self._under_way: set[int] = set()
        self._stock: dict[int, tuple[Any, int]] = {}
        self._seconds: dict[int, float] = {}
        self._processes = loading.num_workers
        self._waited, self.ahead = 0.0, (0.0, 0.0)
        self._here = Chunks(dataset, default_collate if collate is None else list)
        self._loader = DataLoader(
            self._here,
            batch_size=None,
            sampler=Requests(WeakMethod(self._next_request)),
            collate_fn=_identity,
            num_workers=loading.num_workers,
            prefetch_factor=loading.prefetch_factor,
            # Single samples are copied once more, by the collate_fn: pinning them would be of no use.
            pin_memory=loading.pin_memory and collate is None,
            worker_init_fn=Begin(loading.worker_init_fn),
            timeout=loading.timeout,
            multiprocessing_context=loading.multiprocessing_context,
        )
        self._arrivals: Iterator[Any] | None = None

    def restart(self) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._requested, self._under_way, self._stock, self._seconds = 0, set(), {}, {}

    def take(self, samples: Samples) -> Any:
        """Return a batch of these samples; wait for those not yet there."""
        wanted, self._waited = samples.tolist(), 0.0
        if self._arrivals is None:
            self._arrivals = iter(self._loader)
        while self.assigner.asks_for_next(self._requested) and not self._under_way.issuperset(wanted):
            self._receive()
        if missing := [sample for sample in wanted if sample not in self._under_way]:
            self._under_way.update(missing)
            self._store(missing, self._here.load(np.array(missing)), 0.0)
        for sample in wanted:
            while sample not in self._stock:
                self._receive()
        self.ahead = self._waited, sum(self._seconds[sample] for sample in wanted) / self._processes
        batch = self._gathered([self._stock[sample] for sample in wanted])
        for sample in self.assigner.settled().tolist():
            self._under_way.discard(sample)
            self._stock.pop(sample, None)
            self._seconds.pop(sample, None)
        return batch

    def _gathered(self, places: list[tuple[Any, int]]) -> Any:
        """Return the batch of the samples that lie in these rows of these chunks."""
        if self.collate is not None:
            return self.collate([chunk[row] for chunk, row in places])
        return joined([cut(chunk, rows) for chunk, rows in runs(places)])

    def _receive(self) -> None:
        """Keep the chunk that arrives next; a request for another takes its place."""
        began = time.perf_counter()
        try:
            assert self._arrivals is not None
            generation, samples, chunk, seconds = next(self._arrivals)
        except BaseException:
            self._arrivals = None  # a process died or did not answer in time: the next loop starts new ones
            raise
        self._waited += time.perf_counter() - began
        if generation != self.generation:
            return
        if isinstance(chunk, ExceptionWrapper):
            raise_in(chunk)
        self._store(samples.tolist(), chunk, seconds)

    def _store(self, samples: list[int], chunk: Any, seconds: float) -> None:
        """Keep the samples of a chunk that are still wanted, and what each took to load."""
        rows = ((sample, (chunk, row)) for row, sample in enumerate(samples))
        self._stock.update((sample, known) for sample, known in rows if sample in self._under_way)
        self._seconds.update((sample, seconds / len(samples)) for sample in samples if sample in self._stock)

    def _next_request(self) -> Request:
        """Return the samples to ask for next; there may be none."""
        expected, self._requested = self.assigner.expected(self._requested)
        # What another rank was given near the end of the epoch can come back: it has been asked for already.
        samples = [sample for sample in expected.tolist() if sample not in self._under_way]
        self._under_way.update(samples)
        return self.generation, np.array(samples, dtype=expected.dtype)


class Requests:
    """Requests to the loading processes, one after the other, as long as the object that makes them exists.

    That object is referenced weakly: it owns the processes, which end at once only if it is not part of a cycle.
    """

    def __init__(self, next_request: WeakMethod[Callable[[], Request]]) -> None:
        self.next_request = next_request

    def __iter__(self) -> Iterator[Request]:
        """Ask for a chunk whenever one is taken away."""
        while (ask := self.next_request()) is not None:
            request = ask()
            del ask
            yield request


def raise_in(failed: ExceptionWrapper) -> None:
    """Raise the error of another process.

    The frame that raises it first holds the error, which holds the frame: a cycle that would keep the loader, and so
    its processes, until some later collection of garbage.
    """
    try:
        failed.reraise()
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _identity(arrival: Any) -> Any:
    return arrival
