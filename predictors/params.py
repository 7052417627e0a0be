"""Parameters of a predictor: the arguments of its constructor, by the names that scikit-learn gives these methods."""

from __future__ import annotations

from inspect import signature
from typing import Any, Self


class Params:
    """Base class of objects whose attributes are the arguments of their constructor.

    Examples
    --------
    >>> from paceline.predictors import EWMA, Calibrated
    >>> EWMA().set_params(smoothing=0.5)
    EWMA(smoothing=0.5)
    >>> Calibrated(EWMA(0.1)).get_params()
    {'predictor': EWMA(smoothing=0.1), 'predictor__smoothing': 0.1}
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name; ``deep`` adds those of predictors inside as ``inner__name``."""
        params = {name: getattr(self, name) for name in signature(type(self)).parameters}
        if deep:
            for name, inner in list(params.items()):
                if isinstance(inner, Params):
                    params |= {f"{name}__{key}": value for key, value in inner.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor and start again without state: all that was learned is dropped.

        Raises
        ------
        ValueError
            If there is no such parameter, or a value is out of range; the predictor is then unchanged.
        """
        if not params:
            return self
        mine = self.get_params(deep=False)
        inner: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            outer, _, rest = name.partition("__")
            if outer not in mine or (rest and not isinstance(mine[outer], Params)):
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {list(mine)}")
            if rest:
                inner.setdefault(outer, {})[rest] = value
            else:
                mine[outer] = value
        for outer, values in inner.items():
            mine[outer] = type(mine[outer])(**mine[outer].get_params(deep=False)).set_params(**values)
        fresh = type(self)(**mine)
        self.__dict__ = vars(fresh)
        return self

    def __repr__(self) -> str:
        """Return the class and the arguments that differ from their defaults."""
        params = signature(type(self)).parameters
        changed = [f"{n}={v!r}" for n, v in self.get_params(deep=False).items() if repr(v) != repr(params[n].default)]
        return f"{type(self).__name__}({', '.join(changed)})"
