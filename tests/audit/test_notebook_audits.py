"""The audit of a loss in a notebook, from its batches to its verdict."""

import pytest
import torch

from paceline.audit import audit
from paceline.audit.comparisons import AuditPlan
from paceline.audit.notebook import ROWS, Pretended


def batches_of(*sizes):
    chance = torch.Generator().manual_seed(3)
    return [torch.randn(size, 3, generator=chance).double() for size in sizes]


@pytest.mark.parametrize(("ranks", "sizes"), [(2, (4, 6)), (3, (6,))])
def test_audit_runs_asked_ranks_and_steps(ranks, sizes):
    model = torch.nn.Linear(3, 2).double()
    found = audit(lambda rows: model(rows).square().mean(), batches_of(*sizes), ranks=ranks, model=model)
    assert (found.status.name, found.steps, found.ranks) == ("EXACT", len(sizes), ranks)
    assert found.notes[-1] == "Dropout is off."
    assert len(found.notes) == 1
    total = audit(lambda rows: model(rows).square().sum(), iter(batches_of(*sizes)), ranks=ranks, model=model)
    assert (total.cause.name, total.parameter) == ("SUM", "bias") or total.parameter == "weight"
    assert total.detail == f"{1 / ranks:.4g} times that of one process"


@pytest.mark.parametrize(("sizes", "ranks", "least"), [((), 2, 4), ((4, 3), 2, 4), ((5,), 3, 6)])
def test_batches_must_hold_two_samples_for_each_rank(sizes, ranks, least):
    said = rf"batches must have at least {least} samples each, for {ranks} ranks; got \[{', '.join(map(str, sizes))}\]"
    with pytest.raises(ValueError, match=said):
        audit(lambda rows: rows.sum(), batches_of(*sizes), ranks=ranks)


def test_parameter_names_or_place_and_shape():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).double()
    loose = torch.ones(2, dtype=torch.float32, requires_grad=True)
    plan = AuditPlan(steps=1)
    run = Pretended(lambda rows: (model(rows) * loose).square().mean(), batches_of(8), 2, model)(plan, alone=False)
    for tape in run.tapes:
        names = set(tape.steps[0].gradients)
        assert {"0.weight", "0.bias", "1.weight", "1.bias"} < names
        (other,) = names - {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert other.startswith("parameter ")
        assert other.endswith(" (2,)")
        assert tape.facts == {"dtypes": ["float32", "float64"], "mixing": ["BatchNorm1d"]}
        assert tape.steps[0].parameters == tape.start == {}


def test_random_numbers_alike_and_restored():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def noisy(rows):
        return (rows * weight * (1 + torch.rand(len(rows), 1).double())).mean()

    before = torch.get_rng_state()
    runs = [Pretended(noisy, batches_of(8), 2, None)(AuditPlan(steps=1), alone=False) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert [tape.steps[0].facts for tape in runs[0].tapes] == [{"draws": True}] * 2
    one, other = (run.tapes[0].steps[0].gradients for run in runs)
    assert all((one[name] == other[name]).all() for name in one)


def test_sample_identified_by_its_row():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (rows,) = batches_of(6)
    batch = {
        "x": rows,
        "kept": "text",
        "labels": torch.tensor([[1, -100], [2, 3], [4, 5], [6, 7], [8, 9], [-100, -100]]),
    }
    moved = {ROWS: [[[(1, 0, 0), (0, 0, 0), (1, 0, 2)], [(1, 0, 1), (0, 0, 2), (0, 0, 1)]]]}
    pretended = Pretended(lambda part: (part["x"] * weight).mean(), [batch], 2, None)
    own, other = (pretended(plan, alone=False) for plan in (AuditPlan(steps=1), AuditPlan(steps=1, arranged=moved)))
    samples = [sample for tape in own.tapes for sample in tape.streams[ROWS][0]]
    assert [one.counts["labels that count"] for one in samples] == [1, 2, 2, 2, 2, 0]
    assert len({one.digest for one in samples}) == 6
    assert [tape.streams[ROWS][0] for tape in other.tapes] == [
        [samples[3], samples[0], samples[5]],
        [samples[4], samples[2], samples[1]],
    ]
    assert pretended(AuditPlan(steps=1), alone=True).tapes[0].streams[ROWS] == [samples]
