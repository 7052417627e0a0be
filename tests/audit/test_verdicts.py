"""Every published bug is found with its cause, every fix passes, and exact loops raise no alarm."""

import re
import sys
from pathlib import Path

import pytest
from ranks import run_ranks

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "loops")]

import balanced_loops  # noqa: E402
import corpus  # noqa: E402
import kinds  # noqa: E402
import unseen  # noqa: E402
import unsure  # noqa: E402
from bench import verdicts_of  # noqa: E402

from paceline.audit import Cause  # noqa: E402

CHECKOUT = HERE.parent.parent
UNSEEN = {name: case for name, case in unseen.CASES.items() if name.startswith("unseen.")}
CORPUS = {name: case for name, case in corpus.CASES.items() if name.startswith("corpus_")}
UNSURE = {name: case for name, case in unsure.CASES.items() if name.startswith("unsure.")}
MIXES = "batch_normalization_of_the_ranks_own_samples"
"""Exact in ``tests/loops`` beside a run alone that normalizes each rank's rows apart; an audit says that it does."""

LOOPS = [name for name in balanced_loops.CASES if name != MIXES]
RANKS = 2
FIXES = [name for name, case in CORPUS.items() if case.cause is None]
ALL = [("corpus", name) for name in CORPUS if name not in FIXES] + [("unseen", name) for name in UNSEEN]
ALL += [("unsure", name) for name in UNSURE] + [("balanced_loops", MIXES)]
SOAK = []
for module, names, every in (("corpus", FIXES, 6), ("kinds", [*kinds.CASES], 7), ("balanced_loops", LOOPS, 49)):
    for number, name in enumerate(names):  # each of so many is audited always, the others in the soak
        (SOAK if number % every else ALL).append((module, name))
CASES = [pytest.param(*case, id=case[1]) for case in ALL]
CASES += [pytest.param(*case, id=case[1], marks=pytest.mark.soak) for case in SOAK]


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """The verdict on a case: all that were selected are audited together, as to start ranks takes longest."""
    here = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    selected = [item.callspec.params for item in here if hasattr(item, "callspec") and "name" in item.callspec.params]
    names = [f"{case['module']}/{case['name']}" for case in selected]
    options = (RANKS, str(tmp_path_factory.mktemp("audits")), names)
    together = run_ranks(RANKS, verdicts_of, *options, within=600, joined=False)[0]
    return lambda module, name: together[f"{module}/{name}"]


@pytest.mark.timeout(700)  # the first of them waits for all
@pytest.mark.parametrize(("module", "name"), CASES)
def test_a_script_gets_its_verdict(verdicts, module, name):
    found = verdicts(module, name)
    if module == "balanced_loops":
        cause = "rows" if name == MIXES else None
    else:
        cause = {"corpus": CORPUS, "unseen": UNSEEN, "unsure": UNSURE, "kinds": kinds.CASES}[module][name].cause
    assert found["cause"] == cause, found
    if cause is None:
        assert found["status"] == "exact", found
        assert found["deviation"] < 1e-11 + 10 * found["noise"], found
    else:
        assert found["status"] != "exact"
    assert not any("failed" in note for note in found["notes"]) or cause in ("uneven",), found


def test_corpus_cites_thread_and_mechanism():
    bugs = [case for case in CORPUS.values() if case.cause]
    assert len({case.thread for case in bugs}) == len(bugs) >= 12
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.thread) and case.mechanism for case in bugs)
    assert len([case for case in CORPUS.values() if not case.cause]) == len(bugs)


@pytest.mark.checkout
def test_every_cause_is_documented():
    titles = re.findall(r"^### (.*)$", (CHECKOUT / "docs" / "howto" / "audit.md").read_text("utf-8"), re.MULTILINE)
    headings = {title.lower().replace(" ", "-") for title in titles}
    assert {cause.anchor for cause in Cause} == headings
