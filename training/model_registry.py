"""A registry of models that is a folder: each model with its card, and an index that links model, data and evaluation.

::

    models/
        index.json
        fleet-a/model.safetensors
        fleet-a/CARD.md
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline._address import is_address, shown
from paceline._whole import written_whole
from paceline.predictors import KINDS, FleetPredictor
from paceline.training.card import card_of
from paceline.training.entry import Entry, Evaluation
from paceline.training.model_files import describe_model, load_model, save_model
from paceline.training.sources import Fact

INDEX, MODEL, CARD, LOCK = "index.json", "model.safetensors", "CARD.md", ".lock"

INDEX_VERSION = 1

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
"""Names of models are names of folders, on any system."""


@dataclass(frozen=True)
class Registry:
    """The models in a folder.

    Parameters
    ----------
    folder
        The folder; it is made when the first model is added.

    Raises
    ------
    ValueError
        If it is an address: the models of a store are used from a copy.

    Examples
    --------
    >>> import tempfile
    >>> from paceline.predictors import EWMA
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     registry = Registry(folder)
    ...     _ = registry.add("quick", EWMA(smoothing=0.5), command="by hand")
    ...     _ = registry.add("slow", EWMA(smoothing=0.1), command="by hand")
    ...     registry.use("quick")
    ...     registry.names, registry.load(), registry.load("slow")
    (('quick', 'slow'), EWMA(smoothing=0.5), EWMA(smoothing=0.1))
    """

    folder: Path

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if is_address(os.fspath(folder)):
            raise ValueError(f"a registry must be a folder of this machine, got the address {shown(os.fspath(folder))}")
        object.__setattr__(self, "folder", Path(folder))

    @property
    def names(self) -> tuple[str, ...]:
        """The models, in the order in which they were added."""
        return tuple(self._index()["models"])

    @property
    def used(self) -> str:
        """The model in use: the one chosen, or else the newest; empty if there is none."""
        index = self._index()
        return str(index["used"] or next(reversed(index["models"]), ""))

    def path(self, name: str) -> Path:
        """Return the file of a model."""
        self.entry(name)
        return self.folder / name / MODEL

    def entry(self, name: str) -> Entry:
        """Return the index's entry of a model.

        Raises
        ------
        ValueError
            If there is no such model.
        """
        models = self._index()["models"]
        # An index that somebody else made may name any folder.
        if name not in models or not NAME.fullmatch(name):
            raise ValueError(f"there is no model {name!r} in {self.folder}; there are {list(models)}")
        try:
            return Entry.of(models[name])
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{self.folder / INDEX}: what it says of {name!r} is not whole: {error!r}") from error

    def card(self, name: str) -> str:
        """Return a model's card, in Markdown."""
        self.entry(name)
        return (self.folder / name / CARD).read_text()

    def add(
        self,
        name: str,
        predictor: FleetPredictor,
        *,
        command: str,
        data: Sequence[Fact] = (),
        start: str = "",
        evaluation: Evaluation | None = None,
    ) -> Entry:
        """Write a model with its card, and list it; an existing model is never replaced.

        Parameters
        ----------
        name
            Letters, digits, ``.``, ``_`` and ``-``.
        predictor
            The fitted predictor.
        command
            How it was made.
        data
            What it was fitted to: :attr:`Source.facts`.
        start
            The model that its fit started from.
        evaluation
            How good it is on traces it was not fitted to.

        Raises
        ------
        ValueError
            If the name is taken or cannot name a folder of the registry.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"a model's name must be letters, digits, '.', '_' and '-', got {name!r}")
        if name.casefold() == INDEX:
            raise ValueError(f"a model's name must not be {name!r}: the list of models is kept in a file of that name")
        with self._locked():
            return self._added(name, predictor, command, data, start, evaluation)

    def _added(
        self,
        name: str,
        predictor: FleetPredictor,
        command: str,
        data: Sequence[Fact],
        start: str,
        evaluation: Evaluation | None,
    ) -> Entry:
        index, place = self._index(), self.folder / name
        # Some file systems know one name in small and in capital letters.
        if same := [one for one in index["models"] if one.casefold() == name.casefold()]:
            raise ValueError(f"there is a model {same[0]!r} in {self.folder} already: take another name")
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise ValueError(f"{place} is a file or leads elsewhere, and is never written into: take another name")
        place.mkdir(parents=True, exist_ok=True)
        fitted_on = ", ".join(fact.name for fact in data[:100])
        file = save_model(predictor, self.folder / name / MODEL, fitted_on=fitted_on)
        entry = Entry(
            name=name,
            kind=type(predictor).__name__,
            configuration=repr(predictor),
            digest=hashlib.sha256(file.read_bytes()).hexdigest(),
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            start=start,
            data=tuple(data),
            evaluation=evaluation,
        )
        with written_whole(self.folder / name / CARD) as temporary:
            temporary.write_text(card_of(entry))
        # Listed last: a process killed before leaves a folder that no index names.
        index["models"][name] = asdict(entry)
        self._write(index)
        return entry

    def use(self, name: str) -> None:
        """Choose the model that is loaded without a name."""
        self.entry(name)
        with self._locked():
            self._write({**self._index(), "used": name})

    def load(self, name: str = "", *, kinds: Sequence[type[FleetPredictor]] = KINDS) -> FleetPredictor:
        """Read a model, by default the one in use.

        Raises
        ------
        ValueError
            If there is none, or its file is not the one that was added.
        """
        name = name or self.used
        if not name:
            raise ValueError(f"there is no model in {self.folder}")
        entry, file = self.entry(name), self.path(name)
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != entry.digest:
            raise ValueError(f"{file}: is not the file that was added to the registry; add it under another name")
        return load_model(file, kinds=kinds)

    def add_file(
        self, name: str, file: str | os.PathLike[str], *, command: str, evaluation: Evaluation | None = None
    ) -> Entry:
        """Add a model file that was made elsewhere; its data are known by name only."""
        model = load_model(Path(file))
        return self.add(name, model, command=command, data=fitted_to(file), evaluation=evaluation)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the index: of two that read it at once, one would undo the other."""
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        # Never through a link: it would make, or lock, a file elsewhere.
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # closing the file, however the process ends, gives it back
            yield

    def _index(self) -> dict[str, Any]:
        file = self.folder / INDEX
        if not file.exists():
            return {"index_version": INDEX_VERSION, "used": "", "models": {}}
        try:
            index = json.loads(file.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}: is no whole JSON: {error}") from error
        version = index.get("index_version") if isinstance(index, dict) else None
        if version != INDEX_VERSION or not isinstance(index.get("models"), dict):
            raise ValueError(
                f"{file}: is an index of version {version!r}; this version of paceline reads {INDEX_VERSION}"
            )
        return {"used": "", **index}

    def _write(self, index: dict[str, Any]) -> None:
        with written_whole(self.folder / INDEX) as temporary:
            temporary.write_text(json.dumps(index, indent=1))


def is_registry(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a registry of models."""
    return (Path(path) / INDEX).is_file()


def fitted_to(model: str | os.PathLike[str]) -> tuple[Fact, ...]:
    """Return the facts about a model's fit: the model in use of a registry, one of its files, or a file alone.

    A registry knows the digest of every trace. A file alone knows at most 100 names: its facts have no digest.
    """
    path = Path(model)
    if is_registry(path):
        registry = Registry(path)
        return registry.entry(registry.used).data
    owner, name = Registry(path.parent.parent), path.parent.name
    if path.name == MODEL and is_registry(owner.folder) and name in owner.names:
        return owner.entry(name).data
    names = str(describe_model(path)["fitted_on"]).split(", ")
    return tuple(Fact(name, "", 0, 0, "") for name in names if name)
