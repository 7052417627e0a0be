"""A live balance divides by cost: it learns what lengths cost, and judges shares by what they were planned to be."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, Costs, attach


def job(**options):
    lengths = np.ceil(9 * np.random.default_rng(0).lognormal(0, 0.8, 400))
    data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.tensor(lengths))
    loader = BalancedLoader(data, 20, costs=Costs(lengths=lengths), **options)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    return model, loader, attach(model, loader)


def trained(model, loader, balance, true=(0.5, 0.3, 0.2), epochs=4):
    """Train, and report the seconds that lengths of such costs would take."""
    columns = [loader.dataset.tensors[1].numpy() ** power for power in (1, 2, 0)]
    scale = [column.mean() for column in columns]
    for _ in range(epochs):
        for inputs, lengths in loader:
            numbers = [float((lengths.numpy() ** power).sum()) for power in (1, 2, 0)]
            work = sum(t * number / s for t, number, s in zip(true, numbers, scale, strict=True))
            balance.measured(work / 100)
            model(inputs).mean().backward()


@pytest.mark.slow
def test_balance_learns_costs_of_lengths(alone):
    model, loader, balance = job()
    seen = []
    balance.on_iteration.append(lambda iteration: seen.append(iteration.work))
    trained(model, loader, balance)
    assert balance.work.status.name == "LEARNED"
    length, square, _ = balance.work.coefficients  # all batches have 20 samples: their cost may as well be fixed
    assert length / square == pytest.approx(5 / 3, rel=0.05)
    assert loader.coefficients.tolist() == balance.work.coefficients.tolist()
    assert np.mean([work[0] for work in seen]) == pytest.approx(20, rel=0.1)  # in average samples
    balance.close()


@pytest.mark.slow
def test_what_was_learned_goes_on_after_a_restart(alone):
    model, loader, balance = job()
    trained(model, loader, balance)
    saved = balance.state_dict()
    balance.close()
    _, later, resumed = job()
    resumed.load_state_dict(saved)
    assert resumed.work.coefficients.tolist() == balance.work.coefficients.tolist()
    assert later.coefficients.tolist() == loader.coefficients.tolist()
    resumed.close()


@pytest.mark.slow
def test_single_rank_has_no_loss_warning(alone):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, loader, balance = job()
        trained(model, loader, balance, epochs=2)
    balance.close()


@pytest.mark.slow
def test_recorder_takes_known_work_or_input_size(alone, tmp_path):
    from paceline.recording import Recorder, merge, watch

    for name, balanced in (("known", True), ("inputs", False)):
        model, loader, balance = job()
        if not balanced:
            balance.close()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        told = []
        with Recorder(tmp_path / name, "0") as recorder, watch(model, optimizer, recorder) as watching:
            watching.times_exchanges = True  # a balanced model has a hook of its own; collect wraps that
            for inputs, _ in loader:
                told.append(float(np.sum(loader.rank_batch.features * np.array(loader.coefficients))))
                model(inputs).mean().backward()
                optimizer.step()
        balance.close()
        expected = told if balanced else [20 * 4] * len(told)
        assert merge([tmp_path / name]).work[:, 0] == pytest.approx(expected)


def test_small_last_batch_teaches_nothing(alone):
    class Remembers(LastValue):
        def observe(self, report):
            seen.extend(report.seconds.tolist())
            super().observe(report)

    seen = []
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    loader = BalancedLoader(torch.zeros(90, 2), 40)
    balance = attach(model, loader, predictor=Remembers())
    for inputs in loader:
        model(inputs).mean().backward()
    balance.state_dict()  # takes in the last report
    assert [np.isfinite(seconds) for seconds in seen] == [True, True, False]
