"""What a script hands to attach(): what changes nothing is said, and what is no predictor is refused."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.engines.torch.weighting.listener import BalanceWarning
from paceline.predictors import EWMA
from paceline.torch import BalancedLoader, attach


@pytest.fixture
def script():
    """Model and loader of a job of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 4))
    yield DistributedDataParallel(torch.nn.Linear(4, 1)), BalancedLoader(data, 20)
    dist.destroy_process_group()


def test_a_bound_of_a_worker_that_is_not_there_is_said(script):
    with pytest.warns(BalanceWarning, match=r"bounds \['rank7'\], who are not among the workers \['a'\]"):
        attach(*script, policy=Policy(upper={"rank7": 5, "a": 20}), workers=["a"])


def test_bounds_of_workers_that_are_there_are_not_warned_of(script):
    with warnings.catch_warnings():
        warnings.simplefilter("error", BalanceWarning)
        attach(*script, policy=Policy(upper={"a": 20}), workers=["a"])


@pytest.mark.parametrize("predictor", ["ewma", EWMA, 3])
def test_what_is_no_predictor_is_refused_in_a_sentence(script, predictor):
    with pytest.raises(TypeError, match=r"predictor must be one such as EWMA\(\), got .* makes? one"):
        attach(*script, predictor=predictor)
