"""Pictures of reports, taken by a headless browser: ``python docs/figures/report_pictures.py``.

It replays a recorded job and takes the picture of ``docs/reference/predictors.md``; ``docs/figures/watching.py`` takes
the other one. Needs Chromium or Chrome.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REPLAY = ["replay", "narx", "ewma", "-t", "digits-attention-moving"]


def screenshot(page, picture, width=1100, height=1000):
    """Take a picture of the top of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert browser, f"one of {BROWSERS} is needed"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    taken = [f"--screenshot={Path(picture).resolve()}", Path(page).resolve().as_uri()]
    subprocess.run([browser, *options, *taken], check=True, capture_output=True, timeout=60)


def main():
    """Replay, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "paceline", *REPLAY, "--report", "replay.html"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        screenshot(Path(folder) / "replay.html", Path(__file__).parent / "replay.png", height=1350)


if __name__ == "__main__":
    main()
