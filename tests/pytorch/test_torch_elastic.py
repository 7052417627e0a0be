"""A job that torchrun restarts goes on from its checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach


def train(folder):
    """Train an epoch, or the rest of one; the first attempt saves a checkpoint in its middle, and loses a worker."""
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
        with (folder / f"samples{rank}").open("a") as file:
            file.write("".join(f"{index}\n" for index in indices.tolist()))
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 3:
            if rank == 0:
                torch.save(balance.state_dict(), folder / "checkpoint")
            dist.barrier()
            if rank == 1:
                os._exit(3)
    dist.destroy_process_group()


def restarted(_, folder):
    """Start the job as ``torchrun --standalone --nproc-per-node 2 --max-restarts 1`` does, but fork its workers."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    tempfile.tempdir = str(folder)  # the agent leaves what its workers raised there
    # Else gloo, on a quick restart, meets the addresses of the workers before in the store that torchrun shares.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    one_node = {"min_nodes": 1, "max_nodes": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    quick = {"monitor_interval": 0.2, "start_method": "fork", "logs_specs": DefaultLogsSpecs(str(folder / "logs"))}
    elastic_launch(LaunchConfig(nproc_per_node=2, max_restarts=1, **one_node, **quick), train)(folder)


def test_torchrun_restart_sees_samples_once(tmp_path):
    run_ranks(1, restarted, tmp_path, joined=False)
    assert (tmp_path / "checkpoint").exists(), "the first attempt ended in the middle of the epoch"
    samples = [line for rank in (0, 1) for line in (tmp_path / f"samples{rank}").read_text("utf-8").split()]
    assert sorted(map(int, samples)) == list(range(200))
