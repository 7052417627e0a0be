"""The order of turns of a live experiment."""

import pytest

from paceline.lab import EQUAL, AsyncSetting, Setting


@pytest.mark.parametrize("rounds", range(1, 6))
@pytest.mark.parametrize("schemes", [("ewma",), ("ewma", "auto"), ("auto", "control", "ewma")])
def test_setting_orders_turns_there_and_back(rounds, schemes):
    expected = []
    for seed in range(rounds):
        expected.append((EQUAL, seed))
        for scheme in reversed(schemes) if seed in (1, 3) else schemes:
            expected += [(scheme, seed), (EQUAL, seed)]
    assert Setting(schemes=schemes, rounds=rounds).turns == expected


@pytest.mark.parametrize("rounds", range(1, 6))
def test_async_setting_rotates_the_schemes(rounds):
    orders = ["saps asp bsp", "asp bsp saps", "bsp saps asp"]
    expected = [(name, seed) for seed in range(rounds) for name in orders[seed % 3].split()]
    assert AsyncSetting(rounds=rounds).turns == expected
