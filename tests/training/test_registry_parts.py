"""A registry's folder, its index and its lock, and what is known of a model by its place."""

import fcntl
import hashlib
import json
import os
import re
from dataclasses import asdict

import numpy as np
import pytest

from paceline.predictors import EWMA, LastValue
from paceline.training import load_model, model_files, model_registry, save_model
from paceline.training.entry import Entry, Evaluation, Score
from paceline.training.model_registry import Registry, fitted_to, is_registry
from paceline.training.sources import Fact

FACTS = [Fact("a", "in/a.parquet", 4, 2, "ab"), Fact("b", "", 5, 3, "")]
SCORE = Score("x", 0.9, 0.8, 0.7, 0.1)
MEASURED = Evaluation((FACTS[0],), SCORE, (SCORE,), (("a/w", 1.5),), 1.25, 0.5)


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "in" / "models")


def test_an_entry_holds_all_that_was_told_and_comes_back_from_json(registry):
    added = registry.add("m", EWMA(), command="fit it", data=FACTS, start="before", evaluation=MEASURED)
    file = registry.folder / "m" / "model.safetensors"
    assert added == Entry(
        name="m",
        kind="EWMA",
        configuration="EWMA(smoothing=0.2)",
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
        made=added.made,
        command="fit it",
        start="before",
        data=tuple(FACTS),
        evaluation=MEASURED,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", added.made)
    assert Registry(str(registry.folder)).entry("m") == added
    assert registry.path("m") == file
    assert model_files.describe_model(file)["fitted_on"] == "a, b"
    index = (registry.folder / "index.json").read_text()
    assert index == json.dumps(json.loads(index), indent=1)
    assert json.loads(index) == {"index_version": 1, "used": "", "models": {"m": json.loads(json.dumps(asdict(added)))}}
    assert sorted(path.name for path in registry.folder.iterdir()) == [".lock", "index.json", "m"]
    assert sorted(path.name for path in file.parent.iterdir()) == ["CARD.md", "model.safetensors"]
    assert registry.card("m").startswith("# m\n")


def test_an_empty_registry_holds_nothing_and_the_newest_model_is_used_until_one_is_chosen(registry):
    assert (registry.names, registry.used, is_registry(registry.folder)) == ((), "", False)
    with pytest.raises(ValueError, match=f"^there is no model in {registry.folder}$"):
        registry.load()
    for name in ("one", "two"):
        registry.add(name, EWMA(), command="")
        assert registry.used == name
    registry.use("one")
    registry.add("three", LastValue(), command="")
    assert (registry.names, registry.used) == (("one", "two", "three"), "one")
    assert is_registry(str(registry.folder))
    assert (repr(registry.load()), repr(registry.load("three"))) == ("EWMA(smoothing=0.2)", "LastValue()")


def test_a_folder_that_a_killed_process_left_is_used_again(registry):
    place = registry.folder / "m"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"half")
    registry.add("m", EWMA(smoothing=0.5), command="")
    assert registry.load("m").smoothing == 0.5


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "9", "x" * 100])
def test_names_of_folders_are_taken(registry, name):
    registry.add(name, EWMA(), command="")
    assert registry.names == (name,)


def test_one_process_at_a_time_changes_the_index_by_a_lock_that_anybody_can_take(registry, monkeypatch):
    asked, before = [], os.umask(0)
    try:
        monkeypatch.setattr(fcntl, "flock", lambda file, how: asked.append(how) if hasattr(file, "name") else None)
        registry.add("m", EWMA(), command="")
        registry.use("m")
    finally:
        os.umask(before)
    lock = registry.folder / ".lock"
    assert lock.stat().st_mode & 0o777 == 0o666
    assert asked == [fcntl.LOCK_EX] * 2
    lock.write_text("kept")
    registry.add("n", EWMA(), command="")
    assert lock.read_text() == "kept", "it is not made anew"


@pytest.mark.parametrize(
    "broken",
    [
        lambda entry: entry.pop("data"),
        lambda entry: entry.pop("command"),
        lambda entry: entry.update(more=1),
        lambda entry: entry.update(data=[{"name": "a"}]),
        lambda entry: entry.update(data=3),
        lambda entry: entry["evaluation"].update(worst=[["a", "x"]]),
        lambda entry: entry["evaluation"].pop("regret"),
    ],
)
def test_an_entry_that_is_not_whole_is_named_with_its_index(registry, broken):
    registry.add("m", EWMA(), command="", evaluation=MEASURED)
    file = registry.folder / "index.json"
    index = json.loads(file.read_text())
    broken(index["models"]["m"])
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"^{file}: what it says of 'm' is not whole: \w+Error\("):
        registry.entry("m")


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_an_index_of_another_version_is_refused(registry, version):
    registry.folder.mkdir(parents=True)
    (registry.folder / "index.json").write_text(json.dumps({"index_version": version, "models": {}}))
    says = f"index.json: is an index of version {version!r}; this version of paceline reads 1$"
    with pytest.raises(ValueError, match=says):
        print(registry.names)
    (registry.folder / "index.json").write_text(json.dumps({"index_version": 1, "models": {}}))
    assert (registry.names, registry.used) == ((), ""), "an older one names no model in use"


def test_a_model_that_is_gone_is_not_the_one_that_was_added(registry):
    registry.add("m", EWMA(), command="")
    registry.path("m").unlink()
    with pytest.raises(
        ValueError, match=r"model\.safetensors: is not the file that was added to the registry; add it un"
    ):
        registry.load()


class Mine(EWMA):
    pass


def test_a_model_of_ones_own_class_is_loaded_by_its_class(registry):
    registry.add("m", Mine(smoothing=0.3), command="")
    with pytest.raises(ValueError, match="holds a Mine"):
        registry.load("m")
    assert type(registry.load("m", kinds=[Mine])) is Mine


def test_what_a_model_was_fitted_to_is_known_by_its_place(registry, tmp_path):
    registry.add("one", EWMA(), command="", data=FACTS)
    registry.add("two", EWMA(), command="", data=FACTS[:1])
    file = registry.path("one")
    assert fitted_to(str(registry.folder)) == tuple(FACTS[:1])
    assert fitted_to(str(file)) == tuple(FACTS)
    by_name = tuple(Fact(name, "", 0, 0, "") for name in "ab")
    places = [
        registry.folder / "one" / "other.safetensors",
        registry.folder / "three" / "model.safetensors",
        tmp_path / "models" / "one" / "model.safetensors",
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
        assert fitted_to(place) == by_name
    assert fitted_to(save_model(EWMA(), tmp_path / "a.safetensors")) == ()


# -- files ---------------------------------------------------------------------------------------------------------


class Tried(EWMA):
    """Notes how a copy of it serves fleets while it is loaded."""

    told = []  # noqa: RUF012 - of the class, as copies are tried

    def reset(self, workers):
        self.told.append(tuple(workers))
        super().reset(workers)

    def observe(self, report):
        self.told.append((report.samples.tolist(), [one for one in report.seconds.tolist() if one == one]))
        super().observe(report)

    def predict(self, covariates=None, *, horizon=1):
        self.told.append((covariates.shape, horizon))
        return super().predict(covariates, horizon=horizon)


def test_a_model_is_tried_on_two_small_fleets_and_has_none_afterwards(tmp_path):
    Tried.told.clear()
    found = load_model(save_model(Tried(), tmp_path / "a.safetensors"), kinds=[Tried])
    assert found.workers == ()
    workers = [one for one in Tried.told if one and isinstance(one[0], str)]
    assert workers == [tuple(f"worker {w}" for w in range(count)) for count in (3, 4)]
    asked = [one for one in Tried.told if one and isinstance(one[0], tuple)]
    assert asked == [((count, 0), horizon) for count in (3, 4) for horizon in (1, 2)]
    assert [len(one[1]) for one in Tried.told if one and isinstance(one[0], list)] == [2, 2, 3, 3], (
        "one of them is silent"
    )


class Words(EWMA):
    """Learns words, of which there may be none."""

    words = np.array([], dtype=np.str_)

    def state_dict(self):
        return super().state_dict() | {"learnt/words": self.words}

    def load_state_dict(self, state):
        self.words = state["learnt/words"]
        super().load_state_dict({name: value for name, value in state.items() if name != "learnt/words"})


@pytest.mark.parametrize("words", [[], ["a", "bcd", ""]])
def test_words_that_were_learnt_come_back_as_words(tmp_path, words):
    model = Words()
    model.words = np.array(words, dtype=np.str_)
    found = load_model(save_model(model, tmp_path / "a.safetensors"), kinds=[Words])
    assert (found.words.tolist(), found.words.dtype.kind) == (words, "U")


class Divides(EWMA):
    """Divides by nothing, as a model may that has seen nothing yet."""

    def predict(self, covariates=None, *, horizon=1):
        assert np.isinf(np.ones(1) / np.zeros(1)).all()
        return super().predict(covariates, horizon=horizon)


def test_numbers_that_overflow_while_a_model_is_tried_are_no_warning(tmp_path):
    assert load_model(save_model(Divides(), tmp_path / "a.safetensors"), kinds=[Divides]).smoothing == 0.2


def test_a_file_that_is_not_there_is_named_without_a_secret(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"^there is no model file {tmp_path}/gone$"):
        load_model(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"^there is no model file s3:/\*\*\*@bucket/a$"):
        load_model("s3://key:HUSHHUSH@bucket/a")
    assert model_registry.INDEX_VERSION == model_files.FORMAT_VERSION == 1
    assert model_files.MOST_HEADER == 4 * 1024**2, "as documented"
