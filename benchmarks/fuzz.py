"""Coverage-guided fuzzing of every parser: damaged files are read or refused in a sentence, in bounded memory.

Run as ``python benchmarks/fuzz.py``: an hour of computing over all parsers. It keeps the counts in fuzz.json and writes
fuzz.md beside this file. ``--only NAME`` runs one parser again for its share of the hour and renews its row;
``--minutes 1`` takes a look, which prints only. It needs ``pip install atheris``. Each parser runs in a process of its
own, to which the kernel gives at most 2 GB, and 20 s of computing for an input; inputs that fail are kept in the folder
that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).parent
COUNTS = HERE / "fuzz.json"

MEMORY = 2 << 30
"""Bytes of address space that a parser may take beside what its imports took."""

LONGEST = 1 << 14
"""Bytes of the longest input."""

SECONDS = 20
"""Seconds of computing that one input may take; of the process, as a busy machine stretches a clock's."""

EVERY = 64
"""Inputs between two looks at the time that was used."""

HOUR = 60.0


class Met(TypedDict):
    """What happened to one parser."""

    inputs: int
    seconds: float
    failed: bool


def fuzz(name: str, seconds: float, folder: Path) -> None:
    """Feed one parser until it has computed this long; ends the process. Any error but a sentence is a failure."""
    import atheris

    with atheris.instrument_imports(include=["paceline"]):
        from fuzz_targets import targets

        target = targets()[name]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for k, seed in enumerate(target.seeds):
        (corpus / str(k)).write_bytes(seed)
    target.check(folder)
    path, count = folder / target.file, 0
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    began = time.process_time()

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        if count % EVERY == 0 and time.process_time() - began > seconds:
            (folder / "inputs").write_text(str(count))
            os._exit(0)
        path.write_bytes(data)  # where it remains if the kernel ends the process
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            target.read(path)
        except ValueError as error:
            if str(path) not in str(error):
                raise AssertionError(f"the sentence does not name the file: {error}") from error

    # The fuzzer's own limit of time goes by the clock, which a stopped process outlives: out of reach.
    options = [f"-artifact_prefix={folder}/failed-", f"-max_len={LONGEST}", "-timeout=1000000", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


def fuzz_apart(name: str, seconds: float, folder: Path) -> Met:
    """Fuzz one parser in a process of its own, and return how many inputs it met and whether it failed."""
    command = [sys.executable, __file__, "--target", name, "--seconds", str(seconds), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    counted = folder / "inputs"
    failed = done.returncode != 0 or not counted.exists()
    met = Met(inputs=int(counted.read_text()) if counted.exists() else 0, seconds=seconds, failed=failed)
    print(f"{name:30s} {met['inputs']:9,d} inputs{'  FAILED' if failed else ''}", flush=True)
    if failed:
        print(done.stdout[-2000:], done.stderr[-3000:], flush=True)
    return met


def main() -> None:
    """Fuzz the parsers one after the other, and write the page unless this is only a look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=HOUR, help="minutes of computing over all parsers")
    parser.add_argument("--only", nargs="*", help="these parsers, each for its share of the minutes")
    for hidden, kind in (("--target", str), ("--seconds", float), ("--folder", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.target:
        fuzz(asked.target, asked.seconds, asked.folder)
    from fuzz_targets import targets

    # A thousand files a second are written: in memory, where there is such a file system.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="paceline-fuzz-", dir=shared))
    print(f"failing inputs are kept in {folder}", flush=True)
    names = list(targets())
    any_failed = False
    for k, name in enumerate(names):
        if name in (asked.only or names):
            met = fuzz_apart(name, 60 * asked.minutes / len(names), folder / str(k))
            any_failed |= met["failed"]
            if asked.minutes >= HOUR:
                renew(name, met, names)
    if any_failed:
        raise SystemExit("a parser failed")


def renew(name: str, met: Met, names: list[str]) -> None:
    """Write one parser's counts into fuzz.json, and the page from all that is in there."""
    counts: dict[str, Met] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    counts[name] = met
    counts = {name: counts[name] for name in names if name in counts}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    (HERE / "fuzz.md").write_text(page(counts, [name for name in names if name not in counts]))


def page(counts: dict[str, Met], missing: list[str]) -> str:
    """Return the page."""
    from machine import machine

    rows = "\n".join(
        f"| {name} | {met['inputs']:,} | {'**failed**' if met['failed'] else 'none'} |" for name, met in counts.items()
    )
    return PAGE.format(
        machine=machine("atheris"),
        minutes=sum(met["seconds"] for met in counts.values()) / 60,
        total=sum(met["inputs"] for met in counts.values()),
        failed=sum(met["failed"] for met in counts.values()),
        parsers=len(counts),
        missing=f" Not run yet: {', '.join(missing)}." if missing else "",
        rows=rows,
        memory=MEMORY >> 30,
        seconds=SECONDS,
    )


PAGE = """# Every parser under damaged files

`python benchmarks/fuzz.py`, on {machine}. {minutes:.0f} minutes of computing over {parsers} parsers, guided by what
code an input reaches (atheris). Each starts from a file that it reads. An input must be read, or refused by an error
that names the file, within {memory} GB of memory and {seconds} s of computing, which the kernel enforces.

**{total:,} inputs; {failed} of {parsers} parsers failed.**{missing}

| parser | inputs | failures |
| --- | --- | --- |
{rows}
"""

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    main()
