"""Whatever parts a loop is composed of, it is exact, refused or warned about: never silently different."""

import importlib.util
import json
from pathlib import Path

import pytest
from ranks import run_ranks

SEARCH = Path(__file__).parent.parent.parent / "benchmarks" / "loops.py"


def searched(rank, out, loops, seed):
    """Search as the benchmark does, in one start of the ranks."""
    spec = importlib.util.spec_from_file_location("search", SEARCH)
    search = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(search)
    search.ranks(out, seed, seed + loops, rate=0.2)


def found(tmp_path, ranks, loops, seed):
    """Return what became of every loop."""
    out = tmp_path / "loops.jsonl"
    run_ranks(ranks, searched, out, loops, seed, within=3600)
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def require_none_silent(loops, least):
    wrong = [one for one in loops if one["verdict"] not in ("exact", "warned", "refused")]
    assert not wrong, wrong
    assert sum(one["verdict"] == "exact" for one in loops) >= least * len(loops), "hardly a loop was exact"


@pytest.mark.checkout
@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("ranks", "loops"), [(2, 300), (4, 60)])
def test_no_loop_of_hundreds_is_silently_different(tmp_path, ranks, loops):
    require_none_silent(found(tmp_path, ranks, loops, seed=1_000_000), least=0.4)
