"""How good forecasts are: every predictor, and other libraries where they are installed, against the last value.

Run as ``python benchmarks/accuracy.py``; it writes accuracy.md beside this file, within 30 minutes on two cores.
``--quick`` takes small synthetic fleets, ``--thorough`` every predictor that can be fitted and the slowest peer.
``--sets`` and ``--only`` take parts and print them, ``--no-peers`` leaves the other libraries out; ``--write`` writes
such a part as the page, which names the command that made it. ``--store`` keeps what was measured in a folder: a run
that was stopped goes on from there. Empty the folder after a change.

One step ahead, fitted on the first half of each series, scored on the second, served through both. Peers are in
accuracy_peers.py, the sets in accuracy_sets.py, the page in accuracy_page.py. Axis: W workers.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_page import AUTO, Found, Spent, page
from accuracy_peers import COLD, PEERS, from_the_start
from accuracy_scores import LAST, Array, Scores, Served, cold, in_hindsight, score, served
from accuracy_sets import SYNTHETIC, Set, common_covariates, half, oracle, sets
from numpy.typing import NDArray

from paceline.predictors import EWMA, KINDS, RLS, Auto, HuberEWMA, LastValue, Predictor

SLOW_TO_FIT, FIT_SERIES = ("SimpleRNN", "LSTM"), 20
"""These predictors are fitted on only this many of a synthetic fleet's first workers; they are scored on all."""

FROM_THE_START: dict[str, Callable[[], Predictor]] = {
    "LastValue": LastValue,
    "EWMA": EWMA,
    "HuberEWMA": HuberEWMA,
    "RLS": RLS,
    AUTO: Auto,
}
"""Predictors that serve from a job's first iteration on, without any fit; the page without options shows these."""

SLOWEST_PEER = "neuralforecast MLP"
"""Left out of that page: it takes longer than all others together."""

ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Part:
    """One thing to measure: a predictor or peer on one set, scored late or from the first iteration on."""

    data: Set
    name: str
    early: bool = False

    @property
    def label(self) -> str:
        """Set, name and which iterations."""
        return f"{self.data.name}, {self.name}{', cold start' if self.early else ''}"


@dataclass(frozen=True)
class Measured:
    """The scores of a part and the forecasts of the scored half, none where it is not possible, and the CPU time."""

    scores: Scores | None
    seconds: float
    forecasts: list[Array] | None = None


def ours() -> dict[str, Callable[[], Predictor]]:
    """Return the predictors to fit, by name; the one that ends in 'as shipped' is not fitted."""
    found: dict[str, Callable[[], Predictor]] = {kind.__name__: kind for kind in KINDS}
    return found | {AUTO: Auto}


def auto(data: Set) -> Auto:
    """Return Auto, not fitted, but given the names of the set's covariates; peers and fitted ones see them too."""
    return Auto(common_covariates(data.traces))


def fitted(name: str, data: Set) -> Predictor:
    if name == AUTO:
        return auto(data)
    few = name in SLOW_TO_FIT and data.name in SYNTHETIC
    return ours()[name]().fit((data.first(FIT_SERIES) if few else data).fitting)


def parts_of(data: Set, names: list[str], peers: list[str]) -> Iterator[Part]:
    """Yield what to measure on one set, peers first: they take longest."""
    yield from (Part(data, name) for name in [*peers, *names])
    yield from (Part(data, name, early=True) for name in [*FROM_THE_START, *COLD] if name in [*peers, *names])
    if data.name in SYNTHETIC:
        yield Part(data, ORACLE)


def measured(part: Part) -> Measured:
    """Measure one part in this process."""
    warnings.simplefilter("ignore")  # those of peers
    began = time.process_time()
    try:
        scores, forecasts = scored(part.data, part.name, part.early)
    except (ImportError, ValueError) as refusal:  # not installed, or a trace that is too short to fit
        print(f"{part.label}: left out, {refusal}", flush=True)
        scores = forecasts = None
    seconds = time.process_time() - began
    if scores is not None:
        print(f"{part.label}: {seconds:.1f} s {scores.mean:.4f}", flush=True)
    return Measured(scores, seconds, forecasts)


def scored(data: Set, name: str, early: bool) -> tuple[Scores, list[Array] | None]:
    """Return the scores, and the forecasts of the second half unless only the start is scored."""
    if early:
        few = data.few()
        if name in PEERS:
            return cold(Served(from_the_start(name, few, LAST + 1)), few), None
        model = auto(data) if name == AUTO else FROM_THE_START[name]()
        return cold(served(model, data, LAST + 1), data), None
    data = served_on(data, name)
    found = forecasts(data, name)
    return score(found, data, asked(found) if sparse(name) else None), found.speed


def sparse(name: str) -> bool:
    """Return whether this is a peer that forecasts a few iterations only."""
    return name in PEERS and PEERS[name].sparse


def asked(found: Served) -> list[NDArray[np.bool_]]:
    """Return the iterations of a sparse peer's forecasts."""
    return [np.isfinite(speed_TW) for speed_TW in found.speed]


def served_on(data: Set, name: str) -> Set:
    return data.few() if name in PEERS and PEERS[name].slow else data


def forecasts(data: Set, name: str) -> Served:
    """Return forecasts of the second half."""
    if name in PEERS:
        return Served(PEERS[name].forecasts(data))
    if name == ORACLE:
        return Served([oracle(data.name, data.traces[0])[half(data.traces[0]) :]])
    return served(fitted(name, data), data)


def stored(part: Part, folder: Path | None) -> Measured:
    """Return what the folder holds of this part, or measure and keep it."""
    file = None if folder is None else folder / f"{part.label}.pickle"
    if file is not None and file.exists():
        return pickle.loads(file.read_bytes())  # type: ignore[no-any-return]  # written below, by this program
    found = measured(part)
    if file is not None:
        file.write_bytes(pickle.dumps(found))
    return found


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
            if sparse(part.name):
                found.level[part.name] = on_the_same(result, of_auto(data, results), data.few())
        else:
            found.ours[part.name] = result.scores
    found.hindsight = hindsight(data, results)
    return found


def of_auto(data: Set, results: dict[Part, Measured]) -> list[Array]:
    """Return Auto's forecasts of the second half of a set, NaN throughout if it was left out."""
    for part, result in results.items():
        if part.data is data and part.name == AUTO and result.forecasts is not None:
            return result.forecasts
    return [np.full((len(t) - half(t), len(t.workers)), np.nan) for t in data.traces]


def on_the_same(peer: Measured, auto: list[Array], few: Set) -> Scores:
    """Return Auto's scores on the series and iterations of a sparse peer."""
    ours = [speed_TW[:, : len(trace.workers)] for speed_TW, trace in zip(auto, few.traces, strict=True)]
    return score(Served(ours), few, asked(Served(peer.forecasts or [])))


def hindsight(data: Set, results: dict[Part, Measured]) -> float:
    """Return the RMSE of the best weighted mean of all forecasts of a set, on the series that slow peers forecast."""
    few = data.few()
    parts = [
        [speed_TW[:, : len(trace.workers)] for speed_TW, trace in zip(result.forecasts, few.traces, strict=True)]
        for part, result in results.items()
        if part.data is data and part.name != ORACLE and not sparse(part.name) and result.forecasts is not None
    ]
    return in_hindsight(parts, few).mean if parts else float("nan")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small synthetic fleets; the page is printed, not written")
    parser.add_argument("--thorough", action="store_true", help="every predictor, and the slowest peer")
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    parser.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    parser.add_argument("--only", nargs="*", help="names of predictors and peers; the page is printed, not written")
    parser.add_argument("--write", action="store_true", help="write the page in any case")
    parser.add_argument("--processes", type=int, default=2, help="parts that are measured at once")
    parser.add_argument("--store", type=Path, help="folder of parts that were measured before")
    return parser.parse_args()


def command() -> str:
    """Return the command as it was given, without the store: a folder of this machine says nothing to a reader."""
    given = iter(sys.argv[1:])
    kept = [word for word in given if word != "--store" or next(given) is None]
    return shlex.join(["python", "benchmarks/accuracy.py", *kept])


def main() -> None:
    chosen, began = options(), time.perf_counter()
    peers = [n for n in PEERS if not chosen.no_peers and (chosen.thorough or chosen.only or n != SLOWEST_PEER)]
    names = [n for n in ours() if chosen.thorough or chosen.only or n in FROM_THE_START]
    if chosen.only:
        names, peers = ([n for n in found if n in chosen.only] for found in (names, peers))
    wanted = [data for data in sets(chosen.quick) if not chosen.sets or data.name in chosen.sets]
    if chosen.store is not None:
        chosen.store.mkdir(parents=True, exist_ok=True)
    parts = [part for data in wanted for part in parts_of(data, names, peers)]
    with ProcessPoolExecutor(chosen.processes) as pool:
        results = dict(zip(parts, pool.map(stored, parts, [chosen.store] * len(parts)), strict=True))
    found = [together(data, results) for data in wanted]
    cpu = sum(result.seconds for result in results.values())
    spent = Spent(cpu, time.perf_counter() - began, chosen.processes, chosen.store is None)
    text = page(found, command(), spent)
    if chosen.write or not (chosen.quick or chosen.no_peers or chosen.sets or chosen.only):
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
