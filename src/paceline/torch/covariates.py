"""Covariates that a rank samples for its predictor: factors that change a worker's speed, such as competing tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from paceline.predictors import Predictor
from paceline.recording.covariates import Covariate, default_covariates


class CovariateSampler:
    """The newest value of every covariate."""

    def __init__(self, samplers: Sequence[Callable[[], float]]) -> None:
        self._samplers = tuple(samplers)
        self.newest_values: list[float] = []
        self.next = 0.0 if self._samplers else math.inf
        """Time to sample again, by ``time.perf_counter``."""

    def sample_all(self) -> None:
        """Sample all covariates."""
        began = time.perf_counter()
        self.newest_values = [sample() for sample in self._samplers]
        ended = time.perf_counter()
        # sampling takes at most 0.4% of the time: where it takes longer, a sample serves several iterations
        self.next = ended + (ended - began) / 0.004

    def close(self) -> None:
        """Release the covariates, each of which keeps a kernel file open."""
        self._samplers, self.next = (), math.inf


def select_covariates(predictor: Predictor, covariates: Sequence[Covariate] | None) -> list[Callable[[], float]]:
    """Return what samples the predictor's covariates, in its order; NaN, as for unknown, where nothing does."""
    if not predictor.covariate_names:
        return []
    known = {covariate.name: covariate for covariate in (default_covariates() if covariates is None else covariates)}
    missing = [name for name in predictor.covariate_names if name not in known]
    if len(missing) == len(predictor.covariate_names):
        raise ValueError(
            f"none of the covariates that the predictor reads, {missing}, is sampled here (sampled: {list(known)}): "
            "pass covariates=[...] with a Covariate of each of these names"
        )
    return [known[name].sample if name in known else lambda: math.nan for name in predictor.covariate_names]
