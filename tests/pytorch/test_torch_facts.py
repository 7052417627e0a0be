"""Facts about batches against slow definitions: measurements, token budgets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors.report import LARGEST, SHORTEST
from paceline.torch import Costs
from paceline.torch.by_cost import CostAssigner
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.order import Order
from paceline.torch.reports import COLUMNS, RankReports
from paceline.torch.sliced import SliceAssigner

BELOW = float(np.nextafter(LARGEST, 0))
SAID = {
    "samples": [8.0, 1e-9, BELOW, 0.0, -1.0, LARGEST, np.nan],
    "micro_batches": [1.0, 2.0, BELOW, 0.5, LARGEST, np.inf],
    "steps": [1.0, 2.0, 3.0, 0.5, 0.0, np.nan],
    "seconds": [0.5, SHORTEST, float(np.nextafter(SHORTEST, 0)), 0.0, np.inf, np.nan],
    "log_norm": [0.5, np.nan],
    "buffers": [0.5, np.nan],
}
ONE = st.sampled_from([(name, value) for name, values in SAID.items() for value in values])
ROW = st.lists(ONE, max_size=2).map(lambda said: {name: values[0] for name, values in SAID.items()} | dict(said))
FEATURES = st.tuples(st.just(1.0), st.sampled_from([1.0, 0.0, BELOW, -1e-9, LARGEST, np.nan]))


@given(st.lists(st.tuples(ROW, FEATURES), min_size=1, max_size=3), st.sampled_from([0, 1, 2]))
def test_unmeasurable_report_is_no_measurement(told, features):
    given_WF = np.array([[*({**dict.fromkeys(COLUMNS, 3.0), **row}.values()), *more] for row, more in told])
    before, wanted = given_WF.copy(), given_WF.copy()
    measured = [COLUMNS.index(name) for name in ("samples", "micro_batches", "steps", "seconds")]
    work = list(range(given_WF.shape[1] - features, given_WF.shape[1]))
    for rank, (row, _) in enumerate(told):
        sensible = row["samples"] > 0 and row["samples"] < LARGEST
        sensible &= row["steps"] >= 1 and row["micro_batches"] >= row["steps"] and row["micro_batches"] < LARGEST
        sensible &= row["seconds"] >= SHORTEST and row["seconds"] != np.inf
        if not (sensible and all(number >= 0 and number < LARGEST for number in given_WF[rank, work])):
            wanted[rank, measured + work] = np.nan
    reports = RankReports(given_WF, features)
    np.testing.assert_array_equal(reports.report_WF, wanted)
    np.testing.assert_array_equal(given_WF, before)
    first = told[0][0]
    assert (reports.has_norms, reports.has_buffers) == (first["log_norm"] == 0.5, first["buffers"] == 0.5)


def cut(tokens, budget, ranks):
    """Return the samples of each global batch of these tokens, one sample after the other."""
    counts = []
    while tokens:
        count = next((n for n in range(len(tokens)) if sum(tokens[: n + 1]) > budget), len(tokens))
        count = min(max(count, ranks), len(tokens))
        if 0 < len(tokens) - count < ranks:
            count = len(tokens) - ranks if len(tokens) >= 2 * ranks else len(tokens)
        counts.append(count)
        tokens = tokens[count:]
    return counts


@settings(max_examples=60)
@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=4, max_size=30), st.integers(1, 40), st.data())
def test_token_budget_filled_sample_by_sample(ranks, tokens, budget, data):
    """The batches of a loader are those of the epoch under way, or else of the one that comes next."""
    rule, order = GlobalBatch(ranks, ranks), Order(len(tokens), seed=1)
    drawn = [[tokens[sample] for sample in order.of(epoch)] for epoch in range(6)]
    counts = [cut(epoch, budget, ranks) for epoch in drawn]
    ends = np.cumsum(counts[2]).tolist()
    held = [sum(drawn[2][end - count : end]) for end, count in zip(ends, counts[2], strict=True)]
    cap = data.draw(st.sampled_from([None, 9, max(9, max(held) / ranks), max(9, np.ceil(max(held) / ranks) - 1)]))
    costs = Costs(cost=tokens, global_tokens=budget, cap=cap)
    assigner = CostAssigner(order, rule, 0, costs, costs.of_dataset(tokens))
    assert [assigner.batches_in(epoch) for epoch in range(6)] == list(map(len, counts)), "whatever the cap"
    if cap is not None and max(held) > cap * ranks:
        worst = f"global batch {held.index(max(held))} of this epoch holds {max(held)} tokens, more than {ranks} ranks"
        with pytest.raises(ValueError, match=worst):
            assigner.start(2)
        return
    assigner.start(2)
    reached = [0]
    while (end := assigner.after(reached[-1])) is not None:
        reached.append(end)
    assert reached[1:] == ends
    assert [assigner.batches_in(epoch) for epoch in range(6)] == [len(counts[2])] * 6
    assigner.end()
    assert [assigner.batches_in(epoch) for epoch in range(6)] == list(map(len, counts))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 40), st.booleans(), st.data())
def test_expected_samples_come(ranks, each, samples, drop_last, data):
    rule = GlobalBatch(ranks * each, ranks, drop_last)
    samples += rule.samples
    rank, stop = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 3))
    assigner = SliceAssigner(Order(samples, seed=2), rule, rank)
    assigner.start(1)
    (asked, expected), came = (0, []), []
    while not assigner.over:
        assert not came or assigner.asks_for_next(asked) == (len(expected) <= len(came))
        while len(expected) <= len(came) + stop:
            own, asked = assigner.expected(asked)
            expected.append(own.tolist())
        whole = assigner.settled().tolist()
        own = assigner.next(rule.equal())[1].tolist()
        assert whole == assigner.numbers[assigner.place : assigner.place + len(whole)].tolist()
        assert set(own) <= set(whole)
        assigner.advance()
        came.append(own)
    assert expected[: len(came)] == came
    assert not any(expected[len(came) :]), "nothing comes after the end"
    assert (len(came), assigner.remaining < (rule.samples if drop_last else 1)) == (rule.batches(samples), True)
