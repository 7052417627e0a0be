"""The training jobs that can be recorded: a model, a batch size, and the contention."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.lab.contention.contention import USAGE, Contention, require_known
from paceline.lab.contention.usage import Usage
from paceline.lab.small_models import MODELS


@dataclass(frozen=True, kw_only=True)
class Job:
    """A data-parallel training job and the contention it meets.

    Parameters
    ----------
    name
        The name of the job and of its trace.
    model
        One of the names in :data:`MODELS`.
    batch_size
        Samples of each worker in each iteration; one number for all workers, or one for each.
    pattern, competitors, kind, quota
        The contention that it meets: see :class:`~paceline.lab.contention.contention.Contention`.
    workers
        Number of workers.
    iterations
        Number of recorded iterations.
    seed
        Seed of the weights, the batches and the contention.
    split
        Whether its trace is for fitting predictors (``fit``) or for scoring them (``held-out``).

    Raises
    ------
    ValueError
        If a field is out of its range; the message names it.

    Examples
    --------
    >>> Job(name="tiny", model="digits-mlp", batch_size=64, pattern="none", workers=2).batch_sizes
    (64, 64)
    """

    name: str
    model: str
    batch_size: int | tuple[int, ...]
    pattern: str
    competitors: int = 1
    kind: str = "cpu"
    workers: int = 4
    iterations: int = 1500
    quota: float = 0.4
    seed: int = 0
    split: str = "fit"

    def __post_init__(self) -> None:
        _check_known("model", self.model, MODELS)
        require_known(self.pattern, self.kind)
        _check_known("split", self.split, ("fit", "held-out"))
        for field in ("competitors", "workers", "iterations"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not self.quota > 0:
            raise ValueError(f"quota must be more than 0 cores, got {self.quota}")
        if len(self.batch_sizes) != self.workers or min(self.batch_sizes) < 1:
            raise ValueError(
                f"batch_size must be at least 1, one for all or one for each of {self.workers} workers, "
                f"got {self.batch_size}"
            )

    def contention(self, usage: Usage | None = None) -> Contention:
        """Return the job's contention; the pattern ``usage`` needs a usage trace of real hosts."""
        return Contention(
            workers=self.workers,
            pattern=self.pattern,
            competitors=self.competitors,
            kind=self.kind,
            quota=self.quota,
            seed=self.seed,
            usage=usage,
        )

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The samples of each worker."""
        size = self.batch_size
        return (size,) * self.workers if isinstance(size, int) else tuple(size)


def _check_known(field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{field} must be one of {sorted(known)}, got {value!r}")


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(name="photo-upscaler-none", model="photo-upscaler", batch_size=512, pattern="none", seed=11),
        Job(
            name="digits-autoencoder-steady",
            model="digits-autoencoder",
            batch_size=1024,
            pattern="steady",
            kind="memory",
            seed=12,
        ),
        Job(name="digits-lstm-bursty", model="digits-lstm", batch_size=448, pattern="bursty", seed=13),
        Job(
            name="photo-denoiser-moving",
            model="photo-denoiser",
            batch_size=128,
            pattern="moving",
            competitors=2,
            seed=14,
        ),
        Job(name="photo-cnn-none", model="photo-cnn", batch_size=384, pattern="none", seed=21, split="held-out"),
        Job(name="digits-mlp-steady", model="digits-mlp", batch_size=1024, pattern="steady", seed=22, split="held-out"),
        Job(
            name="digits-cnn-bursty",
            model="digits-cnn",
            batch_size=192,
            pattern="bursty",
            competitors=2,
            seed=23,
            split="held-out",
        ),
        Job(
            name="digits-attention-moving",
            model="digits-attention",
            batch_size=320,
            pattern="moving",
            seed=24,
            split="held-out",
        ),
        Job(
            name="digits-attention-usage",
            model="digits-attention",
            batch_size=320,
            pattern=USAGE,
            competitors=4,
            seed=25,
            split="held-out",
        ),
    )
}
"""The jobs whose traces come with the library, by name: four for fitting, five held out."""
