"""Predictors by their names, for command lines and configuration files."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from inspect import signature
from typing import Any

from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.network import Training

registry: dict[str, type[FleetPredictor]] = {}
"""Every registered class by its plain name. ``predictors/__init__.py`` fills it, so that a predictor made of others can
take their names without importing them, which would close an import cycle."""


def register(*classes: type[FleetPredictor]) -> None:
    """Make predictors available by their class names, on the command line and wherever a name is accepted.

    ``ValueError`` if another class has the name: both would be compared as if they were one.

    Examples
    --------
    >>> class Doubled(registry["ewma"]): ...
    >>> register(Doubled)
    >>> named("doubled")
    Doubled()
    >>> del registry["doubled"]
    """
    for kind in classes:
        registered = registry.get(_normalize_name(kind.__name__), kind)
        other = f"{registered.__module__}.{registered.__qualname__}"
        if other != f"{kind.__module__}.{kind.__qualname__}":  # not defined once more
            raise ValueError(f"the name {name_of(kind)!r} is already registered for {other}: rename your class")
        registry[_normalize_name(kind.__name__)] = kind


def name_of(predictor_class: type) -> str:
    """Return the name of a class as typed on the command line.

    >>> [name_of(registry[plain]) for plain in ("huberewma", "gatednarx", "lastvalue")]
    ['huber-ewma', 'gated-narx', 'last-value']
    """
    return re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", predictor_class.__name__).lower()


def named(spec: str) -> FleetPredictor:
    """Return a new predictor from its name and, after a colon, its arguments.

    Case, ``-`` and ``_`` do not matter. The error for an unknown name or argument lists the valid ones.

    Examples
    --------
    >>> named("last-value")
    LastValue()
    >>> named("ewma:smoothing=0.5")
    EWMA(smoothing=0.5)
    >>> named("narx:lags=4,covariates=()").lags
    4
    >>> named("auto:covariates=cpu_load"), named("narx:covariates=cpu_load").covariates
    (Auto(covariates=('cpu_load',)), ('cpu_load',))
    """
    name, _, arguments = spec.partition(":")
    kind = registry.get(_normalize_name(name))
    if kind is None:
        raise ValueError(f"there is no predictor {name!r}; choose one of {list(map(name_of, registry.values()))}")
    return build_predictor(kind, arguments)


def build_predictor(predictor_class: type[FleetPredictor], arguments: str) -> FleetPredictor:
    """Return a new predictor of a class, from its arguments as they are typed: ``lags=8,hidden=16``."""
    values = _parse_arguments(arguments)
    parameters = signature(predictor_class).parameters
    if isinstance(values.get("covariates"), str):
        values["covariates"] = (values["covariates"],)
    if "training" in parameters:
        default = parameters["training"].default
        names = values.keys() & Training.__dataclass_fields__.keys() - parameters.keys()
        if options := {name: values.pop(name) for name in names}:  # such as learning_rate
            values["training"] = replace(default if isinstance(default, Training) else Training(), **options)
    if unknown := [argument for argument in values if argument not in parameters]:
        raise ValueError(f"{predictor_class.__name__} has no argument {unknown}; it has {list(parameters)}")
    return predictor_class(**values)


def _parse_arguments(typed_arguments: str) -> dict[str, Any]:
    """Parse ``lags=8,hidden=16``: names and literal values only, so that nothing is executed."""
    try:
        call = ast.parse(f"f({typed_arguments})", mode="eval").body
        if isinstance(call, ast.Call) and not call.args and all(word.arg for word in call.keywords):
            # a covariate may be named without quotes
            return {
                str(word.arg): word.value.id
                if word.arg == "covariates" and isinstance(word.value, ast.Name)
                else ast.literal_eval(word.value)
                for word in call.keywords
            }
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"{typed_arguments!r} must be arguments like lags=8,hidden=16 or covariates=('cpu_load','memory')")


def _normalize_name(predictor_name: str) -> str:
    return predictor_name.lower().replace("-", "").replace("_", "")
