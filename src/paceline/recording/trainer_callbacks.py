"""Callbacks that record a job of Hugging Face's Trainer or of Lightning."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline._require import require
from paceline.recording.recorder import Recorder
from paceline.recording.torch.forward_work import elements_of, leading_size
from paceline.recording.torch.stopwatch import Stopwatch
from paceline.recording.torch.watch import Watch, watch

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def trainer_callback(recorder: Recorder) -> TrainerCallback:
    """Return a callback that records every iteration of a Hugging Face Trainer.

    Parameters
    ----------
    recorder
        An open recorder that has not recorded anything yet.

    Raises
    ------
    ImportError
        If transformers is not installed.
    """
    require("transformers", needed_by="trainer_callback", extra="huggingface")
    from transformers import TrainerCallback

    class Recording(TrainerCallback):
        watching: Watch

        def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            self.watching = watch(_outermost(known["model"]), None, recorder)

        def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            self.watching.close()

    return Recording()


def _outermost(model: Any) -> Any:
    # The Trainer passes its model to a callback, but not the DistributedDataParallel that it wrapped around the model.
    from torch.nn.parallel import DistributedDataParallel

    found = [each for each in gc.get_objects() if type(each) is DistributedDataParallel and each.module is model]
    return found[0] if found else model


def lightning_callback(
    recorder: Recorder,
    *,
    samples: Callable[[Any], float] = lambda batch: leading_size([batch], {}),
    work: Callable[[Any], float] = lambda batch: elements_of([batch], {}),
) -> Callback:
    """Return a callback that records every iteration of a Lightning trainer.

    Parameters
    ----------
    recorder
        An open recorder that has not recorded anything yet. The batches of one accumulated gradient are one iteration.
    samples
        Returns the samples of a batch; by default the length of its first tensor.
    work
        Returns what they cost; by default the number of elements of its tensors.

    Raises
    ------
    ImportError
        If Lightning is not installed.
    """
    require("lightning", needed_by="lightning_callback", extra="lightning")
    from lightning.pytorch import Callback

    class Recording(Callback):
        stopwatch: Stopwatch
        stepping = False

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.stopwatch = Stopwatch(trainer.strategy.model, recorder)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.stopwatch.forward(samples(batch), work(batch))

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            self.stopwatch.backward()

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.stopwatch.stepping()
            self.stepping = True

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.stepping:  # otherwise the gradient is still accumulating
                self.stopwatch.stepped()
                self.stepping = False

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.stopwatch.close()

    return Recording()
