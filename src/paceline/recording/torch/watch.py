"""Record a PyTorch model without changing it: hooks time the phases of every step.

An iteration begins with the first forward pass after an optimizer step and ends with the next optimizer step, so the
micro-batches of one accumulated gradient are one iteration.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from paceline.recording.recorder import Recorder, Step
from paceline.recording.torch.busy_time import CPUEvents, choose_events

if TYPE_CHECKING:
    import torch

    from paceline.recording.torch.waits import FSDPWaits

_forward_work: list[float] = []
"""Work that a loader stated for the forward pass that begins: one number, or none."""


def set_forward_work(work: float) -> None:
    """State the cost of the samples of the forward pass that begins now, in this process, for the recorder."""
    _forward_work[:] = [work]


def forward_work(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the work of a forward pass: what the loader stated, or the elements of its arguments; NaN without any.

    Elements of tensors stand in for cost: of text padded tokens, of images pixels, of graphs nodes and edges, each
    times what is known of it.

    >>> import torch
    >>> set_forward_work(3.5)
    >>> tokens = torch.zeros(4, 100)
    >>> forward_work((tokens,), {}), forward_work((), {"tokens": tokens, "mask": tokens})
    (3.5, 800.0)
    """
    if _forward_work:
        return _forward_work.pop()
    sizes = [math.prod(map(int, shape)) for shape in shapes_in([*args, *kwargs.values()])]
    return float(sum(sizes)) if sizes else math.nan


def leading_size(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the length of the first tensor among the arguments, also inside lists, tuples and mappings, or NaN.

    >>> import torch
    >>> leading_size((), {"batch": {"pixels": torch.zeros(16, 3), "label": torch.zeros(16)}})
    16.0
    """
    shape = next(shapes_in([*args, *kwargs.values()]), None)
    return float(shape[0]) if shape else math.nan


def shapes_in(values: Sequence[Any]) -> Iterator[Sequence[int]]:
    """Yield the shapes of tensors, also inside lists, tuples and mappings; numbers have none."""
    for value in values:
        if isinstance(value, Mapping):
            yield from shapes_in(list(value.values()))
        elif isinstance(value, (list, tuple)):
            yield from shapes_in(value)
        elif hasattr(value, "shape") and len(value.shape):
            yield value.shape


PHASES = ("between_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
"""Phases: since the last iteration (loading data, evaluating), forward pass, backward pass, and optimizer step."""


def is_ddp(model: Any) -> bool:
    """Return whether a model is in DistributedDataParallel, which sums gradients in buckets."""
    return hasattr(model, "require_backward_grad_sync")


@dataclass
class _Iteration:
    # The events of one iteration. An exchange is an event for the last bucket being ready, then one per bucket done.
    step: Step
    begin: Any
    previous_end: Any
    waits: dict[str, list[list[Any]]]  # by phase: between iterations, in forward passes, after them
    samples: float = 0.0
    work: float = 0.0
    forward: list[tuple[Any, Any]] = field(default_factory=list)
    exchanges: list[list[Any]] = field(default_factory=list)
    micro_batches: int = 0
    step_begin: Any = None
    end: Any = None


class Watch:
    """Records every training step of a model from now on: :func:`watch` returns it.

    Under DistributedDataParallel, a communication hook marks when the last bucket of gradients is ready and when it has
    been exchanged. The time between is communication and waiting, as is every other collective inside the step; the
    rest is the worker's own work. Other models, sharded ones among them, wait in collectives only. No other measurement
    shows a straggler: the wall time of a step is the same for all workers, and a fast worker waits inside its passes.
    Close it, or use it in a ``with`` block, to remove the hooks.

    Parameters
    ----------
    model
        The model as the loop calls it: in DistributedDataParallel, given to ``fully_shard``, or by itself.
    optimizer
        Its step ends an iteration; ``None`` takes any optimizer that holds a parameter of the model.
    recorder
        An open recorder that has not recorded anything yet.

    Notes
    -----
    Samples are the length of the first tensor among a forward pass's arguments. Their work is what an attached balanced
    loader knows of it, or else the number of elements of all tensors. Record any other loop with :class:`Recorder`.

    Examples
    --------
    >>> import tempfile, torch
    >>> from paceline.recording import merge, phase_table
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = f"{folder.name}/rank0.jsonl"
    >>> with Recorder(path, worker="0") as recorder, watch(model, optimizer, recorder):
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(16, 4)).sum().backward()
    ...         optimizer.step()
    >>> merge([path]).samples[:, 0]
    array([16., 16., 16.])
    >>> list(phase_table([path]).columns[3:])
    ['between_seconds', 'forward_seconds', 'backward_seconds', 'optimizer_seconds']
    >>> folder.cleanup()
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, recorder: Recorder) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        from paceline.recording.torch.waits import FSDPWaits, listen

        recorder.phases, recorder.wait_in_comm = PHASES, True
        self.model, self.recorder = model, recorder
        self._events: Any = choose_events(model)
        self._current_iteration: _Iteration | None = None
        self._forward: Any = None
        self._last_end: Any = None
        self._pending_iterations: deque[_Iteration] = deque()
        self._exchange: list[Any] | None = None
        self._wait: list[Any] | None = None
        self._depth = 0
        self._wait_lists: dict[str, list[list[Any]]] = defaultdict(list)  # of the iteration under way, or the next
        self.times_exchanges = False
        self._stop_listening = listen(self)
        self._waits: FSDPWaits | None = None if isinstance(self._events, CPUEvents) else FSDPWaits(model, self)
        self._optimizer = optimizer
        self._grad_enabled = torch.is_grad_enabled  # kept, so that the hooks need not import torch in every step
        self._parameters = {id(parameter) for parameter in model.parameters()}
        # On the module inside DistributedDataParallel, so that its broadcast of buffers does not count as work.
        inner: Any = model.module if is_ddp(model) else model
        before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
        if optimizer is not None:
            before, after = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        self._handles = [
            inner.register_forward_pre_hook(self.before_forward, with_kwargs=True),
            inner.register_forward_hook(self.after_forward),
            before(self.before_step),
            after(self.after_step),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks, wait for the device to finish the complete iterations, and record them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._waits is not None:
            self._waits.close()
        self._stop_listening()
        if self._pending_iterations:
            self._events.wait(self._pending_iterations[-1].end)
        while self._pending_iterations:
            self._write(self._pending_iterations.popleft())

    def is_of_model(self, optimizer: Any) -> bool:
        """Return whether this optimizer's steps end an iteration."""
        if self._optimizer is not None:
            return True
        groups = optimizer.param_groups
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])

    def before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that a forward pass with these arguments begins; the first after a step starts an iteration."""
        if not (module.training and self._grad_enabled()):
            return
        if self._current_iteration is None:
            self._time_exchanges()
            step, begin = self.recorder.begin(), self._events.record()
            self._current_iteration = _Iteration(step, begin, self._last_end, self._wait_lists)
        iteration = self._current_iteration
        iteration.samples += leading_size(args, kwargs)
        # Micro-batches: passes under `no_sync`, or every pass, where nobody sees which gradients are summed.
        iteration.micro_batches += not getattr(self.model, "require_backward_grad_sync", False)
        iteration.work += forward_work(args, kwargs)
        self._forward = self._events.record()

    def after_forward(self, module: Any, args: Any, output: Any) -> None:
        """Note that a forward pass is over."""
        if self._current_iteration is not None and self._forward is not None:
            self._current_iteration.forward.append((self._forward, self._events.record()))
            self._forward = None

    def wait_begins(self) -> None:
        """Note that a collective begins to wait for other workers; a wait inside a wait is part of it."""
        self._depth += 1
        if self._depth > 1:
            return
        self._wait = [self._events.record()]
        phase = "between" if self._current_iteration is None else "after" if self._forward is None else "forward"
        self._wait_lists[phase].append(self._wait)

    def wait_ends(self) -> None:
        """Note that the collective's wait is over."""
        self._depth = max(self._depth - 1, 0)
        if self._wait is not None and not self._depth:
            self._wait.append(self._events.record())
            self._wait = None

    def before_step(self, optimizer: Any, *args: Any) -> None:
        """Note that all gradients are ready and an optimizer begins its step; a step may call that of another class."""
        iteration = self._current_iteration
        if self.is_of_model(optimizer) and iteration is not None and iteration.step_begin is None:
            iteration.step_begin = self._events.record()

    def after_step(self, optimizer: Any, *args: Any) -> None:
        """Note that the optimizer's step, and with it the iteration, is over; write those whose times are known."""
        if not self.is_of_model(optimizer) or self._current_iteration is None:
            return
        iteration, self._current_iteration, self._exchange = self._current_iteration, None, None
        self._wait_lists = defaultdict(list)
        iteration.end = self._last_end = self._events.record()
        self._pending_iterations.append(iteration)
        # In order, and only iterations that the device has passed: waiting for it would slow the training down.
        while self._pending_iterations and self._events.has_passed(self._pending_iterations[0].end):
            self._write(self._pending_iterations.popleft())

    def time_hook(self, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return your own communication hook with events; register it instead of the hook, before the first step."""
        self.times_exchanges = True

        @functools.wraps(hook)  # because torch checks the hook's signature
        def timed_hook(state: Any, bucket: Any) -> Any:
            if self._current_iteration is None:
                return hook(state, bucket)
            if self._exchange is None:
                self._exchange = [None]
                self._current_iteration.exchanges.append(self._exchange)
            recorded = self._exchange
            if bucket.is_last():
                recorded[0], self._exchange = self._events.record(), None
            return add_callback(hook(state, bucket), functools.partial(self._record_exchange_end, recorded))

        return timed_hook

    def _record_exchange_end(self, iterations: list[Any], future: Any) -> Any:
        result = future.value()
        iterations.append(self._events.record())
        return result

    def _time_exchanges(self) -> None:
        # Only at the first forward pass, so that users can register their own hook, wrapped in `timed`, before.
        model: Any = self.model
        if self.times_exchanges or not is_ddp(model):
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        try:
            model.register_comm_hook(model.process_group, self.time_hook(allreduce_hook))
        except RuntimeError as error:
            raise RuntimeError(
                "this model already has a communication hook, so waiting cannot be separated from work: "
                "register `watching.time_hook(hook)` instead of that hook"
            ) from error

    def _write(self, iteration: _Iteration) -> None:
        seconds, step, first = self._events.seconds, iteration.step, iteration.previous_end is None
        stepping = iteration.end if iteration.step_begin is None else iteration.step_begin
        in_between, in_forward, after = (
            # A wait without an end was still under way when the recording stopped.
            sum(seconds(*wait) for wait in iteration.waits[phase] if len(wait) == 2)
            for phase in ("between", "forward", "after")
        )
        exchanged = sum(
            max(0.0, *(seconds(ready, each) for each in done)) for ready, *done in iteration.exchanges if done and ready
        )
        within = exchanged + in_forward + after
        between = math.nan if first else max(0.0, seconds(iteration.previous_end, iteration.begin) - in_between)
        # Exchanges and waits are measured separately and may overlap, so the rest could come out negative.
        computing = max(0.0, seconds(iteration.begin, iteration.end) - within)
        # The time before a forward pass belongs to it: there its batch is loaded.
        step.seconds = computing + (0.0 if first else between)
        step.comm_seconds = within + (0.0 if first else in_between)
        forward = sum(seconds(start, stop) for start, stop in iteration.forward) - in_forward
        backward = max(0.0, seconds(iteration.begin, stepping) - within - forward)
        step.phases = dict(zip(PHASES, (between, forward, backward, seconds(stepping, iteration.end)), strict=True))
        exchanges = max(len(iteration.exchanges), 1) if is_ddp(self.model) else 0
        if (micro_batches := iteration.micro_batches + exchanges) > 1:
            self.recorder.meta.setdefault("accumulate", str(micro_batches))
        self.recorder.write(step, iteration.samples, iteration.work)


watch = Watch

_callbacks: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Callbacks that torch's threads run when gradients are summed, and that must be gone before the interpreter is.

A thread of gloo needs Python's lock to let go of the callback. If the interpreter is closing by then, the process
crashes (:func:`paceline._runtime.wait_at_exit`). If the process forks in that moment, to start a loading process, the
thread may hold the lock of CPython's list of threads, which nobody releases in the child.
"""


def add_callback(
    future: torch.futures.Future[Any], callback: Callable[[torch.futures.Future[Any]], torch.Tensor]
) -> torch.futures.Future[torch.Tensor]:
    """Return ``future.then(callback)``; the process waits for torch to drop the callback before it ends or forks."""
    _callbacks.add(callback)
    return future.then(callback)


def wait_for_callbacks() -> None:
    """Wait until torch's threads have released all callbacks."""
    # a thread lets go within microseconds, or never where it waits for a lost rank
    latest = time.monotonic() + 2.0
    while len(_callbacks) and time.monotonic() < latest:
        time.sleep(0.0005)  # gives Python's lock to whoever wants it


atexit.register(wait_for_callbacks)  # runs before the interpreter begins to close
os.register_at_fork(before=wait_for_callbacks)
