"""Make the cards of the networks that come with the library: ``python -m paceline.eval.shipped_cards``.

They are measured on the recorded jobs that were held out. The command takes about a minute on one core.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from paceline.datasets import recorded
from paceline.eval.evaluation import evaluation
from paceline.training import Fact, load_model
from paceline.training.card import card_of
from paceline.training.entry import Entry
from paceline.training.shipped import FOLDER, traces
from paceline.training.sources import digest_of


def card(file: Path, data: tuple[Fact, ...]) -> str:
    """Return the card of one shipped network."""
    model = load_model(file)
    entry = Entry(
        name=file.stem,
        kind=type(model).__name__,
        configuration=repr(model),
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        made="with the release",
        command="python -m paceline.training.shipped",
        data=data,
        evaluation=evaluation(model, recorded.load_split("held-out"), fitted_on=data),
    )
    return card_of(entry)


def fitted_facts() -> tuple[Fact, ...]:
    """Return the facts of the shipped networks' training traces, made again from their seeds; repeats count once."""
    facts = [Fact(t.name, "", len(t), len(t.workers), digest_of(t)) for t in traces()]
    return tuple({fact.digest: replace(fact) for fact in facts}.values())


def main(folder: Path = FOLDER) -> None:
    """Write the cards beside the networks."""
    data = fitted_facts()
    for file in sorted(folder.glob("*.safetensors")):
        file.with_suffix(".md").write_text(card(file, data))


if __name__ == "__main__":
    main()
