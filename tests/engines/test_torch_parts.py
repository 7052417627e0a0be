"""Parts of the engine against slow definitions of what they return."""

import linecache
import math
import re
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.torch import BalancedLoader, planning
from paceline.torch.checked import apart
from paceline.torch.passes import Passes
from paceline.torch.prefetch import Prefetcher
from paceline.torch.steps import Steps
from paceline.torch.weighting.handed import FAR_AHEAD, Handed
from paceline.torch.weighting.hooks import averaging, gradients_in
from paceline.torch.weighting.listener import BalanceWarning, Warnings
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition
from paceline.torch.weighting.terms import Terms, checked_terms
from paceline.torch.weighting.weighting import Weighting

SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3)
WORK = st.just(0.0) | st.floats(1e-3, 9.0)


@given(SHAPES, st.booleans(), st.integers(0, 3))
def test_the_gradients_of_a_bucket_are_those_of_its_parameters(shapes, complex_too, before):
    """A bucket of complex gradients holds pairs of real numbers; ``gradients()`` of torch gives half of them."""
    dtype = torch.complex64 if complex_too else torch.float32
    wanted = [torch.randn(shape, dtype=dtype) for shape in shapes]
    flat = torch.cat([torch.zeros(before, dtype=dtype), *(one.flatten() for one in wanted)])[before:]
    buffer = torch.view_as_real(flat).flatten() if complex_too else flat
    bucket = SimpleNamespace(
        parameters=lambda: [torch.zeros(shape, dtype=dtype) for shape in shapes],
        gradients=lambda: None if complex_too else wanted,
        buffer=lambda: buffer,
    )
    found = gradients_in(bucket)
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=4))
def test_ranks_apart_are_told_their_own_places(places):
    names = [f"w{rank}" for rank in range(len(places))]
    sentence = apart(names, np.array(places, dtype=float))
    told = re.findall(r"(w\d) is at batch (\d+) of epoch (\d+)", sentence)
    if len(set(places)) > 1:
        assert told == [(name, str(batch), str(epoch)) for name, (epoch, batch) in zip(names, places, strict=True)]
    else:
        assert "had different samples by batch {1} of epoch {0}".format(*places[0]) in sentence
        assert not told


def test_a_parameter_is_known_by_itself_and_not_by_its_numbers():
    model = torch.nn.Linear(2, 1)
    one = SimpleNamespace(model=model)
    assert Weighting.takes(one, iter([torch.zeros(1), model.bias]))
    assert not Weighting.takes(one, [model.bias.detach().clone(), model.weight.detach()])


def test_each_subject_is_warned_of_once_where_the_caller_of_what_warns_stands():
    warn = Warnings()

    def within(about, sentence):
        warn(about, sentence)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for about, sentence in (("a", "one"), ("b", "two"), ("a", "three")):
            within(about, sentence)
    assert [str(one.message) for one in caught] == ["one", "two"]
    assert {one.category for one in caught} == {BalanceWarning}
    lines = {linecache.getline(one.filename, one.lineno).strip() for one in caught}
    assert lines == {"within(about, sentence)"}


@given(st.lists(st.floats(0, 9) | st.sampled_from([-1e-9, math.inf, math.nan]), min_size=1, max_size=3))
def test_loss_terms_of_a_loader_of_ones_own_are_finite_and_not_negative(terms):
    for number in terms:
        if 0 <= number <= 9:
            assert checked_terms(torch.tensor(number, dtype=torch.float64)) == number
        else:
            with pytest.raises(ValueError, match="loss_terms must be a finite number that is not negative"):
                checked_terms(number)


@pytest.mark.parametrize("loss", ["mean", "sum"])
@pytest.mark.parametrize(("batch", "rows"), [(torch.zeros(3, 2), 3), ([torch.zeros(4, 2), torch.zeros(4)], 4), (7, 1)])
def test_batches_of_a_loader_of_ones_own_are_noted_with_their_rows_and_terms(loss, batch, rows):
    noted = []
    handed = SimpleNamespace(add=lambda *of: noted.append(of), clear=lambda: noted.append("cleared"))
    one = SimpleNamespace(loader=[batch], _count=lambda each: 6, _handed=handed, loss=loss)
    one._rank_batch = lambda terms, rows: Terms._rank_batch(one, terms, rows)
    (came,) = Terms.__iter__(one)
    cleared, (sizes, facts, held) = noted
    assert (came is batch, held is batch, cleared) == (True, True, "cleared")
    assert (sizes.tolist(), facts.sizes.tolist(), facts.rows) == ([rows], [rows], rows)
    assert (facts.weight, facts.part) == (6.0 if loss == "mean" else 1.0, 6.0)


def test_what_a_model_makes_of_a_batch_does_not_show_that_the_batch_may_come_again():
    noted = []
    handed = SimpleNamespace(note=lambda turn, found, made=False: noted.append((turn, list(found), made)))
    inputs, output = torch.zeros(2), torch.ones(2)
    Terms.noted(SimpleNamespace(_handed=handed), "turn", [{"x": inputs}], [output])
    assert [
        (turn, found[0] is one, made) for (turn, found, made), one in zip(noted, (inputs, output), strict=True)
    ] == [
        ("turn", True, False),
        ("turn", True, True),
    ]


@given(st.lists(st.tuples(WORK, WORK), max_size=4))
def test_works_are_apart_by_the_range_of_what_changed_where_both_are_known(works):
    known = [math.log(one) - math.log(other) for one, other in works if one and other]
    one_W, other_W = np.array(works).reshape(-1, 2).T
    found = planning.apart(one_W, other_W)
    assert found == pytest.approx(max(known) - min(known) if known else 0.0, abs=1e-9)


def test_the_turn_is_that_of_the_batch_computed_last():
    handed, recognition = Handed(rank=0, global_batch=12), Recognition()
    assert handed.turn is None
    for rows in (8, 3):
        handed.add(np.array([rows, 12 - rows]), RankBatch(np.array([rows, 12 - rows]), rows / 12, rows / 12))
        assert handed.given(handed.look([torch.zeros(rows, 2)]), recognition) is handed.turn
        assert handed.turn.samples == rows


def test_a_communication_hook_gets_its_state_and_is_a_function():
    assert averaging(lambda state, bucket: (state, bucket), "state")("bucket") == ("state", "bucket")
    with pytest.raises(TypeError, match=r"hook must be a function of a state and a bucket, .* got int"):
        averaging(3, None)


@pytest.mark.parametrize("loss", ["mean", "sum"])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("step_ends", [False, True])
@pytest.mark.parametrize("taken", [3, FAR_AHEAD - 2, FAR_AHEAD - 1, FAR_AHEAD])
def test_a_batch_that_is_handed_out_counts_as_the_loader_says_or_its_counted_terms(
    loss, counts, same, step_ends, taken
):
    """Of sizes that the loader does not know by itself all samples count alike."""
    sizes, added, steps, said = np.array([3, 5]), [], [], []
    facts = RankBatch(sizes if same else np.array([4, 4]), 0.25, 0.125, 1.5, (2.0,), last=False)
    one = SimpleNamespace(_count=(lambda batch: torch.tensor(6)) if counts else None, loss=loss, _taken=taken)
    one._loader = SimpleNamespace(rank_batch=facts, rank=1, step_ends=step_ends)
    one.handed = SimpleNamespace(add=lambda *of: added.append(of))
    one.to_come = SimpleNamespace(hand_out=lambda: steps.append(1))
    one._say_what_is_skipped = lambda: said.append(one._taken)
    Passes.hand_out(one, sizes, "batch")
    ((told, rank_batch, batch),) = added
    share, part, whole = (0.25, 0.125, 1.5) if same else (5 / 8, 5 / 8, 1.0)
    if counts:
        share, part, whole = (1.0 if loss == "sum" else 6.0), 6.0, 1.0
    assert (told is sizes, batch, rank_batch.sizes.tolist()) == (True, "batch", [3, 5])
    assert (rank_batch.weight, rank_batch.part, rank_batch.whole) == (share, part, whole)
    assert (rank_batch.features, rank_batch.last) == (((2.0,), False) if same else ((), True))
    assert (len(steps), said) == (step_ends, [FAR_AHEAD] if taken == FAR_AHEAD - 1 else [])


def test_what_is_loaded_ahead_begins_anew_at_the_front():
    """Of a generation of its own: samples that an older one asked for are dropped when they arrive."""
    asked = []
    assigner = SimpleNamespace(expected=lambda at: asked.append(at) or (np.array([at, at + 1]), at + 5))
    one = SimpleNamespace(assigner=assigner, generation=4, _asked=9, _under_way={1}, _stock={1: "row"})
    one._next_request = partial(Prefetcher._next_request, one)
    for generation in (5, 6):
        Prefetcher.restart(one)
        assert (one._under_way, one._stock) == (set(), {})
        requests = [one._next_request() for _ in range(2)]
        assert [(number, samples.tolist()) for number, samples in requests] == [
            (generation, [0, 1]),
            (generation, [5, 6]),
        ]
        assert one._under_way == {0, 1, 5, 6}
    assert asked == [0, 5] * 2


def test_a_loop_has_ended_once_it_is_over_and_not_while_another_is_or_was_left():
    loader = BalancedLoader(range(4), 2, rank=0, world_size=1)
    assert not loader.ended
    for left in (True, False, True):
        loop = iter(loader)
        next(loop)
        assert (loader.looping, loader.ended) == (True, False)
        if not left:
            list(loop)
        del loop
        assert (loader.looping, loader.ended) == (False, not left)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4))
def test_the_work_of_a_turn_is_its_features_times_their_coefficients_of_which_there_are_as_many(pairs):
    features, coefficients = np.array(pairs, dtype=float).reshape(-1, 2).T
    turn = SimpleNamespace(features=tuple(features.tolist()))
    passes = SimpleNamespace(_loader=SimpleNamespace(coefficients=coefficients))
    assert Passes.work_of(passes, turn) == features @ coefficients
    passes._loader.coefficients = np.append(coefficients, 1.0)
    with pytest.raises(ValueError, match="zip"):
        Passes.work_of(passes, turn)


@pytest.mark.parametrize(
    ("facts", "counts_all"), [({}, True), ({"counts_all": True}, True), ({"counts_all": False}, False)]
)
def test_a_loader_counts_the_batches_of_all_ranks_unless_it_says_otherwise(facts, counts_all):
    passes = SimpleNamespace(weightings=[], loss="mean", weights_loss=True)
    planning_of = SimpleNamespace(plan=SimpleNamespace(sizes=np.array([2, 2])))
    steps = Steps(SimpleNamespace(**facts), planning_of, None, passes, None, None)
    assert steps.optimizers._counts_all == counts_all
