"""Load ahead where it is settled late who takes which sample: what is expected is loaded, and the rest on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import default_collate

from paceline.coordinator.torch.loading.ahead import AheadOfTime
from paceline.coordinator.torch.loading.chunks import Chunks, Collate, Request, Samples
from paceline.coordinator.torch.loading.options import Loading
from paceline.coordinator.torch.loading.sliced import SliceAssigner


class AheadOfPlan(AheadOfTime):
    """Lets other processes load what this rank will take if shares stay as they are.

    Global batches are known in advance, only their division is not. As long as shares stay, every sample is asked for
    before it is needed. When they change, this process loads what nobody was asked for, and drops what others take:
    what a batch holds does not depend on what was loaded.

    Parameters
    ----------
    dataset, assigner, collate, loading
        As for :class:`AheadOfTime`.
    """

    assigner: SliceAssigner

    def __init__(self, dataset: Any, assigner: SliceAssigner, collate: Collate | None, loading: Loading) -> None:
        super().__init__(dataset, assigner, collate, loading)
        self._here = Chunks(dataset, default_collate if collate is None else list)
        self._under_way: dict[int, int] = {}
        self._place = 0

    def restart(self) -> None:
        """Begin a new generation, at the assigner's place in the epoch."""
        super().restart()
        self._under_way, self._place = {}, self.assigner.place

    def take(self, samples: Samples) -> Any:
        """Return a batch of these samples."""
        wanted = samples.tolist()
        missing = [sample for sample in wanted if sample not in self._under_way]
        if missing:
            chunk = self._here.load(samples[[sample not in self._under_way for sample in wanted]])
            self._stock.update((sample, (chunk, row)) for row, sample in enumerate(missing))
        while any(sample not in self._stock for sample in wanted):
            self._receive()
        batch = self.gathered([self._stock[sample] for sample in wanted])
        self._forget(self.assigner.place)
        return batch

    def _forget(self, place: int) -> None:
        """Drop what belongs to the global batch that begins here: others take the rest of it."""
        gone = [sample for sample, begun in self._under_way.items() if begun <= place]
        for sample in gone:
            del self._under_way[sample]
            self._stock.pop(sample, None)
        self._stock = {sample: known for sample, known in self._stock.items() if sample in self._under_way}

    def _next_request(self) -> Request:
        """Return the samples to ask for next: what is expected of one more global batch; there may be none."""
        self._place = max(self._place, self.assigner.place)
        end = self.assigner.after(self._place)
        if end is None:
            return self.generation, np.arange(0)
        samples = self.assigner.part(self._place)
        self._under_way.update(dict.fromkeys(samples.tolist(), self._place))
        self._place = end
        return self.generation, samples
