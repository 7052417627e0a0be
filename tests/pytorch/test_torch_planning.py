"""Planning by itself: the loader divides by the costs that were learned, and ranks that differ go on as the first."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, Costs
from paceline.torch.planning import Planning
from paceline.torch.reports import COLUMNS, RankReports

RANKS = ("a", "b", "c")


def planning_of(state=(), costs=True, names=RANKS):
    given = {"costs": Costs(lengths=[1 + k % 7 for k in range(90)])} if costs else {}
    loader = BalancedLoader(np.arange(90.0)[:, None], 30, rank=0, world_size=3, **given)
    balancer = LoadBalancer(LastValue(), workers=names, global_batch=30, policy=Policy(warmup=0, change_cost=0, risk=0))
    states = list(state)
    exchange = SimpleNamespace(from_first=lambda own: states.pop(0))
    return Planning(balancer, loader, exchange, names, 0), loader


def rows_of(rng, planning, place=(0.0, 3.0, 7.0)):
    features_WF = rng.uniform(5, 50, (3, planning.features))
    fill = dict.fromkeys(COLUMNS, np.ones(3))
    seconds_W = (
        0.01 + (features_WF**2).sum(axis=1) * [0.001, 0.004, 0.002] if planning.features else rng.uniform(1, 9, 3)
    )
    fill |= {"samples": np.full(3, 10.0), "seconds": seconds_W, "checksum": np.full(3, float(planning.checksum))}
    fill |= dict(zip(("epoch", "batches", "assigned"), (np.full(3, part) for part in place), strict=True))
    return RankReports(np.column_stack([*fill.values(), features_WF]), planning.features)


@pytest.mark.slow
def test_loader_divides_by_newest_costs():
    rng, (planning, loader) = np.random.default_rng(3), planning_of()
    before, sums = loader.coefficients.copy(), set()
    for _ in range(40):
        planning.learn(rows_of(rng, planning))
        planning.hand_over()
        np.testing.assert_array_equal(loader.coefficients, planning.work.coefficients)
        np.testing.assert_array_equal(loader.shares, planning.plan.split.sizes)
        sums.add(planning.checksum)
    assert not np.array_equal(before, loader.coefficients), "nothing was learned"
    assert len(sums) == 40, "ranks see by it that they planned as often"


@pytest.mark.parametrize("costs", [False, True])
def test_differing_plans_follow_the_first(costs, caplog):
    rng, (first, _) = np.random.default_rng(5), planning_of(costs=costs)
    for _ in range(40):
        first.learn(rows_of(rng, first))
    states = [first.balancer.state_dict(), *([first.work.state_dict()] if costs else [])]
    other, loader = planning_of(states * 2, costs)
    rows = rows_of(rng, other)
    other.settle(rows, 17)
    assert caplog.text.count("did not agree on the sizes of iteration 17") == 1
    assert other.checksum == first.checksum
    np.testing.assert_array_equal(loader.shares, first.plan.split.sizes)
    if costs:
        np.testing.assert_array_equal(loader.coefficients, first.work.coefficients)
    other.learn(rows)
    other.settle(rows, 18)
    assert "iteration 18" not in caplog.text, "said once as long as it lasts"


@pytest.mark.parametrize("column", ["epoch", "batches"])
@pytest.mark.parametrize("agreed", [False, True])
def test_other_places_in_data_refused(column, agreed):
    planning, _ = planning_of(costs=False)
    rng = np.random.default_rng(1)
    rows = rows_of(rng, planning)
    rows["checksum"][1] += not agreed
    planning.require_one_place(rows)
    rows["assigned"][2] += 1
    if agreed:
        with pytest.raises(RuntimeError):
            planning.require_one_place(rows)
    else:
        planning.require_one_place(rows)
    rows["assigned"][2] -= 1
    rows[column][2] += 1
    with pytest.raises(RuntimeError, match="c"):
        planning.require_one_place(rows)


@pytest.mark.slow
def test_a_state_of_other_workers_follows_their_names():
    rng, (saved, _) = np.random.default_rng(9), planning_of()
    for _ in range(40):
        saved.learn(rows_of(rng, saved))
    state = saved.state_dict()
    resumed, loader = planning_of(names=("c", "x", "a"))
    resumed.load_state_dict(state)
    assert set(resumed.balancer.workers) == {"a", "c", "x"}
    assert [resumed.workers[k] for k in resumed.order] == list(resumed.balancer.workers)
    assert resumed.in_order == (list(resumed.order) == [0, 1, 2])
    sizes = dict(zip(resumed.balancer.workers, resumed.plan.split.sizes.tolist(), strict=True))
    assert loader.shares.tolist() == [sizes[name] for name in resumed.workers], "in the order of ranks"
    np.testing.assert_array_equal(resumed.work.coefficients, saved.work.coefficients)
