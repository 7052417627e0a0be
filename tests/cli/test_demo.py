"""The demo on small jobs: what it says, the models that it keeps, and the page that it writes."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from paceline.cli import demo_command as demo
from paceline.lab import EQUAL, Setting
from paceline.lab.outcome import Row
from paceline.predictors import checks
from paceline.report import read_page
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
def test_demo_fits_compares_and_writes_one_page(small, tmp_path):
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
