"""Facts about traces, scores and models never change once they are told, and are equal by what they say."""

import dataclasses

import pytest

from paceline.training.entry import Entry, Evaluation, Score
from paceline.training.model_registry import Registry
from paceline.training.sources import Fact, LeftOut
from paceline.training.stores import Stored

SCORE = Score("a", 0.5, 0.25, 0.9, 0.125)
ENTRY = {"name": "a", "kind": "EWMA", "configuration": "", "digest": "", "made": "", "command": ""}
MADE = [
    lambda: LeftOut("a", "b"),
    lambda: Fact("a", "", 1, 2, "ab"),
    lambda: SCORE,
    lambda: Evaluation((), SCORE, (), (), 1.0, 0.5),
    lambda: Entry(**ENTRY),
    lambda: Stored("a", "system", "b", "c"),
    lambda: Registry("a"),
]


@pytest.mark.parametrize("made", MADE)
def test_what_is_known_never_changes_and_is_equal_by_what_it_says(made):
    one, same = made(), made()
    name = dataclasses.fields(one)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, name, "other")
    assert one == same
    assert len({one, same}) == 1
    if not isinstance(one, Registry):
        assert one != dataclasses.replace(one, **{name: "other"})
    assert Registry("a") != Registry("b")


def test_an_entry_is_told_by_names_alone():
    with pytest.raises(TypeError):
        Entry(*ENTRY.values())
    entry = Entry(**ENTRY)
    assert (entry.start, entry.data, entry.evaluation) == ("", (), None)
    stored = dataclasses.asdict(
        Entry(
            **ENTRY,
            data=(Fact("a", "", 1, 2, "ab"),),
            evaluation=Evaluation((), SCORE, (SCORE,), (("a/w", 1.5),), 1.0, 0.5),
        )
    )
    again = Entry.of(stored)
    assert dataclasses.asdict(again) == stored
    assert again.evaluation.worst == (("a/w", 1.5),)
    assert again.data == (Fact("a", "", 1, 2, "ab"),)
