"""What a rank's process does from its first line to its exit, and what the process that starts the ranks does."""

import json
import os
import runpy
import struct
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import distributed

from paceline.lab.contention.contention import Contention
from paceline.lab.contention.disturbance import Bursts
from paceline.lab.experiment import AsyncSetting, Setting, asynchronous_experiment, conduct, contestant, experiment
from paceline.lab.experiment import asynchronous as asynchronous_module
from paceline.lab.experiment import asynchronous_worker as async_worker
from paceline.lab.experiment import experiment_worker as worker
from paceline.lab.experiment.result import RankResult
from paceline.lab.experiment.setting import EQUAL
from paceline.lab.processes import orphan
from paceline.recording.place import Place


class ExitedError(Exception):
    """Raised instead of an exit, which nothing follows."""


@pytest.fixture
def calls(monkeypatch):
    """What a rank calls of its surroundings, in order, instead of doing it."""
    found = []

    def note(name):
        return lambda *given, **named: found.append((name, given, named))

    def leave(status):
        found.append(("exit", (status,), {}))
        raise ExitedError

    monkeypatch.setattr(orphan, "die_with_parent", note("die with parent"))
    monkeypatch.setattr(os, "sched_setaffinity", note("pin"))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr("torch.set_num_threads", note("threads"))
    monkeypatch.setattr(distributed, "init_process_group", note("join"))
    monkeypatch.setattr(distributed, "destroy_process_group", note("part"))
    monkeypatch.setattr(Place, "enter", note("enter"))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    yield found
    os.environ.pop("GLOO_SOCKET_IFNAME", None)


def told_to(folder, setting, **changed):
    return {
        "rank": 1,
        "ranks": 2,
        "cores": [0],
        "folder": str(folder),
        "setting": asdict(setting),
        "disturbed": False,
        "place": None,
        "hogs": [],
        **changed,
    }


@pytest.mark.parametrize("place", [None, {"cores": [0], "folders": []}])
@pytest.mark.parametrize("interface", [None, "eth7"])
def test_a_rank_is_pinned_before_it_joins_and_enters_its_place_at_last(tmp_path, monkeypatch, calls, place, interface):
    if interface:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    monkeypatch.setattr(worker, "die_with_parent", orphan.die_with_parent)
    given = told_to(tmp_path, Setting(schemes=("ewma",)), place=place)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: json.dumps(given)))
    assert worker.joined() == json.loads(json.dumps(given))
    assert os.environ["GLOO_SOCKET_IFNAME"] == (interface or "lo")
    at = {"init_method": f"file://{tmp_path}/rendezvous", "rank": 1, "world_size": 2}
    assert calls == [
        ("die with parent", (), {}),
        ("pin", (0, [0]), {}),
        ("threads", (1,), {}),
        ("join", ("gloo",), at),
        *([("enter", (Place(**place),), {})] if place else []),
    ]


def test_a_synchronous_rank_writes_its_record_parts_and_exits_at_once(tmp_path, monkeypatch, calls):
    steps = []

    class Idle:
        losses, weights, records = (), (), ()

        def __init__(self, scheme, setting):
            self.scheme = scheme

        def step(self):
            steps.append(self.scheme)

    monkeypatch.setattr(contestant, "Contestant", Idle)
    monkeypatch.setattr(Setting, "turns", [])
    (tmp_path / "finish").write_bytes(struct.pack("q", 0))
    given = told_to(tmp_path, Setting(contention="none", schemes=("ewma",)))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: json.dumps(given)))
    with pytest.raises(ExitedError):
        runpy.run_path(worker.__file__, run_name="__main__")
    assert steps == [EQUAL] * worker.WARM_UP + ["ewma"] * worker.WARM_UP
    nothing = {EQUAL: [], "ewma": []}
    assert RankResult.read(tmp_path / "result1.json") == RankResult([], nothing, nothing, nothing)
    assert calls[-2:] == [("part", (), {}), ("exit", (0,), {})]


@pytest.mark.parametrize("disturbed", [False, True])
def test_an_asynchronous_rank_takes_its_turns_parts_and_exits_at_once(tmp_path, monkeypatch, calls, disturbed):
    setting = AsyncSetting(contention="between", rounds=1)
    given = told_to(tmp_path, setting, disturbed=disturbed)
    monkeypatch.setattr(async_worker, "joined", lambda: json.loads(json.dumps(given)))
    turns, written = [], []

    def take_turn(setting, scheme, seed, between, bursts):
        turns.append((scheme, seed, between, bursts))
        return scheme if seed == 0 and scheme == setting.turns[0][0] else None

    monkeypatch.setattr(async_worker, "take_turn", take_turn)
    monkeypatch.setattr(async_worker, "write_turns", lambda seen, path: written.append((seen, path)))
    async_worker.main()
    assert turns == [(scheme, seed, 0.04 if disturbed else 0.0, None) for scheme, seed in setting.turns]
    assert written == [([setting.turns[0][0]], tmp_path / "result1.json")]
    assert calls == [("part", (), {})]
    monkeypatch.setattr(worker, "joined", lambda: json.loads(json.dumps(given)))
    monkeypatch.setattr(AsyncSetting, "turns", [])
    with pytest.raises(ExitedError):
        runpy.run_path(async_worker.__file__, run_name="__main__")
    assert calls[1:] == [("part", (), {}), ("exit", (0,), {})]
    assert asynchronous_module.AsyncTurn.read(tmp_path / "result1.json") == []


class Rank:
    """A rank that has written its record as soon as it is started; what it found then is noted."""

    started: list
    log: list

    def __init__(self, module, rank, folder, told):
        self.rank = rank
        self.started.append((module, rank, folder, told, (folder / "finish").read_bytes()))
        (folder / f"result{rank}.json").write_text(str(rank))

    def ended(self):
        return True

    def end(self):
        self.log.append(f"end {self.rank}")


@pytest.mark.parametrize("contention", ["quota", "none"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_find_a_turns_end_and_their_orders_and_all_are_ended(monkeypatch, contention, asynchronous):
    log, started, waited = [], [], []
    monkeypatch.setattr(Rank, "started", started, raising=False)
    monkeypatch.setattr(Rank, "log", log, raising=False)
    monkeypatch.setattr(conduct, "Process", Rank)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})

    @contextmanager
    def places(workers, quota):
        yield [Place(folders=["/group"])]
        log.append("place removed")

    monkeypatch.setattr(conduct, "places", places)
    monkeypatch.setattr(conduct, "_wait", lambda ranks, seconds, progress: waited.append((len(ranks), seconds)))
    kind = conduct.AsyncTurn if asynchronous else RankResult
    monkeypatch.setattr(kind, "read", lambda path: path.read_text())
    if asynchronous:
        setting = AsyncSetting(contention=contention, rounds=2, seconds=0.5)
        outcome = asynchronous_experiment(setting)
        assert outcome.turns == "0"
    else:
        setting = Setting(contention=contention, schemes=("ewma",), rounds=2, seconds=0.5)
        outcome = experiment(setting)
        assert outcome.results == ["0", "1"]
    assert outcome.setting is setting
    assert log == ["end 1", "end 0", *(["place removed"] if contention == "quota" else [])]
    assert waited == [(2, len(setting.turns) * 0.5)]
    for rank, (module, number, folder, told, finish) in enumerate(started):
        assert (module, number) == (conduct.ASYNC_WORKER if asynchronous else conduct.WORKER, rank)
        place = asdict(Place(folders=["/group"])) if contention == "quota" and rank else None
        expected = {"rank": rank, "cores": [(3, 5)[rank]], "disturbed": bool(rank), "place": place}
        assert told == told_to(folder, setting, **expected)
        assert finish == struct.pack("q", 0)
        assert not Path(folder).exists()


def test_one_core_is_too_few_for_two_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4})
    with pytest.raises(RuntimeError, match=r"needs 2 cores, one for each rank; this process may use 1$"):
        experiment(Setting(schemes=("ewma",)))


def test_bursts_do_not_keep_a_program_alive():
    bursts = Bursts(SimpleNamespace(turn=lambda on: None), mean=60.0)
    bursts.start(seed=0)
    try:
        assert bursts._thread.daemon
    finally:
        bursts.stop()


@pytest.mark.parametrize("wrong", [{"pattern": "gone"}, {"kind": "gone"}])
def test_contention_of_no_known_pattern_or_kind_is_refused_at_once(wrong):
    with pytest.raises(ValueError, match="gone"):
        Contention(**{"workers": 2, "pattern": "steady", **wrong})
