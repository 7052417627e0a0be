"""Classes of a user's own: where they are found, what is refused of them, and where an error passed."""

import copy
import pickle
import sys

import pytest

from paceline.cli import own_predictors
from paceline.cli.own_predictors import is_own, own_predictor, place_in_own
from paceline.predictors import EWMA
from paceline.predictors.adopted import Adopted

CLASSES = """
from paceline.predictors import EWMA

class Slow(EWMA):
    def fails(self):
        return [][{place}]

class Other: pass

number = 3
"""
KEEPS = """
import numpy as np
from paceline.predictors import Forecast

class Keeps:
    workers, covariate_names = (), ()
    def fit(self, traces): return self
    def reset(self, workers): pass
    def join(self, worker): pass
    def leave(self, worker): pass
    def rename(self, old, new): pass
    def observe(self, report): pass
    def predict(self, *, covariates=None, horizon=1): pass
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder; what is imported from it is forgotten."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_predictors, "files", set())
    before = set(sys.modules)
    yield tmp_path / "here"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, name, text=CLASSES, place=0):
    (folder / name).write_text(text.replace("{place}", str(place)))


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("a.py:B", True), ("a/b c.py:B", True), ("a.b:C", True), ("a:B:x=1", True), ("a:_B1:", True), ("a:B:x:y", True),
        ("a.py", False), ("a:1B", False), ("a-b:C", False), ("a-b.py:C", True), ("ewma", False), (":B", False),
        ("ewma:smoothing=0.5", False), ("a:b:c.py:D", True), ("a:", False),
    ],
)  # fmt: skip
def test_a_module_a_class_and_its_arguments_are_ones_own(text, own):
    assert is_own(text) is own


def test_the_working_folder_comes_first_and_is_added_once(here, tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    write(tmp_path / "first", "own_twice.py", "class Slow: pass")
    sys.path.insert(0, str(tmp_path / "first"))
    write(here, "own_twice.py")
    write(here, "own_second.py")
    assert isinstance(own_predictor("own_twice:Slow"), EWMA)
    assert isinstance(own_predictor("own_second:Slow"), EWMA)
    assert sys.path[:2] == [str(here), str(tmp_path / "first")]
    assert sys.path.count(str(here)) == 1


def test_a_class_takes_arguments_and_can_be_copied_and_pickled(here):
    write(here, "mine.py")
    made = own_predictor("mine.py:Slow:smoothing=0.25")
    assert (type(made).__module__, made.smoothing) == ("own_mine", 0.25)
    assert own_predictor("mine.py:Slow:").smoothing == own_predictor("mine.py:Slow").smoothing == 0.2
    again = pickle.loads(pickle.dumps(sys.modules["own_mine"].Slow))
    assert again is sys.modules["own_mine"].Slow
    assert copy.deepcopy(made).smoothing == 0.25


def test_what_keeps_the_contract_is_adopted_and_takes_no_arguments(here):
    write(here, "mine.py", KEEPS)
    assert isinstance(own_predictor("mine.py:Keeps"), Adopted)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - all of it is compared
        own_predictor("mine.py:Keeps:a=1")
    contract = "mine.py:Keeps:a=1 must keep the contract of paceline.predictors.Predictor"
    assert str(refused.value) == f"{contract}: arguments are taken by classes that inherit from FleetPredictor"


def test_what_a_class_lacks_is_named(here):
    write(here, "mine.py", f"{CLASSES}\n{KEEPS.replace('def leave', 'def left')}")
    names = [
        "covariate_names", "fit", "join", "leave", "load_state_dict", "observe", "predict", "rename", "reset",
        "state_dict", "workers",
    ]  # fmt: skip
    for name, missing in (("Keeps", ["leave"]), ("Other", names)):
        with pytest.raises(ValueError, match=f"mine.py:{name} must keep the contract") as refused:
            own_predictor(f"mine.py:{name}")
        said = str(refused.value).partition("it lacks ")[2]
        assert sorted(set(eval(said))) == missing


@pytest.mark.parametrize("name", ["Nothing", "number"])
def test_what_is_no_class_is_answered_with_the_classes_there_are(here, name):
    write(here, "mine.py")
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - all of it is compared
        own_predictor(f"mine.py:{name}")
    assert str(refused.value) == f"mine.py has no class {name!r}; it has ['EWMA', 'Slow', 'Other']"


@pytest.mark.parametrize("name", ["not_here", "not_here.at.all"])
def test_a_module_that_is_not_there_is_told_from_one_that_it_imports(here, name):
    with pytest.raises(ValueError, match=rf"^there is no module '{name}' here; name a file, such as") as refused:
        own_predictor(f"{name}:Slow")
    assert isinstance(refused.value.__cause__, ModuleNotFoundError)
    write(here, "own_imports.py", "import not_here_either")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'not_here_either'$"):
        own_predictor("own_imports:Slow")
    write(here, "own_raises.py", "raise ModuleNotFoundError('odd')")
    with pytest.raises(ModuleNotFoundError, match=r"^odd$"):
        own_predictor("own_raises:Slow")


def test_a_file_that_is_not_there_is_named(here):
    (here / "folder.py").mkdir()
    for name in ("gone.py", "folder.py"):
        with pytest.raises(FileNotFoundError, match=rf"^there is no file {name}$"):
            own_predictor(f"{name}:Slow")


@pytest.mark.parametrize("named", ["mine.py", "mine"])
def test_an_error_in_ones_own_file_is_placed_and_one_elsewhere_is_not(here, named):
    write(here, "mine.py")
    own = own_predictor(f"{named}:Slow")
    with pytest.raises(IndexError) as raised:
        own.fails()
    assert place_in_own(raised.value) == "mine.py, line 6, in fails"
    with pytest.raises(ZeroDivisionError) as elsewhere:
        1 / 0  # noqa: B018 - it raises
    assert place_in_own(elsewhere.value) == place_in_own(None) == ""


def test_a_file_that_fails_while_it_is_run_is_placed(here):
    write(here, "wrong.py", "def f():\n    return 1 / 0\n\nf()\n")
    with pytest.raises(ZeroDivisionError) as raised:
        own_predictor("wrong.py:Slow")
    assert place_in_own(raised.value) == "wrong.py, line 2, in f", "the last place in it"
