"""The page of benchmarks/loops.py: what became of random loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

FINE = ("exact", "warned", "refused")

VERDICTS = (*FINE, "refused on one rank", "SILENT", "hang", "crash or hang", "not comparable")

SAYS = {
    "kind": "loss",
    "sizes": "sizes of the ranks",
    "workers": "loading processes",
    "accumulate": "accumulation",
    "accumulation is said": "the loader is told of the accumulation",
    "summed": "micro-batches whose gradients are summed over the ranks",
    "fetch": "the next batch is fetched",
    "rows": "rows that the model is given",
    "second pass": "a second forward pass over the batch, with inputs",
    "backward": "backward passes of the two",
    "inputs": "the model is given the batch",
    "output": "the model returns",
    "kept in the model": "a part of the loss is taken from what the model keeps",
    "dropped": "zero_grad() drops every third step",
    "skips": "every fourth step's batches are skipped",
    "penalty": "gradient penalty, or penalty of the parameters",
    "evaluation": "other samples are evaluated between micro-batches",
    "peek": "a look at a batch before every epoch",
    "clip": "gradients are clipped",
    "optimizer": "optimizer",
    "wrapper": "how the model is wrapped",
    "models": "models",
    "beside": "rows that are not the loader's beside the batch in a forward pass",
    "by hand": "gradients taken and averaged by hand",
    "gathers": "gathered after a forward pass",
}
"""What a part of tests/loops/composed.py is, in the page's words."""

KINDS = {
    "samples": "mean over samples",
    "tokens": "mean over tokens, `scale(loss, count)`",
    "scaled": "mean over samples, `scale(loss, count)`",
    "plain sum": "divided by a number of all ranks, `scale(loss)`",
    "own loader": "mean over tokens of a loader of one's own, `scale(loss, count)`",
}

VALUES = {
    "micro-batches": "`micro_batch=4`",
    "loss": "its loss",
    "object": "an object of its own class",
    "slots": "an object without a dictionary",
    "unused": "find_unused_parameters",
    "buckets": "many buckets",
    "views": "gradient_as_bucket_view",
    "sparse": "sparse gradients",
    "unfrozen later": "parameters unfrozen after wrapping",
    "forward": "called as model.forward(x)",
    "apart": "an encoder and a decoder, wrapped apart",
    "two": "two, each with a loss of its own",
    "steps": "every other step",
    "head": "a head outside the model",
    "rows by torch": "rows, by torch.distributed.all_gather",
    "rows": "rows, by gather_rows",
}

PAGE = """# Random loops

A loop is composed of parts at random, each but the kind of loss with a chance of one fifth, trained on balanced batches
in float64, and compared with one process that trains on the same global batches. It is *exact* if all parameters agree
to 1e-9; *warned* if they do not and a rank has warned; *refused* if every rank ends with an error, of ours or of torch.
*Silent* is a difference without a word: such a loop is made plain part by part as long as it stays silent, and its
least form is listed. A hang or a crash is noted, and the search goes on with new ranks.

The table comes from `python benchmarks/loops.py --ranks 2 --loops N --seed S --out F` and `--page F ...`, here of
{runs}.
A refused loop is run again with the lines that its refusals print.
`tests/loops/composed.py` composes the loops; `make soak` runs 360 others, and `pytest tests/loops` 24.

## Verdicts

{verdicts}

{worst}{again}## By part

Loops with this part beside others, of all ranks.

{parts}

## Covered, and not

The parts above are covered, in any combination that makes sense. Not covered here: sharded models, compiled models,
complex and sparse parameters, streams, budgets of tokens, losses over gathered rows, resuming, communication hooks,
GPUs, and what `docs/reference/loops.md` lists under "What cannot be seen". The table of shapes there has most of them.
"""

AGAIN = """These seeds were not fine when they were first run, and were run again; the tables have the last verdict.
Where the cause was in the library, it was mended in between. A lost connection that did not come back when the same
loops ran once more, in the same order, has no known cause.

{lines}

"""


def page(found: list[dict[str, Any]]) -> str:
    """Return the page about these loops: of a seed that was run several times, the last counts."""
    from composed import PARTS, PLAIN

    runs: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in found:
        runs.setdefault((one["ranks"], one["seed"]), []).append(one)
    last = [tries[-1] for tries in runs.values()]
    ranks = sorted({one["ranks"] for one in last})
    seen = [
        verdict
        for verdict in VERDICTS
        if verdict in ("exact", "warned", "refused", "SILENT", "hang") or any(one["verdict"] == verdict for one in last)
    ]
    counts = Counter((one["ranks"], one["verdict"]) for one in last)
    verdicts = [["ranks", *seen], *([str(rank), *(str(counts[rank, verdict]) for verdict in seen)] for rank in ranks)]
    rows = [["part", *seen]]
    for name, values in PARTS.items():
        for value in values:
            if value != PLAIN[name] or name == "kind":
                these = Counter(one["verdict"] for one in last if one.get("parts", {}).get(name) == value)
                rows.append([_called(name, value), *(str(these[verdict]) for verdict in seen)])
    silent = [f"- seed {one['seed']}, {one['ranks']} ranks: {one['smallest']}" for one in last if one.get("smallest")]
    seeds = [f"{rank} ranks: {sum(one['ranks'] == rank for one in last)} loops" for rank in ranks]
    worst = "Silent, in their least form:\n\n" + "\n".join(silent) + "\n\n" if silent else ""
    again = "\n".join(_again(tries) for tries in runs.values() if tries[0]["verdict"] not in FINE and len(tries) > 1)
    return PAGE.format(
        runs=", ".join(seeds),
        verdicts=_table(verdicts),
        worst=worst,
        again=AGAIN.format(lines=again) if again else "",
        parts=_table(rows),
    )


def _called(name: str, value: object) -> str:
    """Return a part of a loop in the page's words."""
    if isinstance(value, bool):
        return f"{SAYS[name]}: {'yes' if value else 'no'}"
    return f"{SAYS[name]}: {(KINDS if name == 'kind' else VALUES).get(str(value), value)}"


def _again(tries: list[dict[str, Any]]) -> str:
    """Return the line of a seed that was run several times."""
    first, last = tries[0], tries[-1]
    about = f" (in its least form {first['smallest']})" if first.get("smallest") else ""
    return f"- seed {first['seed']}, {first['ranks']} ranks: {first['verdict']}{about}, then {last['verdict']}"


def _table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in rows[0]) + " |", *lines[1:]])
