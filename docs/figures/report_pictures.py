"""Pictures of reports, taken by a headless browser: ``python docs/figures/report_pictures.py``.

One is of a run with made speeds, for ``docs/howto/watching.md``; the other of the replay of a recorded job, for
``docs/reference/predictors.md``. Needs Chromium or Chrome.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))

from paceline.coordinator import LoadBalancer  # noqa: E402
from paceline.predictors import Auto, Report  # noqa: E402
from paceline.recording import Iteration, JsonLines  # noqa: E402

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REPLAY = ["replay", "narx", "ewma", "-t", "digits-attention-moving"]
WORKERS, ITERATIONS, SLOW, FROM = 8, 600, 3, 150


def main():
    """Make both reports, and take their pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training(folder / "training.jsonl")
        paceline("report", "training.jsonl", "--out", "training.html", cwd=folder)
        screenshot(folder / "training.html", HERE / "report.png", height=1120)
        paceline(*REPLAY, "--report", "replay.html", cwd=folder)
        screenshot(folder / "replay.html", HERE / "replay.png", height=1350)


def training(path):
    """Write the run of a balancer over made speeds: alike workers, one of which falls to half its speed."""
    rng = np.random.default_rng(0)
    speed_TW = 1000 * rng.normal(1, 0.02, WORKERS) * rng.normal(1, 0.03, (ITERATIONS, WORKERS))
    speed_TW[FROM:, SLOW] /= 2
    balancer = LoadBalancer(Auto(), workers=[f"gpu{w}" for w in range(WORKERS)], global_batch=64 * WORKERS)
    sink, time = JsonLines(path), 0.0
    for speed_W in speed_TW:
        used = balancer.plan
        report = Report(samples=used.sizes, seconds=used.sizes / speed_W)
        time += float(report.seconds.max())
        sink(Iteration.of(used, report, balancer.step(report), time=time))
    sink.close()


def paceline(*arguments, cwd):
    """Run a command of paceline."""
    line = [sys.executable, "-m", "paceline"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*line, *arguments], cwd=cwd, env=environment, check=True, capture_output=True)


def screenshot(page, picture, width=1100, height=1000):
    """Take a picture of the top of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert browser, f"one of {BROWSERS} is needed"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    taken = [f"--screenshot={picture.resolve()}", page.resolve().as_uri()]
    subprocess.run([browser, *options, *taken], check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main()
