"""Whatever a loop looks like, balancing it is exact, refused or warned about: never silently different."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import shapes  # noqa: E402, F401 (registers them)
from verdicts import SHAPES, TABLE_BEGINS, table  # noqa: E402

CASES = [(shape, ranks) for shape in SHAPES for ranks in shape.ranks]
TOLERANCE = 1e-12


@pytest.mark.checkout
def test_the_documented_table_is_that_of_these_shapes():
    """Renewed by python tests/loops/renew.py."""
    page = HERE.parent.parent / "docs" / "reference" / "loops.md"
    assert page.read_text().split(TABLE_BEGINS)[1].strip() == table().strip()


def run(ranks, out, names):
    """Run these shapes with this many ranks and return what became of each.

    The ranks are forked from one process: torchrun would import all libraries once for itself and once for each.
    """
    source = Path(sys.modules["paceline"].__file__).parent.parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "run.py"), str(ranks), str(out), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """What became of a shape: all that were selected run together, because to start ranks takes longer than to run."""
    folder = tmp_path_factory.mktemp("loops")
    here = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    selected = [item.callspec.params for item in here if hasattr(item, "callspec")]

    @functools.cache
    def outcomes_of(ranks):
        names = [case["shape"].run.__name__ for case in selected if case["ranks"] == ranks]
        return run(ranks, folder / f"{ranks}.json", names)

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
