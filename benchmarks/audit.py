"""Audit scripts as they are, and converted to balanced batches: ours, and some like public ones; renews ``audit.md``.

Run from the repository: ``python benchmarks/audit.py``. Every row is one ``paceline audit -- torchrun ...``; scripts
whose names are given as arguments are audited alone, and the rest of the page stays.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
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
    "trainer_lm": "the Trainer's language modeling example",
    "lightning_digits": "Lightning's first example",
}
IMPORT = "import torch\n", "import torch\nfrom paceline.torch import BalancedLoader, attach\n"
CONVERTED = {
    "ddp_tutorial": [
        IMPORT,
        ("    dataset = Random", "    torch.manual_seed(0)  # every rank needs the same samples\n    dataset = Random"),
        ("DistributedDataParallel(model)\n", "DistributedDataParallel(model)\n        attach(self.model, data)\n"),
        ("            self.data.sampler.set_epoch(epoch)\n", ""),
        (
            "DataLoader(dataset, batch_size=32, pin_memory=False, shuffle=False, sampler=DistributedSampler(dataset))",
            "BalancedLoader(dataset, global_batch=64)",
        ),
    ],
    "imagenet": [
        IMPORT,
        ("    sampler = DistributedSampler(dataset)\n", ""),
        (
            "DataLoader(dataset, batch_size=64 // dist.get_world_size(), num_workers=2, sampler=sampler)\n",
            "BalancedLoader(dataset, global_batch=64, num_workers=2)\n    attach(model, loader)\n",
        ),
        ("        sampler.set_epoch(epoch)\n", ""),
    ],
    "mingpt": [
        IMPORT,
        (
            "DataLoader(dataset, batch_size=16, num_workers=2, sampler=DistributedSampler(dataset))\n",
            "BalancedLoader(dataset, global_batch=32, num_workers=2)\n    attach(model, loader)\n",
        ),
        ("        loader.sampler.set_epoch(epoch)\n", ""),
    ],
    "nanogpt": [
        IMPORT,
        ("def get_batch():", "def random_batch():"),
        ("model(*get_batch())", "model(*random_batch())"),
        (
            "X, Y = get_batch()\nfor",
            """class Crops(torch.utils.data.Dataset):
    def __len__(self):
        return len(data) - BLOCK

    def __getitem__(self, i):
        crop = torch.from_numpy(data[i : i + BLOCK + 1].astype(np.int64))
        return crop[:-1], crop[1:]


loader = BalancedLoader(Crops(), global_batch=16, accumulate=gradient_accumulation_steps)
attach(model, loader)
batches = iter(loader)
X, Y = next(batches)
for""",
        ),
        ("        X, Y = get_batch()\n", "        X, Y = next(batches)\n"),
    ],
    "accelerate_text": [
        (
            "from accelerate import Accelerator\nfrom torch.utils.data import DataLoader\n",
            "from accelerate import Accelerator\n"
            "from paceline.integrations.accelerate import BalancedLoader, prepare\n",
        ),
        ("DataLoader(Sentences(), shuffle=True,", "BalancedLoader(Sentences(),"),
        ("accelerator.prepare(model,", "prepare(accelerator, model,"),
    ],
    "trainer_lm": [
        ("import torch\n", "import torch\nfrom paceline.integrations.huggingface import BalancedTrainerMixin\n"),
        ("class Answers", "class BalancedTrainer(BalancedTrainerMixin, Trainer):\n    pass\n\n\nclass Answers"),
        ("        Trainer(model=", "        BalancedTrainer(model="),
    ],
    "lightning_digits": [
        (
            "import torch\n",
            "import torch\nfrom paceline.integrations.lightning import balance_callback\n"
            "from paceline.torch import BalancedLoader\n",
        ),
        ("from torch.utils.data import DataLoader, TensorDataset", "from torch.utils.data import TensorDataset"),
        (
            "    def configure_optimizers",
            """    def train_dataloader(self):
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        return BalancedLoader(TensorDataset(torch.randn(512, 64), torch.zeros(512)), global_batch=32, **ranks)

    def configure_optimizers""",
        ),
        (
            "    loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.zeros(512)), "
            "batch_size=16, shuffle=True)\n",
            "",
        ),
        ("accumulate_grad_batches=2,", "accumulate_grad_batches=2, callbacks=[balance_callback()],"),
        ("trainer.fit(AutoEncoder(), loader)", "trainer.fit(AutoEncoder())"),
    ],
}
"""What makes a script balance its batches: each text, and what stands in its place."""

SCRIPTS = {name: HERE.parent / "examples" / f"{name}.py" for name in OURS}
SCRIPTS |= {name: HERE / "audited" / f"{name}.py" for name in LIKE}
ROWS = [*SCRIPTS, *(f"{name}, converted" for name in CONVERTED)]

HEAD = """# Verdicts on whole scripts

`python benchmarks/audit.py` runs each script by `paceline audit -- torchrun --nproc-per-node 2 SCRIPT`, unedited, and
renews this page. The first six are this library's examples. The others were written for this page, small and without
downloads, with the loaders, loops and models of the public scripts that they are named after; they are not those
scripts. The last are these with the changes that `CONVERTED` in the program lists: their batches follow speed. Figures
are relative deviations of gradients and parameters in three steps; what the verdicts mean stands in
[docs/howto/audit.md](../docs/howto/audit.md).

"""


def audited(row):
    """Return the row of a script, or of one converted to balanced batches."""
    name, _, converts = row.partition(", ")
    with tempfile.TemporaryDirectory() as folder:
        script, link = SCRIPTS[name], f"[{row}]({os.path.relpath(SCRIPTS[name], HERE)})"
        if converts:
            script, changed = converted(name, Path(folder))
            link += f": {changed}"
        elif name in LIKE:
            link += f", like {LIKE[name]}"
        report = report_on(script)
    print(f"{row}: {report['sentence']}", flush=True)
    return f"| {link} | {report['sentence']} | {runs(report['runs'])} |"


def converted(name, folder):
    """Write a script that balances its batches; return where, and how many lines were changed."""
    before = SCRIPTS[name].read_text()
    after = before
    for old, new in CONVERTED[name]:
        assert after.count(old) == 1, (name, old)
        after = after.replace(old, new)
    shutil.copytree(SCRIPTS[name].parent, folder, dirs_exist_ok=True)
    (folder / f"{name}.py").write_text(after)
    difference = [line[:1] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return folder / f"{name}.py", f"-{difference.count('-')} +{difference.count('+')} lines"


def report_on(script):
    """Return the report of an audit."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    source = str(HERE.parent / "src")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
    launched = ["torchrun", "--standalone", "--nproc-per-node", "2", str(script)]
    command = [sys.executable, "-m", "paceline", "audit", "--json", "--", *launched]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return json.loads(done.stdout) if done.stdout else {"sentence": done.stderr[-500:], "runs": {}, "remedy": ""}


def runs(found):
    """Return the deviations of all runs in one cell."""
    return ", ".join(f"{name} {amount:.0e}" for name, amount in found.items())


def main(names):
    """Audit, and write the page."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    known = {line.split("]")[0][3:]: line for line in lines if line.startswith("| [")}
    chosen = names or ROWS
    with ThreadPoolExecutor(TOGETHER) as pool:
        known |= dict(zip(chosen, pool.map(audited, chosen), strict=True))
    table = ["| script | verdict | deviation from the first run |", "| --- | --- | --- |"]
    PAGE.write_text(HEAD + "\n".join([*table, *(known[name] for name in ROWS if name in known)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
