"""Loss terms of a loader of one's own, in a job of one rank: which batch a pass counts for, and what is said of it."""

import gc
import math
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import weight_terms
from paceline.torch.optimizers import BY_HAND
from paceline.torch.weighting.doubts import BESIDE_A_BATCH, GUESSED
from paceline.torch.weighting.listener import BalanceWarning
from paceline.torch.weighting.recognition import Recognition

COUNTS = (3.0, 5.0, 8.0)


@pytest.fixture
def model(alone):
    return DistributedDataParallel(torch.nn.Linear(3, 3))


@pytest.fixture
def counted(model):
    """Terms of three batches of four rows each, and the batches."""
    batches = [torch.full((4, 3), 1.0 + number) for number in range(len(COUNTS))]
    terms = weight_terms(model, batches, lambda batch: COUNTS[int(batch[0, 0]) - 1], accumulate=2)
    yield terms, batches
    terms.close()


def given(terms, recognition, *inputs):
    one = SimpleNamespace(seen=terms.look(inputs, {}), doubt=())
    return terms.given(one, recognition), one.doubt


def test_a_pass_counts_for_the_batch_that_it_was_given_and_others_for_the_batch_before(counted):
    terms, batches = counted
    recognition, loop = Recognition(), iter(terms)
    assert next(loop) is batches[0]
    turn, doubt = given(terms, recognition, batches[0])
    assert (turn.samples, turn.share, turn.part, turn.known, doubt) == (4, 3.0, 3.0, True, ())
    assert math.isnan(turn.whole)
    again, doubt = given(terms, recognition, torch.zeros(7, 3))
    assert (again is turn, doubt) == (True, ()), "no other batch waits"
    next(loop)
    next(loop)
    second, doubt = given(terms, recognition, batches[1], torch.zeros(7, 3))
    assert (second.part, doubt) == (5.0, [("beside", BESIDE_A_BATCH.format(rows=7))])
    other, doubt = given(terms, recognition, torch.zeros(7, 3))
    assert (other.part, doubt) == (8.0, ()), "it takes the batch that waits"
    assert (given(terms, recognition, batches[2])[0].part, list(loop)) == (8.0, [])


def test_data_from_elsewhere_is_doubted_while_a_batch_waits(counted):
    terms, batches = counted
    recognition, loop = Recognition(), iter(terms)
    for number in range(3):
        next(loop)
        if not number:
            given(terms, recognition, batches[0])
    turn, doubt = given(terms, recognition, torch.zeros(7, 3))
    assert (turn.part, doubt) == (5.0, [("order", GUESSED.format(which="next"))])
    turn, doubt = given(terms, recognition, torch.zeros(7, 3))
    assert (turn.part, doubt) == (8.0, ()), "it takes the last that waits, and none is left"


def test_copies_of_batches_that_are_fetched_ahead_are_doubted_as_their_terms_differ(counted):
    terms, batches = counted
    loop, recognition = iter(terms), Recognition()
    next(loop)
    next(loop)
    turn, doubt = given(terms, recognition, batches[1] + 0.5)
    assert (turn.part, doubt) == (3.0, [("order", GUESSED.format(which="next"))])


def test_copies_of_batches_of_as_many_terms_are_doubted_too_as_each_counts_once(model):
    batches = [torch.zeros(4, 3), torch.zeros(4, 3)]
    terms = weight_terms(model, batches, lambda batch: 6.0)
    loop = iter(terms)
    next(loop)
    next(loop)
    turn, doubt = given(terms, Recognition(), torch.ones(4, 3))
    assert (turn.part, doubt) == (6.0, [("order", GUESSED.format(which="next"))])
    terms.close()


def test_a_loop_that_begins_anew_waits_for_no_batch_of_the_one_before(counted):
    terms, batches = counted
    next(iter(terms))
    loop = iter(terms)
    next(loop)
    turn, doubt = given(terms, Recognition(), batches[0] + 0.5)
    assert (turn.part, doubt) == (3.0, ())
    assert len(terms) == 3


def test_what_is_doubted_is_said_once_gradients_are_computed(counted, model):
    terms, batches = counted
    loop = iter(terms)
    next(loop)
    next(loop)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BalanceWarning)
        output = model(batches[0] + 0.5)
    with pytest.warns(BalanceWarning) as said:
        output.sum().backward()
    assert [str(one.message) for one in said] == [GUESSED.format(which="next")]


def test_a_pass_over_what_the_model_made_of_a_batch_is_of_that_batch_though_the_next_was_fetched(counted, model):
    terms, _ = counted
    loop = iter(terms)
    output = model(next(loop))
    next(loop)
    inputs = output * 2.0
    model(inputs).mean().backward()  # through both passes: of two batches it would be refused
    assert terms._weighting.sums == 1
    assert model.module.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("given_to", "most"), [({}, 1.0), ({"accumulate": 3}, 3.0), ({"loss": "sum", "accumulate": 3}, math.inf)]
)
def test_a_step_has_as_many_micro_batches_as_the_loop_divides_by_and_a_sum_any_number(model, given_to, most):
    terms = weight_terms(model, **given_to)
    assert (terms.loss, terms.micro_batches) == (given_to.get("loss", "mean"), most)
    for number in range(1, 5):
        terms.count(2)
        loss = model(torch.ones(2, 3)).mean()
        if number <= most:
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match=f"{number} micro-batches were summed before a step, more than"):
                loss.backward()
            break
    terms.close()


def test_terms_are_said_once_before_each_pass(model):
    terms = weight_terms(model)
    terms.count(torch.tensor(6))
    with pytest.raises(RuntimeError, match="was called twice before a forward pass"):
        terms.count(6)
    output = model(torch.ones(2, 3))
    turn = terms._weighting._pass.turn
    assert (turn.samples, turn.total, turn.share, turn.part, turn.known) == (1, 1, 6.0, 6.0, True)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="how many terms has the loss of this batch"):
        model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ValueError, match="loss_terms must be a finite number"):
        terms.count(-1)
    terms.count(0)
    with pytest.raises(TypeError, match="there is no loader to loop over, or no loss_terms= to count by"):
        next(iter(terms))
    terms.close()


def test_a_loader_without_a_count_of_terms_is_not_looped_over(model):
    terms = weight_terms(model, [1, 2])
    assert len(terms) == 2
    with pytest.raises(TypeError, match="there is no loader to loop over"):
        next(iter(terms))
    terms.close()


def test_nothing_is_measured_and_no_cost_is_known(counted):
    terms, _ = counted
    assert math.isnan(terms.work_of(None))
    assert [terms.ready(None, None), terms.sent(), terms.summed(None)] == [None] * 3
    assert (terms.weights_loss, terms.adds_parts, terms.sums_shares) == (True, True, True)


def test_weights_are_off_once_they_are_closed_and_twice_is_once(model, counted):
    terms, batches = counted
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    terms.close()
    terms.close()
    assert not hasattr(terms._exchange, "group"), "its connections are released"
    model(batches[0]).sum().backward()  # of no batch that was handed out
    optimizer.step()
    anew = weight_terms(model)
    anew.count(2)
    model(batches[0]).sum().backward()
    anew.close()


def test_terms_that_nobody_holds_look_at_no_steps(model):
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    before = len(hooks)
    terms = weight_terms(model)
    assert len(hooks) == before + 1
    terms._weighting.close()
    del terms
    gc.collect()
    assert len(hooks) == before


def test_gradients_of_nobody_are_said_and_a_scheduler_that_counts_the_batches_of_a_rank_is_right(model, monkeypatch):
    scheduler = type("AcceleratedScheduler", (), {"split_batches": False})
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", SimpleNamespace(AcceleratedScheduler=scheduler))
    held, terms = scheduler(), weight_terms(model)
    (model.module.weight.grad,) = torch.autograd.grad(model.module(torch.ones(2, 3)).sum(), [model.module.weight])
    with pytest.warns(BalanceWarning) as said:
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert [str(one.message) for one in said] == [BY_HAND]
    assert not held.split_batches
    terms.close()
