"""The verdict of an audit: exact, not exact, or that nobody could tell, in one sentence with its figure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum

import numpy as np


class AuditStatus(Enum):
    """Verdict of an audit; its value is the exit code of ``paceline audit``."""

    EXACT = 0
    NOT_EXACT = 1
    COULD_NOT_TELL = 2


class Cause(Enum):
    """Reason why a script is not exact, or the audit inconclusive: sentence, remedy and section of the page."""

    TERMS = (
        "each batch's loss is divided by something that the batch itself holds",
        "divide by the sum over all ranks and micro-batches of the step (in transformers' Trainer: by "
        "num_items_in_batch, in a compute_loss_func), or write loss = balance.scale(loss, count)",
        "terms",
    )
    ROWS = (
        "rows of a batch see each other",
        "use SyncBatchNorm, or gather the rows of all ranks with gather_rows; if you accumulate, larger batches",
        "rows",
    )
    NOT_AVERAGED = (
        "the ranks step with different gradients",
        "call the DistributedDataParallel model itself, not .module; leave no_sync() before the step's last forward "
        "and backward; sum the gradients of parameters outside of it by hand",
        "not-averaged",
    )
    STARTS = (
        "the ranks begin with different parameters",
        "wrap the model in DistributedDataParallel, or broadcast its parameters once",
        "not-averaged",
    )
    RANKS = (
        "a sample counts differently on another rank",
        "look for what depends on the rank: a weight, a learning rate, a part of the loss, a teacher of one rank",
        "ranks",
    )
    MICRO_BATCHES = (
        "a sample counts differently in another micro-batch",
        "look for calls of zero_grad() or step() between micro-batches",
        "micro-batches",
    )
    NOT_DIVIDED = (
        "losses of micro-batches are summed and not divided by their number",
        "divide each loss by the number of micro-batches of the step",
        "not-divided",
    )
    SUM = (
        "the loss is a sum, or is divided by a number that does not follow the batch",
        "use a mean, or write loss = balance.scale(loss) if the loss is already divided by a count over all ranks",
        "sums",
    )
    TIMES_RANKS = (
        "the gradient grows with the number of ranks",
        "DistributedDataParallel averages over the ranks already: do not sum or multiply by their number as well",
        "sums",
    )
    TRAINER = (
        "the model's loss is a mean, but transformers' Trainer expects one divided by num_items_in_batch",
        "write trainer.model_accepts_loss_kwargs = False before trainer.train()",
        "trainer",
    )
    NOT_WEIGHTED = (
        "ranks have the same weight although their batches differ in size",
        "attach() the model that is trained, and leave the weighting to it",
        "sums",
    )
    SAME_DATA = (
        "the ranks train on the same samples",
        "give the DataLoader a DistributedSampler, or use a BalancedLoader",
        "same-data",
    )
    DIFFERENT_DATA = (
        "the ranks have different datasets, and balanced batches move samples from rank to rank",
        "give every rank the same dataset: set the seed before the dataset is created, pass random_split a generator "
        "with the same seed on every rank, and do not split it by rank",
        "same-data",
    )
    ORDER = (
        "the ranks shuffle differently, so that an epoch repeats some samples and leaves out others",
        "give every rank's sampler the same seed and the same set_epoch",
        "same-data",
    )
    CARRIED = (
        "something is carried from step to step in addition to the parameters, and it depends on the batches",
        "look for queues, running means and hidden states; keep them the same on every rank",
        "carried",
    )
    HOOKS = (
        "each rank's own gradients are changed before they are summed",
        "clip or scale after backward(), when gradients are summed",
        "hooks",
    )
    OTHER_DATA = (
        "data of another loader get the weights of the balanced batch",
        "scale the terms of the balanced batch only: see the table of losses in docs/reference/loops.md",
        "other-data",
    )
    NOT_A_NUMBER = (
        "gradients are NaN or infinite",
        "divide by max(terms, 1): a batch without any loss term has 0 / 0",
        "not-a-number",
    )
    UNEVEN = (
        "it runs with equal batches, but not with uneven ones",
        "call backward() and collectives equally often on every rank; gather rows of all ranks with gather_rows; "
        "give a recurrent state batches of one size",
        "uneven",
    )
    NOISE = (
        "two equal runs differ too much",
        "seed what draws random numbers, and call torch.use_deterministic_algorithms(True)",
        "noise",
    )
    CHANCE = (
        "random numbers are drawn that belong to no sample",
        "switch off what draws them (stochastic depth, noise, mixup, a collate_fn that augments), and audit again",
        "noise",
    )
    NO_SAMPLES = (
        "no samples of a DataLoader, a BalancedLoader or torch.randint could be exchanged",
        "load samples through a DataLoader in every step, on two ranks or more; or audit the loss alone: "
        "paceline.torch.audit(step, batches)",
        "no-samples",
    )
    NO_STEPS = (
        "no step of a torch optimizer was seen",
        "audit a script that steps a torch optimizer; or the loss alone: paceline.torch.audit(step, batches)",
        "no-samples",
    )
    ZERO = (
        "all gradients are zero, so the weights of samples cannot be compared",
        "check that the loss depends on the parameters: the cross-entropy of a single output does not",
        "zero",
    )
    FAILED = (
        "the script failed in its first steps",
        "fix the error, and check that the script runs without the audit",
        "failed",
    )
    UNKNOWN = ("the cause is unknown", "compare the runs by hand: --keep leaves them in a folder", "unknown")

    def __init__(self, reason: str, remedy: str, anchor: str) -> None:
        self.reason, self.remedy, self.anchor = reason, remedy, anchor


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """Findings of an audit: whether the script is exact, the cause if it is not, and the deviations measured."""

    status: AuditStatus
    cause: Cause | None = None  # why, if it is not exact
    detail: str = ""  # what belongs to the cause in this script
    deviation: float = 0.0  # the largest relative one that counts
    steps: int = 0  # how many were compared
    ranks: int = 0
    first_step: int = 0  # where a deviation begins
    parameter: str = ""
    precision: str = ""  # of the gradients, such as "float64"
    noise: float = 0.0  # relative deviation of two equal runs
    notes: tuple[str, ...] = ()  # what else the audit has to say, a sentence each
    runs: dict[str, float] = field(default_factory=dict)  # the largest relative deviation of each from the first

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, with its figure."""
        where = f"{self.steps} steps on {self.ranks} ranks, {self.precision}"
        if self.status is AuditStatus.EXACT:
            noise = f"; two equal runs differ by {self.noise:.1e}, so less cannot be seen" if self.noise else ""
            return f"Exact: the largest relative deviation is {self.deviation:.1e} ({where}){noise}."
        assert self.cause is not None
        why = self.cause.reason + (f" ({self.detail})" if self.detail else "")
        if self.status is AuditStatus.COULD_NOT_TELL:
            return f"Could not tell: {why}."
        begins = f", first in step {self.first_step} at {self.parameter}" if self.parameter else ""
        figure = f": gradients deviate by {self.deviation:.1e}{begins} ({where})" if self.deviation else ""
        if np.isinf(self.deviation):
            figure = begins.replace(", first", ":", 1)
        return f"Not exact{figure}: {why}."

    @property
    def remedy(self) -> str:
        """Advice for the cause, and the page that says more; empty without a cause."""
        return "" if self.cause is None else f"{self.cause.remedy}. See docs/howto/audit.md#{self.cause.anchor}."

    def to_json(self) -> str:
        """Return the verdict as JSON, with its sentence and remedy."""
        known = asdict(self) | {"status": self.status.name.lower(), "cause": self.cause and self.cause.name.lower()}
        return json.dumps(known | {"sentence": self.sentence, "remedy": self.remedy}, indent=2)
