"""Training, against the same steps written out in numpy: order of windows, AdamW, cosine, patience, best weights."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.predictors import Training
from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.neural import Examples
from paceline.predictors.networks.training_windows import windows_of

torch = pytest.importorskip("torch", reason="needs the torch extra")

from paceline.predictors.networks import descent  # noqa: E402 - it imports torch

SEED = 11


def examples(count, seed=0):
    """Return examples of a line, of which those that validate follow another one."""
    rng = np.random.default_rng(seed)
    inputs_NF, validates_N = rng.normal(size=(count, 2)).astype(np.float32), np.arange(count) % 4 == 3
    targets_N = inputs_NF @ [1.0, -0.5] + np.where(validates_N, 0.4, 0.0) + rng.normal(0.0, 0.1, count)
    return Examples(inputs_NF, targets_N.astype(np.float32), validates_N)


def collected(counts=(14, 9), memory=10**6):
    return windows_of(
        [(f"job {k}", [examples(n, k)]) for k, n in enumerate(counts)], sum(counts), memory=memory, seed=1
    )


def squares(weights, inputs, targets):
    return torch.square(inputs @ weights["w"] + weights["b"] - targets).mean()


def scaled(generator, batch):
    """Augment a batch by a factor for each window."""
    inputs, targets = batch
    return inputs * (0.5 + torch.rand(len(inputs), 1, generator=generator)), targets


def trained(windows, training, fitting=None, augmented=False, begin=(0.3, 0.1, 0.0), **options):
    """Train with the library, and return the weights."""
    generator = torch.Generator().manual_seed(SEED)
    weights = {"w": torch.tensor(begin[:2]), "b": torch.tensor(begin[2])}
    options |= {"augment": partial(scaled, generator)} if augmented else {}
    loss = options.pop("loss", partial(squares, weights))
    found = descent.descend(
        weights, loss, ("inputs", "targets"), windows, training, fitting or Fitting(), generator, **options
    )
    return np.array([*found["w"], found["b"]])


class ByHand:
    """The same training with numpy; torch only draws."""

    def __init__(self, windows, training, augmented=False, begin=(0.3, 0.1, 0.0)):
        self.training, self.augmented = training, augmented
        self.generator = torch.Generator().manual_seed(SEED)
        self.shards = [shard() for shard in windows.shards]
        self.weight, self.mean, self.square, self.steps = np.array(begin), 0.0, 0.0, 0
        self.losses, self.judged = [], [self.held_out()]

    def drawn(self, count):
        return torch.randperm(count, generator=self.generator).numpy()

    def batches(self):
        for place in self.drawn(len(self.shards)) if len(self.shards) > 1 else [0]:
            records = self.shards[place]
            rows = records[~records["validates"]]
            rows = rows[self.drawn(len(rows))]
            size = self.training.batch_size
            for k in range(0, len(rows), size):
                inputs, targets = rows["inputs"][k : k + size].astype(float), rows["targets"][k : k + size]
                if self.augmented:
                    inputs = inputs * (0.5 + torch.rand(len(inputs), 1, generator=self.generator).numpy())
                yield inputs, targets

    def errors(self, inputs, targets):
        return inputs @ self.weight[:2] + self.weight[2] - targets

    def held_out(self):
        rows = np.concatenate([records[records["validates"]] for records in self.shards])
        return float(np.square(self.errors(rows["inputs"], rows["targets"])).mean()) if len(rows) else math.inf

    def step(self, inputs, targets, rate):
        errors = self.errors(inputs, targets)
        self.losses.append(float(np.square(errors).mean()))
        gradient = 2.0 * np.array([*(errors @ inputs), errors.sum()]) / len(errors)
        self.steps += 1
        self.weight = self.weight * (1.0 - rate * self.training.weight_decay)
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        self.weight = self.weight - rate * mean / (np.sqrt(square) + 1e-8)

    def run(self):
        best, waited = self.weight, 0
        for epoch in range(self.training.epochs):
            rate = self.training.learning_rate * 0.5 * (1.0 + math.cos(math.pi * epoch / self.training.epochs))
            for inputs, targets in self.batches():
                self.step(inputs, targets, rate)
            loss, waited = self.held_out(), waited + 1
            if loss < min(self.judged):
                best, waited = self.weight, 0
            self.judged.append(loss)
            if waited == self.training.patience:
                break
        return best


@pytest.mark.slow
@pytest.mark.parametrize("memory", [10**6, 120], ids=["one shard", "shards"])
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize(("epochs", "patience", "rate"), [(1, 9, 0.05), (3, 9, 0.3), (12, 2, 0.6), (12, 5, 0.6)])
def test_training_is_adamw_with_best_weights(memory, augmented, epochs, patience, rate):
    training = Training(epochs=epochs, patience=patience, batch_size=4, learning_rate=rate, weight_decay=0.2)
    windows = collected(memory=memory)
    assert (len(windows.shards) > 1) == (memory < 10**6)
    by_hand, moments = ByHand(windows, training, augmented), []
    best = by_hand.run()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(descent, "PROGRESS_EVERY", 0.0)
        found = trained(windows, training, Fitting(progress=moments.append), augmented)
    np.testing.assert_allclose(found, best, rtol=1e-3, atol=1e-5)
    begins, *told = moments
    assert (begins.stage, begins.done, begins.total) == ("training", 0, epochs * 18)
    np.testing.assert_allclose([moment.loss for moment in told], by_hand.losses, rtol=2e-3, atol=1e-5)
    least = np.minimum.accumulate(by_hand.judged)
    steps = len(by_hand.losses) // (len(by_hand.judged) - 1)
    np.testing.assert_allclose([m.held_out for m in told[::steps]], least[: len(told[::steps])], rtol=2e-3)
    assert told[-1].done == 18 * (len(by_hand.judged) - 1)
    assert {moment.total for moment in told} == {epochs * 18}
    assert all(moment.stage == "training" and moment.rate > 0 for moment in told)


@pytest.mark.parametrize("judged", [1, 40, 10**6])
def test_held_out_loss_is_mean_over_windows(monkeypatch, judged):
    monkeypatch.setattr(descent, "JUDGED", judged)
    for memory in (10**6, 120):
        windows, moments = collected(memory=memory), []
        training = Training(epochs=1, batch_size=99, learning_rate=1e-9)
        monkeypatch.setattr(descent, "PROGRESS_EVERY", 0.0)
        trained(windows, training, Fitting(progress=moments.append))
        by_hand = ByHand(windows, training)
        assert moments[-1].held_out == pytest.approx(by_hand.judged[0], rel=1e-5)


def test_without_held_out_windows_start_is_kept():
    """No loss is infinite: nothing is better than it, and training ends when patience does."""
    windows = windows_of([("a", [Examples(np.ones((6, 2)), np.ones(6), np.zeros(6, bool))])], 6, memory=10**6, seed=0)
    passes = []
    training = Training(epochs=9, patience=3, batch_size=6)
    found = trained(windows, training, Fitting(progress=lambda moment: passes.append(moment.done)))
    np.testing.assert_allclose(found, [0.3, 0.1, 0.0], rtol=1e-6)


def test_weights_updated_in_place_as_double():
    weights = {"w": torch.tensor([0.3, 0.1]), "b": torch.tensor(0.0)}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads = set()

    def loss(inputs, targets):
        threads.add(torch.get_num_threads())
        return squares(weights, inputs, targets)

    options = Training(epochs=1, batch_size=64, learning_rate=0.1)
    found = descent.descend(
        weights, loss, ("inputs", "targets"), collected(), options, Fitting(), torch.Generator().manual_seed(0)
    )
    assert threads == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    assert {value.dtype for value in found.values()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(found["w"], weights["w"].detach().numpy())
    assert descent.tensor(np.array([1.0, 2.0])).dtype == torch.float32


def test_weights_moved_to_device():
    class Values:
        def to(self, device):
            raise InterruptedError(device)

    weights, fitting = {"a": SimpleNamespace(data=Values())}, Fitting(device="cuda:1")
    with pytest.raises(InterruptedError, match=r"^cuda:1$"):
        descent.descend(weights, None, (), None, Training(), fitting, None)
