"""The demo on small jobs: what it says, the models that it keeps, and the page that it writes."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from paceline.cli import demo_command as demo
from paceline.lab import EQUAL, Setting
from paceline.lab.outcome import Row
from paceline.predictors import checks
from paceline.report import read_page
from paceline.report.drawing import shown
from paceline.training import describe_model

KINDS = ("last-value", "ewma:smoothing=0.5", "auto")


def outcome(speed_up=1.5, half=0.1):
    """What a live experiment of equal batches and one scheme found."""
    setting = Setting(contention="hogs", schemes=("auto",), rounds=1, global_batch=500)
    losses = {EQUAL: np.linspace(2, 1, 6), "auto": np.linspace(2, 1.2, 4)}
    row = Row("auto", speed_up, half, 0.125, 1.75, 0.9, 2e-4, 1.0, 0.01)
    return SimpleNamespace(setting=setting, rows=[row], losses=losses.__getitem__)


@pytest.fixture
def small(monkeypatch):
    """Jobs of 120 iterations, few predictors, and no training."""
    jobs = {
        split: [replace(checks.example_trace(120, seed=k), meta={"job": f"{split} {k}"}) for k in seeds]
        for split, seeds in (("fit", [3]), ("held-out", [5, 6]))
    }
    monkeypatch.setattr(demo.recorded, "load_split", jobs.__getitem__)
    monkeypatch.setattr(demo, "DEFAULT_PREDICTORS", KINDS)
    monkeypatch.setattr(demo, "experiment", lambda setting: outcome())
    monkeypatch.setattr(demo.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(demo, "can_set_quotas", lambda: False)
    return monkeypatch


def told(folder):
    console = Console(file=io.StringIO(), width=400)
    demo.run(folder, console)
    return console.file.getvalue()


@pytest.mark.slow
def test_the_demo_fits_compares_replays_and_writes_one_page(small, tmp_path):
    folder = tmp_path / "in" / "demo"
    said = told(folder)
    assert "1  Recorded jobs: fitting to fit 3; scoring on held-out 5, held-out 6" in said
    assert "auto: as shipped" in said
    files = ["ewma-smoothing-0.5.safetensors", "last-value.safetensors", "report.html", "report.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert f"6  Written to {folder}/: {', '.join(files)}  (" in said
    assert describe_model(folder / files[0])["fitted_on"] == "fit 3"
    page = read_page(folder / "report.json")
    assert (page["kind"], page["title"]) == ("demo", "Paceline on recorded jobs")
    assert "fitted to" in str(page["sections"][-1])
    titles = [one["title"] for one in page["sections"]]
    assert "A real training on this machine" in titles
    assert len(titles) == len(set(titles))
    again = told(folder)
    assert again.count("fitted by an earlier run") == 2
    small.setattr(demo.recorded, "load_split", lambda split: [checks.example_trace(120, seed=9)])
    assert "fitted by an earlier run" not in told(folder)


def pages():
    first = {"verdict": ["found", "advice"], "sections": ["replay", "origin"], "command": "c"}
    return first, {"verdict": ["scores", "more"], "sections": ["scored", "its origin"]}


def test_the_page_of_the_demo_holds_what_a_replay_an_evaluation_and_a_training_found():
    replayed, evaluated = pages()
    page = demo.demo_page(replayed, evaluated, None)
    assert page["verdict"] == ["found", "scores", "advice"]
    assert page["sections"] == ["replay", "scored", "origin"]
    assert page["command"] == "c"
    page = demo.demo_page(replayed, evaluated, outcome())
    assert [one if isinstance(one, str) else one["title"] for one in page["sections"]] == [
        "replay", "scored", "A real training on this machine", "origin",
    ]  # fmt: skip
    assert page["verdict"][0] == "found"
    assert page["verdict"][2:] == ["scores", "advice"]


@pytest.mark.parametrize(
    ("speed_up", "half", "clear"),
    [(1.5, 0.1, True), (1.05, 0.1, False), (0.8, 0.1, True), (0.95, 0.1, False), (1.25, 0.25, True)],
)
def test_a_training_too_noisy_to_tell_is_not_called_faster(speed_up, half, clear):
    *_, found, _, _ = demo.demo_page(*pages(), outcome(speed_up, half))["verdict"]
    assert (shown(speed_up, "times") in str(found)) or not clear
    assert ("too noisy a machine to tell" in str(found)) != clear


def test_the_section_of_a_training_holds_its_rows_and_losses():
    found = demo._live_section(outcome())
    text = str(found)
    assert found["title"] == "A real training on this machine"
    assert "rank 1 has 3 competing processes, all the time. They took turns; the range is a 95 % interval." in text
    table, chart = found["blocks"]
    (row,) = table["rows"]
    assert row[0] == "auto"
    assert list(row[1]) == pytest.approx([1.4, 1.5, 1.6])
    assert list(row[2:]) == [1.75, 0.125, 2e-4]
    assert chart["x"] == {"name": "thousand samples", "values": [0.5, 1.0, 1.5, 2.0]}
    assert [line["colour"] for line in chart["lines"]] == [5, 1]
    assert (table["caption"], [one["name"] for one in table["columns"]][3:]) == ("Schemes", ["waiting", "added time"])
    first, second = chart["lines"]
    for line, losses in ((first, np.linspace(2, 1, 6)[:4]), (second, np.linspace(2, 1.2, 4))):
        drawn = next(one for one in line.values() if isinstance(one, list))
        assert drawn == pytest.approx(losses.tolist(), abs=1e-3)


@pytest.mark.parametrize(("cores", "allowed", "contention"), [(1, True, None), (2, True, "quota"), (2, False, "hogs")])
def test_a_training_needs_two_cores_and_sets_a_quota_where_it_can(small, cores, allowed, contention):
    asked = []
    small.setattr(demo.os, "sched_getaffinity", lambda pid: set(range(cores)))
    small.setattr(demo, "can_set_quotas", lambda: allowed)
    small.setattr(demo, "experiment", lambda setting: asked.append(setting) or outcome())
    console = Console(file=io.StringIO(), width=400)
    found = demo._live(console)
    said = console.file.getvalue()
    assert (found is None) == (contention is None)
    assert ("left out, as two ranks need two cores" in said) == (contention is None)
    assert [(one.contention, one.rounds, one.seconds) for one in asked] == (
        [(contention, 3, 2.0)] if contention else []
    )
    assert ("1.50 ± 0.10" in said) == (contention is not None)


@pytest.mark.parametrize(("value", "order"), [("rmse", ["b", "a"]), ("speed-up", ["a", "b"])])
def test_a_table_has_a_column_for_each_job_and_the_best_first(value, order):
    table = pd.DataFrame(
        {"predictor": ["a", "a", "b", "b"], "trace": ["x", "y", "x", "y"], value: [2.0, 0.0, 1.0, 9.0]}
    )
    found = demo._by_job(table, "predictor", value)
    assert found.columns.tolist() == ["predictor", "x", "y"]
    assert found["predictor"].tolist() == order
    assert found["y"].tolist() == [{"a": 0.0, "b": 9.0}[name] for name in order]
