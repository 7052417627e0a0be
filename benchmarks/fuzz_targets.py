"""The parsers that benchmarks/fuzz.py feeds, and good files to start from, made by what writes such files."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from paceline.coordinator import LoadBalancer
from paceline.datasets.profiles import read_profiles, save_profile
from paceline.datasets.readers import TABLES, read_table, read_traces
from paceline.predictors import EWMA, RLS, Report
from paceline.recording import JsonLines, Recorder, merge, read_async_run, read_run
from paceline.recording.records import Iteration, Round
from paceline.training import load_model, save_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_readers_fuzz import GOOD
from test_readers_recognised import TABLE_ROWS


@dataclass(frozen=True)
class Target:
    """One parser: good files to start from, the name of the file that it reads, and how it reads it."""

    seeds: tuple[bytes, ...]
    file: str
    read: Callable[[Path], object]

    def check(self, folder: Path) -> None:
        """Raise if the parser does not read what the fuzzing starts from: it would not get past the first line."""
        for seed in self.seeds:
            path = folder / self.file
            path.write_bytes(seed)
            self.read(path)


def targets() -> dict[str, Target]:
    """Return every parser by name."""
    return {**_formats(), **_binary_formats(), **_tables(), **_profiles(), **_own_files()}


def _formats() -> dict[str, Target]:
    made = {
        name: Target((text.encode(),), "x.json" if name == "google_2019" else "x.csv", partial(_traces, name))
        for name, text in GOOD.items()
    }
    # A recognised file is a file of its format, so a few are enough: those that are known by their header.
    known = ("csv", "hivemind", "pai_minibatch", "wandb", "bitbrains", "pytorch_log", "dstat")
    made["compressed"] = Target((gzip.compress(GOOD["csv"].encode()),), "x.csv.gz", read_traces)
    return made | {"any format": Target(tuple(GOOD[name].encode() for name in known), "x.csv", read_traces)}


def _binary_formats() -> dict[str, Target]:
    columns = {
        "parquet": {"worker": "a", "iteration": range(9), "samples": 8, "seconds": 0.5},
        "bytedance_llm": {"rank": 0, "stage": 0, "step": range(9), "optype": "forward-compute", "duration": 0.5}
        | {"seq_id": 0},
    }
    return {
        name: Target((_parquet(pd.DataFrame(table)),), "x.parquet", partial(_traces, name))
        for name, table in columns.items()
    }


def _tables() -> dict[str, Target]:
    rows = {
        table.name: next(text for file, text in TABLE_ROWS.items() if fnmatch(file, table.files))
        for table in TABLES.values()
    }
    return {
        f"table {name}": Target((text.encode(),), "x.csv", partial(_table, name)) for name, text in sorted(rows.items())
    }


def _profiles() -> dict[str, Target]:
    measured = {"source": "own", "device": "cpu", "model": "mlp", "batch": [8, 16], "seconds": [0.1, 0.2]}
    profile = pd.DataFrame({**measured, "comm_seconds": np.nan, "held": "2 threads"})
    zeus = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch\ncifar,net,100,adam,250,20\n"
    pollux = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,4,8,0.75,0.25\n"
    gavel = json.dumps({"k80": {"('LM (batch size 20)', 1)": {"null": 4.0}}})
    flash = json.dumps({"X": [[0.5, 1.0, 0.2, 3.0]], "Y": [[0.01]]})
    texts = {"gavel": ("x.json", gavel), "zeus": ("summary_power_v100.csv", zeus)}
    texts |= {"pollux": ("bert_scalability.csv", pollux), "flash": ("tpu_lstm.json", flash)}
    made = {
        f"profile {name}": Target((text.encode(),), file, partial(_profile, name))
        for name, (file, text) in texts.items()
    }
    own = _written("x.csv", lambda path: save_profile(profile, path))
    return {"profile": Target((own,), "x.csv", partial(_profile, "paceline")), **made}


def _own_files() -> dict[str, Target]:
    models = (_written("x.safetensors", partial(_save, kind())) for kind in (EWMA, RLS))
    return {
        "model": Target(tuple(models), "x.safetensors", load_model),
        "recording": Target((_written("x.jsonl", _record),), "x.jsonl", lambda path: merge([path])),
        "run": Target((_written("x.jsonl", _run),), "x.jsonl", read_run),
        "asynchronous run": Target((_written("x.jsonl", _async_run),), "x.jsonl", read_async_run),
    }


# -- how each is read --------------------------------------------------------------------------------------------


def _traces(name: str, path: Path) -> object:
    return read_traces(path, name)


def _table(name: str, path: Path) -> object:
    return read_table(path, name)


def _profile(name: str, path: Path) -> object:
    return read_profiles(path, name)


# -- how each is written -----------------------------------------------------------------------------------------


def _written(name: str, write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def _save(model: EWMA | RLS, path: Path) -> None:
    model.reset(["a"])
    save_model(model, path)


def _record(path: Path) -> None:
    with Recorder(path, worker="a") as recorder:
        for _ in range(2):
            with recorder.iteration(samples=8) as step, step.waiting():
                pass


def _run(path: Path) -> None:
    _through_sink(path, _iterations(2))


def _iterations(count: int) -> Iterable[Iteration]:
    balancer = LoadBalancer(EWMA(), workers=["a", "b"], global_batch=16)
    for index in range(count):
        used, report = balancer.plan, Report(samples=balancer.plan.sizes, seconds=[0.25, 0.5])
        yield Iteration.of(used, report, balancer.step(report), index=index, time=1.7e9 + index)


def _through_sink(path: Path, records: Iterable[Iteration]) -> None:
    sink = JsonLines(path)
    for record in records:
        sink(record)
    sink.close()


def _async_run(path: Path) -> None:
    sizes, shares = np.array([8, 4]), np.array([0.5, 1.0])
    sink = JsonLines(path)
    for index in range(2):
        counts = {"version": 3 + index, "applied": 24, "dropped": 1, "abandoned": 0, "refused": 2, "largest": 2}
        rows = {"sizes": sizes, "pushes": sizes, "done": sizes, "wasted": sizes}
        rows |= {"staleness": shares, "expected": shares, "waited": shares}
        fleet = {"scheme": "SaPS", "bound": 2, "batch": 8, "workers": ("a", "b"), "stragglers": ("b",)}
        seen = {"forecast": 0.5, "actual": 0.75, "covered": 1.0, "acted": True, "why": "b is a straggler"}
        seen |= {"wasted_share": 0.1}
        sink.write_round(Round(index=index, time=1.7e9 + index, **counts, **rows, **fleet, **seen))  # type: ignore[arg-type]
    sink.close()


def _parquet(table: pd.DataFrame) -> bytes:
    written = io.BytesIO()
    table.to_parquet(written)
    return written.getvalue()
