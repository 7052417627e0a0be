"""What commands print of made traces, models and speeds is what it was, line by line."""

import re
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept
from recorded_runs import iterations, written
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace
from paceline.predictors import EWMA
from paceline.training.entry import Evaluation, Score
from paceline.training.model_registry import Registry
from paceline.training.sources import Fact

KEPT = Path(__file__).parent / "printed.json"
NAN = float("nan")


def made(name, iterations=80, workers=3, gaps=0.1, seed=0, silent=0, **meta):
    """A job whose first worker is slow and whose last ones reported nothing."""
    rng, shape = np.random.default_rng(seed), (iterations, workers)
    seconds = 0.1 * rng.lognormal(0.0, 0.2, shape)
    seconds[:, 0] *= 1.7
    seconds[rng.random(shape) < gaps] = np.nan
    seconds[:, workers - silent :] = np.nan
    samples = np.where(np.isnan(seconds), np.nan, 32.0)
    told = {"start": 1.7e9 + np.arange(iterations)[:, None] * np.ones(workers)}
    covariates = rng.random((*shape, 1))
    return Trace(samples, seconds, **told, covariates=covariates, covariate_names=["cpu"], meta={"job": name, **meta})


def usage_alone():
    nothing = np.full((6, 1), NAN)
    return Trace(nothing, nothing, covariates=np.arange(6.0)[:, None, None] / 8, covariate_names=["cpu"])


def evaluated(rmse, digest):
    score = Score(predictor="EWMA()", rmse=rmse, mae=0.9, coverage=0.875, overhead=0.03125)
    return Evaluation((Fact("job", "", 80, 3, digest),), score, (score,), (("job/gpu0", 1.25),), 1.5, 0.0625)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of traces and models, as the working folder: its path is in no text."""
    monkeypatch.chdir(tmp_path)
    made("first", split="fit", rows_read="12345", first_time="1372629804 s since 1970 (UTC)").save(
        tmp_path / "a.parquet"
    )
    made("second", iterations=40, workers=2, seed=1, silent=1).save(tmp_path / "b.parquet")
    usage_alone().save(tmp_path / "usage.parquet")
    (tmp_path / "folder").mkdir()
    for number in range(52):
        made(f"job{number}", iterations=4, workers=1, gaps=0.0, seed=number).save(
            tmp_path / "folder" / f"{number}.parquet"
        )
    (tmp_path / "device.csv").write_text(
        "source,device,model,batch,seconds,comm_seconds,held\n"
        "here,T4,net,8,0.1,,\nhere,T4,net,16,0.15,,\nhere,T4,net,32,0.25,,\n"
    )
    written(tmp_path / "run.jsonl", iterations(12)).close()
    models = Registry(tmp_path / "models")
    models.add("plain", EWMA(), command="by hand")
    models.add("good", EWMA(smoothing=0.3), command="paceline fit", evaluation=evaluated(0.75, "aa"))
    models.add("other", EWMA(smoothing=0.5), command="paceline fit", evaluation=evaluated(0.5, "bb"))


COMMANDS = """
data info a.parquet
data info b.parquet
data info usage.parquet
data info folder
data check a.parquet
data check b.parquet
data load b.parquet --out again.parquet
data load usage.parquet --out again
data load folder --out again
data convert a.parquet a.csv
models list
models use plain
models use good
models info good
models info good --markdown
models info plain --markdown
models compare
models compare good other
models compare good plain
models export good hub
models check ewma a.parquet b.parquet
simulate a.parquet
simulate --speeds 100,100,60
simulate --speeds 100,100,100 --global-batch 96
simulate folder
replay ewma -t a.parquet -f folder
replay ewma --global-batch 48 --warmup 9 -t a.parquet -f folder
simulate --profile device.csv=2 --global-batch 64
report run.jsonl --out page.html
""".strip().splitlines()


def printed(command):
    result = CliRunner().invoke(cli.app, command.split())
    text = result.output if result.exception is None else f"{result.output}{result.exception!r}"
    changing = r"20\d\d-\d\d-\d\dT[\d:]+\+00:00|\b[0-9a-f]{64}\b"  # when a model was made, and its file's digest
    text = re.sub(changing, lambda found: "-" * len(found[0]), text)
    return [line.rstrip() for line in text.split("\n")]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_it_did(place, command):
    require_kept(KEPT, command, printed(command))


@pytest.mark.slow
def test_a_group_of_commands_without_one_explains_itself():
    for group in ([], ["data"], ["models"]):
        said = CliRunner().invoke(cli.app, group).output
        assert f"Usage: {' '.join(['paceline', *group])}" in said
        assert "Commands" in said
        assert "Error" not in said
