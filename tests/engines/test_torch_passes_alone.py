"""What one rank notes of its passes by itself: which batch, how certain, and what its gradients may show."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lone_passes import handed_out, passed, passes_maker, said

from paceline.torch.weighting.graph import behind
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition


@pytest.fixture
def passes_of(monkeypatch):
    return passes_maker(monkeypatch)


@pytest.mark.parametrize("loss", ["mean", "sum", "scaled"])
@pytest.mark.parametrize("count", [None, len])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_job_begins_with_nothing_seen_and_trusts_no_loop(passes_of, loss, count, delay):
    passes, _, clock = passes_of(loss, count, delay)
    assert (passes.loss, passes.weights_loss, passes.adds_parts) == (loss, loss == "mean" or bool(count), bool(count))
    assert (passes.index, passes.foreign, passes.spent, passes.sums, passes.usual_sums) == (-1, False, 0.0, 0, 0)
    assert (passes.mixes, passes.weightings, passes.sums_shares) == (True, [], True)
    assert (passes.kind.loss, passes.kind.norms.late, passes.kind.looks) == (loss, bool(delay), False)
    assert (passes.handed.rank, passes.handed.global_batch, passes.handed.counts) == (0, 12, bool(count))
    assert passes.handed.behind is behind
    assert (passes.report(), passes.backward_ends()) == (None, None)
    assert (passes.scaling is None) == (loss != "scaled")
    passes.summed("x")
    passes.wait_ends()
    assert clock.told == [("summed", "x"), "wait ends"]
    if loss == "scaled" and count is None:
        loader = passes._loader
        handed_out(passes, loader, [4, 8])
        passed(passes, Recognition(), torch.zeros(4, 2))
        assert float(passes.scaling.scale(torch.ones(()))) == pytest.approx(4 / 12 * 3)


@pytest.mark.parametrize("facts", [{}, {"coefficients": np.ones(1)}, {"micro_batch": 4}, {"count": len}])
def test_the_kind_of_a_loss_is_looked_for_where_samples_of_a_rank_count_alike(passes_of, facts):
    passes, loader, _ = passes_of(**facts)
    recognition, asked = Recognition(), []
    wants = passes.kind.wants
    passes.kind.wants = lambda sizes: asked.append(sizes.tolist()) or wants(sizes)
    looks = []
    even, uneven = np.array([4, 4]), np.array([3, 5])
    for sizes_W in (even, even, uneven, uneven, even):
        loader.rank_batch = RankBatch.plain(sizes_W, 0)
        passes.hand_out(sizes_W, [1] * int(sizes_W[0]))
        passed(passes, recognition, torch.zeros(int(sizes_W[0]), 7))
        looks.append(passes.kind.looks)
        passed(passes, recognition, torch.zeros(int(sizes_W[0]), 7))
        assert passes.kind.looks == looks[-1], "a further pass over it"
        passes.sent()
        assert not passes.kind.looks, "of the next batch nothing is known yet"
    assert looks == ([False] * 5 if facts else [False, False, True, True, False])
    assert asked == ([] if facts else [[4, 4], [3, 5], [4, 4]]), "once for each object"
    passes.kind.full = True
    handed_out(passes, loader, [3, 5], [1] * 3)
    passed(passes, recognition, torch.zeros(3, 7))
    assert not passes.kind.looks
    assert len(asked) == (0 if facts else 3), "enough was seen"


@pytest.mark.parametrize(("sizes", "counts"), [([2, 3], False), ([3, 3], True), ([1, 6], True), ([4, 8], True)])
def test_the_clock_starts_with_a_new_batch_and_counts_those_of_half_the_usual_size(passes_of, sizes, counts):
    passes, loader, clock = passes_of()
    recognition = Recognition()
    handed_out(passes, loader, sizes, features=(2.0, 3.0))
    for expected in ([("forward", sizes[0], counts, (2.0, 3.0))], []):
        clock.told.clear()
        turn = passed(passes, recognition, torch.zeros(sizes[0], 7)).turn
        assert (turn.samples, clock.told) == (sizes[0], expected)
    assert passes.spent == 1.0, "the clock took a second, once"
    passes.spent = 5.0
    handed_out(passes, loader, sizes)
    passed(passes, recognition, torch.zeros(sizes[0], 7))
    assert passes.spent == 6.0


@pytest.mark.parametrize("count", [None, lambda batch: 1])
@pytest.mark.parametrize("loss", ["mean", "sum", "scaled"])
@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("what", ["foreign", "beside", "guessed", "disordered", "certain"])
def test_a_pass_is_doubted_where_gradients_carry_weights_or_rows_come_with_every_micro_batch(
    passes_of, count, loss, micro_batch, what
):
    passes, loader, _ = passes_of(loss, count, micro_batch=micro_batch)
    recognition, batches = Recognition(), [torch.zeros(4, 7), torch.zeros(4, 7)]
    for number, batch in enumerate(batches[: 1 + (what in ("guessed", "disordered"))]):
        sizes_W = np.array([4, 4 + number])
        loader.rank_batch = RankBatch(sizes_W, (1 + number) / 10, 0.5)
        passes.hand_out(sizes_W, [batch])
    inputs = {
        "foreign": [torch.zeros(5, 7)],
        "beside": [batches[0], torch.zeros(5, 7)],
        "guessed": [batches[0].clone()],
        "disordered": [batches[1]],
        "certain": [batches[0]],
    }[what]
    one = passed(passes, recognition, *inputs)
    if what == "disordered":
        one = passed(passes, recognition, batches[0])
    subject = {"guessed": "order", "foreign": "unseen" if loss == "scaled" else "rows"}.get(what, what)
    if what == "certain" or (loss == "sum" and count is None and not (what == "beside" and micro_batch)):
        assert list(one.doubt) == []
    else:
        assert [about for about, _ in one.doubt] == [subject]


def test_what_is_doubted_is_said_once_gradients_come_and_rows_from_elsewhere_are_told_to_all(passes_of):
    known, other = (SimpleNamespace(turn=SimpleNamespace(known=known, samples=5), doubt=[]) for known in (True, False))
    late = SimpleNamespace(turn=None, doubt=[("order", "guessed"), ("beside", "rows")])
    passes, *_ = passes_of("sum")
    assert said(lambda: passes.trained([known, late])) == ["guessed", "rows"]
    assert said(lambda: passes.trained([late])) == []
    assert not passes.foreign
    passes.trained([known, other, known])
    assert passes.foreign
    passes.trained([known])
    assert passes.foreign, "until it was told"
    passes.foreign, late.doubt = False, [("disordered", "late"), ("order", "guessed")]
    assert said(lambda: passes.trained([late])) == ["late"]
    assert passes.foreign
    counting, *_ = passes_of("sum", len)
    counting.trained([known])
    with pytest.raises(RuntimeError, match="the model was given 5 rows in training, which the balanced loader did not"):
        counting.trained([other])
    assert counting.foreign


def test_a_scaled_loss_is_required_of_all_passes_of_a_step(passes_of):
    passes, *_ = passes_of("scaled")
    turn = SimpleNamespace(known=True)
    passes.trained([SimpleNamespace(turn=turn, doubt=[], scaled=True, begin=0)])
    with pytest.raises(RuntimeError, match=r"needs balance\.scale"):
        passes.trained([SimpleNamespace(turn=turn, doubt=[], scaled=False, begin=0)])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_tensors_of_a_batch_are_noted_as_given_or_as_made_and_gradients_are_watched_where_they_say_something(
    passes_of, whole, looks
):
    passes, *_ = passes_of()
    noted, watched = [], []
    passes.handed = SimpleNamespace(
        whole=whole, note=lambda turn, tensors, made=False: noted.append((turn, [id(one) for one in tensors], made))
    )
    passes.kind = SimpleNamespace(looks=looks, watch=lambda made, turn: watched.append((made, turn)))
    inputs, made = torch.zeros(2), [torch.zeros(3)]
    passes.noted("turn", [{"x": inputs}], made)
    given_too = [] if whole else [("turn", [id(inputs)], False)]
    assert noted == [*given_too, ("turn", [id(made[0])], True)]
    assert watched == ([(made, "turn")] if looks else [])
