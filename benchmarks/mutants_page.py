"""The page of mutants: how many of each room the tests noticed, in each sample, and who survived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Counts = Mapping[str, Sequence[Mapping[str, object]]]
Judged = Mapping[str, Mapping[str, str]]

DECIDING = ("coordinator", "engines/torch", "predictors", "solver")
"""Rooms of which more is wanted: a mistake in them costs a job its speed or its exactness."""


def page(counts: Counts, judged: Judged) -> str:
    """Return the page: of each seed a table by room, the survivors, and those that are equivalent."""
    return HEAD + "\n".join(_sample(seed, sample, judged) for seed, sample in counts.items())


def _sample(seed: str, sample: Sequence[Mapping[str, object]], judged: Judged) -> str:
    rooms = sorted({_room(one) for one in sample})
    rows = [_row(room, [one for one in sample if _room(one) == room], judged) for room in rooms]
    four = [one for one in sample if _room(one) in DECIDING]
    rows.append(_row(f"{', '.join(DECIDING)}: 95 % wanted", four, judged))
    rows.append(_row("all others: 90 % wanted", [one for one in sample if one not in four], judged))
    real = [f"- {_told(one)}" for one in _of(sample, "survived") if not _reason(one, judged)]
    same = [f"- {_told(one)}: {_reason(one, judged)}" for one in _of(sample, "survived") if _reason(one, judged)]
    none = [f"- {_told(one)}" for one in _of(sample, "no test")]
    return SAMPLE.format(
        seed=seed,
        count=len(sample),
        rows="\n".join([*rows, _row("all", sample, judged)]),
        real="\n".join(real) or "None.",
        same="\n".join(same) or "None.",
        none="\n".join(none) or "None.",
    )


def _row(name: str, sample: Sequence[Mapping[str, object]], judged: Judged) -> str:
    killed, survived, none = (len(_of(sample, outcome)) for outcome in ("killed", "survived", "no test"))
    same = sum(bool(_reason(one, judged)) for one in _of(sample, "survived"))
    run = killed + survived - same
    share = f"{killed / run:.0%}" if run else "-"
    return f"| {name} | {len(sample)} | {killed} | {survived - same} | {same} | {none} | {share} |"


def _of(sample: Sequence[Mapping[str, object]], outcome: str) -> list[Mapping[str, object]]:
    return [one for one in sample if one["outcome"] == outcome]


def _room(one: Mapping[str, object]) -> str:
    room, _, rest = str(one["file"]).partition("/")
    return "engines/torch" if room == "engines" and rest.startswith("torch/") else room


def _reason(one: Mapping[str, object], judged: Judged) -> str:
    return judged.get(str(one["file"]), {}).get(str(one["name"]), "")


def _told(one: Mapping[str, object]) -> str:
    return f"{one['file']}: `{one['name']}`"


HEAD = """# Small mistakes that the tests notice

The aim is to notice 95 % in the cores, the solver, the predictors and the engine of PyTorch, and 90 % elsewhere.

`python benchmarks/mutants.py --map` records which tests enter which function; `--seed S --count N` draws files in
proportion to their lines, and in each one change: an operator, a comparison, a condition, a constant, a name, the last
named argument of a call, or a statement left out. The quickest tests that enter the function run first, in a process
that has collected them already; what these do not notice is tried anew, with those that enter least first, as far as 80
recorded seconds of them go. A survivor that changes nothing a caller could see is equivalent, by our judgement, and the
reason stands beside it. The last column is killed / (killed + survived). The seeds and what was drawn stand in
`mutants.json`.

No seed had been used before, and each sample ran on the tests as they were before any of its survivors was looked at:
many are noticed by now. The newest sample meets both aims. Nothing of Flower or Ray can be noticed here: their tests
run in environments of their own.

Of other tools, mutmut 3 changes code inside functions only and has no samples by lines, and cosmic-ray runs one command
of tests for every mutant, by their documentation; neither was run on this suite. So the sampler is our own.

"""

SAMPLE = """## Seed {seed}: {count} mutants

| room | drawn | killed | survived | equivalent | no test recorded | noticed |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

Not noticed:

{real}

Equivalent, and why:

{same}

In functions that no recorded test enters:

{none}
"""
