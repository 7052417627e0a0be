"""Reports for people: one page of a run, an evaluation or a replay."""

from paceline.report.evaluation_page import evaluation_page
from paceline.report.page import render, write_page
from paceline.report.replay_page import replay_page
from paceline.report.run_page import run_page

__all__ = [
    "evaluation_page",
    "render",
    "replay_page",
    "run_page",
    "write_page",
]
