"""Tuning: the best of the trials, on workers that none was fitted to, and a search that goes on."""

import json

import joblib
import numpy as np
import pytest
from fit_cases import folder_of, wavy
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace
from paceline.eval.tune import tune


def noisy(seed):
    """Speeds that are noise around a level: the smaller the smoothing, the better."""
    speed_TW = 50.0 * np.exp(np.random.default_rng(seed).normal(0, 0.2, (200, 6)))
    return Trace(np.full(speed_TW.shape, 32.0), 32.0 / speed_TW, workers=[f"w{w}" for w in range(6)])


@pytest.mark.slow
def test_the_best_smoothing_of_noise_is_small():
    tuned = tune("ewma", [noisy(0)], trials=12, hold_out=["w1", "w4"])
    assert tuned.predictor.smoothing < 0.2
    assert tuned.score == tuned.trials["score"].min() == tuned.trials["score"][0]
    assert list(tuned.mattered["argument"]) == ["smoothing"]


@pytest.mark.slow
def test_only_held_out_workers_decide():
    one = noisy(0)
    seconds = np.array(one.seconds)
    seconds[:, 0] *= np.linspace(1, 9, 200)
    other = Trace(one.samples, seconds, workers=one.workers)
    scores = [tune("ewma", [trace], trials=4, hold_out=["w1", "w4"]).score for trace in (one, other)]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_a_search_goes_on_where_it_ended(tmp_path):
    journal, seen = tmp_path / "journal", []
    first = tune("ewma", [noisy(0)], trials=3, hold_out=["w1"], storage=journal)
    more = tune("ewma", [noisy(0)], trials=5, hold_out=["w1"], storage=journal, on_trial=lambda n, s: seen.append(n))
    assert seen == [3, 4]
    assert set(first.trials["smoothing"]) < set(more.trials["smoothing"])
    assert len(set(more.trials["smoothing"])) == 5


@pytest.mark.parametrize("text", ["hello", "a,b\n1,2\n", "[1]\n", "7\n", "\x00\udcff"])
def test_non_journal_named_and_untouched(tmp_path, text):
    file = tmp_path / "notes.txt"
    file.write_bytes(before := text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"notes\.txt: is not a journal of trials"):
        tune("ewma", [noisy(0)], trials=1, hold_out=["w1"], storage=file)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_search_refuses_other_traces_or_workers(tmp_path):
    journal = tmp_path / "journal"
    tune("ewma", [noisy(0)], trials=2, hold_out=["w1"], storage=journal)
    for seed, held in ((1, ["w1"]), (0, ["w2"])):
        with pytest.raises(ValueError, match="holds trials on other traces, held-out workers or options"):
            tune("ewma", [noisy(seed)], trials=3, hold_out=held, storage=journal)


def test_search_of_failures_says_why():
    with pytest.raises(ValueError, match=r"all 5 trials failed, the last with .*: hold_out=\['nobody'\] holds out 0"):
        tune("ewma", [noisy(0)], trials=20, hold_out=["nobody"])


@pytest.mark.processes
def test_two_processes_score_the_same():
    alone = tune("ewma", [noisy(0)], trials=4, at_once=2, hold_out=["w1"])
    with joblib.parallel_config(backend="loky", n_jobs=2):
        two = tune("ewma", [noisy(0)], trials=4, at_once=2, hold_out=["w1"])
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    assert alone.trials.equals(two.trials)


def test_predictor_without_arguments_refused():
    with pytest.raises(ValueError, match="no argument that can be tuned"):
        tune("last-value", [wavy(0)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tune_command_prints_trials(tmp_path):
    folder = folder_of(tmp_path / "jobs", 2)
    command = ["tune", "ewma", "-f", str(folder), "--trials", "4", "--hold-out", "0.4", "--json"]
    done = CliRunner().invoke(cli.app, [*command, "--journal", str(tmp_path / "journal")])
    assert done.exit_code == 0, done.exception
    tables = json.loads(done.stdout)
    assert len(tables["trials, best first"]) == 4
    assert tables["what mattered"][0]["argument"] == "smoothing"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tune_command_names_unreadable_files(tmp_path):
    folder = folder_of(tmp_path / "jobs", 3)
    (folder / "job01.parquet").write_bytes(b"")
    command = [
        "tune",
        "ewma",
        "-f",
        str(folder),
        "--trials",
        "1",
        "--hold-out",
        "0.4",
        "--json",
        "--journal",
        str(tmp_path / "journal"),
    ]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.exception
    assert "job01.parquet: the file is empty" in done.stderr.replace("\n", "")
