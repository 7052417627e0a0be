"""Audit scripts as they are: ours, and such as public ones have; renews ``audit.md``.

Run from the repository: ``python benchmarks/audit.py``. Every row is one ``paceline audit -- torchrun ...``; scripts
whose names are given as arguments are audited alone, and the rest of the page stays.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "audit.md"
TOGETHER = 2
"""Audits at a time."""

OURS = ("ddp_before", "ddp_after", "lm_before", "lm_after", "crops_before", "crops_after")
LIKE = {
    "ddp_tutorial": "the tutorial of torch's DistributedDataParallel",
    "imagenet": "torch's ImageNet example",
    "mingpt": "minGPT's distributed trainer",
    "nanogpt": "nanoGPT",
    "accelerate_text": "Accelerate's text example",
    "trainer_lm": "the Trainer's language modelling example",
    "lightning_digits": "Lightning's first example",
}
SCRIPTS = {name: HERE.parent / "examples" / f"{name}.py" for name in OURS}
SCRIPTS |= {name: HERE / "audited" / f"{name}.py" for name in LIKE}

HEAD = """# Verdicts on whole scripts

`python benchmarks/audit.py` runs each script by `paceline audit -- torchrun --nproc-per-node 2 SCRIPT`, unedited, and
renews this page. The first six are this library's examples. The others were written for this page, small and without
downloads, with the loaders, loops and models of the public scripts that they are named after; they are not those
scripts. Figures are relative deviations of gradients and parameters in three steps; what the verdicts mean stands in
[docs/howto/audit.md](../docs/howto/audit.md).

"""


def audited(name):
    """Return the report on a script."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    source = str(HERE.parent / "src")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
    script = ["torchrun", "--standalone", "--nproc-per-node", "2", str(SCRIPTS[name])]
    command = [sys.executable, "-m", "paceline", "audit", "--json", "--", *script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    report = json.loads(done.stdout) if done.stdout else {"sentence": done.stderr[-500:], "runs": {}, "remedy": ""}
    print(f"{name}: {report['sentence']}", flush=True)
    return f"| {row_name(name)} | {report['sentence']} | {runs(report['runs'])} |"


def row_name(name):
    """Return the first cell of a script's row."""
    path = os.path.relpath(SCRIPTS[name], HERE)
    return f"[{name}]({path})" + (f", like {LIKE[name]}" if name in LIKE else "")


def runs(found):
    """Return the deviations of all runs in one cell."""
    return ", ".join(f"{name} {amount:.0e}" for name, amount in found.items())


def main(names):
    """Audit, and write the page."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    known = {line.split("]")[0][3:]: line for line in lines if line.startswith("| [")}
    chosen = names or list(SCRIPTS)
    with ThreadPoolExecutor(TOGETHER) as pool:
        known |= dict(zip(chosen, pool.map(audited, chosen), strict=True))
    table = ["| script | verdict | deviation from the first run |", "| --- | --- | --- |"]
    PAGE.write_text(HEAD + "\n".join([*table, *(known[name] for name in SCRIPTS if name in known)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
