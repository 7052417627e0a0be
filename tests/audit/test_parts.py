"""The parts of an audit by themselves: samples written and read, samples arranged, runs compared, commands."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.audit import audit
from paceline.audit.arrange import arranged, as_they_were, groups, in_one_process, mixed, moved
from paceline.audit.compare import difference
from paceline.audit.inside.sample_order import UnwritableError, digest, read, written
from paceline.audit.launch import environment, of_one
from paceline.audit.tape import Sample, Tape, TapedStep

VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(), st.booleans(), st.none(), st.binary(),
    st.lists(st.floats(allow_nan=False, width=32), max_size=3).map(torch.tensor),
)  # fmt: skip
TERMS = st.recursive(
    VALUES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), parts, max_size=3),
    ),
    max_leaves=6,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(part, other[name]) for name, part in one.items())
    return type(one) is type(other) and one == other


@given(TERMS)
def test_a_sample_is_read_as_it_was_written(tmp_path_factory, item):
    path = tmp_path_factory.getbasetemp() / "item"
    torch.save(written(item), path)
    known = torch.load(path, weights_only=True)
    assert same(read(known), item)
    assert digest(known) == digest(written(item))


def test_an_object_is_not_written():
    with pytest.raises(UnwritableError):
        written((1, object()))


def tapes_of(sizes, ahead=0):
    """Records of steps whose micro-batches have these sizes, ``[step][micro][rank]``; ``ahead`` are fetched early."""
    rows = [row for step in sizes for row in step]
    ends = np.cumsum([len(step) for step in sizes]).tolist()
    found = []
    for rank in range(len(rows[0])):
        batches = [[Sample(hash((rank, n, k)), {"x": k}) for k in range(row[rank])] for n, row in enumerate(rows)]
        steps = [TapedStep({"s": min(end + ahead, len(rows))}, {}, {}) for end in ends]
        found.append(Tape(rank, len(rows[0]), {"s": batches}, {}, steps))
    return found


SIZES = st.integers(1, 3).flatmap(
    lambda micro: st.lists(
        st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=micro, max_size=micro),
        min_size=3,
        max_size=4,
    )
)


@given(SIZES, st.integers(1, 99))
def test_mixing_keeps_samples_and_sizes(sizes, seed):
    tapes = tapes_of(sizes)
    own, other = arranged(tapes, as_they_were)["s"], arranged(tapes, mixed(tapes, seed))["s"]
    assert not moved({"s": own})
    assert [[len(refs) for refs in row] for row in other] == [row for step in sizes for row in step]
    for group in groups(tapes[0], "s"):
        before = sorted(ref for number in group for refs in own[number] for ref in refs)
        assert sorted(ref for number in group for refs in other[number] for ref in refs) == before


@given(SIZES, st.integers(1, 4))
def test_one_process_gets_samples_of_every_step(sizes, number):
    tapes = tapes_of(sizes)
    given = arranged(tapes, in_one_process(number))["s"]
    assert len(given) == number * len(sizes)
    taken = [len(refs) for (refs,) in given]
    assert np.add.reduceat(taken, range(0, len(taken), number)).tolist() == [sum(map(sum, step)) for step in sizes]


@given(st.integers(1, 3), st.integers(0, 2))
def test_a_loop_that_fetches_ahead_has_the_same_steps(micro, ahead):
    sizes = [[[2, 2]] * micro for _ in range(8)]
    found = groups(tapes_of(sizes, ahead)[0], "s")[:3]
    assert found == [range(step * micro, (step + 1) * micro) for step in range(3)]


def test_epoch_end_step_may_have_fewer_batches():
    sizes = [[[2, 2]] * 3, [[2, 2], [1, 1]], [[2, 2]] * 3]
    tapes = tapes_of(sizes)
    assert groups(tapes[0], "s") == [range(3), range(3, 5), range(5, 8)]
    small = [ref for refs in arranged(tapes, mixed(tapes, 1))["s"][4] for ref in refs]
    assert sorted(small) == [(0, 4, 0), (1, 4, 0)]  # each of them would count twice as much as the others


@given(st.integers(0, 1000), st.floats(1e-6, 1))
def test_a_difference_says_where_it_begins(seed, amount):
    chance = np.random.default_rng(seed)
    start = {name: chance.normal(size=5) for name in ("a", "b")}
    gradients = [{name: chance.normal(size=5) for name in start} for _ in range(3)]
    one = Tape(0, 1, {}, start, [TapedStep({}, each, start) for each in gradients])
    changed = [dict(each) for each in gradients]
    changed[1]["b"] = changed[1]["b"] + amount * np.abs(changed[1]["b"]).max()
    found = difference([one], [Tape(0, 1, {}, start, [TapedStep({}, each, start) for each in changed])])
    assert found.begins(amount / 2) == (1, "b")
    assert found.largest == pytest.approx(amount)


def test_command_without_process_count_refused():
    assert of_one(["python", "train.py", "--nproc", "2"]) is None
    assert of_one(["accelerate", "launch", "--multi_gpu", "--num_processes=4", "t.py"])[-2:] == [
        "--num_processes=1",
        "t.py",
    ]


def test_the_users_own_path_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/own")
    assert environment(tmp_path)["PYTHONPATH"].split(":")[-1] == "/own"


# -- in a notebook ---------------------------------------------------------------------------------------------------


def data():
    chance = torch.Generator().manual_seed(0)
    return [torch.randn(8, 4, generator=chance).double() for _ in range(2)]


@pytest.mark.slow
def test_notebook_mean_exact_with_dropout():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)).double()
    found = audit(lambda batch: model(batch).square().mean(), data(), model=model)
    assert (found.status.name, found.cause) == ("EXACT", None)
    assert found.deviation < 1e-14


@pytest.mark.slow
def test_notebook_recurrent_dropout_restored():
    layer = torch.nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True).double()
    found = audit(lambda batch: layer(batch[:, None])[0].square().mean(), data(), model=layer)
    assert (found.status.name, found.cause) == ("EXACT", None)
    assert layer.dropout == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduce", "cause"),
    [
        (lambda outputs: outputs.square().sum(), "SUM"),
        (lambda outputs: (outputs - outputs.mean(0)).square().mean(), "ROWS"),
        (lambda outputs: outputs.square().sum() / (1 + (outputs > 0).sum()), "TERMS"),
    ],
)
def test_a_loss_in_a_notebook_gets_its_cause(reduce, cause):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    assert audit(lambda batch: reduce(model(batch)), data(), model=model).cause.name == cause


def test_notebook_loss_of_nothing_is_nan():
    model = torch.nn.Linear(4, 3).double()
    found = audit(
        lambda batch: model(batch).square().sum() * (0 * batch.sum()) / 0 / batch.numel(), data(), model=model
    )
    assert found.cause.name == "NOT_A_NUMBER"


@pytest.mark.slow
def test_buffers_are_put_back():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
    before = model[1].running_mean.clone()
    found = audit(lambda batch: model(batch).square().mean(), data(), model=model)
    assert found.cause.name == "ROWS"
    assert found.detail == "BatchNorm1d"
    assert torch.equal(model[1].running_mean, before)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="at least 4 samples each, for 2 ranks; got \\[3\\]"):
        audit(lambda batch: batch.sum(), [torch.ones(3, 2)])


def test_a_loss_without_gradient_is_refused():
    with pytest.raises(ValueError, match="depends on parameters"):
        audit(lambda batch: batch.sum(), [torch.ones(4, 2)])


class Stopped(torch.autograd.Function):
    """Uses a weight and gives it no gradient."""

    @staticmethod
    def forward(context, inputs, weight):
        return inputs + weight

    @staticmethod
    def backward(context, gradient):
        return gradient, None


@pytest.mark.slow
def test_notebook_missing_gradient_counts_as_zero():
    weight, still = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert audit(lambda batch: Stopped.apply(batch * weight, still).mean(), data()).status.name == "EXACT"
