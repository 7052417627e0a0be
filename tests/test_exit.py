"""A job that has ended well exits well: threads of torch get the time to let go of Python's objects."""

import subprocess
import sys

import pytest

BUSY_THREAD = """
import sys, threading, time
from paceline._runtime import wait_at_exit
wait_at_exit()
ends = threading.Event()
def late():
    ends.wait()
    time.sleep(0.005)
    open(sys.argv[1], "w").close()
threading.Thread(target=late, daemon=True).start()
ends.set()
"""

SHORT_JOB = """
import torch, torch.distributed as dist
from paceline._runtime import wait_at_exit
wait_at_exit()
dist.init_process_group("gloo")
weights = torch.ones(50, requires_grad=True)
optimizer = torch.optim.AdamW([weights])
for _ in range(200):
    weights.square().sum().backward()
    dist.all_reduce(weights.grad)
    optimizer.step()
    dist.broadcast(torch.ones(1), src=0)
dist.destroy_process_group()
"""


def test_exit_waits_for_finishing_threads(tmp_path):
    subprocess.run([sys.executable, "-c", BUSY_THREAD, tmp_path / "done"], check=True, timeout=60)
    assert (tmp_path / "done").exists()


@pytest.mark.soak
def test_short_torchrun_jobs_end_cleanly(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(SHORT_JOB)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    for _ in range(12):
        # Three at once: on a busy machine the threads come late.
        jobs = [subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.PIPE) for _ in range(3)]
        for job in jobs:
            _, error = job.communicate(timeout=120)
            assert job.returncode == 0, error.decode()[-2000:]
