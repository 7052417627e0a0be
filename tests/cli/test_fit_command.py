"""The commands ``fit`` and ``tune``: who is told what while they run, and what is written and said at their end."""

import io
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from paceline.cli import fit_command
from paceline.cli import main as cli
from paceline.cli.show import SafeConsole
from paceline.predictors import EWMA
from paceline.training import describe_model

MOMENTS = ["first moment", "second moment"]


class Told:
    """Stands for a bar or for TensorBoard: what it was made with, and each moment."""

    def __init__(self, *given):
        self.given, self.moments, self.events = given, [], []
        type(self).made.append(self)

    def __call__(self, moment):
        self.moments.append(moment)

    def __enter__(self):
        self.events.append("began")
        return self

    def __exit__(self, *error):
        self.events.append("over")

    def close(self):
        self.events.append("closed")


class Shown(Told):
    pass


class Board(Told):
    pass


def source(traces=1, left=0):
    facts = [SimpleNamespace(name=f"job{k}", digest=str(k)) for k in range(traces)]
    return SimpleNamespace(facts=facts, left_out=[f"file{k}: [why] \x1b" for k in range(left)])


@pytest.fixture
def fitting(tmp_path, monkeypatch):
    """A fit that takes no time, and what it and the streams were told."""
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHELASTIC_RUN_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for kind in (Shown, Board):
        kind.made = []
    told = SimpleNamespace(source=source(), streams=[io.StringIO(), io.StringIO()])
    consoles = [SafeConsole(file=one, width=40) for one in told.streams]
    monkeypatch.setattr(fit_command, "out", consoles[0])
    monkeypatch.setattr(fit_command, "err", consoles[1])
    told.err = consoles[1]

    def fit(model, given, *, progress, **options):
        told.options = options
        for moment in MOMENTS:
            progress(moment)
        return EWMA(smoothing=0.3)

    monkeypatch.setattr("paceline.training.fit", fit)
    monkeypatch.setattr("paceline.training.Bar", Shown)
    monkeypatch.setattr("paceline.training.Scalars", Board)
    monkeypatch.setattr("paceline.cli.named_sources.source", lambda *given, **options: told.source)
    told.run = lambda words: CliRunner().invoke(cli.app, words.split(), catch_exceptions=False)
    told.lines = lambda: [one.getvalue().splitlines() for one in told.streams]
    return told


@pytest.mark.slow
def test_each_moment_reaches_the_bar_and_tensorboard_and_both_are_closed(fitting):
    fitting.run("fit ewma --tensorboard events")
    (bar,), (board,) = Shown.made, Board.made
    assert (bar.given, bar.moments, bar.events) == ((fitting.err,), MOMENTS, ["began", "over"])
    assert (board.given, board.moments, board.events) == ((Path("events"),), MOMENTS, ["closed"])
    assert fitting.options["distributed"] is False
    fitting.run("fit ewma")
    assert [len(kind.made) for kind in (Shown, Board)] == [2, 1]
    assert Shown.made[1].moments == MOMENTS


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_several_processes_the_first_alone_shows_says_and_writes(fitting, monkeypatch, tmp_path, rank):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", rank)
    added = []
    monkeypatch.setattr(fit_command, "_add", lambda *given: added.append(given))
    fitting.source = source(left=1)
    fitting.run("fit ewma --tensorboard events --registry models --out a.safetensors")
    assert fitting.options["distributed"] is True
    first = rank == "0"
    assert (len(Shown.made), len(Board.made)) == (first, first)
    assert all(bool(lines) == first for lines in fitting.lines())
    assert (len(added), (tmp_path / "a.safetensors").exists()) == (first, first)


@pytest.mark.slow
def test_a_rank_without_torchrun_is_no_reason_to_be_silent(fitting, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    fitting.run("fit ewma")
    assert fitting.options["distributed"] is False
    assert (len(Shown.made), Path("model.safetensors").exists()) == (1, True)


@pytest.mark.parametrize(
    ("words", "file", "added"),
    [
        ("", "model.safetensors", False),
        ("--out [a].safetensors", "[a].safetensors", False),
        ("--registry models --name m", None, True),
        ("--registry models --name m --out a.safetensors", "a.safetensors", True),
    ],
)
def test_a_model_goes_into_a_file_unless_a_registry_alone_is_named(fitting, monkeypatch, words, file, added):
    asked = []
    monkeypatch.setattr(fit_command, "_add", lambda *given: asked.append(given))
    fitting.source = source(traces=102)
    fitting.run(f"fit ewma:smoothing=0.3 {words}")
    said = ["EWMA(smoothing=0.3)"]
    if file:
        said.append(f"written to {file}; use it by its file name in evaluate and replay")
        assert describe_model(file)["fitted_on"] == ", ".join(f"job{k}" for k in range(100))
    if added:
        assert [one[:2] for one in asked] == [(Path("models"), "m")]
        assert asked[0][3:] == (fitting.source, "", None)
        said += ["added to models as m: paceline models ", "info m --registry models"]
    assert fitting.lines()[0] == said
    assert [path.name for path in Path().iterdir()] == ([file] if file else [])
    assert not added or len(asked) == 1


def test_a_model_without_a_name_is_called_by_its_kind_and_the_moment(fitting, monkeypatch):
    asked = []
    monkeypatch.setattr(fit_command, "_add", lambda *given: asked.append(given))
    monkeypatch.setattr("paceline.training.load_model", lambda path: EWMA())
    fitting.run("fit ewma:smoothing=0.3 --registry models --start last-value -t one -t two")
    (_, name, fitted, _, start, traces) = asked[0]
    assert re.fullmatch(r"ewma-\d{4}-\d\d-\d\d-\d{6}", name)
    assert (repr(fitted), start, traces) == ("EWMA(smoothing=0.3)", "last-value", ["one", "two"])


def test_the_model_of_a_class_of_ones_own_is_used_beside_its_class():
    class Mine(EWMA):
        pass

    said = fit_command._use(Mine(), Path("it's.safetensors"))
    assert said == """use it in Python, beside its class: load_model("it's.safetensors", kinds=[Mine])"""
    assert fit_command._use(EWMA(), Path("a")) == "use it by its file name in evaluate and replay"


@pytest.mark.parametrize("left", [0, 1, 10, 11, 13])
def test_ten_files_are_listed_as_left_out_and_the_others_counted(fitting, left):
    fit_command._say(source(traces=3, left=left))
    said = [rf"left out: file{k}: [why] \x1b" for k in range(min(left, 10))]
    said += {11: ["left out: 1 more files"], 13: ["left out: 3 more files"]}.get(left, [])
    said += [f"fitted to 3 traces, left out {left} files"] * bool(left)
    assert fitting.lines() == [[], said]


def test_a_file_that_is_left_out_is_named_in_one_plain_line(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(fit_command, "err", SafeConsole(file=file, color_system="standard", width=20))
    fit_command._say(SimpleNamespace(left_out=["7 'long' " * 9], facts=[]))
    assert file.getvalue().split("\n")[0] == "left out: " + "7 'long' " * 9


def test_what_a_card_holds_is_what_was_typed_without_secrets_and_an_evaluation_elsewhere(monkeypatch):
    asked, words = [], []

    @contextmanager
    def working(doing):
        words.append(doing)
        yield

    class Models:
        def __init__(self, folder):
            self.folder = folder

        def add(self, *given, **options):
            asked.append((self.folder, given, options))

    monkeypatch.setattr(fit_command, "working", working)
    monkeypatch.setattr("paceline.cli.named_sources.traces", lambda *given: given)
    monkeypatch.setattr("paceline.eval.evaluation.evaluation", lambda *given, fitted_on: (given, fitted_on))
    monkeypatch.setattr("paceline.training.model_registry.Registry", Models)
    monkeypatch.setattr(sys, "argv", ["/bin/x", "fit", "a b", "-f", "s3://key@bucket/x"])
    told = source()
    fit_command._add(Path("models"), "m", "fitted", told, "s3://key@bucket/start", ["t"])
    command = "paceline fit 'a b' -f 's3://***@bucket/x'"
    measured = (("fitted", (["t"], "held-out")), told.facts)
    options = {"command": command, "data": told.facts, "start": "s3://***@bucket/start", "evaluation": measured}
    assert asked == [(Path("models"), ("m", "fitted"), options)]
    assert words == ["evaluating"]


@pytest.mark.parametrize("as_json", [False, True])
def test_tune_says_each_trial_what_was_left_out_and_the_ten_best(fitting, monkeypatch, as_json):
    printed = []
    trials = pd.DataFrame({"score": range(12)})
    tuned = SimpleNamespace(trials=trials, mattered="what mattered", predictor=EWMA(smoothing=0.25))

    def tune(kind, given, *, tell, **options):
        assert given is fitting.source
        assert (options["trials"], options["at_once"], options["hold_out"]) == (20, 1, 0.3)
        assert options["storage"] == Path("tune.journal")
        tell(3, 0.123456)
        return tuned

    monkeypatch.setitem(sys.modules, "paceline.eval.tune", SimpleNamespace(tune=tune))
    monkeypatch.setattr("paceline.cli.show.print_frames", lambda *given: printed.append(given))
    fitting.source = source(traces=2, left=1)
    fitting.run(f"tune ewma {'--json' * as_json}")
    ((frames, asked),) = printed
    assert list(frames) == ["trials, best first", "what mattered"]
    assert frames["trials, best first"]["score"].tolist() == list(range(10))
    assert (frames["what mattered"], asked) == ("what mattered", as_json)
    plain, beside = fitting.lines()
    assert plain == ([] if as_json else ["best: EWMA(smoothing=0.25)"])
    assert beside == ["trial 3: 0.1235", r"left out: file0: [why] \x1b", "fitted to 2 traces, left out 1 files"]


def test_several_trials_at_once_need_joblib(fitting, monkeypatch):
    asked = []

    def refused(library, **why):
        asked.append((library, why))
        raise ImportError("none")

    monkeypatch.setattr("paceline._require.require", refused)
    with pytest.raises(ImportError, match="none"):
        fitting.run("tune ewma --jobs 2")
    assert asked == [("joblib", {"needed_by": "tuning in several processes", "extra": "scale"})]
