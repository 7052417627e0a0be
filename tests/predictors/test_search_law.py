"""The search of LB-BSP moves as a slow reference does, whatever is reported, also through gaps and oscillations."""

import numpy as np
import pytest

from paceline.predictors import LeaderSearch, Report


class Slow:
    """The search, worker by worker: what each wants next, and the step and the window so far."""

    def __init__(self, workers, step, window, tolerance):
        self.first = (step, window)
        self.step, self.window, self.tolerance = step, window, tolerance
        self.size, self.wanted, self.speed = ([None] * workers for _ in range(3))
        self.times = [[] for _ in range(workers)]
        self.seen, self.moved = 0, None

    def observe(self, samples, seconds):
        sizes = [x if t is not None else known for x, t, known in zip(samples, seconds, self.size, strict=True)]
        if sizes != self.size:
            self.times, self.seen, self.wanted = [[] for _ in sizes], 0, list(sizes)
        self.size = sizes
        for worker, (x, t) in enumerate(zip(samples, seconds, strict=True)):
            if t is not None:
                self.times[worker].append(t)
                self.speed[worker] = x / t
        self.seen += 1
        if self.seen >= self.window:
            self.move({worker: sum(times) / len(times) for worker, times in enumerate(self.times) if times})
            self.times, self.seen = [[] for _ in sizes], 0

    def move(self, mean):
        self.wanted = list(self.size)
        if len(mean) < 2:
            return
        giver, taker = max(mean, key=mean.get), min(mean, key=mean.get)
        if 1 - mean[taker] / mean[giver] < self.tolerance:
            return
        gave, took = self.moved or (None, None)
        if giver == took or taker == gave:
            self.step, self.window = self.step / 2, min(2 * self.window, 16 * self.first[1])
        elif giver == gave or taker == took:
            self.step, self.window = min(2 * self.step, self.first[0]), max(self.window // 2, self.first[1])
        self.moved = (giver, taker)
        known = [x for x in self.size if x is not None]
        moved = min(self.step * sum(known) / len(known), self.size[giver] / 2)
        self.wanted[giver] -= moved
        self.wanted[taker] += moved

    def forecast(self):
        pairs = [(x, v) for x, v in zip(self.wanted, self.speed, strict=True) if x is not None]
        together = sum(v for _, v in pairs) / sum(x for x, _ in pairs)
        usual = np.median([x * together for x, _ in pairs])
        return [usual if x is None else x * together for x in self.wanted]


@pytest.mark.slow
@pytest.mark.parametrize("contrary", [True, False], ids=["oscillating", "random"])
@pytest.mark.parametrize("seed", range(6))
def test_a_search_moves_as_a_slow_one_does(seed, contrary):
    rng = np.random.default_rng([seed, contrary])
    workers = int(rng.integers(2, 5))
    options = {
        "step": float(rng.choice([0.1, 0.4, 0.9])),
        "window": int(rng.integers(1, 4)),
        "tolerance": 0.2 * (seed % 2),
    }
    model, slow = LeaderSearch(**options), Slow(workers, **options)
    model.reset([f"w{k}" for k in range(workers)])
    samples, windows, steps = rng.integers(40, 80, workers).astype(float), set(), set()
    for _ in range(150):
        seconds = rng.uniform(0.5, 1.0, workers)
        if contrary and slow.moved:
            seconds[slow.moved[1]] += 1.0
        seconds = [None if rng.random() < 0.1 else float(t) for t in seconds]
        if all(t is None for t in [*slow.speed, *seconds]):
            continue
        given = [np.nan if t is None else t for t in seconds]
        model.observe(Report(samples=samples, seconds=given))
        slow.observe(samples.tolist(), seconds)
        np.testing.assert_allclose(model.predict().speed, slow.forecast(), rtol=1e-9)
        assert model.state_dict()["fleet/search"].tolist() == [slow.step, slow.window, slow.seen]
        windows.add(slow.window / options["window"])
        steps.add(slow.step / options["step"])
        if rng.random() < 0.3:  # a balancer follows, now and then
            samples = np.array(
                [samples[k] if x is None else max(round(x), 1) for k, x in enumerate(slow.wanted)], float
            )
    assert max(windows) == 16 or not contrary
    assert min(steps) < 1.0
