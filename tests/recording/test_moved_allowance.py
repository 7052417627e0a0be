"""The allowance of a process that is moved to another control group, and what it reads while nothing binds."""

import math

import pytest
from machine_files import NESTED_2, made

from paceline.recording import allowance as module
from paceline.recording import control_group
from paceline.recording.allowance import Allowance
from paceline.recording.covariates.psutil import psutil_covariates


@pytest.fixture
def looking_always(monkeypatch):
    monkeypatch.setattr(control_group, "LOOKED_UP_EVERY", 0.0)
    monkeypatch.setattr(module, "LOOK", 0.0)


def moved(folder, name):
    (folder / "proc/self/cgroup").write_text(f"0::/{name}\n")


def test_the_quota_and_its_throttled_time_are_those_of_the_group_to_which_a_process_is_moved(tmp_path, looking_always):
    made(tmp_path, {**NESTED_2, "groups/other/cpu.max": "2000 10000\n", "groups/alike/cpu.max": "4000 10000\n"})
    made(tmp_path, {f"groups/{name}/cpu.stat": "usage_usec 1\nthrottled_usec 7000000\n" for name in ("other", "alike")})
    allowance = Allowance(tmp_path)
    allowance.look()
    assert (allowance.cores, allowance.spent().throttled) == (0.4, 1.0)
    moved(tmp_path, "other")
    allowance.look()
    assert (allowance.cores, allowance.spent().throttled) == (0.2, 7.0)
    moved(tmp_path, "pod/worker")
    allowance.look()
    assert (allowance.cores, allowance.spent().throttled) == (0.4, 1.0)
    moved(tmp_path, "alike")  # a quota that is the same says nothing of the group
    allowance.look()
    assert (allowance.cores, allowance.spent().throttled) == (0.4, 7.0)


def test_who_shares_a_quota_is_asked_anew_where_a_process_is_moved(tmp_path, looking_always):
    made(tmp_path, {**NESTED_2, "groups/other/cpu.max": "2000 10000\n", "groups/other/cpu.stat": "usage_usec 1\n"})
    allowance = Allowance(tmp_path)
    allowance.look()
    (tmp_path / "groups/pod/cpu.stat").write_text("usage_usec 900000000\nthrottled_usec 0\n")
    allowance.look()
    assert math.isnan(allowance.cores)
    moved(tmp_path, "other")
    for _ in range(3):
        (tmp_path / "groups/pod/cpu.stat").write_text("usage_usec 9000000000\nthrottled_usec 0\n")
        allowance.look()
    assert allowance.cores == 0.2


def test_throttled_time_is_read_only_while_a_quota_binds(tmp_path, looking_always):
    made(tmp_path, NESTED_2)
    stat, quota = tmp_path / "groups/pod/cpu.stat", tmp_path / "groups/pod/cpu.max"
    allowance = Allowance(tmp_path)
    assert allowance.cores == math.inf

    def throttled(seconds):
        stat.write_text(f"usage_usec 1\nthrottled_usec {seconds}000000\n")
        return allowance.spent().throttled

    assert throttled(2) == 1.0
    allowance.look()
    assert (throttled(3), throttled(4)) == (3.0, 4.0)
    quota.write_text("max 10000\n")
    allowance.look()
    assert (throttled(5), throttled(6)) == (4.0, 4.0)
    assert allowance.cores == math.inf


def test_without_psutil_its_covariates_say_what_to_install(monkeypatch):
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None if name == "psutil" else name)
    said = '`psutil` is needed by psutil_covariates; install it with `pip install "paceline[covariates]"`'
    with pytest.raises(ImportError) as raised:
        psutil_covariates()
    assert str(raised.value) == said
