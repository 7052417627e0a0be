"""Small mistakes that the tests would not notice: mutants drawn over the whole library, the tests run against each.

``--map`` records which tests enter which function, into ``.mutants/`` (as long as ``make test`` takes, and more);
``--map tests/solver`` records these anew.
``--seed 7 --count 60`` draws files in proportion to their lines, and in each a change; it runs the tests that enter the
function changed until one fails. The sample is added to mutants.json under its seed, and mutants.md is written; one of
some rooms only, ``--rooms solver eval``, is printed and not kept. Why a survivor changes nothing that a caller could
see stands in mutants.toml.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutants_made import Place, mutant, places
from mutants_map import LOOK_AT_ALL, PROJECT, Map, record
from mutants_page import page
from mutants_tried import Tried, tried

HERE = Path(__file__).parent
COUNTS = HERE / "mutants.json"

ROOMS: tuple[str, ...] = (
    "coordinator",
    "datasets",
    "engines",
    "eval",
    "lab",
    "predictors",
    "recording",
    "runs",
    "solver",
    "training",
)
ROOMS += ("audit", "report", "src/paceline")


def library(rooms: Sequence[str] = ROOMS) -> dict[str, int]:
    """Return the files of the library with their numbers of lines."""
    found = [path for room in rooms for path in sorted((PROJECT / room).rglob("*.py"))]
    return {str(path.relative_to(PROJECT)): len(path.read_text().splitlines()) for path in found}


def drawn(seed: int, number: int, rooms: Sequence[str] = ROOMS) -> Iterator[tuple[str, Place]]:
    """Yield files with a place in each, none twice."""
    rng, lines = random.Random(seed), library(rooms)
    seen: set[tuple[str, Place]] = set()
    while len(seen) < number:
        (file,) = rng.choices(list(lines), weights=list(lines.values()))
        found = places((PROJECT / file).read_text())
        one = (file, rng.choice(found)) if found else None
        if one is not None and one not in seen:
            seen.add(one)
            yield one


def again(sample: list[Tried], judged: dict[str, dict[str, str]]) -> Iterator[tuple[str, Place]]:
    """Yield the places of those neither killed nor judged equivalent, as far as their lines are still there."""
    for one in sample:
        if one["outcome"] != "killed" and one["name"] not in judged.get(one["file"], {}):
            source = (PROJECT / one["file"]).read_text()
            found = [place for place in places(source) if mutant(source, place).name == one["name"]]
            yield from [(one["file"], place) for place in found[:1]]


def keep(one: Tried, counts: dict[str, list[Tried]]) -> None:
    """Print what became of a mutant, and write down all that is known."""
    print(f"{one['outcome']:8} {one['tests']:4} tests  {one['file']}: {one['name']}", flush=True)
    if counts:
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


def main() -> None:
    """Draw mutants, print those that no test notices, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", nargs="*", metavar="TESTS", help="record which functions tests enter: these, or all")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, choices=ROOMS, help="draw in these only")
    parser.add_argument("--again", type=int, help="the seed of a sample whose survivors are tried again")
    parser.add_argument("--page", action="store_true", help="write the page anew, from what is known")
    asked = parser.parse_args()
    for file, _, test in (one.partition("::") for one in LOOK_AT_ALL):
        if f"def {test}(" not in (PROJECT / file).read_text():
            parser.error(f"{file} holds no {test}: name it anew in LOOK_AT_ALL")
    if asked.map is not None:
        record(asked.map)
    judged: dict[str, dict[str, str]] = tomllib.loads((HERE / "mutants.toml").read_text())
    counts: dict[str, list[Tried]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    if asked.seed is not None:
        sample: list[Tried] = []
        whole = asked.rooms == ROOMS
        for one in tried(list(drawn(asked.seed, asked.count, asked.rooms)), Map()):
            sample.append(one)
            keep(one, counts | {str(asked.seed): sample} if whole else {})
        counts |= {str(asked.seed): sample} if whole else {}
    if asked.again is not None:
        sample = counts[str(asked.again)]
        for one in tried(list(again(sample, judged)), Map()):
            (place,) = [k for k, old in enumerate(sample) if (old["file"], old["name"]) == (one["file"], one["name"])][
                :1
            ]
            sample[place] = one
            keep(one, counts)
    if asked.seed is not None or asked.again is not None or asked.page:
        (HERE / "mutants.md").write_text(page(counts, judged))


if __name__ == "__main__":
    main()
