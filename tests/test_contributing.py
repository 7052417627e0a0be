"""The steps of CONTRIBUTING are carried out as they stand there, on throw-away examples."""

import doctest
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer
from paceline.datasets import read_traces, readers, recorded
from paceline.eval import leaderboard
from paceline.predictors import EWMA, LastValue, Report, checks
from paceline.recording import Recorder, default_covariates, merge, sinks
from paceline.recording.records import Iteration

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"

pytestmark = pytest.mark.checkout


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What the code of a section defines: a module, as classes are pickled by the name of theirs."""

    def load(thing):
        file = tmp_path / "throw_away.py"
        file.write_text(code_of(thing), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "throw_away", raising=False)
        return import_module("throw_away")

    yield load
    sys.modules.pop("throw_away", None)


def code_of(thing):
    """The code of a section, whose steps are five."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {thing} in five steps")[1].split("\n## ")[0]
    assert re.findall(r"^(\d)\.", section, re.M) == ["1", "2", "3", "4", "5"]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    return textwrap.dedent(code)


@pytest.mark.slow
def test_added_predictor_keeps_contract(made):
    geometric = made("A predictor").Geometric
    assert len(checks.run(checks.fitted(geometric()))) == len(checks.CHECKS)
    (example,) = doctest.DocTestFinder().find(geometric, "Geometric", globs={"Geometric": geometric})
    assert doctest.DocTestRunner().run(example).failed == 0
    model = geometric()
    model.reset(["a"])
    for seconds in (1.0, 4.0):
        model.observe(Report(samples=[100], seconds=[seconds]))
    assert model.predict().speed == pytest.approx([50.0])
    board = leaderboard({"geometric": model, "last-value": LastValue()}, recorded.load_split("held-out")[:1])
    assert set(board.overall["predictor"]) == {"geometric", "last-value"}


def test_added_reader_recognized_and_counts(made, tmp_path, monkeypatch):
    reader = made("A reader").FORMAT
    monkeypatch.setitem(readers.FORMATS, reader.name, reader)
    (tmp_path / "job.steps").write_text("# steps\n0 0.5\n1 0.25\n2\n", encoding="utf-8")
    (trace,) = read_traces(tmp_path / "job.steps")
    assert trace.speed.ravel().tolist() == [2.0, 4.0]
    assert trace.meta["rows_dropped"] == "1"


def test_a_covariate_is_recorded_beside_the_others(made, tmp_path):
    covariate = made("A covariate").OpenFiles()
    with Recorder(tmp_path / "rank0.jsonl", "0", [*default_covariates(), covariate]) as recorder:
        for _ in range(3):
            with recorder.iteration(samples=8):
                pass
    trace = merge([tmp_path / "rank0.jsonl"])
    assert trace.covariate_names[-1] == "open_files"
    assert (trace.covariates[:, 0, -1] > 0).all()


def iteration_of(balancer, sizes, seconds):
    used, report = balancer.plan, Report(samples=sizes, seconds=seconds)
    return Iteration.of(used, report, balancer.step(report))


def test_added_sink_failure_ends_metrics_only(made):
    sink_class = made("A sink").Worst
    (sink,) = sinks(sink_class())
    sink(iteration_of(LoadBalancer(EWMA(), workers=["a", "b"], global_batch=64), [32, 32], [1.0, 3.0]))
    assert sink.share == pytest.approx(1 / 3)
    broken = type("Broken", (sink_class,), {"write": lambda self, iteration: (_ for _ in ()).throw(OSError("full"))})()
    broken(iteration_of(LoadBalancer(EWMA(), workers=["a", "b"], global_batch=64), [32, 32], [1.0, 3.0]))


class Engine:
    """Two workers, one of which is three times as fast."""

    workers = ("a", "b")

    def train(self, sizes, weights):
        assert weights == pytest.approx(sizes / 120)
        return sizes / np.array([300.0, 100.0])


def test_an_adapter_balances_an_engine(made):
    plans = list(made("An adapter").balanced(Engine(), EWMA(), global_batch=120, iterations=20))
    assert plans[0].sizes.tolist() == [60, 60]
    assert plans[-1].sizes.tolist() == [90, 30]
