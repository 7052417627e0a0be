"""The live experiment: what it concludes from what ranks wrote down, and a short real run."""

import os

import numpy as np
import pytest

from paceline.lab import EQUAL, ExperimentOutcome, ExperimentSetting, experiment
from paceline.lab.disturbance import Bursts, set_quota
from paceline.lab.experiment import IterationResult, RankResult, TurnResult


def made(pace, sizes, own, *, rounds=3, steps=20):
    """An outcome in which equal batches take 0.1 s an iteration, and the scheme ``pace`` as long."""
    setting = ExperimentSetting(schemes=("ewma",), rounds=rounds)
    turns, taken = [], {EQUAL: 0, "ewma": 0}
    for scheme, seed in setting.turns:
        seconds = [0.1 * (pace if scheme == "ewma" else 1.0)] * steps
        turns.append(TurnResult(scheme, seed, taken[scheme], seconds, 2.5 * sum(seconds), sum(seconds)))
        taken[scheme] += steps
    results = []
    for rank in range(2):
        share = sizes[rank] / sum(sizes)
        weights = {EQUAL: 0.5, "ewma": share}
        losses = {scheme: (weights[scheme] / np.arange(1, count + 1)).tolist() for scheme, count in taken.items()}
        records = [IterationResult(index, sizes, own, 2e-4) for index in range(taken["ewma"])]
        results.append(RankResult(turns, losses, {"ewma": records}))
    return ExperimentOutcome(setting, results)


def test_row_speed_up_is_over_adjacent_equal_turns():
    row = made(0.5, [50, 50], [0.04, 0.04]).row("ewma")
    assert row.speed_up == pytest.approx(2.0)
    assert row.half_width == pytest.approx(0.0, abs=1e-9)


def test_row_of_a_perfect_split_reaches_the_oracle():
    # Speeds 2 : 1, split 2 : 1; a tenth of each iteration is neither's computing.
    row = made(1.0, [66, 34], [0.09, 0.09 * 34 / 33], steps=30).row("ewma")
    assert row.share_of_oracle == pytest.approx(1.0, abs=0.02)
    assert row.waiting_share == pytest.approx(0.015, abs=0.002)


def test_row_of_equal_batches_misses_the_oracle():
    row = made(1.0, [50, 50], [0.045, 0.09]).row("ewma")
    assert row.waiting_share == pytest.approx(0.25)
    # The oracle ends after 67 samples on the fast rank: 0.0603 s and the 0.01 s outside of computing.
    assert row.oracle == pytest.approx(0.1 / 0.0709, rel=0.02)
    assert row.share_of_oracle == pytest.approx(0.0709 / 0.1, rel=0.02)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_row_of_turns_with_few_iterations(steps):
    assert made(0.5, [50, 50], [0.04, 0.04], steps=steps).row("ewma").speed_up == pytest.approx(2.0)


def test_row_without_reports_raises():
    outcome = made(0.5, [50, 50], [0.04, 0.04], steps=2)
    outcome.results[0].records["ewma"].clear()
    with pytest.raises(RuntimeError, match=r"no iteration of 'ewma' was reported in turns of 3 s.*take longer turns"):
        outcome.row("ewma")


def test_outcome_weights_losses_by_samples():
    outcome = made(1.0, [80, 20], [0.08, 0.02])
    outcome.results[1].losses["ewma"][0] = 0.0
    assert outcome.losses("ewma")[0] == pytest.approx(0.8)
    assert outcome.row("ewma").loss_gap == pytest.approx(0.2)


def test_setting_puts_turns_between_equal_batches():
    turns = ExperimentSetting(schemes=("ewma", "auto"), rounds=3).turns
    for index, (scheme, seed) in enumerate(turns):
        if scheme != EQUAL:
            assert turns[index - 1] == turns[index + 1] == (EQUAL, seed)


@pytest.mark.slow
def test_bursts_toggle_and_end_calm():
    turned = []
    bursts = Bursts(turned.append, mean=0.01)
    bursts.start(seed=0)
    while len(turned) < 4:
        pass
    bursts.stop()
    assert turned[:4] == [False, True, False, True]
    assert turned[-1] is False


def test_quota_writes_both_cgroup_versions(tmp_path):
    (tmp_path / "cpu.max").write_text("max 5000")
    set_quota(tmp_path, 0.5, True)
    assert (tmp_path / "cpu.max").read_text("utf-8") == "2500 5000"
    set_quota(tmp_path, 0.5, False)
    assert (tmp_path / "cpu.max").read_text("utf-8") == "max 5000"
    one = tmp_path / "version-1"
    one.mkdir()
    (one / "cpu.cfs_quota_us").write_text("-1")
    (one / "cpu.cfs_period_us").write_text("20000")
    set_quota(one, 0.25, True)
    assert (one / "cpu.cfs_quota_us").read_text("utf-8") == "5000"


@pytest.mark.parametrize(("option", "value"), [("contention", "rain"), ("rounds", 0), ("seconds", -1.0)])
def test_setting_refuses_bad_values(option, value):
    with pytest.raises(ValueError, match=option):
        ExperimentSetting(**{option: value})


@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
def test_experiment_trains_equally_with_any_sizes():
    setting = ExperimentSetting(contention="none", schemes=("control", "ewma"), rounds=1, seconds=0.6)
    shares = []
    outcome = experiment(setting, progress=shares.append)
    for row in outcome.rows:
        assert row.loss_gap < 0.02
        assert row.speed_up > 0
        assert 0 <= row.waiting_share < 1
    control = outcome.results[0].records["control"]
    assert {tuple(record.sizes) for record in control} == {(448, 448)}
    assert shares[-1] == 1.0


@pytest.mark.processes
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")
def test_experiment_reports_the_error_of_a_rank(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(RuntimeError, match=r"rank [01] of the experiment failed(.|\n)*no-such-interface"):
        experiment(ExperimentSetting(contention="none", schemes=("ewma",), rounds=1, seconds=0.3))
