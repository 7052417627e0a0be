"""Ranks of a live benchmark: processes of this machine in one group, which answer through a queue."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any


def run_ranks(count: int, target: Callable[..., None], *arguments: Any, answers: int) -> Iterator[Any]:
    """Run ``target(rank, put, *arguments)`` on each rank, in one gloo group; yield so many of the values they put."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        places = [(rank, count, f"{folder}/store", target, queue.put, arguments) for rank in range(count)]
        ranks = [context.Process(target=_rank, args=place) for place in places]
        for one in ranks:
            one.start()
        for _ in range(answers):
            yield queue.get(timeout=600)  # a rank that has failed has printed why
        for one in ranks:
            one.join()


def _rank(rank: int, count: int, store: str, target: Callable[..., None], put: Any, arguments: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    wait = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=wait)
    target(rank, put, *arguments)
    dist.barrier()
    dist.destroy_process_group()
