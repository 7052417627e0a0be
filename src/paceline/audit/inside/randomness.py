"""Random numbers under audit: every sample gets the same ones wherever it is loaded, and other draws are noticed.

All generators are meant: those of torch, numpy and Python, and those that the script makes for itself.
"""

from __future__ import annotations

import pickle
import random
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from paceline.audit.inside.patches import Patches

LIBRARIES = ("torch", "paceline")
"""Packages whose own generators, such as those of samplers, are left alone."""

_made: list[Any] = []  # generators of the script's own
_seeds: list[int] = []  # seeds of the Seeded blocks that are entered


class Seeded:
    """Seeds all generators inside, and puts them back: outside they go on as if nothing had been drawn."""

    def __init__(self, key: object) -> None:
        self.seed = zlib.crc32(str(key).encode())

    def __enter__(self) -> None:
        """Seed the generators."""
        self._states = [(generator, _state(generator)) for generator in _generators()]
        for generator, _ in self._states:
            _seed(generator, self.seed)
        _seeds.append(self.seed)

    def __exit__(self, *error: object) -> None:
        """Put them back."""
        _seeds.pop()
        for generator, state in self._states:
            _set_state(generator, state)


def random_state() -> dict[int, int]:
    """Return a checksum of the state of every generator."""
    return {id(generator): zlib.crc32(_state_bytes(_state(generator))) for generator in _generators()}


def used_since(before: dict[int, int]) -> bool:
    """Return whether a generator that was there has been drawn from."""
    now = random_state()
    return any(now.get(name, state) != state for name, state in before.items())


def seed_script(patches: Patches, seed: int) -> None:
    """Seed what a script does not seed itself, and note the generators that it makes."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - scripts draw from it

    def default_rng(before: Any) -> Any:
        def make(chosen: Any = None) -> Any:
            return _note(before((_seeds or [seed])[-1] if chosen is None else chosen))

        return make

    def note_generator(original: Any) -> Any:
        def init(generator: Any, *arguments: Any, **options: Any) -> None:
            original(generator, *arguments, **options)
            if not isinstance(generator, random.SystemRandom):
                _note(generator)

        return init

    patches.replace(np.random, "default_rng", default_rng)
    patches.replace(np.random, "RandomState", _noting_class)
    patches.replace(torch, "Generator", _noting_class)
    patches.replace(random.Random, "__init__", note_generator)
    patches.at_end(_made.clear)


def _noting_class(base_class: Any) -> Any:
    """Return a class whose instances are noted, and of which all instances of the class itself are."""

    class Meta(type(base_class)):  # type: ignore[misc]
        def __instancecheck__(cls, item: object) -> bool:
            return isinstance(item, base_class)

        # Not in ``__init__``: a class that takes its arguments in ``__new__`` has none that takes any.
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return _note(super().__call__(*arguments, **options))

    class Noted(base_class, metaclass=Meta):  # type: ignore[misc]
        pass

    Noted.__name__, Noted.__qualname__, Noted.__module__ = (
        base_class.__name__,
        base_class.__qualname__,
        base_class.__module__,
    )
    return Noted


def _note(generator: Any) -> Any:
    """Note a generator; not one that is made for a single sample, nor one of a library."""
    if not _seeds and sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES:
        _made.append(generator)
    return generator


def _generators() -> list[Any]:
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []
    known: list[Any] = [random._inst, np.random.mtrand._rand, torch.default_generator]
    return known + cuda + _made


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, generator_state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(generator_state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = generator_state
    else:
        generator.set_state(generator_state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)


def _state_bytes(state: Any) -> bytes:
    return state.cpu().numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
