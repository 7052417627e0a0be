"""Every named scheme is made of the rules that its paper says."""

import pytest

from paceline.coordinator.asynchronous import SCHEMES, Scheme, scheme
from paceline.coordinator.asynchronous.rules import (
    Adaptive,
    BalancedBatches,
    Bounded,
    ByForecast,
    ByVersions,
    Constant,
    Fresh,
    Inverse,
    InverseNext,
    Mean,
    Paced,
    Polynomial,
    Ranged,
    Share,
)


def expected(workers):
    """The schemes of a fleet: K is three quarters of it, or half, and at least one."""
    most, half = max(3 * workers // 4, 1), max(workers // 2, 1)
    saps = {"gathering": Paced(), "bound": 10 * workers, "refresh": True, "by_samples": True}
    bsp = {"gathering": Mean(0), "gate": Fresh(), "bound": 0}
    return {
        "saps": Scheme(name="SaPS", sizing=ByForecast(), **saps),
        "saps-measured": Scheme(name="SaPS, no forecast", sizing=ByVersions(), **saps),
        "saps-dc": Scheme(name="SaPS, compensated", sizing=ByForecast(), compensation=Adaptive(2.0, 0.95), **saps),
        "asp": Scheme(name="ASP"),
        "bsp": Scheme(name="BSP", **bsp),
        "lb-bsp": Scheme(name="LB-BSP", sizing=BalancedBatches(), **bsp),
        "ssp": Scheme(name="SSP", gate=Bounded(3)),
        "dssp": Scheme(name="DSSP", gate=Ranged(3, 15)),
        "con-sgd": Scheme(name="ConSGD", damping=Share(), gate=Bounded(3)),
        "dyn-sgd": Scheme(name="DynSGD", damping=InverseNext(), gate=Bounded(3)),
        "sa-asgd": Scheme(name="SA-ASGD", damping=Inverse()),
        "dc-asgd-c": Scheme(name="DC-ASGD-c", compensation=Constant(0.04)),
        "dc-asgd-a": Scheme(name="DC-ASGD-a", compensation=Adaptive(2.0, 0.95)),
        "k-sync": Scheme(name="K-sync", gathering=Mean(most), gate=Fresh(), bound=0, refresh=True),
        "backup": Scheme(name="backup workers", gathering=Mean(most), gate=Fresh(), bound=0),
        "k-async": Scheme(name="K-async", gathering=Mean(half), gate=Fresh()),
        "k-batch-async": Scheme(name="K-batch-async", gathering=Mean(half)),
        "fed-buff": Scheme(name="FedBuff", gathering=Mean(half), damping=Polynomial(0.5)),
    }


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_named_scheme_has_the_rules_of_its_paper(workers):
    named = expected(workers)
    assert list(SCHEMES) == list(named)
    for name, rules in named.items():
        assert scheme(name, workers) == rules


def test_a_bound_or_a_number_of_pushes_that_is_given_is_kept():
    for name in ("saps", "saps-measured", "saps-dc"):
        assert SCHEMES[name](4, bound=0).bound == 0
    for name in ("k-sync", "backup", "k-async", "k-batch-async", "fed-buff"):
        assert SCHEMES[name](8, 5).gathering == Mean(5)
    assert SCHEMES["ssp"](4, 7).gate == Bounded(7)
    assert SCHEMES["dssp"](4, 1, 2).gate == Ranged(1, 2)


def test_a_bound_may_be_zero_and_is_needed_to_pace_or_to_give_up():
    assert Scheme(name="x", bound=0).bound == 0
    with pytest.raises(ValueError, match="bound must be 0 versions or more, or None for no bound, got -1"):
        Scheme(name="x", bound=-1)
    for needs in ({"refresh": True}, {"gathering": Paced()}):
        with pytest.raises(ValueError, match="x gives up or paces steps at the bound and has none: set bound"):
            Scheme(name="x", **needs)
        assert Scheme(name="x", bound=0, **needs).bound == 0
