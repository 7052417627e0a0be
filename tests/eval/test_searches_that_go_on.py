"""Searches that go on: which trials can be compared, what a journal is, and which arguments mattered."""

import json
from types import SimpleNamespace

import numpy as np
import optuna
import pytest

from paceline.datasets import Trace
from paceline.eval import tune as searching
from paceline.predictors import Training
from paceline.training.sources import Source

TRAINING = Training(epochs=3)
WAVE = Trace(np.ones((30, 2)), 1 / (10 + np.sin(np.outer(np.arange(30), [1, 2]))), workers=["a", "b"])


def test_scores_can_be_compared_if_traces_held_out_workers_and_training_are_the_same():
    found = {
        name: searching._identity(Source(traces), held, training)
        for name, traces, held, training in (
            ("plain", [WAVE], ["a", "b"], None),
            ("reversed", [WAVE], ("b", "a"), None),
            ("share", [WAVE], 0.5, None),
            ("other share", [WAVE], 0.25, None),
            ("training", [WAVE], ["a", "b"], TRAINING),
            ("traces", [WAVE.select(slice(20))], ["a", "b"], None),
        )
    }
    assert found.pop("reversed") == found["plain"]
    assert len(set(found.values())) == len(found)
    assert {len(one) for one in found.values()} == {16}


def test_a_journal_is_a_file_whose_first_line_is_an_operation_or_none_yet(tmp_path):
    journal = tmp_path / "journal"
    searching._require_journal(journal)
    operation = json.dumps({"op_code": 0})
    for text in ("", operation, f"{operation}\nnonsense", operation[:-1] + " " * (65536 - len(operation)) + "}"):
        journal.write_text(text)
        searching._require_journal(journal)
    for text in ('{"op": 1}', "7", "null", "{", "\n", operation[:-1] + " " * (65537 - len(operation)) + "}"):
        journal.write_text(text)
        with pytest.raises(ValueError, match="journal: is no journal of trials: name another file, or one that does"):
            searching._require_journal(journal)
    with pytest.raises(ValueError, match="is no journal of trials"):
        searching._require_journal(tmp_path)


def test_a_search_that_goes_on_draws_other_numbers_and_one_of_another_predictor_shares_its_journal(
    tmp_path, monkeypatch
):
    seeds, sampler = [], optuna.samplers.TPESampler
    monkeypatch.setattr(optuna.samplers, "TPESampler", lambda seed=None: seeds.append(seed) or sampler(seed=seed))
    optuna.logging.set_verbosity(optuna.logging.INFO)
    study = searching._study(tmp_path / "journal", "ewma", 5, "these")
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING
    for score in (1.0, 2.0):
        study.tell(study.ask(), score)
    again = searching._study(str(tmp_path / "journal"), "ewma", 5, "these")
    assert (again.study_name, len(again.trials)) == ("ewma", 2)
    assert len(searching._study(tmp_path / "journal", "arima", 5, "others").trials) == 0
    assert len(searching._study(None, "ewma", 5, "others").trials) == 0
    assert [seed for seed in seeds if seed is not None] == [5, 7, 5, 5]
    with pytest.raises(
        ValueError, match=r"journal: holds trials on other traces.*they are of these, these of others\)"
    ):
        searching._study(tmp_path / "journal", "ewma", 5, "others")


@pytest.mark.parametrize(
    ("scores", "known"), [((1, 2, 3), False), ((1, 1, 1, 1), False), ((1, 1, 1, 2), True), ((1, 2, 3, 4, 5), True)]
)
def test_what_mattered_is_known_of_four_trials_that_differ_the_most_first(monkeypatch, scores, known):
    shares = {"lags": 0.25, "hidden": 0.75}
    monkeypatch.setattr(optuna.importance, "get_param_importances", lambda study: shares if study == "study" else None)
    done = [SimpleNamespace(value=score) for score in scores]
    table = searching._mattered("study", done, ["lags", "hidden"])
    assert table["argument"].tolist() == (["hidden", "lags"] if known else ["lags", "hidden"])
    assert table["share"].tolist() == [0.75, 0.25] if known else table["share"].isna().all()
