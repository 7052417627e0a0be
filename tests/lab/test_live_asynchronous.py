"""Asynchronous schemes as contestants of a live experiment: what is concluded, and a short real run."""

import json
import os

import pytest

from paceline.cli import main
from paceline.lab import AsyncOutcome, AsyncSetting
from paceline.lab.asynchronous import AsyncTurn


def turn(scheme, seed=0, **others):
    plain = {"seconds": 2.0, "applied": [0, 100, 200], "losses": [2.0, 1.0, 0.5], "samples": [150, 50]}
    plain |= {"waited": [0.0, 0.5], "staleness": 1.5, "largest": 4, "bound": 6, "wasted": 0.0}
    return AsyncTurn(scheme=scheme, seed=seed, **(plain | others))


def test_async_outcome_compares_losses_at_equal_samples():
    short = turn("asp", applied=[0, 150], losses=[2.0, 0.8], samples=[100, 50])
    outcome = AsyncOutcome(AsyncSetting(schemes=("saps", "asp")), [turn("saps"), short])
    assert outcome.equal_samples == 150
    saps, asp = outcome.rows
    assert (saps.loss, asp.loss) == (pytest.approx(0.75), pytest.approx(0.8))
    assert (saps.samples_per_second, asp.samples_per_second) == (100.0, 75.0)
    assert saps.waiting == 0.25
    assert saps.slow_share == 0.25


def test_async_setting_gives_every_scheme_equal_turns():
    turns = AsyncSetting(schemes=("saps", "asp", "bsp"), rounds=3).turns
    assert [name for name, _ in turns] == ["saps", "asp", "bsp", "asp", "bsp", "saps", "bsp", "saps", "asp"]
    assert [seed for _, seed in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_async_setting_refuses_an_unknown_scheme():
    with pytest.raises(ValueError, match="scheme must be one of"):
        AsyncSetting(schemes=("saps", "auto"))


def test_live_refuses_a_figure_of_async_schemes(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["paceline", "live", "saps", "--figure", str(tmp_path / "loss.png")])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code
    assert "--figure draws balanced schemes only" in capsys.readouterr().err


@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
def test_live_trains_with_every_async_scheme(monkeypatch, capsys):
    command = "paceline live saps asp bsp -c none --model digits-mlp --rounds 1 --seconds 0.8 --global-batch 64 --json"
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit) as ended:
        main.main()
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    rows = {row["scheme"]: row for row in json.loads(shown.out)["rows"]}
    assert list(rows) == ["saps", "asp", "bsp"]
    for row in rows.values():
        assert row["samples_per_second"] > 0
        assert row["loss"] < 2.3, "it has learnt something"
    assert rows["saps"]["waiting"] == 0.0
    assert rows["asp"]["waiting"] == 0.0
    assert rows["bsp"]["largest"] == 0
    assert rows["saps"]["largest"] <= rows["saps"]["bound"] == 20
