"""``paceline audit`` on scripts in processes of their own."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline
from paceline.audit import Audit, Launcher
from paceline.audit.run import AuditPlan

BYPASSED = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4, generator=torch.Generator(device="cpu").manual_seed(0)))
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (inputs,) in DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1):
    called = model.module if "bypass" in sys.argv else model
    called(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the script came to its end")
dist.destroy_process_group()
"""

SPAWNED = """
import torch.multiprocessing as mp

def work(rank):
    import os
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29713"}
    exec(open(os.environ["SCRIPT"]).read(), {})

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def audited(tmp_path, *command, **environment):
    """Run ``paceline audit`` and return its exit code and report."""
    found = [str(Path(paceline.__file__).parent.parent), os.environ.get("PYTHONPATH")]
    sources = os.pathsep.join(filter(None, found))
    known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": sources, "GLOO_SOCKET_IFNAME": "lo", **environment}
    known["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), known["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "audit", "--json", "--", *command],
        capture_output=True, text=True, env=known, cwd=tmp_path, timeout=1000, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def script(tmp_path, text=BYPASSED, name="train.py"):
    (tmp_path / name).write_text(text)
    return name


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")


@pytest.mark.timeout(1100)
def test_inexact_script_ends_with_1_without_files(tmp_path):
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path), "bypass")
    assert (code, report["status"], report["cause"]) == (1, "not_exact", "not_averaged")
    assert report["parameter"] == "weight"
    assert report["precision"] == "float64"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_command_that_is_not_there_ends_with_2(tmp_path):
    code, said = audited(tmp_path, "torchrunn", "train.py")
    assert code == 2
    assert "no program 'torchrunn' is on the PATH" in said


def test_command_without_processes_says_what_to_write(tmp_path):
    error = Launcher(["python", "train.py"], tmp_path, timeout=3)(AuditPlan(), True).error
    assert error.startswith("the command does not say how many processes it starts")
    assert "fabric run --devices 2" in error


@pytest.mark.soak
@pytest.mark.timeout(1100)
@pytest.mark.parametrize(
    "command",
    [
        (*TORCHRUN, "train.py"),
        ("python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"),
        ("python", "spawned.py"),
    ],
    ids=["torchrun", "module", "spawn"],
)
def test_exact_script_ends_with_0(tmp_path, command):
    script(tmp_path)
    script(tmp_path, SPAWNED, "spawned.py")
    code, report = audited(tmp_path, *command, SCRIPT="train.py")
    assert (code, report["status"]) == (0, "exact"), report
    assert report["ranks"] == 2
    assert ("one process, first step" in report["runs"]) == (command[-1] == "train.py")


@pytest.mark.processes
def test_hanging_run_ends_with_its_processes(tmp_path):
    alive = tmp_path / "alive"
    work = f"""
import pathlib, subprocess, time
pathlib.Path({str(alive)!r}).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(600)
"""
    found = Audit(Launcher([sys.executable, "-c", work], tmp_path, timeout=3)).verdict()
    assert found.cause.name == "FAILED"
    assert re.match(r"it took longer than \d+ seconds", found.detail)
    for _ in range(100):
        if not Path(f"/proc/{alive.read_text('utf-8')}").exists():
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process of the run is still there")


@pytest.mark.timeout(1100)
def test_failing_script_ends_with_2_and_its_error(tmp_path):
    failing = BYPASSED.replace("    optimizer.zero_grad()\n", "    raise ValueError('no second step')\n")
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, failing))
    assert (code, report["cause"]) == (2, "failed")
    assert "no second step" in report["sentence"]


FIXED_ROWS = """
import torch
import torch.distributed as dist
from paceline.torch import BalancedLoader, attach

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
loader = BalancedLoader(torch.randn(160, 4), global_batch=16)
attach(model, loader)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
offsets = torch.zeros(8, 4)
for inputs in loader:
    optimizer.zero_grad()
    model(inputs + offsets).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.soak
@pytest.mark.timeout(1100)
def test_script_that_fails_at_uneven_sizes_is_not_exact(tmp_path):
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, FIXED_ROWS))
    assert (code, report["cause"]) == (1, "uneven")
    assert "must match the size of tensor b (8)" in report["sentence"]


BERT = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

chance = torch.Generator().manual_seed(0)
rows = [{"input_ids": torch.randint(100, (8,), generator=chance), "labels": number % 3} for number in range(96)]
torch.manual_seed(0)
small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=3, max_position_embeddings=16, **small))
options = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, optim="sgd", use_cpu=True, report_to=[])
trainer = Trainer(model, TrainingArguments("out", **options), train_dataset=rows)
trainer.train()
"""


@pytest.mark.soak
@pytest.mark.timeout(1100)
def test_remedy_for_a_mean_loss_in_a_trainer_works(tmp_path):
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, BERT))
    assert (code, report["cause"]) == (1, "trainer"), report
    line = re.search(r"write (.*) before trainer.train", report["remedy"])[1]
    remedied = BERT.replace("trainer.train()", f"{line}\ntrainer.train()")
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, remedied))
    assert (code, report["status"]) == (0, "exact"), report
    assert "one process, first step" in report["runs"]


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset
from paceline.integrations.accelerate import BalancedLoader, prepare

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 2))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = BalancedLoader(data, batch_size=8)
model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
"""


LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch.utils.data import TensorDataset
from paceline.integrations.lightning import balance_callback
from paceline.torch import BalancedLoader

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.data = TensorDataset(torch.randn(96, 4), torch.randn(96, 2))
        self.model = torch.nn.Linear(4, 2)

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return BalancedLoader(self.data, 16, rank=self.global_rank, world_size=self.trainer.world_size)

options = dict(accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=2, max_epochs=1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
pl.Trainer(callbacks=[balance_callback()], **options, **quiet).fit(Module())
"""


@pytest.mark.soak
def test_balanced_loader_of_accelerate_is_audited(tmp_path):
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, ACCELERATE))
    assert (code, report["status"]) == (0, "exact"), report


@pytest.mark.soak
@pytest.mark.timeout(1100)
@pytest.mark.parametrize("text", [ACCELERATE, LIGHTNING], ids=["accelerate", "lightning"])
def test_cause_is_found_where_a_trainer_accumulates(tmp_path, text):
    own = "(lambda found, wanted: (found - wanted).square().sum() / wanted.abs().sum())("
    code, report = audited(tmp_path, *TORCHRUN, script(tmp_path, text.replace("torch.nn.functional.mse_loss(", own)))
    assert (code, report["cause"]) == (1, "terms"), report
