"""One rank of the live experiment on a device, or on the stand-in: shared_card.py starts it."""

from __future__ import annotations

import os

from place import Place

if __name__ == "__main__":
    if not Place().real:
        from paceline.lab.contention import kernels

        kernels.SIDE = 64
    from paceline.lab.experiment.experiment_worker import main

    main()
    os._exit(0)  # a thread of one of the many groups may otherwise end the process as the interpreter closes
