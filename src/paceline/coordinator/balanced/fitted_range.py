"""The range that a served model was fitted on, and whether its inputs have left it. Axes: W workers, D covariates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask
from paceline.coordinator.balanced import reasons as why
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.protocol import Predictor
from paceline.predictors.reference import MANY, Reference, changes
from paceline.predictors.report import Report


class FittedRange:
    """Tracks which share of the latest reports is unlike what the predictor was fitted on.

    It is the measure of ``paceline models check``, without a backtest or a refit.

    Parameters
    ----------
    reference
        What the served predictor was fitted on.

    Attributes
    ----------
    lasts
        Whether it has begun, and not ended.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._speed_W: Array | None = None
        self._shares = np.zeros(2)
        self.lasts = self._is_news = False

    @classmethod
    def of(cls, predictor: Predictor) -> FittedRange | None:
        """Return a tracker that has seen no report; None for a predictor without a reference."""
        reference = predictor.reference_ if isinstance(predictor, FleetPredictor) else None
        return None if reference is None else cls(reference)

    @property
    def share(self) -> float:
        """The share of changes of speed, or of covariates if that is larger, that is unlike what was fitted."""
        return float(self._shares.max())

    def follow(self, report: Report) -> None:
        """Take in the report of an iteration."""
        known = self._reference
        before_W, self._speed_W = self._speed_W, report.speed
        if before_W is not None:
            change_W = changes(np.stack([before_W, self._speed_W]))[0]
            self._move(0, known.unknown_changes(change_W), change_W)
        if report.covariates is not None and known.covariates:
            covariates_WD = np.asarray(report.covariates, dtype=np.float64)
            self._move(1, known.unknown_covariates(covariates_WD), covariates_WD)
        # Drift ends below this share of what it began at, so that it is not reported again and again at the threshold.
        lasted, least = self.lasts, MANY * 0.5 if self.lasts else MANY
        self.lasts = bool(self._shares.max() > least)
        self._is_news |= self.lasts and not lasted

    def start(self) -> None:
        """Start again after a change of the fleet: the next speeds are not compared with earlier ones."""
        self._speed_W = None

    def news(self) -> tuple[why.Reason, ...]:
        """Return a remark if drift has begun since the last call."""
        began, self._is_news = self._is_news, False
        of_changes, of_covariates = map(float, self._shares)
        return ((why.left_fitted, (of_changes, of_covariates, MANY)),) if began else ()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state of the comparison."""
        speed = {} if self._speed_W is None else {"speed": np.array(self._speed_W)}
        return {"shares": self._shares.copy(), "lasts": np.array([self.lasts, self._is_news]), **speed}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume the comparison; a state saved without one starts a new one."""
        self._shares = np.array(state.get("shares", np.zeros(2)))
        self.lasts, self._is_news = map(bool, state.get("lasts", (False, False)))
        self._speed_W = np.array(state["speed"]) if "speed" in state else None

    def _move(self, place: int, unknown: Mask, values: Array) -> None:
        known = unknown[np.isfinite(values)]
        if known.size:
            # Weight of the newest iteration in the shares: the last hundred count, and one jump of a whole fleet is
            # not drift.
            self._shares[place] += 0.01 * (known.mean() - self._shares[place])
