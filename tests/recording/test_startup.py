"""What Python runs at the start of a worker that records itself, here as a module under another name."""

import importlib.machinery
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from paceline.recording.automatic import startup_folder

FILE = startup_folder() / "sitecustomize.py"


def started(monkeypatch, **environment):
    """Run the file with nothing in the environment but this, and return it with what it put before the finders."""
    for name in ("PACELINE_RECORD", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "meta_path", before := list(sys.meta_path))
    known = len(before)
    spec = importlib.util.spec_from_file_location("started_here", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, sys.meta_path[: len(sys.meta_path) - known]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A path of two folders behind the one of this file."""
    monkeypatch.setattr(sys, "path", [str(FILE.parent), str(tmp_path / "a"), str(tmp_path / "b")])
    for name in "ab":
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("told", [{}, {"RANK": "0"}, {"PACELINE_RECORD": "x"}, {"PACELINE_RECORD": "x", "RANK": "0"}])
def test_only_a_process_with_a_rank_and_a_folder_looks_out_for_models(path, monkeypatch, told):
    module, added = started(monkeypatch, **told)
    assert [type(one) for one in added] == ([module.WatchedImport] if len(told) == 2 else [])


def test_the_users_own_start_runs_as_well(path, monkeypatch):
    (path / "b" / "sitecustomize.py").write_text("import sys\nsys.paceline_started = 'b'\n")
    monkeypatch.setattr(sys, "paceline_started", "", raising=False)
    started(monkeypatch)
    assert sys.paceline_started == "b"


def test_a_module_is_watched_once_it_has_run_and_no_other_is(path, monkeypatch):
    module, (finder,) = started(monkeypatch, PACELINE_RECORD="here", RANK="0")
    (path / "a" / "parallel.py").write_text("DistributedDataParallel = 'the class'\n")
    monkeypatch.setattr(module, "DDP", "parallel")
    assert finder.find_spec("json") is None
    watched = []
    monkeypatch.setattr(module, "watch_if_possible", lambda one: watched.append(one.DistributedDataParallel))
    spec = finder.find_spec("parallel")
    assert isinstance(spec, importlib.machinery.ModuleSpec)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert watched == ["the class"]
    (path / "a" / "parallel.py").unlink()
    importlib.invalidate_caches()
    assert finder.find_spec("parallel") is None


def test_a_class_is_recorded_into_the_folder_that_was_named_or_a_sentence_says_why_not(path, monkeypatch, capsys):
    module, _ = started(monkeypatch, PACELINE_RECORD="here", RANK="0", PACELINE_HOME="/home/of/it")
    told = []
    monkeypatch.setattr("paceline.recording.automatic.watch_every", lambda *given: told.append(given))
    module.watch_if_possible(SimpleNamespace(DistributedDataParallel="the class"))
    assert told == [("the class", "here")]
    assert sys.path[-1] == "/home/of/it"
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("PACELINE_HOME")
    module.watch_if_possible(SimpleNamespace(DistributedDataParallel="the class"))
    assert capsys.readouterr().err == "paceline: this worker is not recorded: KeyError('PACELINE_HOME')\n"
    assert len(told) == 1
