"""The transformer of replays: its gradient, its accuracy, and that no letter sees those behind it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from paceline.eval.replay.asynchronous.transformer import HEADS, WIDTH, Transformer  # noqa: E402

LETTERS, LENGTH = 5, 7


@pytest.fixture(scope="module")
def model():
    return Transformer(LETTERS, LENGTH)


@pytest.fixture(scope="module")
def text():
    return torch.randint(LETTERS, (6, LENGTH), generator=torch.Generator().manual_seed(1))


def scores(model, start, text):
    with torch.no_grad():
        return model._scores(start, text).double().numpy()


def test_a_start_is_that_of_its_seed_and_leaves_the_numbers_of_torch_alone(model):
    torch.manual_seed(3)
    first = torch.rand(1)
    torch.manual_seed(3)
    start = model.start(0)
    assert torch.rand(1) == first
    assert np.array_equal(start, model.start(0))
    assert not np.array_equal(start, model.start(1))
    assert start[: (LENGTH - 1) * WIDTH].std() == pytest.approx(0.02, rel=0.3), "places hardly count at first"
    assert model.letters == LETTERS


def test_the_accuracy_is_the_share_of_letters_with_the_highest_score(model, text):
    start = model.start(2)
    best = scores(model, start, text).argmax(axis=2)
    right = [best[n, k] == text[n, k + 1].item() for n in range(len(text)) for k in range(LENGTH - 1)]
    assert model.accuracy(start, text) == pytest.approx(np.mean(right))


def test_the_gradient_is_that_of_the_mean_cross_entropy(model, text):
    start = model.start(2).astype(np.float64)

    def loss(parameters):
        score = scores(model, parameters, text)
        ahead = text[:, 1:].numpy()[..., None]
        return (np.log(np.exp(score).sum(axis=2)) - np.take_along_axis(score, ahead, axis=2)[..., 0]).mean()

    gradient, chance = model.gradient(start, text), np.random.default_rng(0)
    for _ in range(3):
        way = chance.standard_normal(len(start)) / np.sqrt(len(start))
        slope = (loss(start + 0.05 * way) - loss(start - 0.05 * way)) / 0.1
        assert gradient @ way == pytest.approx(slope, rel=0.05, abs=1e-3)


def test_a_letter_is_predicted_from_those_before_it_alone(model, text):
    start = model.start(4)
    before = scores(model, start, text)
    for place in range(LENGTH):
        other = text.clone()
        other[:, place] = (other[:, place] + 1) % LETTERS
        moved_L = np.abs(scores(model, start, other) - before).max(axis=(0, 2)) > 1e-6
        assert moved_L.tolist() == [0 <= place <= k for k in range(LENGTH - 1)]


def test_its_scores_are_those_of_a_pre_norm_layer_computed_by_hand(model, text):
    start = model.start(5)
    found, net = scores(model, start, text), model._model
    weights = {name: value.detach().double().numpy() for name, value in net.named_parameters()}

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    state = weights["letter.weight"][text[:, :-1].numpy()] + weights["place"]
    queries, keys, values = np.split(linear(norm(state, "before"), "mixing"), 3, axis=-1)
    mixed, size = np.zeros_like(queries), WIDTH // HEADS
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        match = queries[..., own] @ keys[..., own].transpose(0, 2, 1) / np.sqrt(size)
        match = np.where(np.tril(np.ones(match.shape[1:])) > 0, match, -np.inf)
        share = np.exp(match - match.max(-1, keepdims=True))
        mixed[..., own] = (share / share.sum(-1, keepdims=True)) @ values[..., own]
    state = state + linear(mixed, "mixed")
    inner = torch.nn.functional.gelu(torch.tensor(linear(norm(state, "between"), "inner.0"))).numpy()
    assert inner.shape[-1] == 4 * WIDTH
    assert found == pytest.approx(linear(state + linear(inner, "inner.2"), "last"), abs=1e-4)
