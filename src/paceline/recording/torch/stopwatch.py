"""The stopwatch of a training step: adapters call it at every phase, and it records iterations once times are known.

Under DistributedDataParallel, a communication hook marks when the last bucket of gradients is ready and when it has
been exchanged. The time between is communication and waiting, as is every other collective inside the step; the rest is
the worker's own work. Other models, sharded ones among them, wait in collectives only. No other measurement shows a
straggler: the wall time of a step is the same for all workers, and a fast worker waits inside its passes.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.recording.recorder import Recorder, Step
from paceline.recording.torch.callbacks import then
from paceline.recording.torch.marks import Marks, marks_of

if TYPE_CHECKING:
    import torch

PHASES = ("between_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
"""Phases: since the last iteration (loading data, evaluating), forward pass, backward pass, and optimizer step."""

Hook = Callable[[Any, Any], Any]
"""A communication hook: takes a state and a bucket, returns a future."""


def sums_in_buckets(model: Any) -> bool:
    """Return whether a model is in DistributedDataParallel, which sums gradients in buckets."""
    return hasattr(model, "require_backward_grad_sync")


@dataclass
class _Iteration:
    # The marks of one iteration. An exchange is a mark for the last bucket being ready, then one per bucket done.
    step: Step
    begin: Any
    samples: float = 0.0
    work: float = 0.0
    forward: list[tuple[Any, Any]] = field(default_factory=list)
    exchanges: list[list[Any]] = field(default_factory=list)
    waits_forward: list[list[Any]] = field(default_factory=list)
    waits_after: list[list[Any]] = field(default_factory=list)
    waits_between: list[list[Any]] = field(default_factory=list)
    micro_batches: int = 0
    stepping: Any = None
    end: Any = None


class Stopwatch:
    """Times the iterations of one model from calls at every phase, in order, and writes them to the recorder.

    Parameters
    ----------
    model
        The model, or the DistributedDataParallel around it. Its device decides how time is marked.
    recorder
        An open recorder that has not recorded anything yet.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        recorder.phases, recorder.wait_in_comm = PHASES, True
        self.model, self.recorder = model, recorder
        self._marks: Marks = marks_of(model)
        self._now: _Iteration | None = None
        self._forward: Any = None
        self._ended: Any = None
        self._pending: deque[tuple[_Iteration, Any]] = deque()
        self._exchange: list[Any] | None = None
        self._wait: list[Any] | None = None
        self._depth = 0
        self._waits_between: list[list[Any]] = []
        self.times_exchanges = False
        from paceline.recording.torch.collective_time import listen  # it needs torch, as the model does

        self._stop_listening = listen(self)

    def forward(self, samples: float, work: float = math.nan) -> None:
        """Note that a forward pass over these samples begins; the first after a step starts an iteration."""
        if self._now is None:
            self._time_exchanges()
            self._now = _Iteration(self.recorder.begin(), self._marks.mark(), waits_between=self._waits_between)
            self._waits_between = []
        self._now.samples += samples
        # Micro-batches: passes under `no_sync`, or every pass, where nobody sees which gradients are summed.
        self._now.micro_batches += not getattr(self.model, "require_backward_grad_sync", False)
        self._now.work += work
        self._forward = self._marks.mark()

    def backward(self) -> None:
        """Note that a forward pass is over."""
        if self._now is not None and self._forward is not None:
            self._now.forward.append((self._forward, self._marks.mark()))
            self._forward = None

    def wait_begins(self) -> None:
        """Note that a collective begins to wait for other workers; a wait inside a wait is part of it."""
        self._depth += 1
        if self._depth > 1:
            return
        self._wait = [self._marks.mark()]
        if self._now is None:
            self._waits_between.append(self._wait)
        else:
            (self._now.waits_after if self._forward is None else self._now.waits_forward).append(self._wait)

    def wait_ends(self) -> None:
        """Note that the collective's wait is over."""
        self._depth = max(self._depth - 1, 0)
        if self._wait is not None and not self._depth:
            self._wait.append(self._marks.mark())
            self._wait = None

    def stepping(self) -> None:
        """Note that all gradients are ready and the optimizer begins its step."""
        if self._now is not None and self._now.stepping is None:  # a step may call that of another class
            self._now.stepping = self._marks.mark()

    def stepped(self) -> None:
        """Note that the optimizer's step, and with it the iteration, is over; write those whose times are known."""
        if self._now is None:
            return
        iteration, self._now, self._exchange = self._now, None, None
        iteration.end = self._marks.mark()
        self._pending.append((iteration, self._ended))
        self._ended = iteration.end
        # In order, and only iterations that the device has passed: waiting for it would slow the training down.
        while self._pending and self._marks.passed(self._pending[0][0].end):
            self._write(*self._pending.popleft())

    def close(self) -> None:
        """Wait for the device to finish the complete iterations, and write them."""
        self._stop_listening()
        if self._pending:
            self._marks.wait(self._pending[-1][0].end)
        while self._pending:
            self._write(*self._pending.popleft())

    def timed(self, hook: Hook) -> Hook:
        """Return the communication hook with marks; register it instead of the hook, before the first iteration."""
        self.times_exchanges = True

        @functools.wraps(hook)  # because torch checks the hook's signature
        def timed_hook(state: Any, bucket: Any) -> Any:
            if self._now is None:
                return hook(state, bucket)
            if self._exchange is None:
                self._exchange = [None]
                self._now.exchanges.append(self._exchange)
            marked = self._exchange
            if bucket.is_last():
                marked[0], self._exchange = self._marks.mark(), None
            return then(hook(state, bucket), functools.partial(self._done, marked))

        return timed_hook

    def _done(self, marked: list[Any], future: Any) -> Any:
        result = future.value()
        marked.append(self._marks.mark())
        return result

    def _time_exchanges(self) -> None:
        # Only at the first forward pass, so that users can register their own hook, wrapped in `timed`, before.
        model: Any = self.model
        if self.times_exchanges or not sums_in_buckets(model):
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        try:
            model.register_comm_hook(model.process_group, self.timed(allreduce_hook))
        except RuntimeError as error:
            raise RuntimeError(
                "this model already has a communication hook, so waiting cannot be separated from work: "
                "register `watching.timed(hook)` instead of that hook"
            ) from error

    def _write(self, iteration: _Iteration, ended_before: Any) -> None:
        seconds, step = self._marks.seconds, iteration.step
        stepping = iteration.end if iteration.stepping is None else iteration.stepping
        in_forward, after, in_between = (
            # A wait without an end was still under way when the recording stopped.
            sum(seconds(*wait) for wait in waits if len(wait) == 2)
            for waits in (iteration.waits_forward, iteration.waits_after, iteration.waits_between)
        )
        exchanged = sum(
            max(0.0, *(seconds(ready, each) for each in done)) for ready, *done in iteration.exchanges if done and ready
        )
        within = exchanged + in_forward + after
        between = math.nan if ended_before is None else max(0.0, seconds(ended_before, iteration.begin) - in_between)
        # Exchanges and waits are measured separately and may overlap, so the rest could come out negative.
        computing = max(0.0, seconds(iteration.begin, iteration.end) - within)
        # The time before a forward pass belongs to it: there its batch is loaded.
        step.seconds = computing + (0.0 if ended_before is None else between)
        step.comm_seconds = within + (0.0 if ended_before is None else in_between)
        forward = sum(seconds(start, stop) for start, stop in iteration.forward) - in_forward
        backward = max(0.0, seconds(iteration.begin, stepping) - within - forward)
        step.phases = dict(zip(PHASES, (between, forward, backward, seconds(stepping, iteration.end)), strict=True))
        micro_batches = iteration.micro_batches + (
            max(len(iteration.exchanges), 1) if sums_in_buckets(self.model) else 0
        )
        if micro_batches > 1:
            self.recorder.meta.setdefault("accumulate", str(micro_batches))
        self.recorder.write(step, iteration.samples, iteration.work)
