"""A notebook's steps on pretended ranks: each gets its own rows of its own batch, and gradients are their mean."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.audit.comparisons import AuditPlan
from paceline.audit.notebook import ROWS, Pretended, leaves_of, plain, rows_of


@given(
    sizes=st.lists(st.integers(4, 9), min_size=1, max_size=3),
    ranks=st.integers(1, 3),
    steps=st.integers(1, 3),
    alone=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_each_rank_takes_its_rows_and_their_gradients_are_averaged(sizes, ranks, steps, alone):
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    batches = [(torch.arange(2.0 * n, dtype=torch.float64) + 100 * k).reshape(n, 2) for k, n in enumerate(sizes)]
    run = Pretended(lambda rows: (rows @ weight).square().mean(), batches, ranks, None)(AuditPlan(steps=steps), alone)
    assert run.folder == "this process"
    pretended = 1 if alone else ranks
    assert [(tape.rank, tape.world_size) for tape in run.tapes] == [(rank, pretended) for rank in range(pretended)]
    done = batches[:steps]
    for tape in run.tapes:
        assert tape.facts == {"dtypes": ["float64"], "mixing": []}
        assert [len(batch) for batch in tape.streams[ROWS]] == [len(batch) // pretended for batch in done]
        assert [step.delivered for step in tape.steps] == [{ROWS: number + 1} for number in range(len(done))]
        assert [step.facts for step in tape.steps] == [{}] * len(done)
        for batch, step in zip(done, tape.steps, strict=True):
            own = len(batch) // pretended
            # A rank's rows begin where those of as many rows as a rank of the whole job has ends.
            parts = [batch[rank * (len(batch) // ranks) :][:own] for rank in range(pretended)]
            expected = sum(2 * (part @ torch.ones(2).double()) @ part / own for part in parts) / pretended
            (found,) = step.gradients.values()
            np.testing.assert_allclose(found, expected)
            assert list(step.gradients) == ["parameter 0 (2,)"]


def test_rows_of_one_batch_are_taken_from_that_batch_wherever_they_were_moved():
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    batches = [
        torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double(),
        torch.tensor([[10.0], [20.0], [30.0], [40.0]]).double(),
    ]
    moved = [[[(1, 0, 0), (0, 0, 1)], [(0, 0, 0), (1, 0, 1)]], [[(1, 1, 1), (0, 1, 0)], [(1, 1, 0), (0, 1, 1)]]]
    seen = []

    def step(rows):
        seen.append(rows[:, 0].tolist())
        return (rows @ weight).mean()

    Pretended(step, batches, 2, None)(AuditPlan(steps=2, arranged={ROWS: moved}), False)
    assert seen == [[3.0, 2.0], [1.0, 4.0], [40.0, 10.0], [30.0, 20.0]]


def test_a_step_that_draws_says_so_and_a_loss_of_nothing_warns_of_nothing():
    weight = torch.ones(1, requires_grad=True)
    batches = [torch.ones(4, 1)]
    drawn = Pretended(lambda rows: (rows * weight + torch.rand(1)).mean(), batches, 2, None)(AuditPlan(steps=1), False)
    assert [tape.steps[0].facts for tape in drawn.tapes] == [{"draws": True}] * 2
    with np.errstate(all="raise"):
        nothing = Pretended(lambda rows: (weight * float("inf")).sum() * 0, batches, 2, None)
        (gradient,) = nothing(AuditPlan(steps=1), False).tapes[0].steps[0].gradients.values()
    assert np.isnan(gradient).all()


class Named(dict):
    """A mapping of a class of its own."""


def test_rows_are_those_of_the_first_tensor_and_a_row_is_plain():
    assert rows_of({"name": "x", "parts": [3, (torch.ones(5, 2), torch.ones(7))]}) == 5
    assert rows_of(torch.ones(3)) == 3
    for nothing in ("text", {"a": [1, "b"]}, []):
        with pytest.raises(TypeError, match="a batch must hold a tensor whose first axis is the samples"):
            rows_of(nothing)
    assert plain(Named({1: [Named(a=2), (3,)]})) == {"1": ({"a": 2}, (3,))}
    assert type(plain(Named())) is dict


def test_leaves_come_in_the_order_of_the_computation_and_once():
    first, second = (torch.ones(1, requires_grad=True) for _ in range(2))
    found = leaves_of(((first * second) + first).sum())
    assert {id(one) for one in found} == {id(first), id(second)}
    assert len(found) == 2
    with pytest.raises(ValueError, match="call no backward"):
        leaves_of(torch.ones(1).sum())
