"""Agreement of the ranks before they balance: on library version, data, policy and predictor."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from paceline._version import __version__
from paceline.coordinator.policy import Policy
from paceline.predictors import Predictor
from paceline.torch.exchange import Exchange
from paceline.torch.rank_loader import RankLoader
from paceline.torch.reports import REPORT_COLUMNS
from paceline.torch.state_lists import to_lists

MAX_COMPARED_VALUES = 64
"""Numbers of a sample, or of a subset, that are compared: enough to tell two parts of a dataset apart, and quick."""


def collect_facts(loader: RankLoader, predictor: Predictor, policy: Policy, timeout: float | None) -> dict[str, str]:
    """Return all facts that plans depend on, except reports, each under a name that reads well in an error."""
    about_data = {f"{name} of the loader": str(value) for name, value in loader.settings().items()}
    state = json.dumps(to_lists(predictor.state_dict()), sort_keys=True).encode()
    return {
        "version of paceline": __version__,
        **about_data,
        "place in the data": str(loader.position),
        "policy": repr(policy),
        # Python's default repr holds the object's address, which differs in every process.
        "predictor": re.sub(r" at 0x\w+", "", repr(predictor)) + f" with state {zlib.crc32(state):08x}",
        "timeout": str(timeout),
        # Reports of unequal length end a process inside gloo, without a sentence.
        "covariates": str(list(predictor.covariate_names)),
        "columns of a report": str(list(REPORT_COLUMNS)),
    }


def require_agreement(
    exchange: Exchange, loader: RankLoader, facts: Mapping[str, str], workers: Sequence[str] | None
) -> tuple[str, ...]:
    """Compare the facts of all ranks, and return a name for each rank: the given one, or host and local rank.

    If they differ, a ValueError is raised on every rank.
    """
    # Host and local rank survive an elastic restart, in which torchrun may renumber the global ranks.
    local = os.environ.get("LOCAL_RANK", str(exchange.rank))
    mine = {
        "facts": {**facts, "names of the workers": str(None if workers is None else [str(one) for one in workers])},
        "name": f"{socket.gethostname()}:{local}",
        "rank": loader.rank,
    }
    facts_W = exchange.gather(mine)  # before any check, so that all ranks see the same facts and raise the same error
    if loader.world_size != exchange.world_size:
        raise ValueError(
            f"the loader assigns samples to {loader.world_size} ranks, but {exchange.world_size} ranks train together: "
            "call torch.distributed.init_process_group() first, or pass rank and world_size to the loader"
        )
    # Of all ranks: one of another version may name a fact that the others do not.
    for name in dict.fromkeys(name for other in facts_W for name in other["facts"]):
        values = [str(other["facts"].get(name)) for other in facts_W]
        if len(set(values)) > 1:
            raise ValueError(
                f"the ranks must agree on the {name}, got "
                + ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            )
    if (ranks := [other["rank"] for other in facts_W]) != list(range(exchange.world_size)):
        raise ValueError(f"each rank must pass its own rank to the loader, got {ranks} in the order of ranks")
    names = [str(one) for one in workers] if workers is not None else [other["name"] for other in facts_W]
    if len(set(names)) != len(names) or len(names) != exchange.world_size:
        raise ValueError(f"workers must be {exchange.world_size} different names, one for each rank, got {names}")
    return tuple(names)


def different_data_warning(exchange: Exchange, dataset: Any) -> str:
    """Return a warning if the ranks hold different data; nothing if they do not, or it cannot be seen.

    A dataset of the user's own class is not inspected: loading a sample may take long, draw random numbers, or open
    files that loading processes must open themselves.
    """
    what, seen = dataset_checksum(dataset)
    facts_W = exchange.gather([what, seen])
    if all(seen_there == facts_W[0] for seen_there in facts_W):
        return ""
    return (
        f"The ranks have different data: {what} is not the same on each. Samples are assigned to ranks by their "
        "numbers, so most samples that only one rank has would never be used. Give every rank the complete "
        "dataset, not a part of it (Subset, shard, split_dataset_by_node), and pass random_split a generator with "
        "the same seed on every rank."
    )


def dataset_checksum(dataset: Any) -> tuple[str, int]:
    """Return the name of the part that was looked at, and its checksum; 0 for a dataset of the user's own class."""
    if isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices[:MAX_COMPARED_VALUES])
        return "the subset", _checksum_values(indices) ^ dataset_checksum(dataset.dataset)[1]
    if isinstance(dataset, ConcatDataset):
        parts: list[Any] = dataset.datasets
        return dataset_checksum(next(part for part in parts if len(part)))
    if isinstance(dataset, TensorDataset):
        return dataset_checksum(dataset.tensors[0])
    if isinstance(dataset, torch.Tensor | np.ndarray):
        return "sample 0", _checksum_values(dataset[0])
    kind = getattr(sys.modules.get("datasets"), "Dataset", ())  # Hugging Face's, if anybody has imported them
    if isinstance(dataset, kind):
        return "sample 0", zlib.crc32(repr(dataset.with_format("arrow")[0].to_pydict()).encode())
    return "", 0


def _checksum_values(values: Any) -> int:
    """Return a checksum of a few numbers, to three digits: processors may round the last ones differently."""
    if isinstance(values, torch.Tensor):  # not by numpy, which has no bfloat16
        values = values.detach().to_dense().reshape(-1)[:MAX_COMPARED_VALUES].tolist()
    numbers = np.ravel(values)[:MAX_COMPARED_VALUES]
    if numbers.dtype.kind not in "biufc":  # objects may print their address
        return 0
    return zlib.crc32(" ".join(f"{number:.3g}" for number in numbers.tolist()).encode())
