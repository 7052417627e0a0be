"""The commands ``evaluate`` and ``replay``: what is compared, what is said meanwhile, and what comes out."""

import io
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from paceline.cli import main
from paceline.cli.show import SafeConsole
from paceline.datasets import Trace
from paceline.predictors import NAMES
from paceline.training.sources import Fact


def job(name):
    return Trace([[8, 8]], [[1, 2]], meta={"job": name})


@pytest.fixture
def stage(monkeypatch):
    """Streams and tables, and words that are said while a command works."""
    told = SimpleNamespace(words=[], printed=[], file=io.StringIO())

    @contextmanager
    def working(doing):
        told.words.append(doing)
        yield told.words.append

    monkeypatch.setattr(main, "working", working)
    monkeypatch.setattr(main, "print_frames", lambda *given: told.printed.append(given))
    monkeypatch.setattr(main, "err", SafeConsole(file=told.file, width=40))
    told.lines = lambda: told.file.getvalue().splitlines()
    return told


def run(words):
    return CliRunner().invoke(main.app, words.split(), catch_exceptions=False)


class Board:
    overall = pd.DataFrame({"predictor": ["best", "other"]})
    calibration, per_trace, notes = "calibration", "per trace", "notes"

    def leads(self, measure="rmse"):
        return f"leads by {measure}"


@pytest.fixture
def board(stage, monkeypatch):
    stage.asked = []

    def chosen(*given):
        stage.asked.append(given)
        return [job("a"), job("b")], {"x": "model x", "y": "model y"}, {"x": 1.0}, "skipped"

    def called(name, result):
        return lambda *given, **options: stage.asked.append((name, given, options)) or result

    monkeypatch.setattr(main, "_traces_and_models", chosen)
    monkeypatch.setattr("paceline.eval.leaderboard", called("leaderboard", Board()))
    monkeypatch.setattr("paceline.report.evaluation_page", called("page", "the page"))
    monkeypatch.setattr("paceline.report.write_page", called("written", Path("[a] \x1b.html")))
    monkeypatch.setattr("paceline.report.page.require_page", lambda path: stage.asked.append(("required", path)))
    monkeypatch.setattr(sys, "argv", ["/bin/x", "evaluate", "a b"])
    return stage


@pytest.mark.parametrize("as_json", [False, True])
def test_evaluate_scores_and_prints_all_tables(board, as_json):
    run(f"evaluate x y -t a -f b --warmup 7 {'--json' * as_json}")
    (given, scored) = board.asked
    assert given == (["x", "y"], ["a"], ["b"])
    assert scored[1][0] == {"x": "model x", "y": "model y"}
    assert [one.name for one in scored[1][1]] == ["a", "b"]
    assert scored[2] == {"warmup": 7, "fit_seconds": {"x": 1.0}}
    assert board.words == ["scoring 2 predictors on 2 traces"]
    leads = {"leads": "leads by rmse"} | ({"leads by mae": "leads by mae"} if as_json else {})
    about = {"calibration": "calibration", "per trace": "per trace", "notes": "notes", "skipped": "skipped"}
    ((tables, asked),) = board.printed
    assert asked is as_json
    assert list(tables) == ["overall", *leads, *about]
    assert tables.pop("overall") is Board.overall
    assert tables == leads | about


def test_evaluate_compares_every_kind_after_fifty_iterations_unless_told_otherwise(board):
    run("evaluate")
    assert board.asked[0] == (list(NAMES), None, None)
    assert board.asked[1][2]["warmup"] == 50
    assert len(board.asked) == 2, "and writes no page"


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("-t s3://key@bucket/x -t b -f c", [("traces", "s3://***@bucket/x, b"), ("fitted to", "c")]),
        ("", [("traces", "the recorded held-out jobs"), ("fitted to", "the recorded jobs to fit")]),
    ],
)
def test_evaluate_writes_a_page_of_what_was_typed(board, words, settings):
    run(f"evaluate {words} --warmup 9 --report a.html")
    required, _, _, (_, page, options), written = board.asked
    assert required == ("required", Path("a.html"))
    assert (page[0].overall, page[1]) == (Board.overall, {"x": "model x", "y": "model y"})
    assert [one.name for one in page[2]] == ["a", "b"]
    assert options == {"warmup": 9, "settings": settings, "command": "paceline evaluate 'a b'"}
    assert written == ("written", ("the page", Path("a.html")), {})
    assert board.words[1:] == ["forecasting once more with best"]
    assert board.lines() == [r"written to [a] \x1b.html"]


def test_a_long_name_of_a_page_is_not_broken(stage, monkeypatch):
    monkeypatch.setattr("paceline.report.write_page", lambda page, path: Path("x" * 60))
    main._write_page("page", "path")
    assert stage.lines() == [f"written to {'x' * 60}"]


@pytest.mark.parametrize("page", [False, True])
def test_replay_says_its_notes_and_writes_its_page_before_it_prints(board, monkeypatch, page):
    result = SimpleNamespace(notes=["a [note]", "other"], overall="overall", per_trace="per trace")
    replayed = []
    monkeypatch.setattr("paceline.eval.balanced", lambda models: {"balanced": models})
    monkeypatch.setattr(main, "_replayed", lambda *given: replayed.append(given) or result)
    monkeypatch.setattr("paceline.report.replay_page", lambda *given, **how: board.asked.append((given, how)) or "page")
    run(f"replay -t a --warmup 9 --global-batch 64 {'--report a.html' * page} --json")
    ((schemes, traces, batch, warmup),) = replayed
    assert (schemes, batch, warmup) == ({"balanced": {"x": "model x", "y": "model y"}}, 64, 9)
    assert board.printed == [({"overall": "overall", "per trace": "per trace", "skipped": "skipped"}, True)]
    assert board.lines()[:2] == ["a [note]", "other"]
    assert board.asked[page] == (list(main.DEFAULT_PREDICTORS), ["a"], None)
    assert len(board.asked) == (4 if page else 1)
    if page:
        settings = [("warm-up, not scored", "9 iterations"), ("traces", "a"), ("fitted to", "the recorded jobs to fit")]
        assert board.asked[2] == ((result, traces), {"settings": settings, "command": "paceline evaluate 'a b'"})
        assert board.asked[3] == ("written", ("page", Path("a.html")), {})


def test_a_replay_goes_trace_by_trace_and_says_how_far_it_is(stage, monkeypatch):
    made = []
    monkeypatch.setattr("paceline.eval.replay", lambda *given, **how: made.append((given, how)) or given[1].name)
    monkeypatch.setattr("paceline.eval.Replays", dict)
    found = main._replayed("schemes", [job("a"), job("b")], 64, 9)
    assert found == {"a": "a", "b": "b"}
    assert stage.words == [
        "replaying", "replaying a, 0 of 2 traces done", "replaying b, 1 of 2 traces done",
    ]  # fmt: skip
    assert [how for _, how in made] == [{"global_batch": 64, "warmup": 9}] * 2
    assert [given[0] for given, _ in made] == ["schemes"] * 2


# -- what is fitted, and to what -----------------------------------------------------------------------------------


@pytest.fixture
def named(stage, monkeypatch):
    """Traces and predictors by their names, fitted in no time."""
    monkeypatch.setattr(
        "paceline.cli.named_sources.traces", lambda names, split: [job(one) for one in names or [f"of {split}"]]
    )

    def predictor(text):
        return SimpleNamespace(text=text)

    def fit(model, traces, *, progress):
        if model.text.startswith("missing"):
            raise ImportError(f"{model.text} needs more")
        progress("a moment")
        return f"{model.text} fitted to {[one.name for one in traces]}"

    monkeypatch.setattr("paceline.cli.named_sources.predictor", predictor)
    monkeypatch.setattr("paceline.training.fit", fit)
    monkeypatch.setattr("paceline.training.fit_progress.line", lambda moment: f"at {moment}")
    monkeypatch.setattr("paceline.cli.named_sources.is_model", lambda text: text.startswith("model"))
    stage.facts = [Fact("a", "", 1, 2, "other"), Fact("gone", "", 1, 2, "")]
    monkeypatch.setattr("paceline.training.model_registry.fitted_to", lambda model: stage.facts)
    return stage


def test_kinds_are_fitted_models_are_used_as_they_are_and_what_is_missing_is_skipped(named, monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 20.5, 30.0, 40.0, 41.0])
    monkeypatch.setattr(main.time, "perf_counter", lambda: next(clock))
    traces, models, seconds, skipped = main._traces_and_models(["one", "model", "missing", "two"], ["a", "b"], ["c"])
    assert [one.name for one in traces] == ["a", "b"]
    assert models == {
        "one": "one fitted to ['c']", "model": SimpleNamespace(text="model"), "two": "two fitted to ['c']",
    }  # fmt: skip
    assert seconds == {"one": 2.5, "model": 0.5, "two": 1.0}
    assert skipped.columns.tolist() == ["predictor", "reason"]
    assert skipped.to_numpy().tolist() == [["missing", "missing needs more"]]
    assert named.words == [
        "fitting one", "fitting one, at a moment", "fitting model", "fitting missing",
        "fitting two", "fitting two, at a moment",
    ]  # fmt: skip
    assert named.lines() == []


def test_nothing_that_is_skipped_is_an_empty_table_and_nothing_but_that_is_an_error(named):
    _, _, _, skipped = main._traces_and_models(["one"], None, None)
    assert (len(skipped), skipped.columns.tolist()) == (0, ["predictor", "reason"])
    with pytest.raises(ImportError, match=r"^missing 1 needs more$"):
        main._traces_and_models(["missing 1", "missing 2"], None, None)


def test_a_trace_is_scored_and_fitted_to_only_where_that_was_asked_for(named, monkeypatch):
    monkeypatch.setattr("paceline.cli.named_sources.traces", lambda names, split: [job(k) for k in names or "cba"])
    with pytest.raises(ValueError, match=r"^traces \['a', 'b'\] are fitted to by default; choose others .* --fit-on$"):
        main._traces_and_models(["one"], ["b", "x", "a"], None)
    assert main._traces_and_models(["one"], ["x"], None)[1] == {"one": "one fitted to ['c', 'b', 'a']"}
    assert main._traces_and_models(["one"], ["a"], ["a"])[1] == {"one": "one fitted to ['a']"}


def test_a_model_that_was_fitted_to_a_trace_of_the_same_name_may_flatter_itself(named):
    named.facts = [Fact(name, "", 0, 0, "") for name in ("b", "x\x1b", "gone", "a")]
    main._traces_and_models(["model [1]"], ["x\x1b", "a", "b", "other"], ["c"])
    said = (
        r"model [1] was fitted to traces called ['a', 'b', 'x\x1b']; a model file keeps names alone, so if these are "
        "the same traces, its scores here flatter it"
    )
    assert " ".join(named.file.getvalue().split()) == said
    named.facts = [Fact("a", "", 1, 2, "known")]
    main._traces_and_models(["model [1]"], ["a"], ["c"])
    assert " ".join(named.file.getvalue().split()) == said, "where digests are known, they decide"
    from paceline.training.sources import digest_of

    named.facts = [Fact("a", "", 1, 2, digest_of(job("a")))]
    with pytest.raises(ValueError, match=r"traces \['a'\] were fitted"):
        main._traces_and_models(["model [1]"], ["a"], ["c"])


# -- how a command ends --------------------------------------------------------------------------------------------


def ended(monkeypatch, error):
    def app():
        warnings.simplefilter("always")
        warnings.warn("odd", stacklevel=1)
        raise error

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    return stopped.value.code


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError, RuntimeError])
def test_a_users_mistake_is_a_line_without_secrets_and_exit_status_2(stage, monkeypatch, kind):
    monkeypatch.setattr(sys, "argv", ["paceline", "s3://key:HUSHHUSH@bucket/a", "x"])
    monkeypatch.setattr(main, "err", SafeConsole(file=stage.file, color_system="standard", width=40))
    before = warnings.showwarning
    text = "no [bold]" + 9 * " 12 long" + "\n of HUSHHUSH \x1b"
    assert ended(monkeypatch, kind(text)) == 2
    assert warnings.showwarning is before
    said = ["\x1b[33mwarning:\x1b[0m odd", f"\x1b[1;31merror:\x1b[0m no [bold]{9 * ' 12 long'}", r" of *** \x1b"]
    assert stage.lines() == said


@pytest.mark.parametrize("kind", [KeyError, TypeError, ZeroDivisionError])
def test_a_mistake_of_ours_keeps_its_traceback(stage, monkeypatch, kind):
    monkeypatch.setattr(main, "app", lambda: (_ for _ in ()).throw(kind("ours")))
    with pytest.raises(kind):
        main.main()
    assert stage.lines() == []
    monkeypatch.setattr(main, "place_in_own", lambda error: "mine.py, line 3, in f")
    with pytest.raises(SystemExit):
        main.main()
    assert stage.lines() == [f"error: {kind.__name__}: {kind('ours')} (mine.py, line 3, in f)"]
