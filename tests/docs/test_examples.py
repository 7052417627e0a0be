"""Every example of the documentation runs, or names the test that runs it; its names and arguments exist."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from ranks import run_script
from stages import ELSEWHERE, FILLED, STAGES, UNTESTED

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
NEEDS = {
    "paceline.integrations.flower": "flwr",
    "paceline.integrations.ray": "ray",
    "paceline.integrations.torchft": "torchft",
}
"""Modules that only another environment may have."""

pytestmark = pytest.mark.checkout


def blocks(page):
    """The Python code of a page, block by block."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if blocks(path))
EVERY = [(page, number) for page in PAGES for number in range(1, len(blocks(page)) + 1)]


def test_every_example_runs_or_says_why_not():
    staged = {(page, number) for page, stages in STAGES.items() for number in stages}
    assert sorted([*staged, *ELSEWHERE, *UNTESTED]) == EVERY
    assert [file for file in ELSEWHERE.values() if not (CHECKOUT / file).is_file()] == []


@pytest.mark.parametrize("page", STAGES)
def test_the_examples_of_a_page_run_in_order(page, tmp_path):
    codes = []
    for number, stage in sorted(STAGES[page].items()):
        code = blocks(page)[number - 1]
        if (page, number) in FILLED:
            left_open, filled = FILLED[page, number]
            assert left_open in code
            code = code.replace(left_open, filled)
        codes += [stage, code]
    script = tmp_path / "page.py"
    script.write_text("\n".join([*codes, ""]), encoding="utf-8")
    run_script(1, script, folder=tmp_path)


@pytest.mark.parametrize(("page", "number"), EVERY)
def test_example_names_and_arguments_exist(page, number):
    """Imports of the page up to this block count: later blocks go on with the names of earlier ones."""
    names = {}
    for code in blocks(page)[:number]:
        tree = ast.parse(code)
        names |= dict(imported(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        taken = names.get(call.func.id) if isinstance(call.func, ast.Name) else None
        given = [keyword.arg for keyword in call.keywords]
        if taken is not None and None not in given:
            inspect.signature(taken).bind_partial(*call.args, **dict.fromkeys(given))


def imported(tree):
    """Yield the things that a block imports from the library, by the names that they have there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("paceline"):
            if node.module in NEEDS:
                pytest.importorskip(NEEDS[node.module])
            for alias in node.names:
                module = importlib.import_module(node.module)
                if not hasattr(module, alias.name):
                    module = importlib.import_module(f"{node.module}.{alias.name}")
                    yield alias.asname or alias.name, None
                else:
                    yield alias.asname or alias.name, getattr(module, alias.name)
