"""One model's gradients on their way to the sum: weight, report, refusal, and what comes back, without a network."""

import math
from types import SimpleNamespace

import pytest
import torch
from lone_weighting import Bucket, Group, Listener, Plain, begun, summed, turn_of

from paceline.torch.exchange import LostRankError
from paceline.torch.weighting.weighting import Weighting


@pytest.fixture
def queued(monkeypatch):
    found = []
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", SimpleNamespace(queue_callback=found.append))
    return found


@pytest.fixture
def weighting_of():
    made = []

    def make(average=None, ranks=2, wrapped=True, **options):
        exchange = SimpleNamespace(
            group=SimpleNamespace(group_name="g"), world_size=ranks, lost=lambda error: LostRankError(f"lost: {error}")
        )
        model = torch.nn.Linear(2, 1, bias=False)
        weighting = Weighting(model, Listener(**options), exchange, average)
        weighting._ddp = SimpleNamespace() if wrapped else None
        made.append(weighting)
        return weighting

    yield make
    for one in made:
        one._ddp = None
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "factor"), [("mean", 0.25), ("sum", 0.5), ("scaled", 0.5)])
def test_gradients_carry_the_weight_of_their_batch_or_the_share_of_a_plain_average(weighting_of, queued, loss, factor):
    weighting, group = weighting_of(loss=loss), Group(others=10.0)
    one = begun(weighting)
    assert (weighting.in_backward, weighting.listener.called) == (True, [("trained", [one])])
    assert summed(weighting, Bucket([4.0, 8.0], last=False), group) == [10 + 4 * factor, 10 + 8 * factor]
    assert (weighting.sums, queued, len(weighting.listener.called)) == (0, [], 1)
    assert summed(weighting, Bucket([2.0]), group) == [10 + 2 * factor]
    assert weighting.listener.called[1:] == [("ready", [2.0], one.turn), ("summed", "waiting"), "sent"]
    assert (weighting.sums, queued) == (1, [weighting.listener.backward_ends])
    weighting.backward_ended()
    assert not weighting.in_backward
    assert len(weighting.listener.called) == 4


@pytest.mark.parametrize(("loss", "factor"), [("mean", 0.25 * 2), ("sum", 1.0)])
def test_a_hook_of_the_script_averages_what_carries_the_weight(weighting_of, queued, loss, factor):
    given = []

    def average(bucket):
        given.append(bucket.buffer().tolist())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    weighting, group = weighting_of(average, loss=loss), Group()
    begun(weighting)
    assert summed(weighting, Bucket([4.0]), group) == [4 * factor]
    assert (given, group.sent) == ([[4 * factor]], [])


@pytest.mark.parametrize(
    ("adds_parts", "micro_batches", "part"), [(False, 2.0, 0.75), (True, 2.0, 0.375), (True, math.inf, 0.75)]
)
def test_weights_are_summed_once_beside_the_gradients_of_a_step_and_divided_out(
    weighting_of, queued, adds_parts, micro_batches, part
):
    weighting = weighting_of(sums_shares=True, adds_parts=adds_parts, micro_batches=micro_batches)
    for _ in range(2):
        group = Group()
        begun(weighting, turn_of(0.5, 0.75))
        found = [summed(weighting, Bucket([8.0], last=last), group) for last in (False, True)]
        assert found == [[pytest.approx(4.0 / (part + 0.25))]] * 2
        assert [one.tolist() for one in group.sent] == [[part], [4.0], [4.0]]
        assert group.sent[0].dtype == torch.float64
        weighting.backward_ended()
    assert weighting._share.tolist() == [part + 0.25]


def test_weights_are_summed_where_they_count_and_where_it_is_not_known_that_they_sum_to_one(weighting_of, queued):
    for options in ({"loss": "sum", "sums_shares": True}, {"loss": "mean", "sums_shares": False}):
        weighting, group = weighting_of(**options), Group()
        begun(weighting)
        summed(weighting, Bucket([8.0]), group)
        assert len(group.sent) == 1


@pytest.mark.parametrize(
    ("part", "divisor"), [(0.75, 1.0), (0.75 + 1e-10, 1.0), (0.75 + 1e-8, 1.0 + 1e-8), (1.75, 2.0), (-0.25, 1e-30)]
)
def test_a_sum_of_weights_that_is_one_but_for_rounding_leaves_the_gradients_and_one_of_nothing_is_no_divisor(
    weighting_of, queued, part, divisor
):
    weighting = weighting_of(sums_shares=True)
    begun(weighting, turn_of(1.0, part))
    bucket = Bucket([0.0, 2.0**30])
    bucket.gradients_of = bucket.gradients_of.double()
    assert summed(weighting, bucket, Plain(Group())) == pytest.approx([0.0, 2.0**30 / divisor], rel=1e-12)


def test_a_lost_rank_is_said_with_the_cause_that_another_has_left(weighting_of, queued):
    for cause, said in (("", "lost: closed by peer"), ("It refused.", "lost: closed by peer It refused.")):
        weighting = weighting_of()
        weighting.refusal.cause = lambda cause=cause: cause
        begun(weighting)
        with pytest.raises(RuntimeError, match=rf"LostRankError: {said}\n"):
            weighting.hook(Bucket([1.0]), Group(lost=True)).wait()


def test_a_refusal_fills_the_gradients_of_a_step_and_is_raised_once_they_are_summed(weighting_of, queued):
    weighting, group = weighting_of(), Group()
    weighting.listener.error = RuntimeError("too early")
    begun(weighting)
    assert all(math.isnan(one) for one in summed(weighting, Bucket([1.0, 2.0]), group))
    assert weighting.listener.called[-1] == "sent"
    with pytest.raises(RuntimeError, match=r"^too early$"):
        weighting.backward_ended()
    assert weighting.refusal.error is None
    weighting.listener.error = None
    begun(weighting)
    assert summed(weighting, Bucket([4.0]), group) == [1.0]
    weighting.backward_ended()


def test_a_refusal_waits_for_the_sum_of_its_own_step(weighting_of, queued):
    weighting = weighting_of()
    begun(weighting)
    weighting.sums = 3
    weighting.refuse(RuntimeError("of two batches"))
    assert weighting.refusal.step == 3
    weighting.backward_ended()
    begun(weighting)
    summed(weighting, Bucket([1.0]), Group())
    with pytest.raises(RuntimeError, match="of two batches"):
        weighting.backward_ended()


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_before_a_backward_pass_is_raised_at_once_for_a_model_alone(weighting_of, queued, wrapped):
    weighting = weighting_of(wrapped=wrapped)

    def trained(passes):
        raise RuntimeError("not ours")

    weighting.listener.trained = trained
    if wrapped:
        begun(weighting)
        assert weighting.in_backward
        assert str(weighting.refusal.error) == "not ours"
    else:
        with pytest.raises(RuntimeError, match="not ours"):
            begun(weighting)
        assert not weighting.in_backward


@pytest.mark.parametrize(("others", "heard"), [(math.nan, 1), (0.0, 0)])
def test_gradients_that_are_no_numbers_may_be_the_refusal_of_another_rank(weighting_of, queued, others, heard):
    weighting, asked = weighting_of(), []
    weighting.refusal.hear = lambda: asked.append(1)
    begun(weighting)
    summed(weighting, Bucket([1.0], last=False), Group(others=math.nan))
    weighting.backward_ended()
    assert asked == [], "a later bucket shows it"
    begun(weighting)
    summed(weighting, Bucket([]), Group())
    for _ in range(2):
        begun(weighting)
        summed(weighting, Bucket([1.0, 2.0]), Group(others=others))
        weighting.backward_ended()
        weighting.backward_ended()
    assert len(asked) == 2 * heard


def test_buckets_of_which_none_is_the_last_end_with_the_backward_pass(weighting_of, queued):
    weighting = weighting_of()
    one = begun(weighting)
    summed(weighting, Bucket([1.0], last=False), Group())
    weighting.backward_ended()
    assert weighting.listener.called[1:] == [("ready", None, one.turn), ("summed", "waiting"), "sent"]
    assert (weighting.sums, weighting.alone) == (1, False)
    weighting.backward_ended()
    assert weighting.sums == 1


def test_gradients_without_a_pass_count_as_those_of_the_newest_and_are_refused_before_any(weighting_of, queued):
    weighting = weighting_of()
    with pytest.raises(RuntimeError, match="gradients are summed for a model whose forward pass was not seen"):
        weighting.hook(Bucket([1.0]), Group())
    weighting._pass = SimpleNamespace(turn=turn_of(0.125))
    assert summed(weighting, Bucket([8.0]), Group()) == [1.0]


def test_a_frozen_model_has_no_backward_pass(weighting_of):
    weighting = weighting_of()
    weighting.model.weight.requires_grad_(False)
    begun(weighting)
    assert (weighting.in_backward, weighting.listener.called) == (False, [])


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_device_shows_of_an_earlier_step_is_raised_before_the_next(weighting_of, waits):
    weighting, asked = weighting_of(), []
    weighting.refusal.waits, weighting.refusal.raise_of_device = waits, lambda: asked.append(1)
    weighting.sums = 4
    begun(weighting)
    assert (asked, weighting.refusal.step) == ([1] * waits, 4)


def test_a_model_that_nothing_sums_tells_when_its_backward_pass_has_ended(weighting_of):
    for wrapped in (False, True):
        weighting = weighting_of(wrapped=wrapped)
        begun(weighting)
        weighting.backward_ended()
        assert ("backward_ended" in weighting.listener.called) == (not wrapped)
        assert not weighting.alone
        begun(weighting)
        assert weighting.alone == wrapped


@pytest.mark.parametrize("share", [1.0, 2.0])
def test_weights_of_one_and_more_are_weights_too(weighting_of, queued, share):
    weighting = weighting_of()
    begun(weighting, turn_of(share))
    assert summed(weighting, Bucket([3.0]), Group()) == [3.0 * share]


def test_a_batch_without_terms_leaves_what_was_there_before_and_waits_no_more_once_it_is_summed(weighting_of, queued):
    weighting = weighting_of(adds_parts=True)
    weighting.model.weight.grad = torch.zeros(1, 2)
    begun(weighting, turn_of(0.0))
    bucket = Bucket([math.nan, math.nan])
    bucket.parameters = lambda: [weighting.model.weight]
    bucket.gradients = lambda: [bucket.gradients_of.view(1, 2)]
    assert summed(weighting, bucket, Group()) == [0.0, 0.0]
    weighting.backward_ended()
    assert not weighting.alone
    begun(weighting, turn_of(3.0))
    weighting.model.weight.grad = torch.ones(1, 2)
    weighting.backward_ended()
    assert weighting.alone
    begun(weighting, turn_of(3.0))
    summed(weighting, Bucket([1.0]), Group())
    weighting.backward_ended()
    assert not weighting.alone
