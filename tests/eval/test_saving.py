"""What is said of a saving, or of the worth of balancing, follows from its figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.eval.saving import Simulation
from paceline.eval.worth import Worth, _on_fixed, _on_forecasts, _on_waiting

SHARES = st.sampled_from([-0.01, 0.0, 0.0199, 0.02, 0.3])
FACTORS = st.sampled_from([0.9, 0.98, 0.981, 1.0, 1.019, 1.02, 1.5])


@settings(max_examples=60)
@given(SHARES, SHARES, SHARES, SHARES)
def test_a_saving_is_worth_a_change_where_the_lower_end_of_its_interval_is_two_percent(saving, low, high, slow):
    found = Simulation(
        workers=3,
        iterations=250,
        global_batch=96,
        saving=saving,
        low=low,
        high=high,
        hindsight=0.25,
        slow_machines=slow,
        uneven_samples=0.04,
        noise=0.015,
        slowest="1",
        assumed=("Assumed.",),
    )
    end = "" if low >= 0.02 else ", too little to be sure of" if high >= 0.02 else ", next to nothing"
    whose = "; mostly for worker 1" if slow >= 0.02 else ""
    assert found.pays == (low >= 0.02)
    assert found.sentences == (
        f"Balancing would save {100 * saving:.1f} % of the time "
        f"(90 % interval: {100 * low:.1f} to {100 * high:.1f} %){end}.",
        f"Waiting costs 25.0 % of the time: slow machines {100 * slow:.1f} %, "
        f"uneven samples 4.0 %, noise 1.5 %{whose}.",
        "Assumed.",
        "Replayed: 250 iterations of 3 workers, 96 samples each.",
    )
    assert str(found).splitlines() == list(found.sentences)


@settings(max_examples=20)
@given(FACTORS, FACTORS)
def test_a_fixed_split_gains_loses_or_does_neither_and_forecasts_add_what_hindsight_does(fixed, oracle):
    found = Worth(speedup_fixed=fixed, speedup_online=1.1, speedup_oracle=oracle)
    said = _on_fixed(found)
    assert ("would make iterations" in said) == (not 0.98 < fixed < 1.02)
    assert ("slower" in said) == (fixed <= 0.98)
    assert ("without any forecast" in said) == (fixed >= 1.02)
    assert ("next to nothing" in said) == (0.98 < fixed < 1.02)
    assert f"{fixed:.2f}x" in said
    lasting = np.repeat(np.tile([[1.0, 2.0], [2.0, 1.0]], (4, 1)), 20, axis=0)
    noisy = np.random.default_rng(0).uniform(0.5, 1.5, lasting.shape)
    half = np.stack([lasting[:, 0], noisy[:, 1]], axis=1)
    for seconds, is_noise in ((lasting, False), (noisy, True), (half, False)):
        said = _on_forecasts(found, Trace(np.ones(seconds.shape), seconds))
        if oracle < 1.02:
            assert said == f"Even speeds known in advance would gain no more than {oracle:.2f}x."
            continue
        assert said.endswith("an average of past speeds (ewma) reaches 1.10x in all.")
        assert f"{oracle / fixed:.2f}x" in said
        adds_little = oracle / fixed < 1.02
        assert ("next to nothing" in said) == adds_little
        assert ("no forecast can" in said) == (is_noise and not adds_little)


@pytest.mark.parametrize(
    ("slow", "share", "oracle", "said"),
    [
        (5, 0.5, 1.5, ""),
        (6, 0.5, 1.5, ", mostly for worker 1"),
        (6, 0.5, 1.01, ""),
        (6, 0.52, 1.5, ", mostly for worker 1"),
        (6, 0.53, 1.5, ", mostly for worker 1; with the recorded sizes workers wait 12 %"),
    ],
)
def test_the_worker_waited_for_is_named_if_it_is_the_slowest_more_often_than_not(slow, share, oracle, said):
    seconds = np.where(np.arange(10)[:, None] < slow, [1.0, 2.0], [2.0, 1.0]) * [1 - share, share]
    job = Trace(np.tile([100 * (1 - share), 100 * share], (10, 1)), seconds)
    found = Worth(waiting_recorded=0.12, waiting_equal=0.25, speedup_oracle=oracle)
    assert _on_waiting(found, job) == f"Equal batches wait 25 % of the time{said}."
