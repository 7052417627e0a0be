"""The demo on small jobs: what it says, the models that it keeps, and the page that it writes."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.predictors import checks
from paceline.training import describe_model

KINDS = ("last-value", "ewma:smoothing=0.5", "auto")


def outcome(speed_up=1.5, half=0.1):
    """What a live experiment of equal batches and one scheme found."""
    setting = SimpleNamespace(contention="hogs", schemes=("auto",), global_batch=500)
    losses = {"equal": np.linspace(2, 1, 6), "auto": np.linspace(2, 1.2, 4)}
    row = SimpleNamespace(
        scheme="auto", speed_up=speed_up, half_width=half, waiting_share=0.125, oracle=1.75, share_of_oracle=0.9,
        overhead=2e-4, changes=1.0, loss_gap=0.01,
    )  # fmt: skip
    return SimpleNamespace(setting=setting, rows=[row], losses=losses.__getitem__)


@pytest.fixture
def small(monkeypatch):
    """Jobs of 120 iterations, few predictors, and no training."""
    jobs = {
        split: [replace(checks.example_trace(120, seed=k), meta={"job": f"{split} {k}"}) for k in seeds]
        for split, seeds in (("fit", [3]), ("held-out", [5, 6]))
    }
    monkeypatch.setattr("paceline.datasets.recorded.load_split", jobs.__getitem__)
    monkeypatch.setattr("paceline.cli.demo.DEFAULT_PREDICTORS", KINDS)
    monkeypatch.setattr("paceline.cli.demo.experiment", lambda setting: outcome())
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("paceline.cli.demo.can_set_quotas", lambda: False)
    return monkeypatch


def run(folder):
    return CliRunner().invoke(app, ["demo", "--out", str(folder)], catch_exceptions=False).stdout


@pytest.mark.slow
def test_demo_fits_compares_and_writes_one_page(small, tmp_path):
    folder = tmp_path / "in" / "demo"
    text = run(folder)
    assert "1  Recorded jobs: fitting to fit 3; scoring on held-out 5, held-out 6" in text
    assert "auto: as shipped" in text
    files = ["ewma-smoothing-0.5.safetensors", "last-value.safetensors", "report.html"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert f"6  Written to {folder}/: {', '.join(files)}  (" in text
    assert describe_model(folder / files[0])["fitted_on"] == "fit 3"
    page = (folder / "report.html").read_text("utf-8")
    assert "<h1>Paceline on recorded jobs</h1>" in page
    assert "fitted to" in page
    titles = re.findall('<h2 id="section-[0-9]+">(.*?)</h2>', page)
    assert "A real training on this machine" in titles
    assert len(titles) == len(set(titles))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speed_up", "half", "headline"), [(0.9, 0.3, "Not clear"), (1.4, 0.1, "1.40x"), (0.8, 0.1, "0.80x")]
)
def test_demo_reports_noise_as_no_gain(small, tmp_path, speed_up, half, headline):
    small.setattr("paceline.cli.demo.experiment", lambda setting: outcome(speed_up, half))
    run(tmp_path)
    verdict = re.findall("<dt>(.*?)</dt><dd><strong>(.*?)</strong>", (tmp_path / "report.html").read_text("utf-8"))
    assert ("And for real?", headline) in verdict
    assert verdict[-1][0] == "What next?"
