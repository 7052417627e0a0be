"""``paceline report`` and ``paceline models`` with pages and models that are made up: what they ask for and print."""

import hashlib
import io
import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from paceline.cli import main, models_command, report_command
from paceline.cli.show import SafeConsole
from paceline.predictors import EWMA
from paceline.training.entry import Evaluation, Score
from paceline.training.model_registry import Registry
from paceline.training.sources import Fact


def run(*words):
    return CliRunner().invoke(main.app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def said(monkeypatch):
    file = io.StringIO()
    for room in (models_command, report_command):
        monkeypatch.setattr(room, "out", SafeConsole(file=file, width=40))
    monkeypatch.setattr(models_command, "err", SafeConsole(file=file, color_system="standard", width=40))
    monkeypatch.setattr("sys.argv", ["/bin/x", "report", "a b"])
    return lambda: file.getvalue().splitlines()


# -- report --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(monkeypatch):
    """Pages that are only noted."""
    found = []

    def made(name):
        return lambda given, **how: found.append((name, given, how)) or name

    for name in ("async_page", "run_page", "audit_page"):
        monkeypatch.setattr(f"paceline.report.{name}", made(name))
    monkeypatch.setattr("paceline.report.page.write_page", lambda page, path: found.append((page, path)))
    return found


class Made:
    """A run of so many iterations and workers."""

    def __init__(self, length, workers, skipped):
        self.length, self.workers, self.skipped = length, "w" * workers, skipped

    def __len__(self):
        return self.length


@pytest.mark.parametrize(
    ("skipped", "more"),
    [(0, ""), (1, "; 1 line could not be read and were skipped"), (2, "; 2 lines could not be read and were skipped")],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_is_reported_with_its_checksum_and_the_command(
    said, pages, monkeypatch, tmp_path, asynchronous, skipped, more
):
    path, target = tmp_path / "a.jsonl", tmp_path / f"{'long' * 12}[x].html"
    path.write_bytes(b"abc")
    run_, other = Made(9, 3, skipped), Made(1, 1, 0)
    monkeypatch.setattr("paceline.runs.is_asynchronous", lambda given: asynchronous and given == path)
    monkeypatch.setattr("paceline.runs.read_async_run", lambda given: run_ if asynchronous else other)
    monkeypatch.setattr("paceline.runs.read_run", lambda given: other if asynchronous else run_)
    run("report", path, "--out", target)
    name, kind = ("async_page", "rounds") if asynchronous else ("run_page", "iterations")
    digest = hashlib.sha256(b"abc").hexdigest()
    assert pages == [(name, run_, {"digest": digest, "command": "paceline report 'a b'"}), (name, target)]
    assert said() == [f"written to {target}: 9 {kind} of 3 workers{more}"]


def test_what_audit_printed_is_reported_and_not_written_over(said, pages, monkeypatch, tmp_path):
    path, verdict = tmp_path / "train.json", dict.fromkeys(("status", "sentence", "remedy", "runs"), "x")
    path.write_text(json.dumps(verdict))
    run("report", path, "--out", tmp_path / "a.html")
    how = {
        "script": "train",
        "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
        "command": "paceline report 'a b'",
    }
    assert pages == [("audit_page", verdict, how), ("audit_page", tmp_path / "a.html")]
    assert said() == [f"written to {tmp_path}/a.html: an audit"]
    refused = CliRunner().invoke(main.app, ["report", str(path), "--out", str(tmp_path / "." / "train.html")])
    assert str(refused.exception) == (
        f"--out {tmp_path}/train.html would write its numbers over {path}: give another name"
    )
    assert len(pages) == 2


@pytest.mark.parametrize("text", ['{"kind": "run"}', "{", "[1]"])
def test_any_other_json_is_a_page_that_was_written_before(said, pages, monkeypatch, tmp_path, text):
    read = []
    monkeypatch.setattr("paceline.report.read_page", lambda path: read.append(path) or {"kind": "run"})
    path = tmp_path / "a\x1b.json"
    path.write_text(text)
    run("report", path, "--out", tmp_path / "b.html")
    assert (read, pages) == ([path], [({"kind": "run"}, tmp_path / "b.html")])
    assert said() == [rf"written to {tmp_path}/b.html: the run of {tmp_path}/a\x1b.json"]


def test_a_page_that_cannot_be_written_is_refused_before_a_run_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr("paceline.runs.newest", lambda path: pytest.fail("it looked for a run"))
    refused = CliRunner().invoke(main.app, ["report", str(tmp_path), "--out", str(tmp_path / "a.pdf")])
    assert str(refused.exception).startswith("a report's path must end in .html")


# -- models --------------------------------------------------------------------------------------------------------


def measured(rmse, digest):
    score = Score("this model", rmse, 0.5, 0.875, 0.125)
    return Evaluation((Fact("t", "", 4, 2, digest),), score, (), (), 1.5, 0.25)


@pytest.fixture
def registry(tmp_path):
    models = Registry(tmp_path / "models")
    models.add("worse", EWMA(), command="", evaluation=measured(0.75, "a"), data=[Fact("x", "", 1, 1, "")] * 3)
    models.add("better", EWMA(), command="", evaluation=measured(0.5, "a"))
    models.add("unknown", EWMA(), command="")
    models.use("better")
    return models


@pytest.fixture
def printed(monkeypatch):
    found = []
    monkeypatch.setattr(models_command, "print_rows", lambda *given: found.append(given))
    return found


def test_models_are_listed_in_their_order_and_the_one_in_use_is_marked(registry, printed, said):
    run("models", "list", "-r", registry.folder)
    run("models", "list", "-r", registry.folder, "--json")
    (title, rows, as_json), (_, plain, other) = printed
    assert (title, as_json, other) == ("models", False, True)
    assert [row["model"] for row in rows] == ["  worse", "> better", "  unknown"]
    assert all("in_use" not in row for row in rows)
    assert [(row["model"], row["in_use"]) for row in plain] == [("worse", False), ("better", True), ("unknown", False)]
    made = registry.entry("worse").made
    assert plain[0] == {
        "model": "worse", "in_use": False, "kind": "EWMA", "made": made, "traces": 3, "rmse": 0.75, "coverage": 0.875,
        "speed-up": 1.5, "regret": 0.25,
    }  # fmt: skip
    assert all(plain[2][name] != plain[2][name] for name in ("rmse", "coverage", "speed-up", "regret"))
    assert said() == []


@pytest.mark.parametrize("digest", ["a", "b"])
def test_models_are_compared_from_the_best_on_and_those_of_other_traces_are_not_comparable(
    registry, printed, said, digest
):
    registry.add("best", EWMA(), command="", evaluation=measured(0.25, digest))
    run("models", "compare", "worse", "best", "better", "-r", registry.folder, "--json")
    ((_, rows, _),) = printed
    assert [row["model"] for row in rows] == ["best", "better", "worse"]
    told = "These models were measured on different traces: compare them with paceline evaluate instead."
    assert " ".join(" ".join(said()).split()) == (told if digest == "b" else "")
    run("models", "compare", "-r", registry.folder, "--json")
    assert {row["model"] for row in printed[1][1]} == set(registry.names)


def test_a_model_is_chosen_and_a_folder_without_models_is_refused(registry, said, tmp_path):
    run("models", "use", "worse", "-r", registry.folder)
    assert registry.used == "worse"
    assert "".join(said()).replace(" ", "") == f"{registry.folder}nowstandsforworse"
    for command in ("list", "compare"):
        refused = CliRunner().invoke(main.app, ["models", command, "-r", str(tmp_path / "x")])
        assert str(refused.exception) == (
            f"{tmp_path}/x is no registry of models; paceline fit ... --registry {tmp_path}/x makes one"
        )


@dataclass
class Drift:
    trace: str
    ratio: float
    sentence: str


@pytest.mark.parametrize("as_json", [False, True])
def test_each_trace_is_checked_with_a_new_model_and_one_too_short_is_left_out(monkeypatch, printed, said, as_json):
    traces = {"one": ["a [1]", "short"], "two": ["b"]}
    monkeypatch.setattr("paceline.cli.named_sources.find_traces", lambda name: iter(traces[name]))
    models = iter(range(9))
    monkeypatch.setattr("paceline.cli.named_sources.predictor", lambda text: (text, next(models)))

    def check(model, trace):
        if trace == "short":
            raise ValueError("short [x] \x1b" + " and 12 more" * 9)
        return Drift(trace, float(model[1]), f"sentence of {model[0]}")

    monkeypatch.setattr("paceline.eval.model_drift.check_drift", check)
    run("models", "check", "m", "one", "two", *["--json"] * as_json)
    rows = [{"trace": "a [1]", "ratio": 0.0}, {"trace": "b", "ratio": 2.0}]
    assert printed == [("drift", rows, as_json)]
    left = [rf"left out: short [x] \x1b{' and 12 more' * 9}"]
    assert said() == left + ([] if as_json else ["a [1]: sentence of m", "b: sentence of m"])
    traces |= {"one": ["short"], "two": []}
    refused = CliRunner().invoke(main.app, ["models", "check", "m", "one", "two"])
    assert str(refused.exception) == "none of the traces could be measured"


def test_a_card_is_laid_out_unless_it_is_asked_for_as_it_stands(monkeypatch):
    shown = []
    monkeypatch.setattr(models_command, "out", SimpleNamespace(print=lambda what, **how: shown.append((what, how))))
    monkeypatch.setattr(
        "paceline.training.model_registry.Registry.card", lambda self, name: f"# {name} in {self.folder}"
    )
    run("models", "info", "a", "--markdown", "-r", "x")
    run("models", "info", "a")
    assert shown[0] == ("# a in x", {"markup": False, "highlight": False})
    assert (shown[1][0].markup, shown[1][1]) == ("# a in models", {})
