"""Agreement of the ranks before they balance: on library version, data, policy, predictor and weighting."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._version import __version__
from paceline.coordinator.balanced.policy import Policy
from paceline.predictors import Predictor
from paceline.torch.exchange import Exchange
from paceline.torch.loader_protocol import Loader
from paceline.torch.reports import COLUMNS


def facts_of(loader: Loader, predictor: Predictor, policy: Policy, loss: str, timeout: float | None) -> dict[str, str]:
    """Return all facts that plans depend on, except reports, each under a name that reads well in an error."""
    about_data = {f"{name} of the loader": str(value) for name, value in loader.settings().items()}
    return {
        "version of paceline": __version__,
        **about_data,
        "place in the data": str(loader.position),
        "policy": repr(policy),
        # Python's default repr holds the object's address, which differs in every process.
        "predictor": re.sub(r" at 0x\w+", "", repr(predictor)) + f" with state {_hash(predictor.state_dict())}",
        "loss": loss,
        "timeout": str(timeout),
        # Reports of unequal length end a process inside gloo, without a sentence.
        "covariates": str(list(predictor.covariate_names)),
        "columns of a report": str(list(COLUMNS)),
    }


def agree(
    exchange: Exchange, loader: Loader, facts: Mapping[str, str], workers: Sequence[str] | None
) -> tuple[str, ...]:
    """Compare the facts of all ranks, and return a name for each rank: the given one, or host and local rank.

    Raises
    ------
    ValueError
        On every rank, if the ranks do not agree, or there is not one distinct name per rank.
    """
    # Host and local rank survive an elastic restart, in which torchrun may renumber the global ranks.
    local = os.environ.get("LOCAL_RANK", str(exchange.rank))
    own = {
        "facts": {**facts, "names of the workers": str(None if workers is None else [str(one) for one in workers])},
        "name": f"{socket.gethostname()}:{local}",
        "rank": loader.rank,
    }
    told_W = exchange.gather(own)  # before any check, so that every rank sees the same facts and raises the same error
    if loader.world_size != exchange.world_size:
        raise ValueError(
            f"the loader assigns samples to {loader.world_size} ranks, but {exchange.world_size} ranks train together: "
            "give the loader their rank and world_size"
        )
    # Of all ranks: one of another version may name a fact that the others do not.
    for name in dict.fromkeys(name for other in told_W for name in other["facts"]):
        said = [str(other["facts"].get(name)) for other in told_W]
        if len(set(said)) > 1:
            raise ValueError(
                f"the ranks must agree on the {name}, got "
                + ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(said))
            )
    if (ranks := [other["rank"] for other in told_W]) != list(range(exchange.world_size)):
        raise ValueError(f"each rank must give the loader its own rank, got {ranks} in the order of ranks")
    names = [str(one) for one in workers] if workers is not None else [other["name"] for other in told_W]
    if len(set(names)) != len(names) or len(names) != exchange.world_size:
        raise ValueError(f"workers must be {exchange.world_size} different names, one for each rank, got {names}")
    return tuple(names)


def _hash(state: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(state.items()):
        array = np.ascontiguousarray(value)
        # The shape too: equal bytes in another shape are another state.
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
