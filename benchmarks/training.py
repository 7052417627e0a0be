"""Fitting to traces of any size: time, memory, and how they grow with the number of workers.

Run as ``python benchmarks/training.py``; it makes traces in a temporary folder (removed afterwards), measures each step
in a process of its own, and writes training.md beside this file. Beside the seconds of the clock it reports those of
the processor, which other work on the machine changes less. Parts of the page can be measured one by one: their
results are kept in a folder (``--results FOLDER PART ...``), and the page is made of all that are there. ``--quick``
takes small sizes, prints, and writes nothing. The whole takes some hours of two cores and 20 GB of disk.

Each part has a file: training_fit.py, training_growth.py, training_reading.py, training_backtest.py, training_full.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import training_backtest
import training_fit
import training_full
import training_growth
import training_reading
from machine import machine
from training_alone import Found
from training_sizes import QUICK, Sizes

COMMAND = "python benchmarks/training.py"

Part = tuple[Callable[[Sizes], Found], Callable[[Sizes, Found], tuple[list[str], list[str]]]]
PARTS: dict[str, Part] = {
    "fit": (training_fit.measure, training_fit.page),
    "memory": (training_growth.measure_memory, training_growth.page_memory),
    "reading": (training_reading.measure, training_reading.page),
    "backtest": (training_backtest.measure_backtest, training_backtest.page_backtest),
    "processes": (training_backtest.measure_processes, training_backtest.page_processes),
    "growth": (training_growth.measure_growth, training_growth.page_growth),
    "full": (training_full.measure, training_full.page),
}
"""How each part is measured, and how its results become lines of the page and targets that are missed."""


def page_of(results: Path, sizes: Sizes) -> str:
    """Return the page made of all parts that were measured; missed targets come first."""
    body: list[str] = []
    missed: list[str] = []
    for name, (_, page) in PARTS.items():
        if (kept := results / f"{name}.json").exists():
            lines, lacking = page(sizes, json.loads(kept.read_text()))
            body += ["", *lines, "", f"`{kept.with_suffix('.command').read_text()}`"]
            missed += lacking
        else:
            missed.append(f"the part `{name}` was not measured")
    first = ["Targets that are missed:", "", *(f"- {one}" for one in missed)] if missed else ["Every target is met."]
    about = [
        f"{machine('torch', 'pandas', 'pyarrow')}. The command of a part stands below it.",
        "Other work ran on the machine; *processor* is what a step itself took.",
    ]
    return "\n".join(["# Fitting to traces of any size", "", *about, "", *first, *body, ""])


def main() -> None:
    """Measure the parts and write the page."""
    asked = _asked()
    sizes = QUICK if asked.quick else _sizes(asked)
    with tempfile.TemporaryDirectory() as temporary:
        results = asked.results or Path(temporary)
        results.mkdir(exist_ok=True, parents=True)
        for name in () if asked.page else asked.parts or PARTS:
            found = PARTS[name][0](sizes)
            (results / f"{name}.json").write_text(json.dumps(found))
            chosen = [one for one in sys.argv[1:] if one not in (*PARTS, "--results", str(asked.results))]
            (results / f"{name}.command").write_text(" ".join([COMMAND, name, *chosen]))
            print(name, json.dumps(found), flush=True)
        page = page_of(results, sizes)
    print(page)
    if not asked.quick:
        (Path(__file__).parent / "training.md").write_text(page)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--results", type=Path, help="Folder of the parts' results.")
    parser.add_argument("--turns", type=int, default=Sizes.turns)
    parser.add_argument("--passes", type=int, default=Sizes.passes)
    parser.add_argument("--largest", type=int, default=Sizes.largest, help="Workers of the largest fleet.")
    parser.add_argument("--megabytes", type=int, nargs="+", default=Sizes.megabytes)
    parser.add_argument("--full", type=int, default=Sizes.full, help="Megabytes of the usage trace.")
    parser.add_argument("--page", action="store_true", help="Measure nothing; write the page of what is there.")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def _sizes(asked: argparse.Namespace) -> Sizes:
    return Sizes(
        largest=asked.largest,
        megabytes=tuple(asked.megabytes),
        full=asked.full,
        passes=asked.passes,
        turns=asked.turns,
    )


if __name__ == "__main__":
    main()
