"""How good forecasts are: every predictor, and other libraries where they are installed, against the last value.

Run as ``python benchmarks/accuracy.py``; it writes accuracy.md beside this file. ``--quick`` takes small fleets,
``--sets`` and ``--only`` take parts of it and print them, ``--no-peers`` leaves the other libraries out; ``--write``
writes such a part as the page, which names the command that made it.

One step ahead, fitted on the first half of each series, scored on the second, served through both. Peers are in
accuracy_peers.py, the sets in accuracy_sets.py, the page in accuracy_page.py. Axis: W workers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from accuracy_page import AUTO, Found, page
from accuracy_peers import COLD, PEERS, from_the_start
from accuracy_scores import LAST, Scores, Served, cold, score, served
from accuracy_sets import SYNTHETIC, Set, half, oracle, sets

from paceline.predictors import EWMA, KINDS, RLS, Auto, HuberEWMA, LastValue, Predictor

SLOW_TO_FIT, FIT_SERIES = ("SimpleRNN", "LSTM", "GRU"), 20
"""These predictors are fitted on only this many of a synthetic fleet's first workers; they are scored on all."""

FROM_THE_START: dict[str, Callable[[], Predictor]] = {
    "LastValue": LastValue,
    "EWMA": EWMA,
    "HuberEWMA": HuberEWMA,
    "RLS": RLS,
    AUTO: Auto,
}
"""Predictors that serve from a job's first iteration on, without any fit."""


def ours() -> dict[str, Callable[[], Predictor]]:
    """Return the predictors to fit, by name; the one that ends in 'as shipped' is not fitted."""
    found: dict[str, Callable[[], Predictor]] = {kind.__name__: kind for kind in KINDS}
    return found | {AUTO: Auto}


def fitted(name: str, data: Set) -> Predictor:
    model = ours()[name]()
    if name != AUTO:
        few = name in SLOW_TO_FIT and data.name in SYNTHETIC
        model.fit((data.first(FIT_SERIES) if few else data).fitting)
    return model


def measured(data: Set, chosen: list[str], peers: list[str]) -> Found:
    """Return the scores of all predictors and peers on one set."""
    found = Found(data)
    for name in chosen:
        began = time.perf_counter()
        try:
            found.ours[name] = score(served(fitted(name, data), data), data)
        except ValueError as refusal:  # a trace that is too short to fit
            print(f"{data.name}: {name} left out, {refusal}", flush=True)
            continue
        print(f"{data.name}: {name} {time.perf_counter() - began:.1f} s {found.ours[name].mean:.4f}", flush=True)
    if data.name in SYNTHETIC:
        truth = Served([oracle(data.name, data.traces[0])[half(data.traces[0]) :]])
        found.oracle = score(truth, data)
    for name in peers:
        began, few = time.perf_counter(), data.few() if PEERS[name].slow else data
        try:
            found.peers[name] = (score(Served(PEERS[name].forecasts(few)), few), data.places(few))
        except ImportError as missing:
            print(f"{data.name}: {name} left out, {missing}", flush=True)
            continue
        print(f"{data.name}: {name} {time.perf_counter() - began:.1f} s {found.peers[name][0].mean:.4f}", flush=True)
    found.cold = {name: cold(served(make(), data, LAST + 1), data) for name, make in FROM_THE_START.items()}
    found.cold |= {name: scores for name in peers if name in COLD and (scores := cold_peer(name, data))}
    return found


def cold_peer(name: str, data: Set) -> Scores | None:
    few = data.few()
    try:
        return cold(Served(from_the_start(name, few, LAST + 1)), few)
    except ImportError:
        return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="small synthetic fleets")
    options.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    options.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    options.add_argument("--only", nargs="*", help="names of predictors and peers; the page is printed, not written")
    options.add_argument("--write", action="store_true", help="write the page in any case")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")  # those of peers
    began = time.perf_counter()
    names = [name for name in ours() if not chosen.only or name in chosen.only]
    peer_names = [name for name in PEERS if not chosen.no_peers and (not chosen.only or name in chosen.only)]
    wanted = [data for data in sets(chosen.quick) if not chosen.sets or data.name in chosen.sets]
    whole = not (chosen.quick or chosen.no_peers or chosen.sets or chosen.only)
    found: list[Found] = []
    for data in wanted:
        found.append(measured(data, names, peer_names))
        text = page(found, shlex.join(["python", "benchmarks/accuracy.py", *sys.argv[1:]]), time.perf_counter() - began)
        if whole or chosen.write:  # after each set: a run that is stopped leaves a page
            Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    if not whole:
        print(text)


if __name__ == "__main__":
    main()
