"""The demo, with all that takes long left out: what it prints, asks for and writes, word by word."""

import io
import itertools
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console

from paceline.cli import demo_command as demo
from paceline.predictors import EWMA, LastValue
from paceline.training import load_model, save_model


class Written(Console):
    """A console that says when a spinner begins and ends, too."""

    @contextmanager
    def status(self, words):
        self.print(f"<{words}>", markup=False)
        yield
        self.print("<>")


def console():
    return Written(file=io.StringIO(), width=1000, color_system=None)


def lines(out):
    return out.file.getvalue().splitlines()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Seven seconds pass from each look at the clock to the next."""
    monkeypatch.setattr(demo, "time", SimpleNamespace(perf_counter=itertools.count(100, 7).__next__))


def table(row, value):
    return pd.DataFrame({row: ["a", "b"], "trace": ["x", "x"], value: [1.0, 2.0]})


@pytest.fixture
def asked(monkeypatch):
    """What the demo asks for."""
    found = []

    def called(name, result):
        return lambda *given, **options: found.append((name, given, options)) or result

    jobs = {split: [SimpleNamespace(name=f"{split} {k}") for k in range(2)] for split in ("fit", "held-out")}
    board = SimpleNamespace(overall="errors", per_trace=table("predictor", "rmse"))
    replays = SimpleNamespace(overall="gains", per_trace=table("scheme", "speed-up"))
    monkeypatch.setattr(demo.recorded, "load_split", jobs.__getitem__)
    monkeypatch.setattr(demo, "DEFAULT_PREDICTORS", ("one", "two"))
    monkeypatch.setattr(demo, "require_page", called("required", None))
    monkeypatch.setattr(demo, "_fitted", lambda text, traces, folder, out: f"{text}: {traces[0].name} {folder.name}")
    monkeypatch.setattr(demo, "leaderboard", called("leaderboard", board))
    monkeypatch.setattr(demo, "Balanced", lambda model: f"balanced {model}")
    monkeypatch.setattr(demo, "replay_all", called("replay", replays))
    monkeypatch.setattr(demo, "print_frames", called("printed", None))
    monkeypatch.setattr(demo, "_live", lambda out: out.print("live") or "live")
    monkeypatch.setattr(demo, "replay_page", called("replay page", "replayed"))
    monkeypatch.setattr(demo, "evaluation_page", called("evaluation page", "evaluated"))
    monkeypatch.setattr(demo, "demo_page", called("demo page", "page"))
    monkeypatch.setattr(demo, "write_page", lambda page, path: found.append(("written", page, path)) or path.touch())
    return found, jobs, board, replays


@pytest.mark.slow
def test_the_demo_says_each_step_and_writes_one_page(asked, tmp_path):
    found, jobs, board, replays = asked
    out, folder = console(), tmp_path / "in" / "demo"
    demo.run(folder, out)
    (folder / ".hidden").touch()
    (folder / "b.safetensors").touch()
    demo.run(folder, again := console())
    told = [
        "1  Recorded jobs: fitting to fit 0, fit 1; scoring on held-out 0, held-out 1",
        "2  Fitting",
        "3  How well is the next speed predicted? RMSE and MAE relative to those of the last value",
        "<scoring ...>",
        "<>",
        "4  What would balancing have gained? The same recorded speeds, other batch sizes",
        "<replaying ...>",
        "<>",
        "live",
        "<writing the report ...>",
        "<>",
        f"6  Written to {folder}/: report.html  (7 s)",
        f"Next: open {folder}/report.html; paceline evaluate {folder}/narx.safetensors",
    ]
    assert lines(out) == told
    told[-2] = f"6  Written to {folder}/: b.safetensors, report.html  (7 s)"
    assert lines(again) == told
    models = {text: f"{text}: fit 0 demo" for text in ("one", "two")}
    names = ["required", "leaderboard", "printed", "replay", "printed", "replay page", "evaluation page", "demo page"]
    assert [one[0] for one in found] == [*names, "written"] * 2
    required, scored, errors, replayed, gains, *pages, written = found[: len(names) + 1]
    assert required == ("required", (folder / "report.html",), {})
    assert scored == ("leaderboard", (models, jobs["held-out"]), {})
    balanced = {text: f"balanced {model}" for text, model in models.items()}
    assert replayed == ("replay", (balanced, jobs["held-out"]), {})
    settings = [("fitted to", "fit 0, fit 1"), ("scored and replayed on", "held-out 0, held-out 1")]
    how = {"settings": settings, "command": "paceline demo"}
    assert pages[0] == ("replay page", (replays, jobs["held-out"]), how)
    assert pages[1] == ("evaluation page", (board, models, jobs["held-out"]), {})
    assert pages[2] == ("demo page", ("replayed", "evaluated", "live"), {})
    assert written == ("written", "page", folder / "report.html")
    for (_, (frames,), options), overall, first, title in [
        (errors, "errors", "a", "RMSE per job"),
        (gains, "gains", "b", "Speed-up over equal batches, per job"),
    ]:
        assert options == {"as_json": False}
        assert list(frames) == ["All held-out jobs", title]
        assert frames["All held-out jobs"] == overall
        assert frames[title].iloc[0, 0] == first


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_fitted(asked, monkeypatch, tmp_path):
    def refused(path):
        raise ImportError("no jinja2")

    monkeypatch.setattr(demo, "require_page", refused)
    with pytest.raises(ImportError, match="no jinja2"):
        demo.run(tmp_path, out := console())
    assert lines(out) == []


# -- models --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fitting(monkeypatch):
    made = []
    monkeypatch.setattr(demo, "named", lambda text: EWMA(smoothing=0.25) if text != "auto" else LastValue())
    monkeypatch.setattr(demo, "fit", lambda model, traces: made.append((model, traces)) or model)
    return made


TRACES = [SimpleNamespace(name="x"), SimpleNamespace(name="y")]


def test_a_predictor_that_comes_fitted_is_used_as_it_is(fitting, tmp_path):
    found = demo._fitted("auto", TRACES, tmp_path, out := console())
    assert repr(found) == "LastValue()"
    assert lines(out) == ["   auto: as shipped"]
    assert (fitting, list(tmp_path.iterdir())) == ([], [])


def test_a_model_is_kept_under_a_name_of_a_file_and_fitted_once(fitting, tmp_path):
    path, text = tmp_path / "narx-covariates-none.safetensors", "narx:covariates=()"
    found = demo._fitted(text, TRACES, tmp_path, out := console())
    assert lines(out) == [f"<   fitting {text} ...>", "<>", f"   {text}: 7.0 s, {path}"]
    assert (len(fitting), fitting[0][1]) == (1, TRACES)
    assert repr(found) == repr(load_model(path)) == "EWMA(smoothing=0.25)"
    again = demo._fitted(text, TRACES, tmp_path, out := console())
    assert lines(out) == [f"   {text}: fitted by an earlier run, {path}"]
    assert (repr(again), len(fitting)) == (repr(found), 1)


@pytest.mark.parametrize(("smoothing", "fitted_on"), [(0.25, "x"), (0.5, "x, y"), (0.5, "x")])
def test_a_model_of_other_traces_or_other_arguments_is_fitted_anew(fitting, tmp_path, smoothing, fitted_on):
    path = tmp_path / "ewma.safetensors"
    save_model(EWMA(smoothing=smoothing), path, fitted_on=fitted_on)
    demo._fitted("ewma", TRACES, tmp_path, out := console())
    assert len(fitting) == 1
    assert "earlier" not in out.file.getvalue()
    assert repr(load_model(path)) == "EWMA(smoothing=0.25)"


# -- the training --------------------------------------------------------------------------------------------------


def test_a_training_says_what_it_does_and_its_table(monkeypatch):
    monkeypatch.setattr(demo.os, "sched_getaffinity", lambda pid: {0, 1} if pid == 0 else {0})
    monkeypatch.setattr(demo, "can_set_quotas", lambda: True)
    monkeypatch.setattr(demo, "experiment", lambda setting: "outcome")
    monkeypatch.setattr(demo, "outcome_table", lambda outcome: f"table of {outcome}")
    assert demo._live(out := console()) == "outcome"
    said = "5  A real training, balanced Two ranks, equal batches and balanced ones in turns"
    assert lines(out) == [said, "<training ...>", "<>", "table of outcome"]
    monkeypatch.setattr(demo.os, "sched_getaffinity", lambda pid: {0})
    assert demo._live(out := console()) is None
    assert lines(out) == ["5  A real training, balanced: left out, as two ranks need two cores"]


@pytest.mark.slow
def test_where_the_demo_writes_unless_told_otherwise(monkeypatch):
    from typer.testing import CliRunner

    from paceline.cli import main

    asked = []
    monkeypatch.setattr(demo, "run", lambda *given: asked.append(given))
    for words in ([], ["--out", "a"]):
        assert CliRunner().invoke(main.app, ["demo", *words]).exit_code == 0
    assert asked == [(Path("demo-output"), main.out), (Path("a"), main.out)]
