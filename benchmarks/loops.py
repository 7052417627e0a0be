"""Loops composed at random, trained on balanced batches and alone: benchmarks/loops.md says what became of them.

    nice .venv/bin/python benchmarks/loops.py --ranks 2 --loops 3000 --out runs/loops.jsonl
    nice .venv/bin/python benchmarks/loops.py --ranks 4 --loops 60 --fixed wrapper=HSDP accumulate=micro-batches
    .venv/bin/python benchmarks/loops.py --page runs/loops.jsonl [more.jsonl ...]

Many loops run in one start of the ranks. One that hangs or ends a process is noted, and the next begins with new ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "loops"))

TOLERANCE = 1e-9
SECONDS = 8
"""After which a collective that waits for a rank ends with an error."""


def ranks(out: Path, first: int, last: int, rate: float, fixed: dict[str, str] | None = None) -> None:
    """Run loops of these seeds, one after the other, on every rank; the first writes what became of each."""
    import faulthandler
    import gc

    import torch
    import torch.distributed as dist
    from composed import composition

    torch.set_num_threads(1)
    # A loading process of an iterator that was left is given so many seconds to end: 5 of them took most of all time.
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
    for seed in range(first, last):
        faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
        parts = composition(seed, rate, fixed)
        found = verdict_of(parts)
        if seed == first:
            gc.collect()
            gc.freeze()  # to look through what imports left again and again takes half of all the time
        if found["verdict"] == "SILENT":
            found["smallest"] = shrunk(parts)
        found |= with_the_line(parts, found)
        if dist.get_rank() == 0:
            with out.open("a") as file:
                file.write(json.dumps({"seed": seed, "ranks": dist.get_world_size(), **found, "parts": parts}) + "\n")
        if "hang" in (found["verdict"], found.get("mended")):
            os._exit(3)  # the groups are out of step
    dist.barrier()
    faulthandler.cancel_dump_traceback_later()


def with_the_line(parts, found):
    """Return what becomes of a refused loop once it has the lines that its refusals print, one after the other."""
    from composed import mended

    lines, verdict = [], found
    while verdict["verdict"] == "refused" and (more := mended(parts, " ".join(verdict["errors"]))) is not None:
        lines.append({name: value for name, value in more.items() if parts[name] != value})
        parts, verdict = more, verdict_of(more)
    return {"lines": lines, "mended": verdict["verdict"], "after": {**verdict}} if lines else {}


def verdict_of(parts: dict[str, object]) -> dict[str, object]:
    """Return what becomes of a loop of these parts, the same on every rank."""
    import gc

    import torch.distributed as dist
    from composed import run_composed
    from run import deviation
    from verdicts import Shape

    gc.collect()  # models of the loop before
    shape = Shape(run_composed(parts), "exact")
    from job import told

    job, warned, error = told(shape.run)
    said_R: list[dict[str, object] | None] = [None] * dist.get_world_size()
    facts = {
        "error": error,
        "warned": warned,
        "loops": [loader.loops for loader in job.loaders],
        "parameters": job.parameters(),
    }
    try:
        dist.all_gather_object(said_R, facts)
    except RuntimeError:
        return {"verdict": "hang", "errors": [error]}
    errors = [said["error"] for said in said_R]
    outcome: list[object] = [None]
    if dist.get_rank() == 0:
        outcome[0] = judged(errors, said_R, shape, job, deviation)
    dist.broadcast_object_list(outcome)
    return outcome[0]


def judged(errors, said_R, shape, job, deviation):
    """Return the verdict on what the ranks said."""
    sentences = sorted({sentence for said in said_R for sentence in said["warned"]})
    lost = ["Connection closed" in error for error in errors]
    # A rank that refuses may end while another still connects to it: the first one's refusal counts for both.
    refused = all(errors) and not all(lost)
    if any("lost contact" in error or "imed out" in error for error in errors) or (any(lost) and not refused):
        return {"verdict": "hang", "errors": errors}
    if all(errors):
        return {"verdict": "refused", "errors": errors}
    if any(errors):
        return {"verdict": "refused on one rank", "errors": errors}
    drawn = [[said["loops"][number] for said in said_R] for number in range(len(job.loaders))]
    lengths = [len(loader) for loader in job.loaders]
    found = deviation(shape, drawn, lengths, said_R)
    off = found["deviation"]
    if off is None:
        return {"verdict": "not comparable", "errors": [found["alone"]]}
    verdict = "exact" if off < TOLERANCE else "warned" if sentences else "SILENT"
    return {"verdict": verdict, "deviation": off, "warned": sentences}


def shrunk(parts):
    """Return the smallest loop that is silently different: parts are made plain one by one."""
    from composed import PLAIN, differs

    for name in list(differs(parts)):
        fewer = {**parts, name: PLAIN[name]}
        if verdict_of(fewer)["verdict"] == "SILENT":
            parts = fewer
    return differs(parts)


def start(world_size: int, out: Path, first: int, last: int, rate: float, fixed: list[str]) -> int:
    """Start the ranks; return their exit status."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    return subprocess.run(
        [*command, __file__, "--inside", str(out), str(first), str(last), str(rate), *fixed],
        env=environment,
        stderr=subprocess.DEVNULL,
        check=False,
    ).returncode


def search(world_size: int, loops: int, seed: int, chunk: int, rate: float, out: Path, fixed: list[str]) -> None:
    """Run loops in chunks, each in one start of the ranks, until so many are written."""
    first, last = seed, seed + loops
    while first < last:
        end = min(first + chunk, last)
        start(world_size, out, first, end, rate, fixed)
        done = [json.loads(line)["seed"] for line in out.read_text().splitlines()] if out.exists() else []
        reached = max([one for one in done if seed <= one < last], default=first - 1) + 1
        if reached < end and (not done or reached == first or done[-1] != reached - 1 or not _hung(out)):
            with out.open("a") as file:  # it ended a process
                file.write(json.dumps({"seed": reached, "ranks": world_size, "verdict": "crash or hang"}) + "\n")
            reached += 1
        first = reached
        print(
            time.strftime("%H:%M:%S"),
            reached - seed,
            dict(Counter(found["verdict"] for found in read(out))),
            flush=True,
        )


def _hung(out: Path) -> bool:
    found = json.loads(out.read_text().splitlines()[-1])
    return "hang" in (found["verdict"], found.get("mended"))


def read(out: Path) -> list[dict[str, Any]]:
    """Return what was found."""
    return [json.loads(line) for line in out.read_text().splitlines()]


FINE = ("exact", "warned", "refused")
VERDICTS = (*FINE, "SILENT", "hang", "refused on one rank", "crash or hang", "not comparable")

PAGE = """# Random loops

A loop is composed of parts at random, each but the kind of loss with a chance of one fifth, trained on balanced batches
in float64, and compared with one process that trains on the same global batches. It is *exact* if all parameters agree
to 1e-9; *warned* if they do not and a rank has warned; *refused* if every rank ends with an error, of ours or of torch.
*Silent* is a difference without a word: such a loop is made plain part by part as long as it stays silent, and its
least form is listed. A hang or a crash is noted, and the search goes on with new ranks.

The table comes from `python benchmarks/loops.py --ranks 2 --loops N --seed S --out F` and `--page F ...`, here of
{runs}.
A refused loop is run again with the lines that its refusals print.
`tests/loops/composed.py` composes the loops, and lists their parts; `make soak` runs 360 others.

## Verdicts

{verdicts}

{worst}{again}## Covered, and not

The parts in `tests/loops/composed.py` are covered, in any combination that makes sense, FSDP1, FSDP2, HSDP and sparse
embeddings among them. Not covered here: compiled models, complex parameters, streams, budgets of tokens, losses over
gathered rows, resuming, communication hooks, GPUs, and what `docs/reference/loops.md` lists under "What cannot be
seen". The table of shapes there has most of them.
"""

AGAIN = """These seeds were not fine when they were first run, and were run again; the tables have the last verdict.
Where the cause was in the library, it was mended in between. A lost connection that did not come back when the same
loops ran once more, in the same order, has no known cause.

{lines}

"""


def page(found: list[dict[str, Any]]) -> str:
    """Return the page about these loops: of a seed that was run several times, the last counts."""
    runs: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in found:
        runs.setdefault((one["ranks"], one["seed"]), []).append(one)
    last = [tries[-1] for tries in runs.values()]
    ranks = sorted({one["ranks"] for one in last})
    counts = Counter((one["ranks"], one["verdict"]) for one in last)
    seen = [each for each in VERDICTS if each in VERDICTS[:5] or any(counts[rank, each] for rank in ranks)]
    rows = [["ranks", *seen], ["---"] * (len(seen) + 1)]
    rows += [[str(rank), *(str(counts[rank, verdict]) for verdict in seen)] for rank in ranks]
    silent = [f"- seed {one['seed']}, {one['ranks']} ranks: {one['smallest']}" for one in last if one.get("smallest")]
    again = [_again(tries) for tries in runs.values() if tries[0]["verdict"] not in FINE and len(tries) > 1]
    return PAGE.format(
        runs=", ".join(f"{rank} ranks: {sum(one['ranks'] == rank for one in last)} loops" for rank in ranks),
        verdicts="\n".join(f"| {' | '.join(row)} |" for row in rows),
        worst="Silent, in their least form:\n\n" + "\n".join(silent) + "\n\n" if silent else "",
        again=AGAIN.format(lines="\n".join(again)) if again else "",
    )


def _again(tries: list[dict[str, Any]]) -> str:
    """Return the line of a seed that was run several times."""
    first, last = tries[0], tries[-1]
    about = f" (in its least form {first['smallest']})" if first.get("smallest") else ""
    return f"- seed {first['seed']}, {first['ranks']} ranks: {first['verdict']}{about}, then {last['verdict']}"


def main() -> None:
    """Search, or write the page."""
    if sys.argv[1:2] == ["--inside"]:
        import torch.distributed as dist

        out, first, last, rate, *fixed = sys.argv[2:]
        dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
        ranks(Path(out), int(first), int(last), float(rate), dict(part.split("=") for part in fixed))
        os._exit(0)  # hundreds of groups lie about: their threads may end the process as the interpreter closes
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, nargs="+")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--loops", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--fixed", nargs="*", default=[], metavar="PART=VALUE", help="parts that every loop has")
    parser.add_argument("--out", type=Path, default=Path("loops.jsonl"))
    arguments = parser.parse_args()
    if arguments.page:
        (HERE / "loops.md").write_text(page([found for path in arguments.page for found in read(path)]))
        return
    search(
        arguments.ranks,
        arguments.loops,
        arguments.seed,
        arguments.chunk,
        arguments.rate,
        arguments.out,
        arguments.fixed,
    )


if __name__ == "__main__":
    main()
