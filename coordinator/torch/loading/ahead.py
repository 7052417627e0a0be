"""Load ahead of time: other processes load what this rank holds, whatever its batches will be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakMethod

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, default_collate

from paceline.coordinator.torch.loading.assigner import EpochAssigner
from paceline.coordinator.torch.loading.chunks import Begin, Chunks, Collate, Request, Samples
from paceline.coordinator.torch.loading.options import Loading
from paceline.coordinator.torch.loading.rows import cut, joined, runs


class AheadOfTime:
    """Lets other processes load the samples that this rank holds, and cuts batches from what has arrived.

    Samples are asked for in chunks that end where batches end at the size now in force: as long as it stays, a chunk
    is a batch and nothing is copied. When it changes, the next batches are cut out of the chunks already loaded, so
    that no batch waits for a new size.

    The rank's buffer, from its front, is first what was asked for (in stock, or still under way), then what was not.
    When other samples lie in it, a new generation begins, which has asked for nothing. Requests and what arrives carry
    their generation; what an older one asked for is dropped when it arrives.

    Parameters
    ----------
    dataset, collate
        What is loaded, and what makes a batch of samples; None stacks them as torch does.
    assigner
        Where to see what this rank holds.
    loading
        The processes that load.
    """

    def __init__(self, dataset: Any, assigner: EpochAssigner, collate: Collate | None, loading: Loading) -> None:
        self.assigner = assigner
        self.collate = collate
        self.generation = 0
        self._size = 1
        self._asked = 0
        self._stock: dict[int, tuple[Any, int]] = {}
        self._loader = DataLoader(
            Chunks(dataset, default_collate if collate is None else list),
            batch_size=None,
            sampler=Requests(WeakMethod(self._next_request)),
            collate_fn=_unchanged,
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
        """Begin a new generation, at the front of the buffer."""
        self.generation += 1
        self._asked = 0
        self._stock = {}

    def take(self, samples: Samples) -> Any:
        """Return a batch of these samples, the first that this rank holds; wait for those not yet there."""
        self._size = len(samples)
        self._asked = min(
            self._asked, len(self.assigner.buffers[self.assigner.rank])
        )  # another rank may have been given its end
        for sample in samples.tolist():
            while sample not in self._stock:
                self._receive()
        places = [self._stock.pop(sample) for sample in samples.tolist()]
        self._asked -= len(samples)
        return self.gathered(places)

    def gathered(self, places: list[tuple[Any, int]]) -> Any:
        """Return the batch of the samples that lie in these rows of these chunks."""
        if self.collate is not None:
            return self.collate([chunk[row] for chunk, row in places])
        return joined([cut(chunk, rows) for chunk, rows in runs(places)])

    def _receive(self) -> None:
        """Put into stock what arrives next; the next chunk is asked for in its place."""
        if self._arrivals is None:
            self._arrivals = iter(self._loader)
        try:
            generation, samples, chunk = next(self._arrivals)
        except BaseException:
            self._arrivals = None  # a process died or did not answer in time: the next loop starts new ones
            raise
        if generation != self.generation:
            return
        if isinstance(chunk, ExceptionWrapper):
            raise_in(chunk)
        self._stock.update((sample, (chunk, row)) for row, sample in enumerate(samples.tolist()))

    def _next_request(self) -> Request:
        """Return the samples of the buffer to ask for next, up to the end of a batch; there may be none."""
        end = (self._asked // self._size + 1) * self._size
        samples = self.assigner.buffers[self.assigner.rank][self._asked : end]
        self._asked += len(samples)
        return self.generation, samples


class Requests:
    """What the loading processes are asked for, one after the other, as long as there is somebody who asks.

    The one who asks is known weakly: it owns the processes, which end at once only if it is not part of a cycle.
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
    """Raise what another process could not do.

    The frame that raises it first holds the error, which holds the frame: a cycle that would keep the loader, and so
    its processes, until some later collection of garbage.
    """
    try:
        failed.reraise()
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _unchanged(arrival: Any) -> Any:
    return arrival
