"""Waits of a sharded model on a CUDA device: for parameters to be gathered, and for gradients to be scattered.

No call blocks there: the compute stream waits for the stream of the collectives, and a rank's forward and backward
passes contain its waits for slower ranks. FSDP2 (``fully_shard``) waits inside hooks of its modules, and hooks that
come right before and right after those frame the waits:

- forward: between a prepended and an ordinary forward pre-hook of a module;
- backward, parameters: between two hooks on the gradient of a module's output;
- backward, gradients: around the node that a module puts before its inputs, and at the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from paceline.recording.torch.collective_time import CollectiveListener


class FSDPWaits:
    """Notifies a listener of the waits of every module that ``fully_shard`` was given.

    Waits may lie inside waits that the listener learns of elsewhere: only the outermost count.

    Parameters
    ----------
    model
        A model whose modules were sharded already.
    listener
        Is notified in the thread that waits, which is one of torch's own in the backward pass.
    """

    def __init__(self, model: torch.nn.Module, listener: CollectiveListener) -> None:
        self._begins, self._ends = listener.wait_begins, listener.wait_ends
        self._queued = False
        kind = getattr(torch.distributed.fsdp, "FSDPModule", ())
        self._handles = [
            handle
            for module in model.modules()
            if isinstance(module, kind)
            for handle in (
                module.register_forward_pre_hook(self._before_parameters, prepend=True),
                module.register_forward_pre_hook(self._after_parameters, with_kwargs=True),
                module.register_forward_hook(self._after_forward, prepend=True),
            )
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_parameters(self, *_: Any) -> None:
        self._begins()

    def _after_parameters(self, _: Any, args: Any, kwargs: Any) -> None:
        self._ends()
        for tensor in _tensors((args, kwargs)):
            # FSDP2 scatters a module's gradients at the end of this node
            if tensor.grad_fn is not None and type(tensor.grad_fn).__name__ == "RegisterPostBackwardFunctionBackward":
                tensor.grad_fn.register_prehook(self._before_parameters)
                tensor.grad_fn.register_hook(self._after_backward)
                return

    def _after_forward(self, _: Any, args: Any, output: Any) -> None:
        # The hook of the gradient comes before FSDP2's own, that of the node after it.
        for tensor in _tensors(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._before_backward)
                tensor.grad_fn.register_prehook(self._after_backward)

    def _before_backward(self, _: Any) -> None:
        if not self._queued:  # before FSDP2's own callback, in which it waits for the last gradients
            self._queued = True
            queue_callback(self._before_last)
        self._begins()

    def _after_backward(self, *_: Any) -> None:
        self._ends()

    def _before_last(self) -> None:
        self._begins()
        queue_callback(self._after_last)  # behind those of all modules: they are queued by now

    def _after_last(self) -> None:
        self._queued = False
        self._ends()


def queue_callback(callback: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, torch.Tensor))
