"""What a command shows while it works, and the moment that a process waits at its end."""

import time
from types import SimpleNamespace

import pytest

from paceline import _exit, _heartbeat
from paceline.cli import live_command
from paceline.lab.experiment import AsyncSetting, Setting


@pytest.mark.parametrize(
    ("setting", "place"),
    [(Setting(schemes=("ewma",)), "experiment"), (AsyncSetting(schemes=("asp",)), "asynchronous_experiment")],
)
def test_a_training_shows_how_far_it_is(monkeypatch, setting, place):
    shown = []

    class Shown:
        def __init__(self, **options):
            shown.append((options["transient"], options["disable"]))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            shown.append("over")

        def add_task(self, text, total):
            shown.append((text, total))
            return 7

        def update(self, task, completed):
            shown.append((task, completed))

    def trained(given_, *, progress):
        progress(0.25)
        return given_

    monkeypatch.setattr(live_command, "Progress", Shown)
    monkeypatch.setattr(f"paceline.lab.experiment.{place}", trained)
    assert live_command._watched(setting) is setting
    task = (f"training under contention: {setting.contention}", 1.0)
    assert shown == [(True, True), task, (7, 0.25), "over"]


def test_a_process_waits_once_at_its_end(monkeypatch):
    registered = []
    monkeypatch.setattr(_exit.atexit, "register", lambda *given_: registered.append(given_))
    _exit.wait_at_exit.cache_clear()
    _exit.wait_at_exit()
    _exit.wait_at_exit()
    assert registered == [(time.sleep, _exit.GRACE_SECONDS)]
    assert 0 < _exit.GRACE_SECONDS < 1


def test_a_long_command_says_every_ten_seconds_how_long_it_has_taken(monkeypatch):
    clock, said, waited = [5.0], [], []
    monkeypatch.setattr(_heartbeat.time, "monotonic", lambda: clock[0])
    heartbeat = _heartbeat.Heartbeat(said.append, "fitting")

    def wait(seconds):
        waited.append(seconds)
        clock[0] += 700.0
        return len(waited) == 3

    heartbeat._over = SimpleNamespace(wait=wait, set=lambda: None)
    with heartbeat:
        heartbeat._thread.join()
    assert waited == [10.0] * 3
    assert said == ["fitting (700 s so far)", "fitting (1,400 s so far)"]
    assert heartbeat._thread.daemon


@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_a_training_is_of_the_precision_that_was_asked_for(monkeypatch, precision):
    seen = []
    monkeypatch.setattr(live_command, "_watched", lambda one: seen.append(one) or SimpleNamespace(rows=[]))
    live_command.live(["ewma"], ["none"], precision=precision, as_json=True)
    assert [one.precision for one in seen] == [precision]
