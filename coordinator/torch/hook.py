"""The communication hook: sums gradients by each rank's share of the samples, and tells when the last are ready.

DistributedDataParallel compares the hook's annotations with its types, so this file keeps them as types, not as text.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline.coordinator.torch.exchange import Exchange

Hook = Callable[[object, Any], "torch.futures.Future[torch.Tensor]"]


def weighted_sum(
    group: dist.ProcessGroup,
    weight: Callable[[], float],
    on_ready: Callable[[], None],
    on_sent: Callable[[], None],
    on_summed: Callable[[], None],
    exchange: Exchange,
) -> Hook:
    """Return a hook for ``DistributedDataParallel.register_comm_hook``.

    Parameters
    ----------
    group
        The process group that trains together.
    weight
        Returns this rank's weight in the mean gradient.
    on_ready
        Called when this rank's last gradients are ready, before they are handed to the network.
    on_sent
        Called when they have been handed to the network.
    on_summed
        Called when the sum of the last gradients of all ranks is there, perhaps by another thread.
    exchange
        Words the error when a rank is gone.
    """

    def hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        last = bucket.is_last()
        if last:
            on_ready()
        gradients = bucket.buffer().mul_(weight())
        work = dist.all_reduce(gradients, group=group, async_op=True)  # gloo cannot scale and sum in one go

        def summed(future: torch.futures.Future[Any]) -> torch.Tensor:
            try:
                total: torch.Tensor = future.value()[0]
            except RuntimeError as error:
                raise exchange.lost(error) from error
            if last:
                on_summed()
            return total

        assert work is not None, "an asynchronous collective returns its work"
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(summed)
        if last:
            on_sent()
        return future

    return hook
