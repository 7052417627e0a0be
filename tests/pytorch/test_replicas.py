"""Replicas of a model in HSDP: the number of micro-batches follows the speed of a replica."""

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402

from paceline.predictors import LastValue  # noqa: E402
from paceline.torch import BalancedLoader, attach  # noqa: E402

pytestmark = pytest.mark.processes


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def counts(rank):
    """The numbers of micro-batches of all ranks in every step, of sixteen for the two replicas.

    The last rank, and so its replica, takes twice as long for each.
    """
    loader, model = BalancedLoader(torch.randn(4096, 4), 128, micro_batch=4, drop_last=True), sharded()
    balance, optimizer = attach(model, loader, predictor=LastValue()), torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for inputs in loader:
        if loader.step_ends:
            balance.measured(0.01 + 0.02 * (1 + (rank == 3)) * int(loader.batch_sizes[rank] // 4))
        with balance.accumulating():
            model(inputs).square().mean().backward()
        if loader.step_ends:
            optimizer.step()
            optimizer.zero_grad()
            counts.append((loader.batch_sizes // 4).tolist())
    workers = balance.plan.workers
    balance.close()
    return counts, workers


def refused(rank, options):
    attach(sharded(), BalancedLoader(torch.randn(64, 4), **options))


def test_counts_follow_the_speed_of_a_replica():
    results = run_ranks(4, counts)
    counts_TW, workers = results[0]
    assert all(result == results[0] for result in results)
    assert len(workers) == 2
    assert counts_TW[0] == [8, 8, 8, 8]
    assert all(one[0] == one[1] and one[2] == one[3] and one[0] + one[2] == 16 for one in counts_TW)
    assert counts_TW[-1][0] in (10, 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 18, "micro_batch": 2}, "pass drop_last=True to the loader"),
        ({"global_batch": 19, "micro_batch": 2, "drop_last": True}, "multiple of the 2 ranks of a replica"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(options, message):
    with pytest.raises(Exception, match=message):
        run_ranks(4, refused, options)
