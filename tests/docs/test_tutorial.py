"""The tutorial shows what its commands print: those on recorded jobs print the same everywhere."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.checkout


def shown(name):
    """The lines of an excerpt of the page."""
    (text,) = re.findall(rf"<!-- {name} -->\n```text\n(.*?)\n```\n<!-- end -->", PAGE, re.DOTALL)
    return text.splitlines()


def printed(*words):
    done = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("excerpt", "job"), [("simulate", "digits-mlp-steady"), ("simulate-moving", "digits-attention-moving")]
)
@pytest.mark.slow
def test_simulate_prints_page_lines(excerpt, job):
    assert f"paceline simulate {job}\n" in PAGE
    lines = printed("simulate", job).splitlines()
    assert [line for line in shown(excerpt) if line not in lines] == []


@pytest.mark.slow
def test_the_replay_prints_the_rows_of_the_page():
    """All rows but those of auto, which is fitted first: that takes half a minute."""
    assert "paceline replay auto ewma --trace digits-mlp-steady\n" in PAGE
    rows = [
        re.sub(r"\s+", " ", line) for line in printed("replay", "ewma", "--trace", "digits-mlp-steady").splitlines()
    ]
    expected = [re.sub(r"\s+", " ", line) for line in shown("replay") if line.startswith("│") and "auto" not in line]
    assert len(expected) == 3
    assert [row for row in expected if row not in rows] == []


def test_scripts_differ_by_page_lines():
    before, after = (
        (CHECKOUT / "examples" / name).read_text(encoding="utf-8").splitlines()
        for name in ("ddp_before.py", "ddp_after.py")
    )
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    for line in diff.splitlines():
        here, there = (before, after) if line.startswith("-") else (after, before)
        assert line[1:] in here
        assert line[1:] not in there


def test_files_that_the_tutorial_runs_are_there():
    files = re.findall(r"examples/\w+\.py", PAGE)
    assert len(files) >= 4
    assert all((CHECKOUT / file).is_file() for file in files)
