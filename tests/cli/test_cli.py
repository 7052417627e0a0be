"""The command line, as a user types it."""

import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.predictors import checks

runner = CliRunner()


@pytest.fixture
def trace(tmp_path):
    return str(checks.example_trace(120).save(tmp_path / "made.parquet"))


@pytest.fixture
def fitting(tmp_path):
    job = replace(checks.example_trace(120, seed=3), meta={"job": "fitting"})
    return str(job.save(tmp_path / "fitting.parquet"))


def run(*arguments):
    result = runner.invoke(cli.app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(capsys, monkeypatch, *arguments):
    """Run as the installed command does, and return the one sentence it ends with."""
    monkeypatch.setattr("sys.argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


@pytest.mark.slow
def test_a_model_is_fitted_kept_and_compared(tmp_path, trace, fitting):
    model = str(tmp_path / "ewma.safetensors")
    run("fit", "ewma:smoothing=0.4", "--fit-on", fitting, "--out", model)
    tables = json.loads(run("evaluate", model, "last-value", "-t", trace, "-f", fitting, "--json"))
    names = [row["predictor"] for row in tables["overall"]]
    assert sorted(names) == sorted([model, "last-value"])


@pytest.mark.slow
def test_evaluate_scores_all_or_named_kinds(trace, fitting, monkeypatch):
    few = ("last-value", "ewma", "batch-time", "auto")
    monkeypatch.setattr("paceline.cli.main.NAMES", few)
    tables = json.loads(run("evaluate", "-t", trace, "-f", fitting, "--json"))
    assert {row["predictor"] for row in tables["overall"]} == set(few)
    shown = {"rmse", "mae", "coverage", "overhead", "microseconds"}
    assert all(row[name] is not None for row in tables["overall"] for name in shown)
    assert tables["skipped"] == []
    by_rmse = [row["predictor"] for row in tables["overall"]]
    assert [row["predictor"] for row in tables["leads"]] == by_rmse
    assert {row["than the best"] for row in tables["leads"]} <= {"the best", "not significant", "worse"}


@pytest.mark.slow
def test_missing_extra_skips_predictor(capsys, monkeypatch, trace, fitting):
    monkeypatch.setattr("paceline._require.find_spec", lambda library: None)
    tables = json.loads(run("evaluate", "ewma", "narx", "-t", trace, "-f", fitting, "--json"))
    assert {row["predictor"] for row in tables["overall"]} == {"last-value", "ewma"}
    (skipped,) = tables["skipped"]
    assert skipped["predictor"] == "narx"
    assert 'pip install ".[torch]"' in skipped["reason"]
    assert "is needed by NARX.fit" in run("evaluate", "ewma", "narx", "-t", trace, "-f", fitting)
    assert ".[torch]" in fails(capsys, monkeypatch, "evaluate", "narx", "-t", trace, "-f", fitting)


@pytest.mark.slow
def test_mistakes_end_in_one_sentence(capsys, monkeypatch, tmp_path, trace):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    for arguments, sentence in [
        (["evaluate", "oracle", "-t", trace], "there is no predictor 'oracle'"),
        (["evaluate", "ewma:smoothing=2", "-t", trace], "smoothing must lie in (0, 1], got 2"),
        (["evaluate", "ewma:smooth=1", "-t", trace], "EWMA has no argument ['smooth']"),
        (["evaluate", "ewma:__import__('os')", "-t", trace], "must be arguments like"),
        (["data", "info", str(broken)], "broken.parquet: this is not a complete Parquet file"),
        (["data", "info", "nothing-like-it"], "there is no recorded trace, file or folder 'nothing-like-it'"),
        (["data", "load", trace, "-o", str(tmp_path / "no" / "x.csv")], "does not exist"),
        (["record", "no-such-job"], "'no-such-job' is not a command on the PATH"),
        (["replay", "ewma", "-t", trace, "--global-batch", "2"], "2"),
    ]:
        assert sentence in fails(capsys, monkeypatch, *arguments).replace("\n", " ")


OWN = """
import numpy as np
from paceline.predictors import EWMA, Forecast

class Slow(EWMA):
    pass

class Constant:
    workers, covariate_names = (), ()
    def fit(self, traces): return self
    def reset(self, workers): self.workers = tuple(workers)
    def join(self, worker): self.workers = (*self.workers, worker)
    def leave(self, worker): self.workers = tuple(w for w in self.workers if w != worker)
    def rename(self, old, new): self.workers = tuple(new if w == old else w for w in self.workers)
    def observe(self, report): pass
    def predict(self, *, covariates=None, horizon=1):
        return Forecast(np.full(len(self.workers), 5.0), np.full(len(self.workers), 0.1))
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

class Half:
    def fit(self, traces): return self
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))  # to which a command adds the folder
    (tmp_path / "mine.py").write_text(OWN)
    yield "mine.py"
    for name in ("mine", "own_mine", "own_random"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_own_predictors_by_file_and_module(own, trace, fitting):
    named_here = ["mine.py:Slow:smoothing=0.05", "mine.py:Constant", "mine:Slow", "last-value"]
    tables = json.loads(run("evaluate", *named_here, "-t", trace, "-f", fitting, "--json"))
    assert {row["predictor"] for row in tables["overall"]} == set(named_here)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mine.py:Slwo", "has no class 'Slwo'; it has"),
        ("other.py:Slow", "there is no file other.py"),
        ("nowhere.at.all:Slow", "no module 'nowhere.at.all' can be imported"),
        ("mine.py:Half", "it lacks"),
    ],
)
def test_a_predictor_that_is_none_is_refused(own, capsys, monkeypatch, trace, fitting, text, sentence):
    assert sentence in " ".join(fails(capsys, monkeypatch, "evaluate", text, "-t", trace, "-f", fitting).split())


@pytest.mark.slow
def test_own_predictor_does_not_replace_ours(own, trace, fitting, tmp_path):
    """Nor does its file replace a module that happens to be called the same."""
    (tmp_path / "random.py").write_text(
        "from paceline.predictors import EWMA as Ours\nclass EWMA(Ours):\n"
        "    def forecast_speed(self, covariates_WD, horizon):\n        return 3 * "
        "super().forecast_speed(covariates_WD, horizon)\n"
    )
    before = sys.modules["random"]
    tables = json.loads(run("evaluate", "random.py:EWMA", "ewma", "-t", trace, "-f", fitting, "--json"))
    error = {row["predictor"]: row["rmse"] for row in tables["overall"]}
    assert error["random.py:EWMA"] > 2 * error["ewma"]
    assert sys.modules["random"] is before


@pytest.mark.slow
def test_plain_files_named_by_path_when_equal(tmp_path, fitting):
    frame = checks.example_trace(120).to_frame()
    for folder in ("one", "two"):
        (tmp_path / "jobs" / folder).mkdir(parents=True)
        frame.to_csv(tmp_path / "jobs" / folder / "a.csv", index=False)
        frame.to_parquet(tmp_path / "jobs" / folder / f"{folder}.parquet")
    expected = {"one", "two", "one/a.csv", "two/a.csv"}
    files = [str(file) for file in (tmp_path / "jobs").glob("*/*")]
    for named_as in ([str(tmp_path / "jobs")], files):
        options = [part for name in named_as for part in ("-t", name)]
        tables = json.loads(run("evaluate", "ewma", *options, "-f", fitting, "--json"))
        assert {row["trace"] for row in tables["per trace"]} == expected


@pytest.mark.slow
def test_one_file_named_twice_is_refused(capsys, monkeypatch, trace, fitting):
    error = fails(capsys, monkeypatch, "evaluate", "ewma", "-t", trace, "-t", trace, "-f", fitting)
    assert "traces must have different names" in error


def test_help_tells_defaults_in_words():
    for command, default in (("evaluate", "every predictor"), ("fit", "the recorded jobs for fitting")):
        told = " ".join(run(command, "--help").replace("│", " ").split())
        assert f"[default: {default}]" in told
