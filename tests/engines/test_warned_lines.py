"""A warning names the line of the script that it is about, not one of ours."""

import warnings

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.parameter_server import AsyncJob
from paceline.torch import BalancedLoader, attach


def loader():
    return BalancedLoader(torch.zeros(20, 1), 5, rank=0, world_size=1)


def saved():
    """A state in the middle of an epoch."""
    one = loader()
    next(iter(one))
    return one.state_dict()


def a_bound_of_nobody():
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    attach(model, loader(), policy=Policy(upper={"nobody": 5}), workers=["a"]).close()


def a_device_that_is_not_there():
    BalancedLoader(torch.zeros(20, 1), 5, rank=0, world_size=1, pin_memory=True)


def a_rest_left_out():
    loader().load_state_dict(saved(), skip_rest=True)


def a_rest_passed_over():
    one = loader()
    one.load_state_dict(saved())
    one.set_epoch(1)
    list(one)


def buffers_of_each_worker():
    model = torch.nn.BatchNorm1d(2)
    AsyncJob(model, torch.optim.SGD(model.parameters(), 0.1), torch.zeros(4, 2), batch=2, epochs=1).close()


@pytest.mark.parametrize(
    "said",
    [a_bound_of_nobody, a_device_that_is_not_there, a_rest_left_out, a_rest_passed_over, buffers_of_each_worker],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no device")
def test_a_warning_is_of_the_line_in_the_script(said, alone):
    first = said.__code__.co_firstlineno
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said()
    (one,) = [warning for warning in caught if not issubclass(warning.category, DeprecationWarning)]
    assert one.filename == __file__
    assert first < one.lineno <= first + 4
