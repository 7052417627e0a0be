"""How records of the audit are made, and what is left out of a call."""

import pytest
from records import left_out, require_record

from paceline.audit import audit
from paceline.audit.audit_verdict import AuditVerdict
from paceline.audit.compare import Difference
from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.inquiry import AuditRun, Inquiry
from paceline.audit.inside.balanced import Mixed, Restless
from paceline.audit.launch import Launcher
from paceline.audit.probe import Probe
from paceline.audit.tape import Sample, Tape, TapedStep

KINDS = [
    (AuditRun, True, False, True),
    (Inquiry, False, False, True),
    (Difference, True, False, True),
    (AuditVerdict, True, True, True),
    (AuditPlan, True, True, True),
    (BalancedRun, True, True, True),
    (Sample, True, False, True),
    (TapedStep, False, False, True),
    (Tape, False, False, True),
    (Probe, True, False, True),
]

PLAN = {"steps": 4, "precision": "float64", "arranged": None, "supplies": "", "frozen": False, "balanced": None}
LEFT_OUT = [
    (AuditPlan, PLAN),
    (BalancedRun, {"uneven": False, "seed": 0, "numbers": []}),
    (AuditRun, {"folder": "", "error": ""}),
    (
        Inquiry,
        {
            "steps": 3,
            "notebook": False,
            "found": {},
            "notes": [],
            "noise": 0.0,
            "base": AuditRun([]),
            "plan": AuditPlan(),
        },
    ),
    (Probe, {"counts": ()}),
    (TapedStep, {"facts": {}}),
    (Tape, {"streams": {}, "start": {}, "steps": [], "facts": {}}),
    (audit, {"ranks": 2, "model": None}),
    (Restless.predict, {"covariates": None, "horizon": 1}),
    (Mixed.of, {"ranks": 1}),
    (Launcher, {"tell": str}),
]


@pytest.mark.parametrize(("kind", "frozen", "named", "alike"), KINDS)
def test_a_record_is_changed_made_and_compared_as_it_is_meant_to_be(kind, frozen, named, alike):
    require_record(kind, frozen, named, alike)


@pytest.mark.parametrize(("thing", "expected"), LEFT_OUT)
def test_what_is_left_out_of_a_call_is_this(thing, expected):
    assert left_out(thing) == expected
