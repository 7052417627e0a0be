"""When one rank stops its clock, ends a step, reports and begins a loop anew, by itself."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_passes import FACTS, Watch, handed_out, passed, passes_maker, said

from paceline.torch.checked import COLLECTIVE_IN_BACKWARD, SUMMED_TOO_EARLY
from paceline.torch.passes import Passes
from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.handed import FAR_AHEAD
from paceline.torch.weighting.recognition import Recognition


@pytest.fixture
def passes_of(monkeypatch):
    return passes_maker(monkeypatch)


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_the_clock_stops_before_the_norm_of_gradients_is_taken_which_is_time_spent(
    passes_of, has_gradients, looks, seen
):
    passes, _, clock = passes_of()
    norms, gradients = [1.0] * seen, torch.ones(2)
    passes.kind = SimpleNamespace(
        looks=looks,
        norms=SimpleNamespace(logs=norms),
        look_at_parameters=lambda one: norms.append((one, list(clock.told))),
    )
    passes.spent = 2.0
    assert passes.ready(gradients if has_gradients else None, None) == "waiting"
    assert passes.spent == 3.0
    assert norms == [1.0] * seen + [(gradients, ["ready"])] * (has_gradients and looks and not seen)


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("last", [None, False, True])
def test_gradients_are_summed_after_a_steps_last_micro_batch(passes_of, micro_batch, last):
    passes, _, clock = passes_of(micro_batch=micro_batch)
    turn = None if last is None else Turn(4, 0.5, 8, True, 0.5, last=last)
    if micro_batch and last is False:
        with pytest.raises(RuntimeError) as refused:
            passes.ready(None, turn)
        assert str(refused.value) == SUMMED_TOO_EARLY
        assert clock.told == []
    else:
        passes.ready(None, turn)
        assert clock.told == ["ready"]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["batch", "again", "sum", "ask", "end"]), max_size=14), st.integers(1, 3))
def test_a_step_is_a_sum_with_a_new_batch_and_reports_are_sent_once_between_batches(events, accumulate):
    """What a model outside DistributedDataParallel reports: its step ends with as many micro-batches as it has."""
    seconds = [0.0]
    loader = SimpleNamespace(**(FACTS | {"accumulate": accumulate}))
    passes, recognition, reports = Passes(loader, Watch(seconds), "sum", None), Recognition(), []
    passes.report = lambda: reports.append(passes.index)
    steps = sums = fresh = micro_batches = 0
    expected, came = [], []
    passes.to_come.sent = lambda: came.append(1)
    loader.step_ends = True
    for event in events:
        if event == "batch":
            handed_out(passes, loader, [4, 4])
            passed(passes, recognition, torch.zeros(4, 7))
            fresh, micro_batches = True, micro_batches + 1
        elif event == "again" and steps + fresh:
            passed(passes, recognition, torch.zeros(4, 7))
        elif event == "ask":
            passes.sums = sums = 0
        elif event == "sum" or (event == "end" and micro_batches >= accumulate):
            steps, sums = steps + fresh, sums + 1
            micro_batches = 0 if fresh else micro_batches
            fresh = False
            expected += [steps - 1] * (sums == 1)
        if event == "sum":
            passes.sent()
        elif event == "end":
            told = len(passes._clock.told)
            before = len(came)
            passes.backward_ended()
            ended = len(came) - before
            assert passes._clock.told[told:] == ["ready", ("summed", "waiting")] * ended
        assert (passes.index, passes.sums, reports) == (steps - 1, sums, expected)


@pytest.mark.parametrize("step_ends", [False, True])
def test_a_model_that_nothing_sums_has_ended_its_step_where_the_loader_says_so(passes_of, step_ends):
    passes, loader, _ = passes_of("scaled", accumulate=1, step_ends=step_ends)
    handed_out(passes, loader, [4, 4])
    passed(passes, Recognition(), torch.zeros(4, 7))
    passes.backward_ended()
    assert passes.sums == step_ends


@pytest.mark.parametrize("loss", ["mean", "sum", "scaled"])
@pytest.mark.parametrize("in_backward", [[], [False], [False, True]])
def test_a_collective_within_a_backward_pass_is_refused_where_gradients_carry_weights(passes_of, loss, in_backward):
    passes, _, clock = passes_of(loss)
    passes.weightings += [SimpleNamespace(in_backward=each) for each in in_backward]
    if loss == "mean" and any(in_backward):
        with pytest.raises(RuntimeError) as refused:
            passes.wait_begins()
        assert (str(refused.value), clock.told) == (COLLECTIVE_IN_BACKWARD, [])
    else:
        passes.wait_begins()
        assert clock.told == ["wait"]


def test_a_loop_counts_its_own_batches_and_forgets_those_of_the_one_before(passes_of):
    passes, loader, _ = passes_of()
    recognition = Recognition()

    def take(number, computed):
        for k in range(number):
            handed_out(passes, loader, [4, 4])
            if k < computed:
                passed(passes, recognition, torch.zeros(4, 7))
                passes.sent()

    assert said(lambda: take(FAR_AHEAD - 1, 3)) == []
    assert passes.handed.in_flight == FAR_AHEAD - 4
    assert passes.to_come.waits
    told = said(lambda: take(1, 0))
    assert [one[:54] for one in told] == ["The loop took 64 batches, and gave the model 3 of them"]
    passes.warn = passes_of()[0].warn
    assert [one[:54] for one in said(passes.start_loop)] == ["The loop took 64 batches, and gave the model 3 of them"]
    assert passes.handed.in_flight == 0
    assert not passes.to_come.waits
    passes.warn = passes_of()[0].warn
    assert said(lambda: take(9, 5)) == said(passes.start_loop) == []
    take(1, 1)
    assert passes.handed.in_flight == 0
    handed_out(passes, loader, [4, 4])
    handed_out(passes, loader, [4, 4])
    told = said(passes.say_what_is_fetched)
    assert [one[:52] for one in told] == ["2 batches have been fetched but not computed when th"]
    passed(passes, recognition, torch.zeros(4, 7))
    passes.start_loop()
    passes.warn = passes_of()[0].warn
    assert said(passes.say_what_is_fetched) == []


def test_a_step_ends_with_its_own_micro_batches_and_not_with_those_of_a_loop_that_was_left_or_a_step_before(passes_of):
    passes, loader, _ = passes_of("scaled", accumulate=3)

    def ended_after(batches):
        before = passes.index
        for _ in range(batches):
            handed_out(passes, loader, [4, 4])
            passed(passes, Recognition(), torch.zeros(4, 7))
        passes.backward_ended()
        return passes.index > before

    for batches in (2, 2, 3):
        passes.start_loop()
        assert ended_after(batches) == (batches == 3)
    assert [ended_after(batches) for batches in (2, 1, 2, 1, 3)] == [False, True, False, True, True]


@pytest.mark.parametrize(("taken", "computed", "told"), [(9, 0, False), (9, 1, True), (9, 4, True), (9, 5, False)])
def test_a_loop_that_trains_on_the_lesser_part_of_its_batches_is_told_of_and_one_that_looks_at_data_is_not(
    passes_of, taken, computed, told
):
    passes, *_ = passes_of()
    passes._taken, passes._computed = taken, computed
    assert len(said(passes.start_loop)) == told
