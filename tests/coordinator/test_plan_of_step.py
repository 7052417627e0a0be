"""A plan is for a micro-batch; records show it for a step, in the unit of the measured times."""

import numpy as np

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import LastValue, Report


def test_plan_of_step_has_sizes_times_and_reason_of_a_step():
    balancer = LoadBalancer(LastValue(), workers=["a", "b", "c"], global_batch=120, policy=Policy(warmup=1, risk=0.0))
    for _ in range(3):
        plan = balancer.step(Report(samples=balancer.plan.sizes, seconds=balancer.plan.sizes * [0.001, 0.001, 0.002]))
        if plan.acted:
            break
    step = plan.of_step(2)
    np.testing.assert_array_equal(step.sizes, 2 * plan.sizes)
    assert step.makespan == 2 * plan.makespan
    moved = int(np.abs(plan.sizes - 40).sum()) // 2
    assert f"Moved {moved} samples" in plan.why
    assert f"Moved {2 * moved} samples" in step.why
