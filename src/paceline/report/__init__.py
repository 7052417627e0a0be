"""Reports for people: one page of a run, an evaluation, a replay or an audit, and its numbers as JSON."""

from paceline.report.async_page import async_page
from paceline.report.audit_page import audit_page
from paceline.report.evaluation_page import evaluation_page
from paceline.report.page import render, write_page
from paceline.report.replay_page import replay_page
from paceline.report.run_page import run_page

__all__ = [
    "async_page",
    "audit_page",
    "evaluation_page",
    "render",
    "replay_page",
    "run_page",
    "write_page",
]
