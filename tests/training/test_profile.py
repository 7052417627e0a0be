"""Profiles: how often each batch size is measured, and how certain its time is."""

import numpy as np

from paceline.training import profile


def test_profile_measures_until_each_median_is_certain(monkeypatch):
    """Visits of size 8 are noisy, of 16 exact, of 4 slow in the first third of the run: sizes come in random order."""
    now, chance, visits = [0.0], np.random.default_rng(0), []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def made(size, device):
        visits.append(size)
        lasting = {4: 1.0 + (len(visits) < 6), 8: np.exp(0.1 * chance.standard_normal()), 16: 1.0}[size]

        def step():
            now[0] += size * lasting

        return step

    found = profile.profile(made, [4, 8, 16], warmup=0, repeats=2, precision=0.05, max_passes=60)
    counts = [visits.count(size) for size in (4, 8, 16)]
    assert counts[2] == 6
    assert counts[1] > 2 * counts[2]
    assert len({tuple(visits[k : k + 3]) for k in range(0, 18, 3)}) > 2, "the order differs between passes"
    assert (found["uncertainty"] <= 0.05).all()
    np.testing.assert_allclose(found["seconds"], [4, 8, 16], rtol=0.06)
    short = profile.profile(made, [8, 16], warmup=0, repeats=2, precision=0.001, max_passes=7)
    assert short["uncertainty"][0] > 0.01, "what is still uncertain after the last pass says so"
    once = profile.profile(made, [8, 16], warmup=0, repeats=2, max_passes=1)
    assert once["uncertainty"].isna().all(), "of one pass, nothing is known"
