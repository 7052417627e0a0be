"""A part of training.py: fit one network over a fleet, beside neuralforecast's MLP on as many windows."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from statistics import median

from training_alone import Clock, Found, alone, peak
from training_sizes import Sizes, medians, ratio, taken
from training_traces import FIRST, fleet

EVERY = 10
"""Iterations between two forecasts of the held-out last tenth."""


def measure(sizes: Sizes) -> Found:
    """Fit the same windows with NARX and with neuralforecast's MLP, in turns."""
    found: Found = {"narx": [], "peer": []}
    with fleet(sizes.workers, sizes.steps, files=max(sizes.workers // 500, 1)) as folder:
        for _ in range(sizes.turns):
            found["narx"].append(alone(fitted, folder=folder, epochs=sizes.passes, held_out=True))
            if find_spec("neuralforecast") is not None:
                found["peer"].append(alone(peer_fitted, folder=folder, windows=found["narx"][-1]["windows"]))
    return found


def fitted(folder: str, epochs: int, lags: int = 12, batch_size: int | None = None, held_out: bool = False) -> Found:
    """Fit NARX to a folder's first iterations, and score it on the others if asked to."""
    from paceline.predictors import NARX, Training, checks
    from paceline.predictors.fitting import Moment
    from paceline.training import fit

    with tempfile.TemporaryDirectory() as small:  # imports what reading and torch need
        checks.example_trace().save(f"{small}/small.parquet")
        fit(NARX(training=Training(epochs=1)), small)
    began: dict[str, list[float]] = {}
    found: Found = {}

    def tell(moment: Moment) -> None:
        began.setdefault(moment.stage, clock())
        found["windows"] = moment.total

    predictor = NARX(lags=lags, covariates=(), training=Training(epochs=epochs, batch_size=batch_size))
    clock = Clock()
    narx = fit(predictor, f"{folder}/first", progress=tell)
    found["fit"] = clock()
    found["reading"] = [part / whole for part, whole in zip(began["training"], found["fit"], strict=True)]
    found["peak"] = peak()
    return found | ({"rmse": _error(narx, folder)} if held_out else {})


def _error(narx: object, folder: str) -> float:
    """Return the RMSE of the logarithm of the speed one iteration ahead, over the last iterations."""
    import numpy as np

    from paceline.predictors import NARX, Report
    from paceline.training import Source

    assert isinstance(narx, NARX)
    errors = []
    for trace in Source(f"{folder}/whole"):
        narx.reset(trace.workers)
        log_speed_TW = np.log(trace.speed)
        for k in range(len(trace)):
            if k >= int(FIRST * len(trace)) and k % EVERY == 0:
                errors.append(np.log(narx.predict().speed) - log_speed_TW[k])
            narx.observe(Report(samples=trace.samples[k], seconds=trace.seconds[k]))
    return float(np.sqrt(np.nanmean(np.square(errors))))


def peer_fitted(folder: str, windows: int) -> Found:
    """Fit neuralforecast's MLP to as many windows, and score it in the same way."""
    import logging
    import warnings

    import numpy as np
    import pandas as pd

    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    from neuralforecast import NeuralForecast
    from neuralforecast.models import MLP

    from paceline.training import Source

    def tidy(name: str) -> pd.DataFrame:
        frame = pd.concat([trace.to_frame() for trace in Source(f"{folder}/{name}")], ignore_index=True)
        log_speed = np.log(frame["samples"] / frame["seconds"])
        return pd.DataFrame({"unique_id": frame["worker"].astype(str), "ds": frame["iteration"], "y": log_speed})

    frame = tidy("first")
    # A step takes 1,024 windows of 32 series, its defaults: as many steps as let the same number of windows pass.
    # Every window is standardised: without that its error is larger.
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    width = {"h": 1, "input_size": 12, "hidden_size": 16, "num_layers": 1}
    model = MLP(**width, max_steps=max(windows // 1024, 1), scaler_type="standard", logger=False, **quiet)
    clock = Clock()
    forecast = NeuralForecast(models=[model], freq=1)
    forecast.fit(frame)
    found: Found = {"fit": clock(), "peak": peak()}
    # Its forecast from every tenth origin of the last tenth, each as a series of the 12 values before it.
    log_speed_TW = tidy("whole").pivot(index="ds", columns="unique_id", values="y").to_numpy()
    workers, errors = np.arange(log_speed_TW.shape[1]), []
    for k in range(int(FIRST * len(log_speed_TW)), len(log_speed_TW), EVERY):
        y = log_speed_TW[k - 12 : k].T.ravel()
        before = pd.DataFrame({"unique_id": workers.repeat(12), "ds": np.tile(np.arange(12), len(workers)), "y": y})
        made = forecast.predict(df=before).sort_values("unique_id")["MLP"].to_numpy()
        errors.append(made - log_speed_TW[k])
    return found | {"rmse": float(np.sqrt(np.nanmean(np.square(errors))))}


def page(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    mine = found["narx"]
    names = {"narx": f"NARX, {sizes.passes} passes", "peer": "neuralforecast's MLP"}
    rows = [
        f"| {names[name]} | {taken(turns, 'fit')} | {turns[0]['rmse']:.4f} | {turns[0]['peak'] / 1e6:,.0f} MB |"
        for name, turns in found.items()
        if turns
    ]
    share = median(turn["reading"][1] for turn in mine)
    missed = [f"reading and windowing take {share:.0%} of the fit's time, not under 20 %"] if share >= 0.2 else []
    if peer := found["peer"]:
        if (times := ratio(mine, peer, "fit")) > 1 / 3:
            missed.append(f"the fit takes {times:.2f} of the time of {names['peer']}, not a third")
        if mine[0]["rmse"] >= peer[0]["rmse"]:
            missed.append(f"its error is {mine[0]['rmse']:.4f}, that of {names['peer']} {peer[0]['rmse']:.4f}")
    lines = [
        "## A global network",
        "",
        f"One network over {sizes.workers:,} workers x {sizes.steps:,} iterations, fitted to the first nine tenths: 12",
        f"past speeds, 16 units, {mine[0]['windows']:,} windows through each, one thread. The error is the RMSE of the",
        f"logarithm of the speed one iteration ahead, at every tenth origin of the last tenth. {medians(mine)}.",
        "",
        "| | time | processor | held-out error | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"Of our time, reading and windowing take {share:.0%}.",
    ]
    return lines, missed
