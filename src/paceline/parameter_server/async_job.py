"""A single-process training loop made asynchronous: every rank pulls, computes and pushes at its own pace."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import default_collate

from paceline._runtime import wait_at_exit
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler
from paceline.coordinator.asynchronous.schemes import Scheme
from paceline.coordinator.asynchronous.schemes import scheme as make_scheme
from paceline.coordinator.asynchronous.server import Outcome, Server, Verdict
from paceline.parameter_server.links import SERVER_RANK, WIRE_DTYPES, GlooLink, Link, LocalLink, LostServerError, serve
from paceline.parameter_server.service import RoundRecorder, Service, WorkItem
from paceline.parameter_server.torch_optimizer import (
    FlatModel,
    LearningRateSchedule,
    TorchOptimizer,
    group_settings,
    require_copyable,
    require_unchanged,
)
from paceline.predictors import named
from paceline.recording.records import Round
from paceline.recording.sink import sinks

logger = logging.getLogger("paceline.asynchronous")


class AsyncJob:
    """Batches to train on, each at the newest parameters; ``push()`` takes the place of ``optimizer.step()``.

    Every rank runs the same script. Rank 0 also holds the server, in threads; the others reach it over gloo, each in a
    group of its own, so that a worker that dies takes nobody with it. The loss is to be a mean over the batch.

    Parameters
    ----------
    model
        The same on every rank; its parameters are float32 on the CPU. Those of rank 0 are where training starts.
    optimizer
        Any torch optimizer of the model. A copy of it works at the server; leave the one given alone in the loop.
    dataset
        Any map-style dataset, the same on every rank. An epoch covers every sample exactly once, even if workers fail.
    batch
        Samples of a worker's full batch, the most that any step takes.
    epochs
        How often to go through the data.
    scheme
        A name of ``paceline.coordinator.asynchronous.SCHEMES``, or a scheme.
    predictor
        Forecasts the workers' speeds: a name as in :func:`paceline.predictors.named`.
    schedule
        What the learning rates are multiplied by after a number of applied samples; or a torch scheduler of the
        optimizer; the server steps a copy of it. Do not step it in the loop.
    samples_per_schedule_step
        Applied samples after which that scheduler is stepped once, ``batch`` unless given: ``len(dataset)`` for epochs.
    min_batch
        The fewest samples of a step. Unless given 2 where the model normalizes over batches, and 1 elsewhere.
    collate
        Makes a batch of a list of samples.
    wire
        How gradients travel: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    seed
        Seed of the order of the samples.
    checkpoint, checkpoint_every
        File that rank 0 writes its state to, and after how many applied samples; it is resumed from if it is there.
    metrics
        Sinks that rank 0 calls with every round: names as in :func:`paceline.recording.sink`, or functions of a
        :class:`paceline.recording.records.Round`.
    on_verdict
        Called on rank 0 with every :class:`Verdict`.
    on_epoch
        Called on rank 0 with the number of an epoch, from 1 on, once all its samples have been applied, with the newest
        parameters in its model. The others train on meanwhile.
    patience
        Seconds for which nothing else happens, after which a worker that holds the last samples is given up, and rank 0
        ends without one that has not come for the final parameters; more where steps take long.
    timeout
        Seconds of silence after which a worker is taken for lost. Workers wait twice as long for the server.

    Raises
    ------
    ValueError
        If an argument is out of range, or the optimizer or the schedule does what a copy cannot follow.
    RuntimeError
        If there is no process group, a worker's pushes are refused five times in a row, or the optimizer is changed in
        the loop.
    LostServerError
        If the process of rank 0 does not answer.

    Examples
    --------
    ::

        dist.init_process_group("gloo")
        job = AsyncJob(model, optimizer, dataset, batch=32, epochs=10)
        for inputs, targets in job:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            job.push()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        batch: int,
        epochs: int,
        scheme: str | Scheme = "saps",
        predictor: str = "ewma",
        schedule: LearningRateSchedule | None = None,
        samples_per_schedule_step: int | None = None,
        min_batch: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        wire: str = "float32",
        seed: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 0,
        metrics: str | Sequence[str | Callable[[Round], None]] = (),
        on_verdict: Sequence[Callable[[Verdict], None]] = (),
        on_epoch: Callable[[int], None] | None = None,
        patience: float = 60.0,
        timeout: float = 1800.0,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError('call torch.distributed.init_process_group("gloo") before AsyncJob')
        if wire not in WIRE_DTYPES:
            raise ValueError(f"wire must be one of {list(WIRE_DTYPES)}, got {wire!r}")
        require_copyable(optimizer, schedule)  # on every rank, so that all raise the error
        if any(True for _ in model.buffers()):
            warnings.warn(
                "the model has buffers, such as the running means of batch normalization: each worker keeps its own, "
                "and rank 0's are those of the trained model",
                stacklevel=2,
            )
        self.dataset, self.collate, self.wire = dataset, collate, WIRE_DTYPES[wire]
        self.workers = dist.get_world_size()
        self.service: Service | None = None
        if dist.get_rank() == SERVER_RANK:
            normalizes = any(isinstance(module, _BatchNorm) for module in model.modules())
            rules = make_scheme(scheme, self.workers) if isinstance(scheme, str) else scheme
            served = TorchOptimizer(
                model, optimizer, schedule, batch if samples_per_schedule_step is None else samples_per_schedule_step
            )
            server = Server(
                served.flat.parameters,
                served,
                rules,
                EpochSampler(len(dataset), seed=seed, epochs=epochs),
                batch=batch,
                workers=[f"rank{rank}" for rank in range(self.workers)],
                predictor=named(predictor),
                copy=False,
                min_batch=1 + normalizes if min_batch is None else min_batch,
            )
            path = None if checkpoint is None else Path(checkpoint)
            self.service = Service(
                server, patience, checkpoint=path, checkpoint_every=checkpoint_every, on_verdict=list(on_verdict)
            )
            self.service.resume()
            if targets := sinks(*([metrics] if isinstance(metrics, str) else metrics)):
                RoundRecorder(self.service, targets)
        self.flat = FlatModel(model)
        self._optimizer, self._settings = optimizer, group_settings(optimizer)
        self._on_epoch = on_epoch if self.service is not None else None
        self._epochs = 0 if self.service is None else self.service.server.sampler.epoch  # more than 0 if it resumed
        self._threads: list[Thread] = []
        self.link = self._create_link(timeout)
        self._work: WorkItem | None = None
        self._is_step_over, self._is_closed = True, False
        self._refused_in_a_row = 0
        self._step_began = self._pull_seconds = self._push_seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until all epochs are over; then the model holds the final parameters, on every rank."""
        if self._is_closed:
            raise RuntimeError(
                "this job is finished or was stopped early: create a new AsyncJob, with more epochs if needed"
            )
        try:
            while True:
                self._end_epochs()
                self._pull()
                if self._work is None or self._work.ended:
                    break
                yield self.collate([self.dataset[int(row)] for row in self._work.assigned.indices])
                if not self._is_step_over:
                    raise RuntimeError("call job.push() after loss.backward(), in place of optimizer.step()")
            self._end_epochs()
        except BaseException:
            self.close()  # so that the others need not wait for what this one held
            raise
        self._finish()

    def push(self) -> None:
        """Send the gradient of the batch just computed to the server, which applies it."""
        if self._work is None or self._is_step_over:
            raise RuntimeError("push() sends the gradient of one batch: call it once for each batch of the loop")
        seconds = time.monotonic() - self._step_began
        require_unchanged(self._optimizer, self._settings)
        gradient = torch.from_numpy(self.flat.gather()).to(self.wire)
        samples = len(self._work.assigned)
        self._is_step_over = True
        # How long this push takes is known when it is over: that of the last step stands in for it.
        self.link.push(self._work.stamp, gradient, samples, seconds, self._pull_seconds + self._push_seconds)
        self._push_seconds = time.monotonic() - self._step_began - seconds

    def is_abandoned(self) -> bool:
        """Return whether the server has given up the step under way: a loop of micro-batches may then skip its push."""
        if self._work is None or self._is_step_over:  # after a push the server's answer is on its way
            return False
        self._is_step_over = self.link.is_abandoned(self._work.stamp)
        return self._is_step_over

    def load_newest(self) -> None:
        """Put the server's newest parameters into rank 0's model, to evaluate them; the next batch does so anyway."""
        if self.service is None:
            raise RuntimeError("load_newest() needs the server, which only rank 0 holds: evaluate there")
        self.flat.parameters[:] = self.service.parameters

    def close(self) -> None:
        """Leave the job before its end, at most once; the others get the samples that this rank held."""
        if self._is_closed:  # the server no longer listens: a second message would wait forever
            return
        self._is_closed, self._work = True, None
        with suppress(LostServerError):  # often the reason for leaving
            self.link.leave()

    def _end_epochs(self) -> None:
        """Call ``on_epoch`` for the epochs that have been applied completely since the last call."""
        if self.service is None or self._on_epoch is None:
            return
        done = self.service.server.sampler.epoch
        for epoch in range(self._epochs + 1, done + 1):
            self.load_newest()
            self._on_epoch(epoch)
        self._epochs = done

    def _pull(self) -> None:
        began = time.monotonic()
        try:
            self._work = self.link.pull()
        except LostServerError:
            # Rank 0 runs this loop too: what it ended for may be true here, and says more than a closed connection.
            require_unchanged(self._optimizer, self._settings)
            raise
        self._step_began = time.monotonic()
        self._pull_seconds = max(self._step_began - began - self._work.waited_seconds, 0.0)
        self._refused_in_a_row = self._refused_in_a_row + 1 if self.link.outcome is Outcome.REFUSED else 0
        if self._refused_in_a_row >= 5:
            raise RuntimeError(
                "the last 5 gradients of this worker were refused (see rank 0's log): look for NaN in the loss, and "
                "for a model that differs from rank 0's"
            )
        self.flat.zero_grad()  # the link has put the parameters into the model already
        self._is_step_over = self._work.ended

    def _finish(self) -> None:
        """Serve until all workers have the final parameters; the last push wrote the last checkpoint."""
        self._is_closed = True  # its thread at the server has ended with the final parameters
        waiting = self._threads
        while self.service is not None and waiting:
            before, patience = len(waiting), self.service.patience_now
            waiting[0].join(patience)
            waiting = [thread for thread in waiting if thread.is_alive()]
            if len(waiting) == before:
                names = ", ".join(thread.name.removeprefix("paceline-") for thread in waiting)
                message = "%s did not fetch the final parameters within %.0f s: the job ends without waiting longer"
                logger.warning(message, names, patience)
                return

    def _create_link(self, timeout: float) -> Link:
        """Return this rank's link to the server; every rank makes all groups, as gloo requires."""
        numbers, link = len(self.flat.parameters), None
        limit = timedelta(seconds=timeout if self.service is not None else 2 * timeout)  # of this end alone
        wait_at_exit()
        for rank in range(1, self.workers):
            group: Any = dist.new_group([SERVER_RANK, rank], timeout=limit, backend="gloo")
            if self.service is not None:
                inside = (self.service, f"rank{rank}", rank, group, numbers)
                self._threads.append(Thread(target=serve, args=inside, daemon=True, name=f"paceline-rank{rank}"))
            elif rank == dist.get_rank():
                link = GlooLink(group, self.flat.receive_buffer, self.flat.send_buffer)
        for thread in self._threads:
            thread.start()
        if self.service is not None:
            return LocalLink(self.service, "rank0", self.flat.parameters)
        assert link is not None
        return link
