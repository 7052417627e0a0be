"""Records of a made run, for the tests of what is written of a run and read back."""

import numpy as np

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, Report
from paceline.recording import Iteration, JsonLines, Round


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


def rounds(count, workers=("fast", "slow", "worse")):
    """Yield the records of an asynchronous run whose last worker is a straggler, one for each round."""
    for index in range(count):
        done = np.array([100.0, 50.0, 10.0]) * (index + 1)
        yield Round(
            index=index,
            time=1.7e9 + index,
            scheme="SaPS",
            bound=2,
            batch=8,
            workers=workers,
            sizes=np.array([8.0, 4.0, 1.0]),
            staleness=np.array([1.5, 2.0, 7.0]),
            expected=np.array([1.0, 2.0, 6.0]),
            done=done,
            wasted=done / 10,
            waited=np.zeros(3),
            version=20 * (index + 1),
            applied=int(done.sum()),
            dropped=0,
            abandoned=int(done.sum() / 10),
            refused=0,
            largest=7,
            wasted_share=1 / 11,
            stragglers=workers[-1:],
            acted=index == 1,
            why="worse is a straggler: its pushes are 7 versions stale." if index == 1 else "",
        )
