"""Made fleets, published profiles and reports of health are what they were: benchmarks and pages rest on them."""

from pathlib import Path

import layouts
import numpy as np
import pytest
from kept import require_kept

from paceline.datasets import Trace
from paceline.datasets.health import health
from paceline.datasets.profiles import read_profiles
from paceline.datasets.synthetic import HOSTED, KINDS, hosted_fleet, oracle_speed, synthetic_fleet

KEPT = Path(__file__).parent / "results.json"


def moments(panel_TW):
    """Return the mean and the spread of each worker, and its last value."""
    return [np.nanmean(panel_TW, axis=0), np.nanstd(panel_TW, axis=0), panel_TW[-1], int(np.isnan(panel_TW).sum())]


@pytest.mark.parametrize("kind", [*KINDS, *HOSTED])
def test_a_made_fleet_is_what_it_was(kind):
    trace = (synthetic_fleet if kind in KINDS else hosted_fleet)(kind, workers=6, iterations=400, seed=3)
    found = {"seconds": moments(np.log(trace.seconds)), "samples": trace.samples[0], "meta": dict(trace.meta)}
    found |= {name: moments(trace.covariates[..., d]) for d, name in enumerate(trace.covariate_names)}
    if kind in KINDS:
        found["oracle"] = moments(np.log(oracle_speed(kind, workers=6, iterations=400, seed=3)))
    require_kept(KEPT, kind, found)


@pytest.mark.parametrize("kind", ["gavel", "zeus", "pollux", "flash"])
def test_a_profile_is_read_as_it_was(kind, tmp_path):
    getattr(layouts, kind)(tmp_path)
    frames = {path.name: read_profiles(path, kind) for path in sorted(tmp_path.iterdir())}
    if kind == "zeus":
        frames["known"] = read_profiles(next(tmp_path.iterdir()), kind, epoch_samples={"cifar100": 50_000})
    found = {name: [list(frame.columns), *frame.to_numpy(dtype=object).tolist()] for name, frame in frames.items()}
    require_kept(KEPT, kind, found)


def troubled(seed):
    """A trace with all that a report of health speaks of: gaps, repeats, spikes, jumps of clocks, still covariates."""
    rng, shape = np.random.default_rng(seed), (150, 4)
    speed = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, shape), axis=0))
    if seed % 2:
        speed = rng.normal(100, 5, shape)
    speed[rng.random(shape) < 0.04 * seed] = np.nan
    speed[20:60:2, 0] = speed[19:59:2, 0]
    speed[rng.integers(0, 150, 6), 1] /= 4
    start = np.cumsum(rng.uniform(0.9, 1.1, shape), axis=0)
    start[100:, 2] += 50 * (seed % 3)
    start[70:, 3] -= 20 * (seed % 2)
    moving = np.log(speed) + rng.normal(0, 0.1, shape)
    moving[np.isnan(moving)] = 0.0
    still = np.where(rng.random(shape) < 0.3, np.nan, np.arange(4.0))
    stopped = rng.normal(size=shape)
    moving[90:, 1], still[90:, 1], stopped[90:, 1] = 1.0, 1.0, 1.0
    return Trace(
        samples=np.full(shape, 8.0),
        seconds=8.0 / speed,
        start=start if seed else None,
        covariates=np.stack([moving, still, stopped], axis=-1),
        covariate_names=["moving", "still", "stopped"],
        meta={"job": f"made {seed}", "dropped": "3 resumed totals", **({"restarts": "2"} if seed else {})},
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_report_of_health_is_what_it_was(seed):
    found = health(troubled(seed))
    require_kept(KEPT, f"health {seed}", {**found.to_dict(), "text": str(found)})
