"""A model that a registry does not hold is named by everything that is asked for it; a fit without a terminal tells."""

import io

import pytest
from rich.console import Console

from paceline.predictors import EWMA
from paceline.predictors.fitting import Moment
from paceline.training import fit_progress
from paceline.training.model_registry import Registry


@pytest.mark.parametrize("asked", ["path", "entry", "card", "use", "load"])
@pytest.mark.parametrize("name", ["other", "..", "a/b"])
def test_a_model_that_is_not_there_is_named(tmp_path, asked, name):
    registry = Registry(tmp_path / "models")
    registry.add("a", EWMA(), command="by hand")
    with pytest.raises(ValueError, match=r"there is no model '.*' in .*; there are \['a'\]"):
        getattr(registry, asked)(name)
    assert registry.used == "a"


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_terminal_a_line_is_told_from_begin_to_end_and_else_a_bar(terminal, monkeypatch):
    calls = []

    class Lines:
        def __init__(self, say, doing):
            calls.append(doing)
            self.say = say

        def __enter__(self):
            calls.append("begun")

        def __exit__(self, *_):
            calls.append("over")

        def tell(self, line):
            calls.append(line)
            self.say(line)

    monkeypatch.setattr(fit_progress, "Heartbeat", Lines)
    written = io.StringIO()
    with fit_progress.Bar(Console(file=written, force_terminal=terminal, width=100)) as bar:
        bar(Moment("training", 512, 1024, rate=256.0, loss=0.5))
    line = "training: 512 of 1,024, 256/s, at most 2 s left, loss 0.5"
    assert calls == ([] if terminal else ["fitting", "begun", line, "over"])
    assert (line in written.getvalue()) is not terminal
    assert ("training" in written.getvalue()) or terminal
