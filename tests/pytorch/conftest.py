"""What tests of the engines share."""

import pytest


@pytest.fixture
def alone():
    """A job of one rank, in this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
