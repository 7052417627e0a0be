"""Real processes on loopback, joined by gloo, each running the same function or script: the ranks of a small job."""

import contextlib
import gc
import io
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
"""Left out of a rank's path: its folders have names of other libraries."""

_context = multiprocessing.get_context("forkserver")  # a process that has loaded torch once, and forks
# torch._dynamo: DistributedDataParallel and any optimizer import it, which takes two seconds
_preload = ["torch.nn.parallel", "torch.distributed.fsdp", "torch._dynamo", "paceline.torch", "pytest"]


@dataclass
class Outcome:
    """What became of a rank."""

    value: object
    error: str
    exitcode: int | None
    seconds: float


def outcomes_of(world_size, work, *args, within=60, joined=True):
    """Run ``work(rank, *args)`` on every rank and return what became of each; none outlives ``within`` seconds.

    Ranks that are not ``joined`` make their process groups themselves.
    """
    os.environ["PYTHONUTF8"] = "1"  # torch.compile reads torch's own sources in the encoding of the locale
    _context.set_forkserver_preload(_preload)  # at the last moment: libraries such as Dask set it as they are imported
    with tempfile.TemporaryDirectory() as folder:
        processes, answers, began = [], [], time.monotonic()
        for rank in range(world_size):
            answer, theirs = _context.Pipe(duplex=False)
            store = str(Path(folder) / "store") if joined else ""
            inside = (theirs, work, rank, world_size, store, args)
            process = _context.Process(target=_rank, args=inside, daemon=True)
            with _in_utf8():
                process.start()
            theirs.close()
            processes.append(process)
            answers.append(answer)
        return [_outcome(process, answer, began, within) for process, answer in zip(processes, answers, strict=True)]


def started(work, *args):
    """Return a started process that runs ``work(*args)``, for a test that kills it."""
    _context.set_forkserver_preload(_preload)
    process = _context.Process(target=work, args=args, daemon=True)
    with _in_utf8():
        process.start()
    return process


@contextlib.contextmanager
def _in_utf8():
    """Start the server of ranks in UTF-8: torch.compile reads torch's own sources in the encoding of the locale."""
    before = os.environ.get("PYTHONUTF8")
    os.environ["PYTHONUTF8"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONUTF8"]
        else:
            os.environ["PYTHONUTF8"] = before


def run_ranks(world_size, work, *args, within=60, joined=True):
    """Run ``work(rank, *args)`` on every rank and return what each returned."""
    outcomes = outcomes_of(world_size, work, *args, within=within, joined=joined)
    for rank, outcome in enumerate(outcomes):
        assert (outcome.error, outcome.exitcode) == ("", 0), f"rank {rank}: {outcome}"
    return [outcome.value for outcome in outcomes]


def run_script(world_size, script, *arguments, folder=".", within=60):
    """Run a script on every rank, as torchrun would, and return what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = (world_size, port, str(script), list(map(str, arguments)), str(folder))
    return run_ranks(world_size, _script, *told, within=within, joined=False)


def _script(rank, world_size, port, script, arguments, folder):
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in {**places, "MASTER_PORT": port}.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.chdir(folder)
    sys.argv = [script, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


def _outcome(process, answer, began, within):
    value, error = None, "ended without a word"
    try:
        if answer.poll(max(began + within - time.monotonic(), 0)):
            value, error = answer.recv()
        else:
            error = "hangs"
    except EOFError:
        pass
    process.join(max(began + within - time.monotonic(), 0.1))
    outcome = Outcome(value, error, process.exitcode, time.monotonic() - began)
    process.kill()
    process.join()
    return outcome


def _rank(answer, work, rank, world_size, store, args):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != CHECKOUT]
    multiprocessing.current_process()._config["daemon"] = False  # a rank may start processes that load
    multiprocessing.set_start_method("fork", force=True)  # as under torchrun; the server's method imports torch anew
    gc.freeze()  # what the imports made stays, and need not be looked through for garbage
    try:
        if store:
            join = {"rank": rank, "world_size": world_size, "timeout": timedelta(seconds=30)}
            dist.init_process_group("gloo", init_method=f"file://{store}", **join)
        value = work(rank, *args)
        answer.send((value, ""))
        if store:
            dist.destroy_process_group()
    except BaseException:
        answer.send((None, traceback.format_exc()))
        raise SystemExit(1) from None
