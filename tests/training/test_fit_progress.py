"""Progress of a fit: what a bar, a line and TensorBoard are told, and where a first pass goes on."""

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_fit_told import job

from paceline.predictors.fitting import Moment, Survey
from paceline.training import Scalars, Source, fit_progress
from paceline.training.fit_progress import Bar, line, sentence
from paceline.training.reading import surveyed


def test_progress_is_told_as_far_as_it_is_known():
    assert sentence(Moment("training", 0, 9)) == ""
    whole = Moment("training", 1000, 2_501_000, rate=1250.4, loss=0.123456, held_out=2.0)
    assert sentence(whole) == "1,250/s, at most 1,999 s left, loss 0.1235, held out 2"
    assert sentence(replace(whole, rate=np.nan)) == "loss 0.1235, held out 2"
    assert sentence(replace(whole, held_out=np.inf)) == "1,250/s, at most 1,999 s left, loss 0.1235"
    assert line(whole) == f"training: 1,000 of 2,501,000, {sentence(whole)}"
    assert line(Moment("read", 1000, 12345)) == "read: 1,000 of 12,345"


def test_scalars_are_written_of_the_training_alone_and_where_they_are_known():
    written = object.__new__(Scalars)
    found = []
    written._writer = SimpleNamespace(add_scalar=lambda *told: found.append(told), close=lambda: found.append("closed"))
    written(Moment("windows", 3, 9, rate=2.0, loss=1.0, held_out=1.0))
    assert found == []
    written(Moment("training", 3, 9, rate=2.0, loss=1.5, held_out=np.inf))
    written(Moment("training", 6, 9, held_out=0.5))
    written.close()
    assert found == [("fit/loss", 1.5, 3), ("fit/rate", 2.0, 3), ("fit/held_out", 0.5, 6), "closed"]


def test_scalars_need_torch_and_tensorboard_and_go_into_the_folder(monkeypatch):
    needed, made = [], []
    monkeypatch.setattr(fit_progress, "require", lambda library, **why: needed.append((library, why)))
    board = SimpleNamespace(SummaryWriter=lambda folder: made.append(folder))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    Scalars(Path("a") / "b")
    by = "Scalars"
    extras = {"torch": "torch", "tensorboard": "metrics"}
    assert needed == [(library, {"needed_by": by, "extra": extra}) for library, extra in extras.items()]
    assert made == ["a/b"]


def test_a_bar_shows_each_stage_once_on_a_terminal():
    from rich.console import Console

    console = Console(force_terminal=True, width=120, file=StringIO())
    with Bar(console) as bar:
        bar(Moment("read", 1, 3))
        bar(Moment("training", 1, 4, loss=0.5))
        bar(Moment("training", 3, 5, loss=0.25))
        assert bar._bars.live.is_started
        tasks = [(task.description, task.completed, task.total, task.fields["told"]) for task in bar._bars.tasks]
    assert tasks == [("read", 1, 3, ""), ("training", 3, 5, "loss 0.25")]
    assert bar._lines is None
    assert not bar._bars.live.is_started
    assert "50" not in console.file.getvalue().rpartition("\x1b[2K")[2], "what was drawn is taken away"
    assert (bar._bars.disable, bar._bars.live.transient) == (False, True)
    assert Bar(Console(file=StringIO()))._bars.disable


@pytest.mark.slow
def test_a_pass_over_files_goes_on_after_the_last_note(tmp_path, monkeypatch):
    """Each file takes a second, and every second one is noted; a note is of one identity, and of files that stayed."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    jobs = [job(f"job{k}", seed=k) for k in range(5)]
    for k, one in enumerate(jobs):
        one.save(folder / f"{k}.parquet")
    now, nobody = [0.0], [].__contains__
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    place = tmp_path / "notes" / "deep"

    def passed(identity="one", until=9, where=place, every=2.0):
        seen = []

        def tell(trace):
            now[0] += 1.0
            seen.append(trace.name)
            if len(seen) == until:
                raise KeyboardInterrupt

        source = Source(folder)
        try:
            found = surveyed(source, nobody, tell, where, identity, every)
        except KeyboardInterrupt:
            return seen, None
        return seen, found

    names, whole = [one.name for one in jobs], Survey.of(jobs)
    assert passed(where=None) == (names, whole)
    assert not place.exists()
    assert passed(until=4) == (names[:4], None)
    assert [file.name for file in place.iterdir()] == ["survey.json"]
    noted = json.loads((place / "survey.json").read_text())
    assert (sorted(noted), noted["identity"]) == (["identity", "source", "survey"], "one")
    assert noted["survey"]["lengths"] == [6, 6]
    assert passed() == (names[2:], whole)
    assert passed(identity="other") == (names, whole)
    (place / "survey.json").write_text("{")
    assert passed() == (names, whole)
    (place / "survey.json").unlink()
    assert passed(until=3, every=0.0) == (names[:3], None)
    assert json.loads((place / "survey.json").read_text())["survey"]["lengths"] == [6, 6]
    job("job0", seed=9).save(folder / "0.parquet")
    assert passed()[0] == names
