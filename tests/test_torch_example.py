"""The example: an ordinary script and the same script balanced differ by at most ten lines, and both train."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.checkout
def test_a_script_is_balanced_by_changing_at_most_ten_lines():
    before, after = ((EXAMPLES / f"ddp_{name}.py").read_text().splitlines() for name in ("before", "after"))
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
    assert len(changes) <= 10


@pytest.mark.checkout
def test_the_balanced_script_learns_to_read_digits():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    script = str(EXAMPLES / "ddp_after.py")
    ran = subprocess.run([*command, script], capture_output=True, text=True, timeout=200, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"([\d.]+)% of the digits are recognised", ran.stdout)
    assert found, ran.stdout
    assert float(found[1]) > 85
