"""Record a Hugging Face Trainer with a callback."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from paceline._require import require
from paceline.recording.recorder import Recorder
from paceline.recording.torch.watch import Watch, watch

if TYPE_CHECKING:
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
