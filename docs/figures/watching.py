"""Make the outputs of ``docs/howto/watching.md`` with a real run on this machine: ``python docs/figures/watching.py``.

Trains with two ranks, each pinned to a core, while six busy processes occupy the second rank's core for a while.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "watching.md"
BUSY, FROM, UNTIL = 6, 5.0, 12.0
"""Number of competitors, and the seconds after the first written iteration at which they start and stop."""


ENVIRONMENT = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def main():
    """Train, watch, and insert the outputs into the page."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.jsonl"
        seen = {"watch": trained_and_watched(run)}
        seen["report"] = command("report", "run.jsonl", "--out", "report.html", cwd=folder)
        header, *lines = run.read_text(encoding="utf-8").splitlines()
        seen["lines"] = "\n".join([header, lines[-1]])
    text = PAGE.read_text(encoding="utf-8")
    for name, output in seen.items():
        pasted = f"<!-- {name} -->\n```text\n{output.strip()}\n```\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, pasted=pasted: pasted, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


def trained_and_watched(run):
    """Train, and return what ``paceline watch`` shows while the second rank's core is busy."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    training = subprocess.Popen([*torchrun, "examples/watched.py", str(run)], cwd=ROOT, env=ENVIRONMENT)
    competitors = []
    try:
        while not run.exists() and training.poll() is None:
            time.sleep(0.1)
        time.sleep(FROM)
        core = sorted(os.sched_getaffinity(0))[1]
        for _ in range(BUSY):
            competitors.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(competitors[-1].pid, {core})
        time.sleep(UNTIL - FROM)
        shown = command("watch", run.name, "--once", cwd=run.parent)
    finally:
        for competitor in competitors:
            competitor.kill()
            competitor.wait()
    assert training.wait(timeout=300) == 0, "the training failed"
    return shown


def command(*arguments, cwd):
    """Run a command of paceline and return its output."""
    line = [sys.executable, "-m", "paceline", *arguments]
    return subprocess.run(line, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
