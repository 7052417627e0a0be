"""The state of a balance inside a sharded checkpoint, which another number of ranks loads."""

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402
from torch.distributed import checkpoint  # noqa: E402

from paceline.predictors import LastValue  # noqa: E402
from paceline.torch import BalancedLoader, attach  # noqa: E402

pytestmark = pytest.mark.processes


def job(rank):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = fully_shard(torch.nn.Linear(4, 8))
    loader = BalancedLoader(torch.arange(480.0).reshape(-1, 4), 24, seed=0)
    return model, loader, attach(model, loader, predictor=LastValue())


def state_of(model, balance):
    return {"model": model.state_dict(), "balance": balance.state_dict()}


def save(rank, folder):
    model, loader, balance = job(rank)
    seen = []
    for step, rows in enumerate(loader):
        seen += rows[:, 0].tolist()
        model(rows).mean().backward()
        if step == 1:
            break
    checkpoint.save(state_of(model, balance), checkpoint_id=folder)
    return seen, balance.plan.iteration


def resume(rank, folder):
    model, loader, balance = job(rank)
    state = state_of(model, balance)
    checkpoint.load(state, checkpoint_id=folder)
    balance.load_state_dict(state["balance"])
    iteration = balance.plan.iteration
    return [row for rows in loader for row in rows[:, 0].tolist()], iteration


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_numbers_of_ranks_resume(tmp_path, ranks):
    before = run_ranks(3, save, str(tmp_path))
    after = run_ranks(ranks, resume, str(tmp_path))
    assert sorted(row for seen, _ in [*before, *after] for row in seen) == [4.0 * row for row in range(120)]
    assert after[0][1] == before[0][1]
