"""Random numbers under audit: every sample gets the same ones wherever it is loaded, and other draws are noticed.

All generators are meant: those of torch, numpy and Python, and those that the script makes for itself.
"""

from __future__ import annotations

import pickle
import random
import sys
import zlib
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from paceline.audit.inside.patches import Patches

LIBRARY_PACKAGES = ("torch", "paceline")
"""Packages whose own generators, such as those of samplers, are left alone."""

_made: list[Any] = []  # generators of the script's own
_seeds: list[int] = []  # seeds of the blocks that are entered


class SeededBlock:
    """Seeds all generators inside, and puts them back: outside they go on as if nothing had been drawn."""

    def __init__(self, key: object) -> None:
        self.seed = zlib.crc32(str(key).encode())

    def __enter__(self) -> None:
        self._restore: list[Callable[[], object]] = []
        for generator in _all_generators():
            get_state, set_state, seed = _state_functions(generator)
            self._restore.append(partial(set_state, get_state()))
            seed(self.seed)
        _seeds.append(self.seed)

    def __exit__(self, *error: object) -> None:
        _seeds.pop()
        for restore in self._restore:
            restore()


def generator_checksums() -> dict[int, int]:
    return {
        id(generator): zlib.crc32(_state_bytes(_state_functions(generator)[0]())) for generator in _all_generators()
    }


def generators_used_since(checksums_before: dict[int, int]) -> bool:
    now = generator_checksums()
    return any(now.get(name, state) != state for name, state in checksums_before.items())


def seed_script(patches: Patches, seed: int) -> None:
    """Seed what a script does not seed itself, and note the generators that it makes."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - scripts draw from it

    def wrap_default_rng(original: Any) -> Any:
        def make_generator(requested_seed: Any = None) -> Any:
            return _track_generator(original((_seeds or [seed])[-1] if requested_seed is None else requested_seed))

        return make_generator

    def wrap_random_init(original: Any) -> Any:
        def init(generator: Any, *arguments: Any, **options: Any) -> None:
            original(generator, *arguments, **options)
            if not isinstance(generator, random.SystemRandom):
                _track_generator(generator)

        return init

    patches.replace(np.random, "default_rng", wrap_default_rng)
    patches.replace(np.random, "RandomState", _tracked_class)
    patches.replace(torch, "Generator", _tracked_class)
    patches.replace(random.Random, "__init__", wrap_random_init)
    patches.undo_stack.callback(_made.clear)


def _tracked_class(base_class: Any) -> Any:
    """Return a class whose instances are noted, and of which all instances of the class itself are."""

    class Meta(type(base_class)):  # type: ignore[misc]
        def __instancecheck__(cls, item: object) -> bool:
            return isinstance(item, base_class)

        # Not in ``__init__``: a class that takes its arguments in ``__new__`` has none that takes any.
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return _track_generator(super().__call__(*arguments, **options))

    class Tracked(base_class, metaclass=Meta):  # type: ignore[misc]
        pass

    return update_wrapper(Tracked, base_class, updated=())


def _track_generator(generator: Any) -> Any:
    """Note a generator; not one that is made for a single sample, nor one of a library."""
    if not _seeds and sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] not in LIBRARY_PACKAGES:
        _made.append(generator)
    return generator


def _all_generators() -> list[Any]:
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []
    known: list[Any] = [random._inst, np.random.mtrand._rand, torch.default_generator]
    return known + cuda + _made


def _state_functions(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]:
    """Return the functions that return a generator's state, set it, and seed it."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate, generator.seed
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        set_state = partial(setattr, bits, "state")
        return lambda: bits.state, set_state, lambda seed: set_state(type(bits)(seed).state)
    return generator.get_state, generator.set_state, getattr(generator, "manual_seed", generator.seed)


def _state_bytes(state: Any) -> bytes:
    return state.cpu().numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
