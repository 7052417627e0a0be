"""What runs inside an audited script's processes; :func:`install_recorder` starts it."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any, Never

from paceline.audit.inside.patches import Patches
from paceline.audit.inside.step_recorder import StepRecorder
from paceline.audit.run import load_pickle


def install_recorder(torch_module: object) -> None:
    """Begin, once torch was imported, in a process whose environment says what to do."""
    folder = Path(os.environ["PACELINE_AUDIT"])
    recorder = StepRecorder(load_pickle(folder / "plan"), folder, end_process)
    patches = Patches(recorder)
    # what a script does not seed, differently on each rank
    patches.apply(20 + int(os.environ.get("RANK", "0")))
    atexit.register(recorder.finish)
    excepthook = sys.excepthook

    def skip_record(*error: Any) -> None:  # the process of a script that fails ends with its error
        recorder.has_finished = True
        excepthook(*error)

    sys.excepthook = skip_record


def end_process(folder: Path, num_ranks: int) -> Never:
    """End this process when all ranks have written their records: nothing of the script runs any more."""
    # seconds to wait for the other ranks' records
    until = time.monotonic() + 60.0
    while len(list(folder.glob("*.record"))) < num_ranks and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)  # the others see it too before this process's connections close
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
