"""Records of a made run, for the tests of what is written of a run and read back."""

import numpy as np

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, Report
from paceline.recording import JsonLines
from paceline.recording.records import Iteration


class Proportional(EWMA):
    """Its forecasts are for times that are proportional to sizes, so that sizes are easy to tell beforehand."""

    reads_sizes = True


def iterations(count, workers=("gpu0", "gpu1"), speeds=(1000.0, 500.0), first=0):
    """Balance workers of these speeds, and yield the record of each iteration."""
    balancer = LoadBalancer(Proportional(), workers=workers, global_batch=60, policy=Policy(warmup=2))
    for index in range(first, first + count):
        before = balancer.plan
        seconds = before.sizes / np.array(speeds)
        report = Report(samples=before.sizes, seconds=seconds)
        yield Iteration.of(
            before,
            report,
            balancer.step(report),
            index=index,
            time=1.7e9 + index,
            wall_seconds=float(seconds.max()) + 0.001,
            overhead_seconds=0.0001,
        )


def written(path, records):
    sink = JsonLines(path)
    for record in records:
        sink(record)
    return sink
