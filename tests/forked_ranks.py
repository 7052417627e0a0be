"""Ranks of a script, forked from one process that has imported torch: ``forked_ranks.py RANKS SCRIPT``."""

import gc
import multiprocessing
import os
import runpy
import socket
import sys

import torch._dynamo  # any optimiser imports it: once for all ranks
import torch.distributed.fsdp
import torch.nn.parallel

import paceline.torch  # noqa: F401


def rank_of(rank, world_size, port, script):
    """Run the script as this rank: it finds in its environment what torchrun would put there."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in told.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def main(world_size, script):
    """Start the ranks, and end as the worst of them does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gc.freeze()  # before the ranks fork: they share what is loaded
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of, args=(rank, world_size, port, script)) for rank in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in ranks))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
