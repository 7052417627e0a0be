"""A model's card: what it is, what it was fitted to, how good it is and where it is bad, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paceline._printable import printable
from paceline.training.entry import Entry, Evaluation, Score
from paceline.training.sources import Fact

MOST_LISTED = 20
"""Traces listed in a card; a registry's index lists all."""


def card_of(entry: Entry) -> str:
    """Return the card of a model.

    Examples
    --------
    >>> entry = Entry(name="a", kind="EWMA", configuration="EWMA()", digest="0" * 64, made="2026", command="by hand")
    >>> print(card_of(entry).split("SHA")[0].strip())
    # a
    <BLANKLINE>
    `EWMA()`, made 2026 by
    <BLANKLINE>
        by hand
    """
    return "\n".join([*_head(entry), *_data(entry.data), *_measured(entry.evaluation), *_limits(entry)]) + "\n"


def _head(entry: Entry) -> Iterator[str]:
    yield from (f"# {entry.name}", "", f"{_code(entry.configuration)}, made {entry.made} by", "")
    yield from (f"    {printable(line)}" for line in entry.command.splitlines() or [""])
    yield ""
    if entry.start:
        yield from (f"It started from {_code(entry.start)}.", "")
    yield from (f"SHA-256 of the file: `{entry.digest}`", "")


def _data(data: Sequence[Fact], title: str = "Fitted to") -> Iterator[str]:
    yield from (f"## {title}", "")
    if not data:
        yield from ("Nothing: it learns while it serves.", "")
        return
    yield from ("| trace | iterations | workers | digest |", "| --- | --- | --- | --- |")
    for fact in data[:MOST_LISTED]:
        yield f"| {_cell(fact.name)} | {fact.iterations or '?'} | {fact.workers or '?'} | `{fact.digest or '?'}` |"
    if len(data) > MOST_LISTED:
        yield f"| and {len(data) - MOST_LISTED} more | | | |"
    yield ""


def _measured(evaluation: Evaluation | None) -> Iterator[str]:
    if evaluation is None:
        yield from ("## How good it is", "", "Not measured.", "")
        return
    yield from _data(evaluation.data, "Measured on")
    yield from ("## How good it is", "", "Errors relative to the last value's, one iteration ahead:", "")
    yield from ("| predictor | RMSE | MAE | coverage of 90 % | overhead |", "| --- | --- | --- | --- | --- |")
    yield from map(_row, (evaluation.model, *evaluation.baselines))
    yield from (
        "",
        f"Replayed, jobs run {evaluation.speed_up:.3f} times as fast as with equal batches, and take "
        f"{evaluation.regret:.1%} longer than with hindsight.",
        "",
        "It forecasts these workers worst (RMSE over the last value's):",
        "",
    )
    yield from (f"- {_cell(name)}: {ratio:.3f}" for name, ratio in evaluation.worst)
    yield ""


def _row(score: Score) -> str:
    numbers = (score.rmse, score.mae, score.coverage, score.overhead)
    return f"| {_cell(score.predictor)} | {' | '.join(f'{number:.3f}' for number in numbers)} |"


def _limits(entry: Entry) -> Iterator[str]:
    yield from ("## Limits", "")
    worse = entry.evaluation is not None and any(
        b.rmse <= entry.evaluation.model.rmse for b in entry.evaluation.baselines
    )
    if worse:
        yield "- A baseline above forecasts these traces at least as well."
    if entry.evaluation is None:
        yield "- Nobody knows how good it is: evaluate it on traces it was not fitted to."
    if any(not fact.digest for fact in entry.data):
        yield "- Its data are known by name only, so nobody can tell whether a trace was fitted."
    yield f"- It was fitted to {len(entry.data)} traces; `paceline models check` says whether another one is like them."


def _cell(text: str) -> str:
    """Return a name as text of one line: names come from files, and must not become links, headings or cells."""
    return re.sub(r"([\\`\[\]<>|#*])", r"\\\1", printable(text))


def _code(text: str) -> str:
    """Return a text as code of one line, between more backticks than it holds in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{printable(text)}{space}{fence}"
