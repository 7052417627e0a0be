"""Record a PyTorch model without changing it: hooks report the phases of every step to a stopwatch.

An iteration begins with the first forward pass after an optimizer step and ends with the next optimizer step, so the
micro-batches of one accumulated gradient are one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from paceline.recording.recorder import Recorder
from paceline.recording.torch.forward_work import leading_size, work_of
from paceline.recording.torch.marks import CPUMarks, marks_of
from paceline.recording.torch.stopwatch import Hook, Stopwatch, sums_in_buckets

if TYPE_CHECKING:
    import torch

    from paceline.recording.torch.fsdp_waits import FSDPWaits

Count = Callable[[Sequence[Any], Mapping[str, Any]], float]
"""Returns the samples, or the work, of a forward pass from its positional and keyword arguments."""


def watch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    recorder: Recorder,
    *,
    samples: Count = leading_size,
    work: Count = work_of,
) -> Watch:
    """Record every training step of a model from now on.

    Parameters
    ----------
    model
        The model as the loop calls it: in DistributedDataParallel, given to ``fully_shard``, or by itself.
    optimizer
        Its step ends an iteration; ``None`` takes any optimizer that holds a parameter of the model.
    recorder
        An open recorder that has not recorded anything yet.
    samples
        Returns the samples of a forward pass from its positional and keyword arguments; by default the length of the
        first tensor among them.
    work
        Returns what they cost, in any unit that is the same for all workers: by default what an attached balanced
        loader knows of it, or else the number of elements of all tensors among the arguments.

    Returns
    -------
    Watch
        Close it, or use it in a ``with`` block, to remove the hooks.

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
    return Watch(model, optimizer, recorder, samples, work)


class Watch:
    """The hooks on one model: see :func:`watch`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        recorder: Recorder,
        samples: Count = leading_size,
        work: Count = work_of,
    ) -> None:
        import torch

        self.stopwatch = Stopwatch(model, recorder)
        self._waits: FSDPWaits | None = None
        if not isinstance(marks_of(model), CPUMarks):
            from paceline.recording.torch.fsdp_waits import FSDPWaits  # it needs torch, as the model does

            self._waits = FSDPWaits(model, self.stopwatch)
        self._samples, self._work, self._optimizer = samples, work, optimizer
        self._grad_enabled = torch.is_grad_enabled  # kept, so that the hooks need not import torch in every step
        self._parameters = {id(parameter) for parameter in model.parameters()}
        # On the module inside DistributedDataParallel, so that its broadcast of buffers does not count as work.
        inner: Any = model.module if sums_in_buckets(model) else model
        before, after = _step_hooks(optimizer)
        self._handles = [
            inner.register_forward_pre_hook(self.before_forward, with_kwargs=True),
            inner.register_forward_hook(self._after_forward),
            before(self._before_step),
            after(self._after_step),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks and record the complete iterations."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._waits is not None:
            self._waits.close()
        self.stopwatch.close()

    def timed(self, hook: Hook) -> Hook:
        """Return your own communication hook with marks; register it instead of the hook, before the first step."""
        return self.stopwatch.timed(hook)

    def before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that the model is called with these arguments."""
        if module.training and self._grad_enabled():
            self.stopwatch.forward(self._samples(args, kwargs), self._work(args, kwargs))

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        self.stopwatch.backward()

    def _before_step(self, optimizer: Any, *args: Any) -> None:
        if self.is_of_model(optimizer):
            self.stopwatch.stepping()

    def _after_step(self, optimizer: Any, *args: Any) -> None:
        if self.is_of_model(optimizer):
            self.stopwatch.stepped()

    def is_of_model(self, optimizer: Any) -> bool:
        """Return whether this optimizer's steps end an iteration."""
        if self._optimizer is not None:
            return True
        groups = optimizer.param_groups
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])


def _step_hooks(optimizer: torch.optim.Optimizer | None) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    if optimizer is None:
        return register_optimizer_step_pre_hook, register_optimizer_step_post_hook
    return optimizer.register_step_pre_hook, optimizer.register_step_post_hook
