"""Twenty-five rounds of clients of every kind, as they have always been planned: whoever changes one sees it."""

from pathlib import Path

import numpy as np
import pytest
from federated_rounds import names_of
from kept import require_kept

from paceline.coordinator.federated import FederatedBalancer, RoundReport

KEPT = Path(__file__).with_name("federated_rounds.json")
SPEEDS = np.array([100.0, 140.0, 60.0, 20.0, 300.0, 90.0, 110.0, 15.0, 80.0, 200.0])
LINKS = np.array([0.1, 0.2, 1.0, 0.1, 4.0, 0.3, 0.1, 2.0, 0.2, 0.1])
EPOCHS, NOISY, LIAR, SHORT, OLD = 3, 5, 6, 8, 7
"""Clients that train by epochs, vary, lie now and then, run out of memory, and are silent every other round."""


def lived(rounds, **options):
    balancer = FederatedBalancer(batch=16, local_steps=4, **options)
    rng, names, told = np.random.default_rng(7), names_of(10), []
    balancer.join(names[:8], devices=[*"ppqqp", "", "q", "p"], data=[500, 40, 12, 300, 999, 50, 64, 80])
    balancer.join(names[8:], memory=[40, 90])
    for number in range(rounds):
        chosen = np.sort(rng.choice(10, 7, replace=False))
        plan = balancer.plan([names[i] for i in chosen])
        told.append({"sizes": plan.sizes, "reasons": plan.reasons, "sources": plan.source, "makespan": plan.makespan})
        there = [
            (i, size) for i, size in zip(chosen, plan.sizes.tolist(), strict=True) if size and (i != OLD or number % 2)
        ]
        full = [i == SHORT and size > 24 for i, size in there]
        work = np.array([256.0 if i == EPOCHS else size * 4 for i, size in there])
        slower = np.exp([rng.normal(0, 0.5 if i == NOISY else 0.02) for i, _ in there])
        seconds = work / SPEEDS[[i for i, _ in there]] * slower
        seconds[[i == LIAR and number % 5 == 2 for i, _ in there]] = 1e-7
        balancer.observe(
            plan,
            RoundReport(
                clients=[names[i] for i, _ in there],
                samples=[size * 4 for _, size in there],
                seconds=np.where(full, np.nan, seconds),
                comm_seconds=[np.nan if number % 3 else LINKS[i] for i, _ in there],
                elapsed=seconds + LINKS[[i for i, _ in there]],
                out_of_memory=full,
                failed=[i == 9 and number == 6 for i, _ in there],
                waited=20.0,
            ),
        )
    plan = balancer.plan([*names, "stranger"])
    shares = balancer.shares()
    last = {name: getattr(plan, name) for name in ("sizes", "speed", "spread", "comm_seconds", "seconds", "caution")}
    last |= {"why": [plan.why(name) for name in plan.clients], "summary": plan.summary, "upper": plan.upper}
    return {"rounds": told, **last, "weight": shares.weight, "use": shares.use, "samples": shares.samples}


OPTIONS = {
    "plain": {},
    "deadline": {"deadline": 2.5, "try_again": 3},
    "bold": {"risk": 0.0, "least": 1, "largest": 3.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_of_clients_of_every_kind_are_planned_as_they_were(name):
    require_kept(KEPT, name, lived(25, **OPTIONS[name]))
