"""The Parquet files that training.py fits to: a fleet in a few files, and a large trace in many."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from training_alone import Found, alone

DISTINCT = 2 * 10**9
"""Bytes of files that are written; further ones are links to these, so that 20 GB need no 20 GB of disk."""

FIRST = 0.9
"""Share of the iterations that is fitted; the rest is forecast."""


@contextmanager
def fleet(workers: int, steps: int, files: int) -> Iterator[str]:
    """Yield a folder with a fleet as Parquet files: ``whole``, and the ``first`` nine tenths of each."""
    with tempfile.TemporaryDirectory() as folder:
        alone(make_fleet, folder=folder, workers=workers, steps=steps, files=files)
        yield folder


def make_fleet(folder: str, workers: int, steps: int, files: int) -> Found:
    """Write the files of a fleet."""
    from paceline.datasets.synthetic import synthetic_fleet

    for part in range(files):
        made = synthetic_fleet("mixed", workers // files, steps, part)
        names = [f"m_{part}_{w}" for w in range(len(made.workers))]
        made = replace(made, workers=names, meta={"job": f"part {part}"}, covariates=None, covariate_names=())
        for name, share in (("whole", 1.0), ("first", FIRST)):
            Path(folder, name).mkdir(exist_ok=True, parents=True)
            # By pandas, not Trace.save, which packs as small as it can: that took longer than all that is measured.
            frame = made.select(slice(int(share * steps))).to_frame()
            frame.to_parquet(f"{folder}/{name}/{part:05}.parquet", index=False)
    return {}


def make_large(folder: str, megabytes: int) -> Found:
    """Write files of 200 workers x 2,000 iterations with twelve covariates until they hold this much."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, size, part = np.random.default_rng(0), 0, 0
    workers, steps = 200, 2000
    names = pa.array([f"w{w:03}" for w in range(workers)]).dictionary_encode()
    worker = pa.DictionaryArray.from_arrays(np.tile(np.arange(workers, dtype=np.int32), steps), names.dictionary)
    distinct = 0
    while size < megabytes * 10**6:
        path = f"{folder}/{part:05}.parquet"
        if size >= DISTINCT:
            distinct = distinct or part
            os.link(f"{folder}/{part % distinct:05}.parquet", path)
        else:
            load = rng.uniform(0.0, 1.0, (steps, workers))
            seconds = 0.5 * (1.0 + load) * np.exp(rng.normal(0.0, 0.05, load.shape))
            columns = {"iteration": np.repeat(np.arange(steps), workers), "worker": worker}
            columns |= {"samples": np.full(workers * steps, 64.0), "seconds": seconds.ravel()}
            # Covariates that the predictor does not read fill the files, as in recorded usage.
            columns |= {f"covariate{d}": rng.uniform(0.0, 1.0, workers * steps) for d in range(12)}
            packed = ["worker", "samples", "iteration"]
            pq.write_table(pa.table(columns), path, compression="none", use_dictionary=packed)
        size += Path(path).stat().st_size
        part += 1
    return {"bytes": size, "files": part, "rows": part * workers * steps}
