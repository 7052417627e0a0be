"""A server of the asynchronous core with a single parameter, for tests that ask it step by step."""

import numpy as np

from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme


def server_of(rules="asp", workers="ab", batch=4, samples=1000, **options):
    rules = scheme(rules, len(workers)) if isinstance(rules, str) else rules
    return Server(np.zeros(1), SGD(1.0), rules, EpochSampler(samples), batch=batch, workers=list(workers), **options)


def push(server, worker, pulled=None, value=0.0, samples=None, **more):
    pulled = pulled or server.pull(worker)
    return server.push(worker, pulled.stamp, np.array([value]), samples, **more)
