"""The page of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.report.drawing import answer, sentence, shown
from paceline.report.page import Page, figures, page, section, table


def audit_page(verdict: Mapping[str, Any], *, script: str, digest: str = "", command: str = "") -> Page:
    """Return the page of an audit: verdict, what to do, and how far each run deviated.

    Parameters
    ----------
    verdict
        What ``paceline audit --json`` prints.
    script, digest
        Name and SHA-256 of what was audited.
    command
        The command that makes the page again.
    """
    headline = {"exact": "Exact", "not_exact": "Not exact"}.get(verdict["status"], "Could not tell")
    exact = headline == "Exact"
    detail = str(verdict["sentence"]).removeprefix(f"{headline}: ")  # the headline stands above it
    found = sentence("{sentence}", sentence=(detail[:1].upper() + detail[1:], "text"))
    found["facts"] |= {key: verdict[key] for key in ("deviation", "noise", "steps", "ranks", "first_step")}
    remedy = (
        "Balance it: unequal batches will train the same model."
        if exact
        else verdict["remedy"] or "Run it without the audit first."
    )
    answers = [
        answer("Does a sample count the same wherever it lands?", headline, found),
        answer(
            "What next?",
            "Balance it" if exact else "Change it" if headline == "Not exact" else "Look closer",
            sentence("{remedy}", remedy=(remedy, "text")),
        ),
    ]
    rows = sorted(verdict["runs"].items(), key=lambda row: -row[1] if row[1] is not None else 0.0)
    runs = table(
        "Largest relative deviation of the gradients from the first run", (("run", "text"), ("deviation", "tiny")), rows
    )
    facts = (
        ("steps compared", verdict["steps"], "count"),
        ("ranks", verdict["ranks"], "count"),
        ("precision", verdict["precision"] or None, "text"),
        ("largest deviation that counts", verdict["deviation"], "tiny"),
        ("deviation of two equal runs", verdict["noise"], "tiny"),
        ("deviates first in step", verdict["first_step"] if verdict["parameter"] else None, "count"),
        ("at", verdict["parameter"] or None, "text"),
    )
    known = [(name, shown(value, form)) for name, value, form in facts if value is not None]
    details = section("Details", " ".join(verdict["notes"]), figures(known))
    about = "Samples are the same in every step; ranks, micro-batches and sizes differ."
    return page(
        "audit",
        f"Audit of {script}",
        answers,
        [section("Runs that were compared", about, runs), details],
        settings=[("steps", str(verdict["steps"]))],
        data=[(script, "the audited script", digest)],
        command=command,
    )
