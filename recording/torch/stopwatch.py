"""The stopwatch of a training step: what the adapters tell it becomes iterations, recorded once their times are known.

Under DistributedDataParallel a communication hook marks when the last bucket of gradients is ready and when it is
exchanged. What lies between is communication and waiting, as is every other collective inside the step; the rest is the
worker's own work. No other clock sees a straggler: the wall time of a step is the same for all, and a fast worker waits
inside its backward pass.
"""

from __future__ import annotations

import functools
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
"""Between two iterations (loading data, evaluating); to the output; from there to the last gradient; the step."""

Hook = Callable[[Any, Any], Any]
"""A communication hook: takes a state and a bucket, returns a future."""


@dataclass
class _Iteration:
    # What was marked in one iteration. An exchange is the mark of the last bucket ready, then one of each bucket done.
    step: Step
    begin: Any
    samples: float = 0.0
    forward: list[tuple[Any, Any]] = field(default_factory=list)
    exchanges: list[list[Any]] = field(default_factory=list)
    waits_forward: list[list[Any]] = field(default_factory=list)
    waits_after: list[list[Any]] = field(default_factory=list)
    stepping: Any = None
    end: Any = None


class Stopwatch:
    """Times the iterations of one model: told of their parts in order, it writes them to the recorder.

    Parameters
    ----------
    model
        Its device decides how time is marked; DistributedDataParallel is told apart from what it wraps.
    recorder
        An open recorder to which nothing was recorded yet.
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
        self.times_exchanges = False
        from paceline.recording.torch.waiting import listen  # it needs torch, as the model does

        self._stop_listening = listen(self)

    def forward(self, samples: float) -> None:
        """A forward pass of so many samples begins; the first one after an optimiser's step begins an iteration."""
        if self._now is None:
            self._time_exchanges()
            self._now = _Iteration(self.recorder.begin(), self._marks.mark())
        self._now.samples += samples
        self._forward = self._marks.mark()

    def backward(self) -> None:
        """A forward pass is over."""
        if self._now is not None and self._forward is not None:
            self._now.forward.append((self._forward, self._marks.mark()))
            self._forward = None

    def wait_begins(self) -> None:
        """A collective begins to wait for other workers."""
        if self._now is not None:
            self._wait = [self._marks.mark()]
            (self._now.waits_after if self._forward is None else self._now.waits_forward).append(self._wait)

    def wait_ends(self) -> None:
        """It is over."""
        if self._wait is not None:
            self._wait.append(self._marks.mark())
            self._wait = None

    def stepping(self) -> None:
        """The gradients are there and the optimiser begins its step."""
        if self._now is not None:
            self._now.stepping = self._marks.mark()

    def stepped(self) -> None:
        """The optimiser's step is over, and the iteration with it; those whose times are known are written."""
        if self._now is None:
            return
        iteration, self._now, self._exchange = self._now, None, None
        iteration.end = self._marks.mark()
        self._pending.append((iteration, self._ended))
        self._ended = iteration.end
        while self._pending and self._marks.passed(self._pending[0][0].end):
            self._write(*self._pending.popleft())

    def close(self) -> None:
        """Write the iterations that are complete, waiting for the device to end them."""
        self._stop_listening()
        if self._pending:
            self._marks.wait(self._pending[-1][0].end)
        while self._pending:
            self._write(*self._pending.popleft())

    def timed(self, hook: Hook) -> Hook:
        """Return a communication hook with marks; register it in the hook's place, before the first iteration."""
        self.times_exchanges = True

        @functools.wraps(hook)  # torch looks at the signature
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
        # As late as this, so that a hook of the user's own, in `timed`, can be registered before.
        model: Any = self.model
        if self.times_exchanges or not hasattr(model, "register_comm_hook"):
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        try:
            model.register_comm_hook(model.process_group, self.timed(allreduce_hook))
        except RuntimeError as error:
            raise RuntimeError(
                "this model has a communication hook already, so waiting cannot be told from work: "
                "register `watching.timed(hook)` in its place"
            ) from error

    def _write(self, iteration: _Iteration, ended_before: Any) -> None:
        seconds, step = self._marks.seconds, iteration.step
        stepping = iteration.end if iteration.stepping is None else iteration.stepping
        in_forward, after = (
            sum(seconds(*wait) for wait in waits if len(wait) == 2)
            for waits in (iteration.waits_forward, iteration.waits_after)
        )
        exchanged = sum(
            max(0.0, *(seconds(ready, each) for each in done)) for ready, *done in iteration.exchanges if done and ready
        )
        step.comm_seconds = exchanged + in_forward + after
        step.seconds = max(0.0, seconds(iteration.begin, iteration.end) - step.comm_seconds)
        forward = sum(seconds(start, stop) for start, stop in iteration.forward) - in_forward
        backward = max(0.0, seconds(iteration.begin, stepping) - step.comm_seconds - forward)
        between = float("nan") if ended_before is None else seconds(ended_before, iteration.begin)
        step.phases = dict(zip(PHASES, (between, forward, backward, seconds(stepping, iteration.end)), strict=True))
        self.recorder.write(step, iteration.samples)
