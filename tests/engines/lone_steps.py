"""The steps of one rank of two, whose other parts note what they are asked."""

import math
import time
from types import SimpleNamespace

import numpy as np

from paceline.recording.torch.busy_clock import Measure
from paceline.torch.reports import COLUMNS
from paceline.torch.steps import Steps


class Norms:
    def __init__(self, late, logs):
        self.late, self.logs = late, logs

    def take(self):
        return 0.25


class Job:
    """Steps of a rank of two, whose other parts note what they are asked, and move a clock of the test."""

    def __init__(self, delay=0, in_order=True, order=(0, 1), features=0, costs=None, late=False, logs=(1.0,)):
        self.now, self.called, self.sent = 50.0, [], []
        plan = SimpleNamespace(sizes=np.array([4, 4]), iteration=0)
        self.planning = SimpleNamespace(
            plan=plan, checksum=77, features=features, in_order=in_order, order=np.array(order), work=costs
        )
        self.planning.workers = ("a", "b")
        self.planning.learn = lambda rows: self.call("learn", rows, spend=3)
        self.planning.settle = lambda rows, index: self.call("settle", rows, index)
        self.planning.hand_over = lambda: self.call("hand over")
        self.planning.require_one_place = lambda rows: self.call("require", rows)
        self.exchange = SimpleNamespace(
            under_way=False, send=self.send, receive=self.receive, from_first=lambda place: [place]
        )
        self.loader = SimpleNamespace(micro_batch=None, position=(5, 6, 7), rank=1, accumulate=2)
        self.loader.place = lambda: "place"
        self.loader.adopt = lambda place: self.call("adopt", place)
        kind = SimpleNamespace(norms=Norms(late, list(logs)), learn=self.learn)
        self.passes = SimpleNamespace(
            handed=SimpleNamespace(sizes=np.array([3, 5])), foreign=False, spent=0.0, sums=0, usual_sums=0, mixes=True
        )
        self.passes.index, self.passes.kind, self.passes.loss, self.passes.weights_loss = 9, kind, "mean", True
        self.passes.weightings, self.passes.warn = [], lambda about, sentence: self.call("warn", about, sentence)
        self.clock = SimpleNamespace(delay=delay, features=(), next_look=math.inf, report=self.report)
        self.clock.look = lambda: self.call("look")
        self.clock.wait_begins, self.clock.wait_ends = lambda: self.call("wait"), lambda: self.call("wait ends")
        self.measure, self.rows, self.sentence, self.normed = Measure(8.0, 4.0, 2.0, 0.5, 0.125), None, "", []
        self.covariates = SimpleNamespace(next=math.inf, values=[], take=self.take)
        self.steps = Steps(self.loader, self.planning, self.exchange, self.passes, self.clock, self.covariates)

    def call(self, *what, spend=0):
        self.now += spend
        self.called.append(what)

    def report(self):
        self.now += 1
        return self.measure

    def take(self):
        self.now += 2
        self.covariates.values = [0.5, 0.75]

    def send(self, row):
        self.sent.append(row)
        self.exchange.under_way = True
        self.call("send", spend=4)

    def receive(self):
        self.exchange.under_way = False
        self.call("receive", spend=100)
        return rows_of(self) if self.rows is None else self.rows

    def learn(self, samples_W, norm_W):
        self.normed.append((samples_W.tolist(), norm_W.tolist()))
        return self.sentence

    def names(self):
        return [name for name, *_ in self.called]


def rows_of(job, **columns):
    """What both ranks report: the second twice as many samples, and what ``columns`` say."""
    numbers = [8.0, 2.0, 1.0, 0.5, 0.1, 0.0, 77.0, 5.0, 6.0, 7.0, math.nan, 8.0, 0.0, math.nan]
    one = dict(zip(COLUMNS, numbers, strict=True))
    rows = [[*one.values()], [*(one | {"samples": 16.0}).values()]]
    report = np.array([[*row, *[0.5 + k] * job.planning.features] for k, row in enumerate(rows)])
    for name, values in columns.items():
        report[:, COLUMNS.index(name)] = values
    return report


def job_maker(monkeypatch):
    """Return a function that makes a job, and whose time is that of the last one."""

    def make(**options):
        job = Job(**options)
        monkeypatch.setattr(time, "perf_counter", lambda: job.now)
        return job

    return make
