"""One loop over a loader, from its first batch to its end or its error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.torch.global_batch import RankBatch
    from paceline.torch.rank_loader import RankLoader


class Loop:
    """Iterator over the batches of one loop: after its end it stays ended, after an error it raises that again.

    A generator that has failed ends, when it is asked again, as if all were well: a loop that goes on after an error
    would leave out the rest of the epoch on this rank alone.

    Parameters
    ----------
    loader
        The loader; it knows its newest loop.
    """

    def __init__(self, loader: RankLoader) -> None:
        self._loader = loader
        self._parts: list[tuple[RankBatch, Any]] = []
        self._begun = self._over = False
        self._error = ""  # as text: the error itself would hold this loop, and so the loading processes

    def __iter__(self) -> Loop:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, or micro-batch, after a balance has seen it."""
        loader = self._loader
        try:
            if loader.newest_loop() is not self:
                self._begin()
            if not self._parts and not self._over:
                self._parts = loader.next_parts()
            if self._parts:
                rank_batch, batch = self._parts.pop(0)
                loader.rank_batch, loader.step_ends = rank_batch, rank_batch.last
                if loader.after_batch:
                    loader.after_batch(rank_batch.sizes, batch)
                return batch
        except BaseException as error:
            self._error = self._error or f"{type(error).__name__}: {error}"
            loader.end(self)
            if isinstance(error, StopIteration):  # a dataset's own: the epoch is not over
                raise RuntimeError(f"StopIteration was raised while a batch was loaded: {error}") from error
            raise
        self._over = True
        loader.end(self)
        raise StopIteration

    def _begin(self) -> None:
        """Become the loader's newest loop, or raise the reason why this loop cannot continue."""
        if self._error:
            raise RuntimeError(
                f"this loop ended with an error ({self._error}): start a new one, or resume at the batch that "
                "failed, in a new loop after loader.load_state_dict(loader.state_dict())"
            )
        if self._begun and not self._over:
            raise RuntimeError(
                "this loop over the loader has ended, because another loop began or load_state_dict was called: "
                "start a new one. Nested loops need a loader each"
            )
        if not self._begun:
            self._begun = True
            self._loader.begin(self)
