"""A job that torchrun restarts goes on from its checkpoint."""

import os
import subprocess
import sys

SCRIPT = """
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.arange(200))
loader = BalancedLoader(data, global_batch=20)
balance = attach(model, loader, timeout=20)
if (folder / "checkpoint").exists():
    balance.load_state_dict(torch.load(folder / "checkpoint", weights_only=True))
for step, (inputs, indices) in enumerate(loader):
    model(inputs).square().mean().backward()
    with open(folder / f"samples{rank}", "a") as file:
        file.write("".join(f"{index}\\n" for index in indices.tolist()))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 3:
        if rank == 0:
            torch.save(balance.state_dict(), folder / "checkpoint")
        dist.barrier()
        if rank == 1:
            os._exit(3)
dist.destroy_process_group()
"""


def test_a_job_that_torchrun_restarts_still_sees_every_sample_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    # Else gloo, on a quick restart, meets the addresses of the workers before in the store that torchrun shares.
    fresh_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment = {**os.environ, **fresh_store, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, "--monitor-interval=0.2", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "checkpoint").exists(), "the first attempt ended in the middle of the epoch"
    samples = [line for rank in (0, 1) for line in (tmp_path / f"samples{rank}").read_text().split()]
    assert sorted(map(int, samples)) == list(range(200))
