"""The device that a part of benchmarks/gpu.py runs on: a CUDA device, or a stand-in where there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "standin"))

import torch  # noqa: E402 - after the threads are set


@dataclass
class Found:
    """What a part found: tables, sentences, what failed, and what could not run here."""

    part: str
    tables: list[list[list[str]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def require(self, holds: bool, sentence: str) -> None:
        """Note a failure unless something holds."""
        if not holds:
            self.failed.append(sentence)


class Place:
    """The device. On the stand-in, times are those of the CPU and of :meth:`busy`, and mean nothing.

    Parameters
    ----------
    latest
        Seconds by which a stand-in's events are seen late at most.
    """

    device = "cuda"

    def __init__(self, *, latest: float = 0.004) -> None:
        self.real = torch.cuda.is_available()
        self.stand_in: Any = None
        self._cycles = 1e9
        torch.set_num_threads(1)
        if self.real:
            torch.cuda.init()
            self._cycles = self._calibrated()
        else:
            from standin import CYCLES, StandIn

            self.stand_in = StandIn(limit=2**40, latest=latest).install()
            self._cycles = CYCLES

    def busy(self, seconds: float) -> None:
        """Keep the device busy for so long, without waiting for it."""
        torch.cuda._sleep(int(self._cycles * seconds))

    def _calibrated(self) -> float:
        """Return the cycles of the busy loop in a second, from synchronized wall time."""
        cycles = 10**6
        while True:
            torch.cuda.synchronize()
            began = time.perf_counter()
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
            if (took := time.perf_counter() - began) > 0.2:
                return cycles / took
            cycles *= 4

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """Collect where the block waits for the device: torch warns of it on a device, the stand-in notes it."""
        found: list[str] = []
        if self.stand_in is not None:
            before = len(self.stand_in.waits)
            yield found
            found += self.stand_in.waits[before:]
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found += [f"{one.filename}:{one.lineno}" for one in caught if "synchronizing" in str(one.message)]

    def describe(self) -> dict[str, Any]:
        """Return the facts of the device for the page."""
        name = torch.cuda.get_device_name(0)
        facts = {"real": self.real, "name": name, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
        return {**facts, "driver": _driver(), "commit": _commit()}


class BusyLoop:
    """A training loop of one rank, plain or balanced, whose steps keep the device busy for a given time."""

    def __init__(self, place: Place, model: torch.nn.Module, inputs: torch.Tensor, **attached: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from paceline.torch import BalancedLoader, attach

        self.place = place
        self.model = DistributedDataParallel(model.to(place.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = BalancedLoader(inputs, 64)
        self.balance = attach(self.model, self.loader, **attached) if attached else None
        self._batches = self._forever()

    def _forever(self) -> Iterator[torch.Tensor]:
        while True:
            for inputs in self.loader:
                yield inputs.to(self.place.device, non_blocking=True)

    def step(self, seconds: float) -> torch.Tensor:
        """Train a step, in whose forward pass the device is busy for so long; return the loss."""
        inputs = next(self._batches)
        self.optimizer.zero_grad()
        outputs = self.model(inputs)
        self.place.busy(seconds)
        loss = outputs.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def ours(waits: Sequence[str]) -> list[str]:
    """Return those of the places that lie in the library."""
    import paceline

    package = Path(paceline.__file__).parent
    rooms = (str(package), *(str(room.resolve()) for room in package.iterdir() if room.is_symlink()))
    return [place for place in waits if place.startswith(rooms)]


def run(part: Callable[[Place, Found], None]) -> None:
    """Run a part, and write what it found into the file that the command line names."""
    out = Path(sys.argv[1])
    place, found = Place(), Found(Path(sys.argv[0]).stem)
    try:
        part(place, found)
    finally:
        out.write_text(json.dumps({**found.__dict__, "device": place.describe()}))
    sys.stdout.flush()
    os._exit(0)  # threads of process groups may otherwise end the process as the interpreter closes


def join(place: Place) -> None:
    """Join the process group of torchrun's ranks, or one of this process alone: NCCL where a device is."""
    import torch.distributed as dist

    options: dict[str, Any] = {"backend": "gloo"}
    if place.real:
        torch.cuda.set_device(0)
        options = {"backend": "nccl", "device_id": torch.device("cuda", 0)}
    if "RANK" not in os.environ:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**options)


def torchrun(script: Path, *arguments: str, real: bool, seconds: float) -> str:
    """Run a script on two ranks; return how it failed, nothing if it did not. Its processes end with it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    return started([*command, *arguments], seconds, **({"PACELINE_NCCL": "1"} if real else {}))


def started(command: Sequence[str], seconds: float, folder: str = ".", **environment: str) -> str:
    """Run a command in a folder; return how it failed, nothing if it did not. Its processes end with it."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environment}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(seconds)
            words = f"ended with {status}"
        except subprocess.TimeoutExpired:
            status, words = -1, f"was not done after {seconds:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        text = log.read().decode(errors="replace")
    if status:
        print(text[-3000:], file=sys.stderr)
    errors = [line for line in text.splitlines() if "Error" in line]
    return "" if status == 0 else f"{words}: {' | '.join(errors[:3])[:400]}"


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0] if version.exists() else "unknown"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
