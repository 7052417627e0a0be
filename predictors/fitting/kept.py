"""Windows in a folder of checkpoints: what was collected before a fit was killed is not collected again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline._whole import written_whole

STATE, KIND = "state.json", "kind.npy"


class Kept:
    """Windows collected so far, and the place where collecting continues.

    Parameters
    ----------
    folder
        Where they are kept; made if it is not there.
    identity
        What they are made from; windows of another fit are removed.
    checkpoint_seconds
        Seconds between two notes of how far it is.

    Attributes
    ----------
    names
        The traces that were passed, in order.
    complete
        Whether these are all.
    kind
        The records' type; ``None`` before the first window.
    counts, validating
        Windows of each shard, and those of all that validate.
    """

    def __init__(self, folder: Path, identity: str, checkpoint_seconds: float) -> None:
        self.folder = folder
        self.names: list[str] = []
        self.complete = False
        self.kind: np.dtype[np.void] | None = None
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.validating = 0
        self._rng: dict[str, Any] = {}
        self._identity, self._every, self._last = identity, checkpoint_seconds, time.monotonic()
        self._files: Sequence[BinaryIO] = ()
        self._generator: np.random.Generator | None = None
        if not self._loaded():
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self, kind: np.dtype[np.void], files: Sequence[BinaryIO], generator: np.random.Generator) -> None:
        """Note the type and the files of the windows; the generator continues from its saved state."""
        if self.kind is None:
            self.kind, self.counts = kind, np.zeros(len(files), dtype=np.int64)
            np.save(self.folder / KIND, np.empty(0, dtype=kind), allow_pickle=False)
        elif self._rng:
            generator.bit_generator.state = self._rng
        self._files, self._generator = files, generator

    def due(self) -> bool:
        """Return whether it is time to note the progress."""
        return time.monotonic() - self._last >= self._every

    def note(self, *, complete: bool = False) -> None:
        """Note that all windows of the traces named so far are written."""
        if self._generator is None:
            return  # no window yet: there is nothing to lose
        for file in self._files:
            file.flush()
        about = {
            "identity": self._identity,
            "names": self.names,
            "counts": self.counts.tolist(),
            "validating": self.validating,
            "sizes": [os.fstat(file.fileno()).st_size for file in self._files],
            "generator": self._generator.bit_generator.state,
            "complete": complete,
        }
        with written_whole(self.folder / STATE) as temporary:
            temporary.write_text(json.dumps(about), encoding="utf-8")
        self.complete, self._last = complete, time.monotonic()

    def path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{shard:03}.records"

    def _loaded(self) -> bool:
        """Load the last note, cut off what was written after it, and return whether nothing is missing."""
        try:
            about = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
            if about["identity"] != self._identity:
                return False
            kind = np.load(self.folder / KIND, allow_pickle=False).dtype
            for shard, size in enumerate(about["sizes"]):
                if self.path(shard).stat().st_size < size:
                    return False
                os.truncate(self.path(shard), size)
        except (OSError, EOFError, ValueError, KeyError):
            return False
        self.names, self.complete, self.kind = about["names"], about["complete"], kind
        self.counts = np.array(about["counts"], dtype=np.int64)
        self.validating, self._rng = about["validating"], about["generator"]
        return True
