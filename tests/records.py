"""How a record is made, changed and compared, and what may be left out of a call: the same questions in every room."""

import dataclasses
import inspect

import pytest


def left_out(thing):
    """What may be left out of a call, by name; made anew for each where a record has a list or a dictionary."""
    found = {one.name: one.default for one in _parameters(thing) if one.default is not inspect.Parameter.empty}
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    made = {one.name: one.default_factory for one in fields if one.default_factory is not dataclasses.MISSING}
    return found | {name: made[name]() for name in found if name in made}


def require_record(kind, frozen, named, alike):
    """Frozen or not, by names alone or by places too, and the same as another with the same parts or not."""
    name = dataclasses.fields(kind)[0].name
    one = object.__new__(kind)
    if frozen:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, 1)
    else:
        setattr(one, name, 1)
        assert getattr(one, name) == 1
    by_name, by_place = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {one.kind for one in _parameters(kind)} == {by_name if named else by_place}
    assert (kind.__eq__ is not object.__eq__) is alike


def _parameters(thing):
    return inspect.signature(thing).parameters.values()
