"""``paceline evaluate``: one verdict on page and terminal, tables that fit, commands to paste."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace


def noisy_trace(iterations=300, workers=3, noise=0.1):
    rng = np.random.default_rng(0)
    speed = np.linspace(50, 150, workers) * rng.lognormal(0, noise, (iterations, workers))
    return Trace(np.full(speed.shape, 64.0), 64 / speed, meta={"job": "noisy"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noisy_trace(workers=8).save("noisy.parquet")
    return tmp_path


def run(*words):
    done = CliRunner().invoke(cli.app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_evaluate_page_and_terminal_agree(folder):
    told = json.loads(run("evaluate", "ewma", "-t", "noisy.parquet", "--report", "page.html", "--json"))
    best = told["leads"][0]
    page = (folder / "page.html").read_text("utf-8")
    assert best["predictor"] == "ewma"
    assert f"{best['low']:.3f} to {best['high']:.3f} with 95% confidence" in page
    assert (": significant." in page) == (best["than last-value"] == "better")
    assert "than the last value" in page


@pytest.mark.parametrize("width", [40, 80])
def test_tables_fit_the_terminal(folder, monkeypatch, width):
    console = Console(width=width, record=True, file=io.StringIO())
    monkeypatch.setattr("paceline.cli.output.out", console)
    run("evaluate", "ewma", "-t", "noisy.parquet")
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert all(name in text for name in ("rmse", "mae", "worst", "coverage", "overhead", "microseconds"))


@pytest.mark.parametrize("kind", ["auto", "rls"])
def test_evaluate_refuses_covariates_that_no_trace_has(kind):
    done = CliRunner().invoke(cli.app, ["evaluate", f"{kind}:covariates=cpu_load", "-t", "digits-cnn-bursty"])
    assert "['cpu_load'], which no trace has: choose from ['cpu_busy'" in str(done.exception)
