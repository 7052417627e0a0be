"""One rank of the table of loops on a device: torchrun starts it for loop_verdicts.py."""

from __future__ import annotations

import os
import sys

from place import ROOT, Place

sys.path.insert(0, str(ROOT / "tests" / "loops"))


def main() -> None:
    """Run the shapes that the command line names, on the device."""
    import torch

    # A refusal is known one step later. Here the rank that refused lives on, so nothing would end the others' next sum.
    Place(latest=0.0003)
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    import run

    run.under_torchrun()


if __name__ == "__main__":
    main()
    os._exit(0)  # dozens of groups lie about: their threads may end the process as the interpreter closes
