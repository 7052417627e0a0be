"""A mutant without importing anew: the code of the functions that are there is replaced."""

from __future__ import annotations

import gc
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mutants_made import Place, changed

Pair = tuple[types.CodeType, types.CodeType]
"""The code of a function as it is, and as it is to be."""


class CannotReplaceError(Exception):
    """A change lies outside of all functions, as that of a default: only what imports it anew shows it."""


class Functions:
    """All functions that were made from files of a folder, by their code."""

    def __init__(self, folder: Path) -> None:
        self._held: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        for thing in gc.get_objects():
            if type(thing) is types.FunctionType and thing.__code__.co_filename.startswith(str(folder)):
                self._held[_key(thing.__code__)].append(thing)
        names = {name for name, _, _ in self._held}
        self._names = {str(Path(name).resolve().relative_to(folder.resolve())): name for name in names}

    def replace(self, file: str, source: str, place: Place) -> None:
        """Replace the code of a function by the changed one.

        Raises ``CannotReplaceError``; a file of which nothing is held needs nothing: its import reads what lies there.
        """
        if file not in self._names:
            return
        before, after = (
            compile(tree, self._names[file], "exec", dont_inherit=True) for tree in (source, changed(source, place))
        )
        for chain in _differing(before, after):
            inside = [pair for pair in chain if _is_function(pair[0])]
            held = [(function, new) for old, new in inside for function in self._held.get(_key(old), ())]
            if not held or chain[-1] != inside[-1]:
                raise CannotReplaceError
            for function, new in held:
                function.__code__ = new


def _key(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _is_function(code: types.CodeType) -> bool:
    """Return whether it is of a function: that of a module or of a class runs once, as it is imported."""
    return bool(code.co_flags & 1)  # CO_OPTIMIZED


def _differing(before: types.CodeType, after: types.CodeType, *around: Pair) -> Iterator[list[Pair]]:
    """Yield what differs in itself, beside the codes inside it, after all that is around it."""
    chain = [*around, (before, after)]
    if _own(before) != _own(after):
        yield chain
    inside = ([one for one in code.co_consts if isinstance(one, types.CodeType)] for code in (before, after))
    for old, new in zip(*inside, strict=True):
        yield from _differing(old, new, *chain)


def _own(code: types.CodeType) -> tuple[object, ...]:
    constants = [(type(one), repr(one)) for one in code.co_consts if not isinstance(one, types.CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable, constants
