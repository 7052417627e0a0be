"""The records of a run go on counting where a resumed run was saved."""

from ranks import run_ranks


def resumed(rank):
    import torch

    from paceline.predictors import EWMA
    from paceline.torch import BalancedLoader, attach

    def train(saved=None):
        torch.manual_seed(0)
        dataset = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        loader = BalancedLoader(dataset, global_batch=32, seed=0)
        balance = attach(model, loader, predictor=EWMA())
        if saved is not None:
            balance.load_state_dict(saved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        numbers = []
        balance.on_iteration.append(lambda iteration: numbers.append(iteration.index))
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        return balance.state_dict(), numbers

    saved, first = train()
    return first, train(saved)[1]


def test_records_of_a_resumed_run_go_on_counting():
    for first, second in run_ranks(2, resumed):
        assert first == list(range(len(first)))
        assert second == list(range(first[-1] + 1, first[-1] + 1 + len(second)))
