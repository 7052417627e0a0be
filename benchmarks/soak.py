"""Whether memory, descriptors and threads stay flat: many steps of two ranks, and many attach-detach cycles.

Run as ``python benchmarks/soak.py``; it writes soak.md beside this file. ``--steps`` and ``--cycles`` set the size, and
``--dry`` writes nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from machine import machine
from torch.nn.parallel import DistributedDataParallel

from paceline.recording import sinks
from paceline.torch import BalancedLoader, attach

BATCH, BATCHES = 16, 250
"""Samples of a global batch, and batches of an epoch."""

SETTLED = 0.2
"""Share of a run after which everything is loaded and every cache is full: growth counts from there."""

TURN, SLOWED = 500, 1e-4
"""Steps for which one rank is the slow one, and the seconds that each sample then takes longer."""

ALLOWED_MB, ALLOWED_DESCRIPTORS, ALLOWED_THREADS = 5.0, 0, 0
"""How much more at the end than once settled counts as flat. The allocator alone moves a few megabytes."""


@dataclass(frozen=True)
class Usage:
    """What a process holds at one moment."""

    megabytes: float
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Usage:
        """Return the usage of this process: resident memory, open descriptors, and threads of the kernel."""
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        return cls(resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))  # noqa: PTH208


@dataclass(frozen=True)
class Row:
    """What a run held once settled and at its end."""

    what: str
    settled: Usage
    end: Usage
    seconds: float
    ours: bool = True

    @property
    def flat(self) -> bool:
        """Whether nothing grew by more than is allowed. Torch alone is shown and not judged."""
        return (
            self.end.megabytes - self.settled.megabytes <= ALLOWED_MB
            and self.end.descriptors - self.settled.descriptors <= ALLOWED_DESCRIPTORS
            and self.end.threads - self.settled.threads <= ALLOWED_THREADS
        )

    def line(self) -> str:
        """Return the row as one line of the table."""
        one, two = self.settled, self.end
        verdict = ("yes" if self.flat else "**no**") if self.ours else "not judged"
        return (
            f"| {self.what} | {one.megabytes:.1f} / {two.megabytes:.1f} | {one.descriptors} / {two.descriptors} | "
            f"{one.threads} / {two.threads} | {self.seconds:,.0f} s | {verdict} |"
        )


def _job(folder: Path) -> tuple[DistributedDataParallel, BalancedLoader]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    return model, BalancedLoader(torch.randn(BATCH * BATCHES, 8), BATCH)


def steps(folder: Path, count: int) -> Row:
    """Train and write metrics; the ranks are slowed in turns, so that the sizes change."""
    model, loader = _job(folder)
    balance = attach(model, loader)
    plans: set[tuple[int, ...]] = set()
    balance.on_iteration.extend(sinks(str(folder / "run.jsonl")))
    balance.on_iteration.append(lambda iteration: plans.add(tuple(iteration.sizes.tolist())))
    done, begin, settled = 0, time.perf_counter(), Usage.now()
    while done < count:
        for inputs in loader:
            model.zero_grad()
            if done // TURN % 2 == dist.get_rank():
                time.sleep(len(inputs) * SLOWED)
            model(inputs).square().mean().backward()
            done += 1
            if done == int(SETTLED * count):
                settled = Usage.now()
    what = f"{done:,} steps with {len(plans)} different plans, rank {dist.get_rank()}"
    row = Row(what, settled, Usage.now(), time.perf_counter() - begin)
    balance.close()
    return row


def cycles(folder: Path, count: int) -> Row:
    """Attach, train three steps, and detach, in one process after another fleet's end."""
    begin, settled = time.perf_counter(), Usage.now()
    for cycle in range(count):
        model, loader = _job(folder)
        balance = attach(model, loader)
        for step, inputs in enumerate(loader):
            model(inputs).square().mean().backward()
            if step == 2:
                break
        balance.close()
        if cycle + 1 == max(1, int(SETTLED * count)):
            settled = Usage.now()
    what = f"{count:,} attach-detach cycles, rank {dist.get_rank()}"
    return Row(what, settled, Usage.now(), time.perf_counter() - begin)


def bare_cycles(folder: Path, count: int) -> Row:
    """Do the same with torch alone: a model, a group of its own, three steps, and the group destroyed."""
    begin, settled = time.perf_counter(), Usage.now()
    for cycle in range(count):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(8, 4))
        group = dist.new_group(backend="gloo")
        for _ in range(3):
            model(torch.randn(BATCH // 2, 8)).square().mean().backward()
        dist.destroy_process_group(group)
        if cycle + 1 == max(1, int(SETTLED * count)):
            settled = Usage.now()
    what = f"{count:,} cycles of torch alone, rank {dist.get_rank()}"
    return Row(what, settled, Usage.now(), time.perf_counter() - begin, ours=False)


def rank(folder: Path, number: int, step_count: int, cycle_count: int) -> None:
    """Run one of the two ranks, and write its rows."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    rows = [steps(folder, step_count), cycles(folder, cycle_count), bare_cycles(folder, cycle_count)]
    lines = [f"{row.flat or not row.ours} {row.line()}" for row in rows]
    (folder / f"rows{number}.txt").write_text("\n".join(lines))
    dist.destroy_process_group()


def main() -> None:
    """Run both ranks and write the table; fail if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--cycles", type=int, default=1_000)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options.folder, options.rank, options.steps, options.cycles)
        return
    with tempfile.TemporaryDirectory() as folder:
        sizes = ["--steps", str(options.steps), "--cycles", str(options.cycles), "--folder", folder]
        command = [sys.executable, __file__, *sizes]
        ranks = [subprocess.Popen([*command, "--rank", str(k)], env=os.environ) for k in range(2)]
        if any(process.wait() for process in ranks):
            raise SystemExit("a rank failed")
        of_ranks = [Path(folder, f"rows{k}.txt").read_text().splitlines() for k in range(2)]
    lines = [line for of_run in zip(*of_ranks, strict=True) for line in of_run]  # run by run, in the order they ran
    rows = [line.partition(" ")[2] for line in lines]
    page = PAGE.format(
        rows="\n".join(rows),
        machine=machine("torch"),
        steps=options.steps,
        cycles=options.cycles,
        share=SETTLED,
        allowed=ALLOWED_MB,
    )
    print(page)
    if not options.dry:
        Path(__file__).with_suffix(".md").write_text(page)
    if not all(line.startswith("True") for line in lines):
        raise SystemExit("something grew")


PAGE = """# Soak

`python benchmarks/soak.py --steps {steps} --cycles {cycles}` trains two ranks on loopback with metrics, each of which
is slowed in turns. Then the same processes attach and detach a balance again and again, and then they do the same with
torch alone: a model, a group of its own, three steps. Each cell says what the process held after {share:.0%} of the
run, and at its end. Flat means at most {allowed:g} MB more, and no descriptor or thread more; the rows of torch alone
are there to compare with.

| run | memory, MB | descriptors | threads | took | flat |
| --- | --- | --- | --- | --- | --- |
{rows}

{machine}.
"""

if __name__ == "__main__":
    main()
