"""Surroundings in which the examples of the pages run here, and the tests of those that do not run here."""

TORCH = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from paceline.torch import BalancedLoader, Costs, attach

if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(1024, 4), torch.randint(3, (1024,)))
network = torch.nn.Linear(4, 3)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.functional.cross_entropy
loader = BalancedLoader(dataset, global_batch=256, seed=0)
"""

TRAINED = """
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
"""

TEXTS = """
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((1 + index % 7,), index % 5), torch.full((1 + index % 7,), -100 if index % 3 == 0 else 1)


def collate(rows):
    tokens, labels = zip(*rows)
    pad = torch.nn.utils.rnn.pad_sequence
    return {"tokens": pad(tokens, batch_first=True), "labels": pad(labels, batch_first=True, padding_value=-100)}


dataset = Texts()
lengths = [1 + index % 7 for index in range(512)]
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3)))
"""

SCALED = """
balance = attach(model, loader)
inputs, targets = next(iter(loader))
loss, count = criterion(model(inputs), targets), len(inputs)
"""

ONE_MODEL = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = torch.utils.data.TensorDataset(torch.randn(1024, 4), torch.randint(3, (1024,)))
"""

ASYNCHRONOUS = """
import numpy as np

names = [f"gpu{k}" for k in range(8)]
parameters = gradient = np.zeros(3, np.float32)
"""

FEDERATED = """
ids, models, amounts, largest_batches = [1, 2, 3], ["a", "a", "b"], [500, 600, 700], [256, 256, 256]
sampled_ids = ids


def ask(clients, sizes):
    return {"clients": clients, "samples": 10 * sizes, "seconds": sizes / 50, "comm_seconds": 0 * sizes + 0.1}
"""

RECORDED = """
rank = 0


def train():
    for inputs, targets in DataLoader(dataset, batch_size=128):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
"""

ANY_LOOP = """
recorder = Recorder("other.jsonl", worker="0").__enter__()
loader, gradients = [[1, 2], [3]], None
tokens_in, barrier = sum, lambda: None
all_reduce = forward_and_backward = lambda given: given
"""

TRACES = """
from pathlib import Path

from paceline.datasets import synthetic_fleet

Path("traces").mkdir()
synthetic_fleet("mixed", workers=20, iterations=100).save("traces/job.parquet")
"""

MODELS = """
from paceline.training import save_model

save_model(narx, "narx.safetensors")
"""

FRAME = """
import pandas

frame = pandas.DataFrame({"rank": [0, 1, 0, 1], "duration_ms": [10, 20, 11, 19], "iteration": [0, 0, 1, 1]})
"""

STAGES = {
    "howto/asynchronous.md": {
        1: ONE_MODEL,
        3: ASYNCHRONOUS,
    },
    "howto/audit.md": {1: ""},
    "howto/choosing.md": {1: ""},
    "howto/evaluating.md": {1: "", 2: "", 3: "", 4: ""},
    "howto/federated.md": {3: FEDERATED},
    "howto/pytorch.md": {
        1: TORCH,
        2: f"{TORCH}\n{SCALED}",
        3: f"{TORCH}\nbalance = attach(model, loader)\n{TRAINED}\npath = 'state.pt'",
    },
    "howto/recording.md": {2: f"{TORCH}\n{RECORDED}", 3: ANY_LOOP},
    "howto/simulate.md": {1: ""},
    "howto/training.md": {1: TRACES, 3: "", 4: f"{MODELS}\n{TORCH}"},
    "howto/watching.md": {1: TORCH, 2: TRAINED, 3: ""},
    "howto/work.md": {1: f"{TORCH}\n{TEXTS}", 3: TORCH, 4: "saved_epoch, epochs = 0, 2"},
    "reference/formats.md": {2: FRAME},
    "reference/schemas.md": {1: ""},
}
"""Code before each block that runs here, by page and number of the block; a page's blocks share their names."""

FILLED = {
    ("howto/federated.md", 3): ("clients=..., samples=..., seconds=..., comm_seconds=...", "**replies"),
    ("howto/pytorch.md", 3): ('"model": ...', '"model": model.state_dict()'),
    ("howto/training.md", 3): ("n_iter=12", "n_iter=2"),
    ("howto/work.md", 3): ("loss_of", "criterion"),
}
"""Text in a block that is left to its reader, and what is put in its place."""

ELSEWHERE = {
    ("howto/asynchronous.md", 2): "tests/parameter_server/test_async_ray.py",
    ("howto/embedding.md", 1): "tests/recording/test_run_files.py",
    ("howto/embedding.md", 2): "tests/recording/test_run_files.py",
    ("howto/federated.md", 1): "tests/integrations/test_flower.py",
    ("howto/federated.md", 2): "tests/integrations/test_flower.py",
    ("howto/local_sgd.md", 1): "tests/pytorch/test_local_sgd.py",
    ("howto/packing.md", 1): "tests/pytorch/test_packing_example.py",
    ("howto/packing.md", 2): "tests/solver/test_pack.py",
    ("howto/packing.md", 3): "tests/solver/test_pack.py",
    ("howto/packing.md", 4): "tests/solver/test_pack.py",
    ("howto/packing.md", 5): "tests/solver/test_pack.py",
    ("howto/profiling.md", 1): "tests/datasets/test_profiles.py",
    ("howto/recording.md", 1): "tests/recording/test_recorder.py",
    ("howto/replicas.md", 1): "tests/integrations/test_torchft.py",
    ("howto/trainers.md", 1): "tests/integrations/test_accelerate.py",
    ("howto/trainers.md", 2): "tests/integrations/test_accelerate.py",
    ("howto/trainers.md", 3): "tests/integrations/test_huggingface.py",
    ("howto/trainers.md", 4): "tests/integrations/test_huggingface.py",
    ("howto/trainers.md", 5): "tests/integrations/test_lightning.py",
    ("howto/trainers.md", 6): "tests/integrations/test_lightning.py",
    ("howto/sharded.md", 1): "tests/pytorch/test_replicas.py",
    ("howto/sharded.md", 2): "tests/pytorch/test_distributed_checkpoint.py",
    ("howto/training.md", 2): "tests/training/test_fit_beyond.py",
    ("howto/work.md", 2): "tests/loops/test_loops.py",
    ("reference/formats.md", 1): "tests/datasets/test_formats_speed.py",
}
"""Tests that run what a block shows, where it needs several ranks, another environment or files that are not here."""

UNTESTED = {
    ("howto/trainers.md", 7): "DeepSpeed is no dependency, and the page says that it is not among the tests",
    ("howto/trainers.md", 8): "fastai is no dependency, and the page says that it is not among the tests",
}
"""Blocks that no test runs, each with its reason."""
