"""A model that one command fitted serves a live training in another, as docs/howto/training.md says."""

from fit_cases import folder_of
from ranks import run_ranks
from typer.testing import CliRunner

from paceline.cli import main as cli


def live_training(rank, model_file):
    import torch

    from paceline.torch import BalancedLoader, attach
    from paceline.training import load_model

    torch.manual_seed(0)
    dataset = torch.utils.data.TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = BalancedLoader(dataset, global_batch=32, seed=0)
    balance = attach(model, loader, predictor=load_model(model_file))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plans = []
    balance.on_iteration.append(lambda iteration: plans.append(list(iteration.sizes)))
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    predictor = balance.balancer.predictor
    return type(predictor).__name__, sorted(predictor.weights_), predictor.covariate_names, plans


def test_fitted_model_serves_live_training(tmp_path):
    folder, file = folder_of(tmp_path / "jobs", 2), tmp_path / "narx.safetensors"
    narx = "narx:lags=3,hidden=4,covariate_lags=1"
    command = [
        "fit",
        narx,
        "-f",
        str(folder),
        "-o",
        str(file),
    ]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.exception
    first, second = run_ranks(2, live_training, str(file))
    assert first == second
    kind, weights, covariates, plans = first
    assert kind == "NARX"
    assert weights == ["b1", "b2", "direct", "linear", "w1", "w2"]
    assert covariates == ("cpu_busy",)
    assert plans
    assert all(sum(sizes) == 32 for sizes in plans)
