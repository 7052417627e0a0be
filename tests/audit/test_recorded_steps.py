"""What a recorder notes of the samples and steps of a script, told by hand."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from paceline.audit.comparisons import AuditPlan
from paceline.audit.inside import step_recorder
from paceline.audit.inside.sample_order import counts, digest, written
from paceline.audit.inside.step_recorder import StepRecorder, chance
from paceline.audit.tape import Sample, load_all


@pytest.fixture
def recorder_of(tmp_path):
    """Recorders whose ends are noted, each with a folder of its own."""
    made = []

    def make(**plan):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        ended = []
        recorder = StepRecorder(AuditPlan(**{"steps": 9, **plan}), folder, lambda *told: ended.append(told))
        recorder.ended, recorder.own = ended, folder
        made.append(recorder)
        return recorder

    return make


def sgd(*values, lr=0.5):
    weight = nn.Parameter(torch.tensor(values))
    return weight, torch.optim.SGD([weight], lr=lr)


def stepped(recorder, optimizer, closure=False):
    recorder.before_step(optimizer, closure)
    optimizer.step()
    recorder.after_step(optimizer)


SAMPLES = [{"x": torch.tensor([1.0, 2.0])}, (3, "a"), torch.tensor([0, -100])]


def test_samples_are_noted_with_their_checksums_and_sizes_and_handed_on(recorder_of):
    recorder = recorder_of()
    assert recorder.draws_are_samples
    assert recorder.fetched("s", lambda: SAMPLES[:2], None, [5, 6]) == SAMPLES[:2]
    assert not recorder.draws_are_samples
    recorder.fetched("s", lambda: SAMPLES[2:], None, [7])
    batches = [
        [Sample(digest(written(item)), counts(written(item))) for item in part] for part in (SAMPLES[:2], SAMPLES[2:])
    ]
    assert recorder.tape.streams == {"s": batches}
    with pytest.raises(ValueError, match="zip"):
        recorder.fetched("s", lambda: SAMPLES, None, [7])
    other = recorder_of()
    other.fetched("torch.randint (4,)", lambda: [1, 2], None, [1, 2])
    assert other.draws_are_samples


def drawn():
    return [(random.random(), float(torch.rand(1)), np.random.rand())]  # noqa: NPY002


def test_what_augments_draws_the_same_in_every_run_for_each_stream_batch_and_rank(recorder_of, monkeypatch):
    seen = []
    for rank in (0, 0, 1):
        monkeypatch.setattr(StepRecorder, "_rank", staticmethod(lambda rank=rank: rank))
        recorder = recorder_of()
        before = chance()
        seen.append([recorder.fetched(stream, drawn, None, [0])[0] for stream in ("a", "a", "b")])
        assert chance() == before, "the script's own numbers go on"
        torch.rand(1)
    assert seen[0] == seen[1]
    flat = [number for one in (*seen[0], *seen[2]) for number in one]
    assert len(set(flat)) == len(flat) == 18


class Unwritable:
    """Stays where it is."""


def test_later_runs_hand_out_the_samples_of_the_first_as_they_are_told(recorder_of):
    first = recorder_of()
    stays = [Unwritable(), Unwritable()]
    first.fetched("s", lambda: [torch.tensor([1.0]), torch.tensor([2.0])], None, [0, 1])
    first.fetched("s", lambda: [torch.tensor([3.0]), stays[1]], None, [2, 1])
    stepped(first, sgd(1.0)[1])
    first.finish()
    told = {"s": [[[(0, 1, 0), (0, 0, 1), (0, 1, 1)]], [[(0, 0, 0)]]]}
    later = recorder_of(arranged=told, supplies=str(first.own))
    found = later.fetched("s", lambda: pytest.fail("loads nothing"), stays, [8, 9])
    assert [one.tolist() for one in found[:2]] == [[3.0], [2.0]]
    assert found[2] is stays[1]
    assert [one.tolist() for one in later.fetched("s", lambda: pytest.fail("loads nothing"), stays, [])] == [[1.0]]
    assert later.fetched("s", lambda: ["own"], stays, [4]) == ["own"]
    assert later.fetched("t", lambda: ["other"], stays, [4]) == ["other"]
    digests = [[one.digest for one in batch] for batch in later.tape.streams["s"][:2]]
    own = [[one.digest for one in batch] for batch in first.tape.streams["s"]]
    assert digests == [[own[1][0], own[0][1], own[1][1]], [own[0][0]]]


def test_batches_are_made_double_in_a_double_run_only(recorder_of):
    batch = {"x": torch.ones(1), "n": [torch.ones(1, dtype=torch.long), torch.ones(1, dtype=torch.bfloat16)]}
    found = recorder_of(precision="float64").delivered(batch)
    assert [found["x"].dtype, *(one.dtype for one in found["n"])] == [torch.float64, torch.int64, torch.float64]
    assert recorder_of(precision="float32").delivered(batch) is batch


def facts_of(recorder):
    return [step.facts for step in recorder.tape.steps]


def test_numbers_drawn_between_samples_and_step_are_noted(recorder_of):
    recorder, (_, optimizer) = recorder_of(), sgd(1.0)
    torch.rand(1)  # before any sample
    stepped(recorder, optimizer)
    recorder.fetched("s", drawn, None, [0])
    stepped(recorder, optimizer)
    recorder.fetched("s", drawn, None, [0])
    torch.rand(1)
    stepped(recorder, optimizer)
    torch.rand(1)  # after the step: no sample since
    stepped(recorder, optimizer)
    recorder.fetched("s", drawn, None, [0])
    torch.rand(1)
    recorder.fetched("s", drawn, None, [0])  # drawn before the second batch of a step
    stepped(recorder, optimizer)
    assert facts_of(recorder) == [{}, {}, {"draws": True}, {}, {"draws": True}]


def test_numbers_drawn_between_a_step_and_the_next_row_are_noted(recorder_of):
    recorder, (_, optimizer) = recorder_of(), sgd(1.0)
    torch.rand(1)
    recorder.look_beside()  # before the first step nothing is beside
    stepped(recorder, optimizer)
    recorder.look_beside()
    stepped(recorder, optimizer)
    torch.rand(1)
    recorder.look_beside()
    stepped(recorder, optimizer)
    recorder.look_beside()
    torch.rand(1)
    recorder.look_beside()  # the second row of a step
    stepped(recorder, optimizer)
    assert facts_of(recorder) == [{}, {}, {"beside": True}, {}]


def test_a_step_is_noted_with_gradients_batches_and_parameters_and_the_last_one_ends_the_script(recorder_of):
    recorder, (weight, optimizer) = recorder_of(steps=2), sgd(1.0, 2.0)
    for number in range(2):
        weight.grad = torch.tensor([1.0 + number, 0.0])
        recorder.fetched("s", lambda: [1], None, [0])
        recorder.handed_out("l")
        recorder.handed_out("l")
        assert not recorder.ended
        stepped(recorder, optimizer)
    assert recorder.ended == [(recorder.own, 1)]
    assert recorder.done
    (tape,) = load_all(recorder.own)
    assert tape.start["parameter 0"].tolist() == [1, 2]
    assert [step.gradients["parameter 0"].tolist() for step in tape.steps] == [[1, 0], [2, 0]]
    assert [step.parameters["parameter 0"].tolist() for step in tape.steps] == [[0.5, 2], [-0.5, 2]]
    assert [step.delivered for step in tape.steps] == [{"s": 1, "l": 2}, {"s": 2, "l": 4}]
    assert tape.facts == {"mixing": [], "hooks": [], "dtypes": ["float32"]}
    assert torch.load(recorder.own / "0.samples", weights_only=True) == {"s": [[1], [1]]}
    recorder.finish()
    assert len(recorder.ended) == 1


def test_gradients_of_a_step_with_a_closure_are_those_after_it(recorder_of):
    recorder, (weight, optimizer) = recorder_of(), sgd(1.0)
    weight.grad = torch.tensor([5.0])
    recorder.before_step(optimizer, True)
    weight.grad = torch.tensor([7.0])
    recorder.after_step(optimizer)
    recorder.before_step(optimizer, False)
    weight.grad = torch.tensor([9.0])
    recorder.after_step(optimizer)
    assert [step.gradients["parameter 0"].tolist() for step in recorder.tape.steps] == [[7.0], [7.0]]


def test_parameters_of_a_frozen_run_go_back_after_every_step(recorder_of):
    recorder, (weight, optimizer) = recorder_of(frozen=True), sgd(1.0)
    for _ in range(2):
        weight.grad = torch.tensor([1.0])
        stepped(recorder, optimizer)
        assert weight.tolist() == [1.0]
    assert [step.parameters["parameter 0"].tolist() for step in recorder.tape.steps] == [[1.0], [1.0]]
    assert weight.requires_grad


def test_how_much_of_a_gradient_is_kept_until_the_step_is_noted(recorder_of):
    recorder, model = recorder_of(), nn.Linear(1, 1, bias=False)
    other = nn.Embedding(3, 1, sparse=True)
    for module in (model, model, nn.Sequential(model), other):
        recorder.names.note(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    other(torch.tensor([1])).sum().backward()
    model.weight.grad = torch.tensor([[4.0]])
    recorder.after_backward()
    model.weight.grad *= 0.25
    stepped(recorder, optimizer)
    stepped(recorder, optimizer)  # no backward pass since
    model.weight.grad *= 0.0
    recorder.after_backward()
    stepped(recorder, optimizer)
    first, second, third = facts_of(recorder)
    assert (first, second) == ({"kept": [0.25]}, {})
    assert math.isnan(third["kept"][0])


def test_sizes_of_balanced_loaders_and_what_is_said_are_lists_of_a_step(recorder_of):
    recorder, (_, optimizer) = recorder_of(), sgd(1.0)
    loader = SimpleNamespace(batch_sizes=np.array([3, 5]))
    recorder.watch(loader)
    recorder.watch(SimpleNamespace(batch_sizes=[1]))
    recorder.say(ratio=1.0, other="a")
    recorder.say(ratio=2.0)
    stepped(recorder, optimizer)
    loader.batch_sizes = np.array([4, 4])
    stepped(recorder, optimizer)
    assert facts_of(recorder) == [
        {"ratio": [1.0, 2.0], "other": ["a"], "sizes": [[3, 5], [1]]},
        {"sizes": [[4, 4], [1]]},
    ]
    assert type(facts_of(recorder)[0]["sizes"][0][0]) is int


def test_a_rank_is_that_of_its_group_where_there_is_one(monkeypatch):
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 5
    )
    monkeypatch.setattr(step_recorder, "dist", group)
    assert (StepRecorder._rank(), StepRecorder._world_size()) == (3, 5)
    for missing in ("is_initialized", "is_available"):
        monkeypatch.setattr(group, missing, lambda: False)
        assert (StepRecorder._rank(), StepRecorder._world_size()) == (0, 1)
        monkeypatch.setattr(group, missing, lambda: True)
