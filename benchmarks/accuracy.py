"""How good forecasts are: predictors that need no fit, and other libraries where they are installed.

Run as ``python benchmarks/accuracy.py``; it writes accuracy.md beside this file, within 30 minutes on two cores.
``--quick`` takes small synthetic fleets, ``--sets`` and ``--only`` take parts; then the page is printed.

One step ahead, fitted on the first half of each series, scored on the second, served through both. Peers are in
accuracy_peers.py, the sets in accuracy_sets.py, the page in accuracy_page.py. Axis: W workers.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_page import AUTO, Found, page
from accuracy_peers import COLD, PEERS, from_the_start
from accuracy_scores import LAST, Scores, Served, cold, score, served
from accuracy_sets import SYNTHETIC, Set, common_covariates, half, oracle, sets

from paceline.predictors import EWMA, RLS, Auto, HuberEWMA, LastValue, Predictor

OURS: dict[str, Callable[[], Predictor]] = {
    "LastValue": LastValue,
    "EWMA": EWMA,
    "HuberEWMA": HuberEWMA,
    "RLS": RLS,
    AUTO: Auto,
}
"""Predictors that serve from a job's first iteration on, without any fit."""

ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Part:
    """One thing to measure: a predictor or peer on one set, scored late or from the first iteration on."""

    data: Set
    name: str
    early: bool = False


@dataclass(frozen=True)
class Measured:
    """The scores of a part, none where it is not possible; beside a sparse peer, Auto's on the same iterations."""

    scores: Scores | None
    level: Scores | None = None


def auto(data: Set) -> Auto:
    """Return Auto, not fitted, but given the names of the set's covariates; peers and fitted ones see them too."""
    return Auto(common_covariates(data.traces))


def parts_of(data: Set, names: list[str], peers: list[str]) -> Iterator[Part]:
    """Yield what to measure on one set, peers first: they take longest."""
    yield from (Part(data, name) for name in [*peers, *names])
    yield from (Part(data, name, early=True) for name in [*OURS, *COLD] if name in [*peers, *names])
    if data.name in SYNTHETIC:
        yield Part(data, ORACLE)


def measured(part: Part) -> Measured:
    """Measure one part in this process."""
    warnings.simplefilter("ignore")  # those of peers
    began, label = time.process_time(), f"{part.data.name}, {part.name}{', cold start' if part.early else ''}"
    try:
        found = cold_start(part.data, part.name) if part.early else late(part.data, part.name)
    except (ImportError, ValueError) as refusal:  # not installed, or a trace that is too short to fit
        print(f"{label}: left out, {refusal}", flush=True)
        return Measured(None)
    assert found.scores is not None
    print(f"{label}: {time.process_time() - began:.1f} s {found.scores.mean:.4f}", flush=True)
    return found


def cold_start(data: Set, name: str) -> Measured:
    if name in PEERS:
        few = data.few()
        return Measured(cold(Served(from_the_start(name, few, LAST + 1)), few))
    return Measured(cold(served(auto(data) if name == AUTO else OURS[name](), data, LAST + 1), data))


def late(data: Set, name: str) -> Measured:
    if name == ORACLE:
        return Measured(score(Served([oracle(data.name, data.traces[0])[half(data.traces[0]) :]]), data))
    if name not in PEERS:
        model = auto(data) if name == AUTO else OURS[name]().fit(data.fitting)
        return Measured(score(served(model, data), data))
    of = served_on(data, name)
    found = PEERS[name].forecasts(of)
    if not PEERS[name].sparse:
        return Measured(score(Served(found), of))
    asked = [np.isfinite(speed_TW) for speed_TW in found]
    ours = [speed_TW[:, : each.shape[1]] for speed_TW, each in zip(served(auto(data), data).speed, found, strict=False)]
    return Measured(score(Served(found), of, asked), score(Served(ours), of, asked))


def served_on(data: Set, name: str) -> Set:
    return data.few() if PEERS[name].slow else data


def together(data: Set, results: dict[Part, Measured]) -> Found:
    """Return what was found on one set, in the order of the page."""
    found = Found(data)
    for part, result in results.items():
        if part.data is not data or result.scores is None:
            continue
        if part.early:
            found.cold[part.name] = result.scores
        elif part.name == ORACLE:
            found.oracle = result.scores
        elif part.name in PEERS:
            found.peers[part.name] = (result.scores, data.places(served_on(data, part.name)))
            if result.level is not None:
                found.level[part.name] = result.level
        else:
            found.ours[part.name] = result.scores
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small synthetic fleets; the page is printed, not written")
    parser.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    parser.add_argument("--only", nargs="*", help="names of predictors and peers; the page is printed, not written")
    parser.add_argument("--processes", type=int, default=2, help="parts that are measured at once")
    chosen = parser.parse_args()
    names, peers = ([n for n in found if not chosen.only or n in chosen.only] for found in (OURS, PEERS))
    wanted = [data for data in sets(chosen.quick) if not chosen.sets or data.name in chosen.sets]
    parts = [part for data in wanted for part in parts_of(data, names, peers)]
    with ProcessPoolExecutor(chosen.processes) as pool:
        results = dict(zip(parts, pool.map(measured, parts), strict=True))
    text = page([together(data, results) for data in wanted])
    if chosen.quick or chosen.sets or chosen.only:
        print(text)
    else:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
