"""Checkpoints of one training: whole files of numbers and text, from which it resumes to the bit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline._arrays import Array
from paceline._whole import remove_leftovers, written_whole
from paceline.predictors.networks import processes

FILE = "training.safetensors"

COUNTS = ("epoch", "shard", "batch", "windows", "waited", "begun", "finished")


@dataclass
class Position:
    """Position of a training: its epoch, shard and batch, and the generator's state where each began.

    The orders of shards and of windows are not stored: they are drawn again from those states. ``begun`` says whether
    the order of the present epoch was drawn.
    """

    epoch: int = 0
    shard: int = 0
    batch: int = 0
    windows: int = 0
    waited: int = 0
    begun: bool = False
    finished: bool = False
    best_loss: float = float("inf")
    epoch_state: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))
    shard_state: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.uint8))

    def next_epoch(self, waited: int) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.shard, self.batch, self.windows = self.epoch + 1, 0, 0, 0
        self.waited, self.begun = waited, False


class Saved:
    """The checkpoint of one training in its folder, if it has one.

    Parameters
    ----------
    folder
        Where to keep it; ``None`` keeps none.
    identity
        What the training is made from; a checkpoint of another is refused.
    checkpoint_seconds
        Seconds between two checkpoints.
    """

    def __init__(self, folder: Path | None, identity: str, checkpoint_seconds: float) -> None:
        self._path = None if folder is None else folder / FILE
        self._identity = identity
        self._every = checkpoint_seconds
        self._last = time.monotonic()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder / FILE)

    def due(self) -> bool:
        """Return whether it is time for the next checkpoint."""
        return self._path is not None and time.monotonic() - self._last >= self._every

    def save(
        self,
        at: Position,
        best: Mapping[str, Array],
        weights: Mapping[str, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        generator: torch.Generator,
    ) -> None:
        """Write everything that the rest of the training depends on; the first of several processes writes."""
        self._last = time.monotonic()
        if self._path is None or processes.rank():
            return
        from safetensors.torch import save

        # By name: weights that come from a file are in another order than those of a fresh network.
        moments = {
            f"optimizer/{name}/{key}": value
            for name, weight in weights.items()
            for key, value in optimizer.state[weight].items()
        }
        tensors = {
            **{f"weights/{name}": weight.detach() for name, weight in weights.items()},
            **{f"best/{name}": torch.from_numpy(np.array(value)) for name, value in best.items()},
            **moments,
            "generator/now": generator.get_state(),
            "generator/epoch": at.epoch_state,
            "generator/shard": at.shard_state,
        }
        about = {
            "identity": self._identity,
            "best_loss": at.best_loss.hex(),
            "rates": [group["lr"].hex() for group in optimizer.param_groups],
            "scheduled": {k: v for k, v in schedule.state_dict().items() if isinstance(v, int)},
            "scheduled_rates": [float(rate).hex() for rate in schedule.get_last_lr()],
            **{name: int(getattr(at, name)) for name in COUNTS},
        }
        contents = {name: value.contiguous().clone() for name, value in tensors.items()}
        with written_whole(self._path) as temporary:
            temporary.write_bytes(save(contents, metadata={"fit": json.dumps(about)}))

    def load(
        self,
        weights: Mapping[str, torch.Tensor],
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        generator: torch.Generator,
    ) -> tuple[Position, dict[str, Array]] | None:
        """Restore everything, and return the position and the best weights; ``None`` without a checkpoint.

        Raises
        ------
        ValueError
            If the checkpoint is of another fit, or cannot be read.
        """
        if self._path is None or not self._path.exists():
            return None
        about, tensors = self._read(self._path)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensors[f"weights/{name}"])
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, owner, key = name.split("/")
                # The count of steps stays where torch keeps it, on the CPU; moments go to their weight.
                optimizer.state[weights[owner]][key] = value if key == "step" else value.to(weights[owner].device)
        for group, rate in zip(optimizer.param_groups, about["rates"], strict=True):
            group["lr"] = float.fromhex(rate)
        rates = [float.fromhex(rate) for rate in about["scheduled_rates"]]
        schedule.load_state_dict({**schedule.state_dict(), **about["scheduled"], "_last_lr": rates})
        generator.set_state(tensors["generator/now"])
        counts = {name: about[name] for name in COUNTS}
        counts |= {name: bool(about[name]) for name in ("begun", "finished")}
        at = Position(
            **counts,
            best_loss=float.fromhex(about["best_loss"]),
            epoch_state=tensors["generator/epoch"],
            shard_state=tensors["generator/shard"],
        )
        best = {name: tensors[f"best/{name}"].numpy() for name in weights}
        return at, best

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["fit"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: is no checkpoint of a fit ({error}); remove it to begin again") from error
        if about["identity"] != self._identity:
            raise ValueError(
                f"{path}: is the checkpoint of another fit: other traces, another predictor or other options; "
                "name another folder, or remove this one to begin again"
            )
        return about, tensors
