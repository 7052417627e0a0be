"""Runs and jobs with a known slow worker, and what a page of HTML holds."""

from html.parser import HTMLParser

import numpy as np

from paceline.coordinator import LoadBalancer
from paceline.datasets import Trace
from paceline.predictors import EWMA, Report
from paceline.recording import JsonLines, read_run
from paceline.recording.records import Iteration

VOID = {"meta", "path", "rect", "input", "link", "br"}


def slowed_speeds(workers, iterations, slow, at, factor=0.5, seed=0):
    """Speeds of alike workers, one of which becomes slow."""
    rng = np.random.default_rng(seed)
    speed_TW = 1000.0 * rng.normal(1.0, 0.02, (iterations, workers))
    speed_TW[at:, slow] *= factor
    return speed_TW


def slowed_trace(workers, job="job", iterations=120, slow=2, at=60):
    samples = np.full((iterations, len(workers)), 64.0)
    seconds = samples / slowed_speeds(len(workers), iterations, slow, at)
    return Trace(samples, seconds, workers=workers, meta={"job": job})


def slowed_run(path, workers, iterations=120, slow=2, at=60, why=""):
    """A balanced run of these workers, written and read back."""
    balancer = LoadBalancer(EWMA(), workers=workers, global_batch=64 * len(workers))
    sink = JsonLines(path)
    for k, speed_W in enumerate(slowed_speeds(len(workers), iterations, slow, at)):
        used = balancer.plan
        report = Report(samples=used.sizes, seconds=used.sizes / speed_W)
        plan = balancer.step(report)
        sink(Iteration.of(used, report, plan, index=k, time=1.7e9 + k, wall_seconds=0.07, overhead_seconds=1e-4))
    sink.close()
    if why:
        path.write_text(path.read_text("utf-8").replace("Kept the sizes", why))
    return read_run(path)


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its texts; those hidden from screen readers apart."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.hidden_texts, self.raw, self._open = [], [], [], [], []
        self.feed(page)
        assert not self._open, f"elements are not closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, dict(attributes)))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, attributes))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, text):
        if self._open and self._open[-1][0] in ("style", "script"):
            self.raw.append((self._open[-1], text))
        elif text.strip():
            hidden = any(attributes.get("aria-hidden") == "true" for _, attributes in self._open)
            (self.hidden_texts if hidden else self.texts).append(text.strip())

    @property
    def shape(self):
        """Elements and the names of their attributes, whatever they say."""
        return [(tag, tuple(name for name, _ in attributes)) for tag, attributes in self.elements]
