"""Coverage-guided fuzzing of every parser: damaged files are read or refused in a sentence, in bounded memory.

Run as ``python benchmarks/fuzz.py`` (an hour of computing; writes fuzz.md beside this file), or with ``--minutes 1``
for a look, which prints only. It needs ``pip install atheris``. Each parser runs in a process of its own, to which the
kernel gives at most 2 GB; inputs that fail are kept in the folder that is printed.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
MEMORY = 2 << 30
"""Bytes of address space that a parser may take beside what its imports took."""

LONGEST = 1 << 14
"""Bytes of the longest input."""

EVERY = 64
"""Inputs between two looks at the time that was used."""


@dataclass(frozen=True)
class Target:
    """One parser: inputs to start from, the name of the file that it reads, and how it reads it."""

    seeds: tuple[bytes, ...]
    file: str
    read: Callable[[Path], object]


def targets() -> dict[str, Target]:
    """Return every parser by name; the test files hold an example of every text format."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    import numpy as np
    import pandas as pd
    from test_readers_fuzz import GOOD

    from paceline.coordinator.metrics import read_run
    from paceline.datasets import profiles, read_traces
    from paceline.datasets.readers import TABLES, read_table
    from paceline.predictors import EWMA, RLS
    from paceline.recording.merging import merge
    from paceline.training import load_model, save_model

    made = {
        name: Target((text.encode(),), "x.json" if name == "google_2019" else "x.csv", partial(_traces, name))
        for name, text in GOOD.items()
    }
    made["any format"] = Target(tuple(text.encode() for text in GOOD.values()), "x.csv", read_traces)
    csv = GOOD["csv"].encode()
    made["archive .gz"] = Target((gzip.compress(csv),), "x.csv.gz", read_traces)
    made["archive .zip"] = Target((_zipped(csv),), "x.zip", read_traces)
    made["archive .tar.gz"] = Target((_tarred(csv),), "x.tar.gz", read_traces)
    tidy = pd.DataFrame({"worker": "a", "iteration": range(9), "samples": 8, "seconds": 0.5})
    written = io.BytesIO()
    tidy.to_parquet(written)
    made["parquet"] = Target((written.getvalue(),), "x.parquet", partial(_traces, "parquet"))
    rows = (b"a,b,1,2,3\nc,d,4,5,6\n", b'[{"attempts": [{"detail": 5}]}]\n')
    made |= {f"table {name}": Target(rows, "x.csv", partial(_table, read_table, name)) for name in sorted(TABLES)}
    with tempfile.TemporaryDirectory() as folder:
        saved = []
        for k, model in enumerate((EWMA(), RLS())):
            model.reset(["a"])
            saved.append(save_model(model, Path(folder) / f"{k}.safetensors").read_bytes())
        profile = pd.DataFrame({"samples": np.array([8, 16]), "seconds": [0.1, 0.2]})
        try:
            table = profiles.save_profile(profile, Path(folder) / "p.csv").read_bytes()
        except (ValueError, KeyError):
            table = b"samples,seconds\n8,0.1\n16,0.2\n"
    made["model"] = Target(tuple(saved), "x.safetensors", load_model)
    made["profile"] = Target((table,), "x.csv", profiles.load_profile)
    header = {"worker": "a", "columns": ["iteration", "samples", "seconds"], "drivers": [], "schema": 1}
    made["recording"] = Target(
        (f"{json.dumps(header)}\n[0, 8, 0.5]\n[1, 8, 0.5]\n".encode(),), "x.jsonl", lambda path: merge([path])
    )
    run = {"type": "fleet", "workers": ["a", "b"]}
    step = {"iteration": 0, "time": 1.0, "sizes": [8, 8], "seconds": [0.1, 0.2], "forecast_seconds": [0.1, 0.2]}
    made["run"] = Target((f"{json.dumps(run)}\n{json.dumps(step)}\n".encode(),), "x.jsonl", read_run)
    return made


def _traces(name: str, path: Path) -> object:
    from paceline.datasets import read_traces

    return read_traces(path, name)


def _table(read_table: Callable[[Path, str], object], name: str, path: Path) -> object:
    return read_table(path, name)


def _zipped(data: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.csv", data)
    return written.getvalue()


def _tarred(data: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        member = tarfile.TarInfo("x.csv")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return written.getvalue()


def fuzz(name: str, seconds: float, folder: Path) -> None:
    """Feed one parser until it has computed this long; ends the process. Any error but a sentence is a failure."""
    import atheris

    with atheris.instrument_imports(include=["paceline"]):
        target = targets()[name]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for k, seed in enumerate(target.seeds):
        (corpus / str(k)).write_bytes(seed)
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
        path.write_bytes(data)
        try:
            target.read(path)
        except ValueError as error:
            if str(path) not in str(error):
                raise AssertionError(f"the sentence does not name the file: {error}") from error

    options = [f"-artifact_prefix={folder}/failed-", f"-max_len={LONGEST}", "-timeout=120", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


def run_all(names: list[str], minutes: float, folder: Path) -> dict[str, tuple[int, bool]]:
    """Fuzz each for its share of the time, and return how many inputs it met and whether it failed."""
    met = {}
    for name in names:
        at = folder / name.replace(" ", "_").replace(".", "")
        command = [
            sys.executable,
            __file__,
            "--target",
            name,
            "--minutes",
            str(minutes / len(names)),
            "--folder",
            str(at),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        counted = at / "inputs"
        failed = done.returncode != 0 or not counted.exists()
        met[name] = (int(counted.read_text()) if counted.exists() else 0, failed)
        print(f"{name:30s} {met[name][0]:9,d} inputs{'  FAILED' if failed else ''}", flush=True)
        if failed:
            print(done.stdout[-2000:], done.stderr[-1500:])
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes of computing over all parsers")
    parser.add_argument("--only", nargs="*", help="these parsers")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.target:
        fuzz(asked.target, 60 * asked.minutes, asked.folder)
    # A thousand files a second are written: in memory, where there is such a file system.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="paceline-fuzz-", dir=shared))
    print(f"failing inputs are kept in {folder}")
    met = run_all(asked.only or list(targets()), asked.minutes, folder)
    if asked.only or asked.minutes < 60:
        return
    (HERE / "fuzz.md").write_text(page(met, asked.minutes))


def page(met: Mapping[str, tuple[int, bool]], minutes: float) -> str:
    """Return the page."""
    from machine import machine

    rows = "\n".join(
        f"| {name} | {count:,} | {'**failed**' if bad else 'none'} |" for name, (count, bad) in met.items()
    )
    total, bad = sum(count for count, _ in met.values()), sum(bad for _, bad in met.values())
    return PAGE.format(machine=machine(), minutes=minutes, total=total, bad=bad, rows=rows, memory=MEMORY >> 30)


PAGE = """# Every parser under damaged files

`python benchmarks/fuzz.py`, on {machine}. {minutes:.0f} minutes of computing over all parsers, guided by what code an
input reaches (atheris). An input must be read, or refused by an error that names the file, within {memory} GB of
memory, which the kernel enforces.

**{total:,} inputs, {bad} parsers failed.**

| parser | inputs | failures |
| --- | --- | --- |
{rows}
"""

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    main()
