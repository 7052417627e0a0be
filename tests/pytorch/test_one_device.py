"""A script that balances its ranks runs on one device too, in no process group."""

import pytest
import torch

from paceline.torch import BalancedLoader, StreamLoader, attach, gather_rows

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)).double()


def model_and_optimizer():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1).double()
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained_alone(batches, micro_batches):
    """Train a model on whole steps of so many batches, weighted by their terms."""
    model, optimizer = model_and_optimizer()
    for first in range(0, len(batches), micro_batches):
        terms = [model(batch)[batch[:, 0] > 0].square() for batch in batches[first : first + micro_batches]]
        torch.cat(terms).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.detach()


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_scaled_losses_are_weighted(micro_batches):
    model, optimizer = model_and_optimizer()
    loader = BalancedLoader(X, 10, accumulate=micro_batches)
    balance, batches = attach(model, loader), []
    for inputs in loader:
        batches.append(inputs)
        kept = model(inputs)[inputs[:, 0] > 0]
        balance.scale(kept.square().mean(), len(kept)).backward()
        if len(batches) % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert torch.allclose(model.weight, trained_alone(batches, micro_batches), atol=1e-12)
    balance.close()


def test_state_resumes_mid_epoch():
    model, _ = model_and_optimizer()
    loader = BalancedLoader(X, 10)
    balance, rows = attach(model, loader), []
    for number, inputs in enumerate(loader, 1):
        rows += inputs[:, 0].tolist()
        model(inputs).mean().backward()
        if number == 4:
            state = balance.state_dict()
            break
    balance.close()
    loader = BalancedLoader(X, 10)
    balance = attach(model, loader)
    balance.load_state_dict(state)
    for inputs in loader:
        rows += inputs[:, 0].tolist()
        model(inputs).mean().backward()
    assert sorted(rows) == sorted(X[:, 0].tolist())
    balance.close()


def test_a_stream_and_gathered_rows_are_whole():
    assert [len(batch) for batch in StreamLoader(range(10), 5, collate_fn=list)] == [5, 5]
    assert gather_rows(X) is X


def test_launched_ranks_must_join_a_group_first(monkeypatch):
    loader = BalancedLoader(X, 10, rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"2 ranks, but 1 ranks train together: call torch\.distributed"):
        attach(torch.nn.Linear(4, 1), loader)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"2 processes were started, .*init_process_group\(\) before you make"):
        BalancedLoader(X, 10)


def test_printed_balance_and_loader_name_their_sizes():
    loader = BalancedLoader(X, 10)
    balance = attach(model_and_optimizer()[0], loader)
    assert repr(loader) == "BalancedLoader(global_batch=10, rank 0 of 1, batch_sizes=[10])"
    assert repr(balance).startswith("Balance(models=[Linear], closed=False")
    assert "sizes=[10]" in repr(balance)
    balance.close()
    assert "closed=True" in repr(balance)
