"""Whatever a loop looks like, balancing it is exact, refused or warned about: never silently different."""

import functools
import sys
from pathlib import Path

import pytest
from ranks import run_ranks

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from run import run  # noqa: E402
from verdicts import SHAPES, TABLE_BEGINS, table  # noqa: E402

CASES = [
    pytest.param(shape, ranks, marks=pytest.mark.soak if ranks > min(shape.ranks) else ())
    for shape in SHAPES
    for ranks in shape.ranks
]
TOLERANCE = 1e-12


@pytest.mark.checkout
def test_the_documented_table_is_that_of_these_shapes():
    """Renewed by python tests/loops/renew.py."""
    page = HERE.parent.parent / "docs" / "reference" / "loops.md"
    assert page.read_text("utf-8").split(TABLE_BEGINS)[1].strip() == table().strip()


@pytest.fixture(scope="module")
def outcomes(request):
    """What became of a shape: all that were selected run together, because to start ranks takes longer than to run."""
    here = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    selected = [item.callspec.params for item in here if hasattr(item, "callspec")]

    @functools.cache
    def outcomes_of(ranks):
        names = [case["shape"].run.__name__ for case in selected if case["ranks"] == ranks]
        return run_ranks(ranks, run, names, within=500)[0]

    return lambda shape, ranks: outcomes_of(ranks)[shape.run.__name__]


@pytest.mark.timeout(600)  # the first of them waits for all
@pytest.mark.parametrize(("shape", "ranks"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_loop_of_this_shape_gets_its_verdict(outcomes, shape, ranks):
    outcome = outcomes(shape, ranks)
    if shape.verdict == "refused":
        assert all(shape.says in error for error in outcome["errors"]), outcome
        return
    assert not any(outcome["errors"]), outcome
    assert outcome["uneven"] > 0.5, "sizes hardly differed, so nothing was tested"
    if shape.verdict.startswith("exact"):
        assert outcome["deviation"] is not None, outcome
        assert outcome["deviation"] < TOLERANCE, outcome
    if shape.says:
        assert any(shape.says in sentence for sentence in outcome["warned"]), outcome
    else:
        assert not outcome["warned"], outcome
