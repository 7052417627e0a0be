"""Audit cases of several modules in a pair of ranks: ``python tests/audit/pair.py OUT MODULE/NAME ...``."""

import gc
import importlib
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch._dynamo  # noqa: F401 (any optimiser imports it: once for all ranks)

sys.path.insert(0, str(Path(__file__).parent))

from bench import verdicts_of

RANKS = 2


def work(rank, out, names, folder):
    """Audit on this rank; the first writes the verdicts."""
    chosen = {name: case_of(name) for name in names}
    for found in verdicts_of(rank, RANKS, folder, chosen):
        if rank == 0:
            Path(out).write_text(json.dumps(found))


def case_of(name):
    """Return the case of ``MODULE/NAME``."""
    module, _, case = name.partition("/")
    return importlib.import_module(module).CASES[case]


def main(out, *names):
    for name in names:
        case_of(name)  # before the ranks fork: they share what is loaded
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=work, args=(rank, out, names, folder)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(abs(process.exitcode) for process in ranks))


if __name__ == "__main__":
    main(*sys.argv[1:])
