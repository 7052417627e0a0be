"""The site has an entrance to every page, and what is filled in from the code is all there."""

import doctest
import json
import re
from pathlib import Path

import commands as command_pages
import docstring_text
import how_it_works
import links
import numpy as np
import pyarrow.parquet as parquet
import pytest
import typer
import yaml
from checks import faults
from docstring_text import shown
from interfaces import names
from links import ROOT, SiteMap, listing, parts
from site_pages import MAKERS, MARK

from paceline import LoadBalancer, Trace, split
from paceline.cli.main import app
from paceline.predictors import EWMA, Report
from paceline.recording import Recorder, default_covariates, sinks
from paceline.recording.records import Iteration

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"

pytestmark = pytest.mark.checkout

CONFIGURATION = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8"))


def entries(nav):
    """Every page of the navigation, in order."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from entries(value if isinstance(value, list) else [value])


SOURCES = {
    SiteMap().place(str(path.relative_to(CHECKOUT).with_suffix(".md"))): path
    for path in [*DOCS.rglob("*.md"), *(CHECKOUT / "benchmarks").glob("*.md"), *CHECKOUT.glob("*.md")]
}
"""The repository's pages, by their places in the site."""


def test_every_page_in_navigation_once():
    listed = list(entries(CONFIGURATION["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == set(SOURCES) - {"README.md"}, "the README is the repository's own entrance"


def test_the_readme_leads_to_the_site():
    assert "docs/index.md" in (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_every_mark_of_a_page_is_known():
    asked = [mark[1] for path in SOURCES.values() for mark in MARK.finditer(path.read_text(encoding="utf-8"))]
    assert set(asked) == set(MAKERS)


def test_links_lead_to_pages_and_listings():
    site = SiteMap()
    text = (
        "[work](work.md#limits) [live](../../benchmarks/live.md) [code](../../examples/ddp_after.py) [out](https://a.b)"
    )
    expected = "[work](work.md#limits) [live](../benchmarks/live.md) [code](../files/examples/ddp_after.py.md) [out](https://a.b)"
    assert site.rewritten("docs/howto/pytorch.md", text) == expected
    assert site.listed == {"examples/ddp_after.py"}
    assert (ROOT / "examples/ddp_after.py").read_text(encoding="utf-8").rstrip() in listing("examples/ddp_after.py")


@pytest.mark.parametrize("module", [links, docstring_text], ids=lambda module: module.__name__)
def test_the_examples_in_the_builder_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert result.failed == 0


def test_dead_links_refused_code_untouched():
    with pytest.raises(FileNotFoundError, match="no file of the repository"):
        SiteMap().rewritten("docs/index.md", "[gone](gone.md)")
    code = "```\n[gone](gone.md)\n```"
    assert SiteMap().rewritten("docs/index.md", code) == code
    assert "".join(part for part, _ in parts(f"a\n{code}\nb")) == f"a\n{code}\nb"


@pytest.mark.slow
def test_every_command_and_every_option_is_on_its_page():
    page = command_pages.commands_page()
    root = typer.main.get_command(app)
    count = sum(len(getattr(command, "commands", {"": command})) for command in root.commands.values())
    assert len(re.findall(r"^### paceline", page, re.MULTILINE)) == count
    for command in command_pages.commands().values():
        for parameter in command.params:
            assert all(
                f"`{option}`" in page for option in parameter.opts if option.startswith("-") and option != "--help"
            )


SHELL = [
    (path.name, line.strip())
    for path in SOURCES.values()
    for block in re.findall(r"```(?:text|sh|bash)?\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if re.match(r"\s*paceline [a-z]+", line) and "│" not in line
]


@pytest.mark.parametrize(("page", "line"), SHELL, ids=lambda value: value[:60])
def test_shown_commands_exist_with_options(page, line):
    words = line.partition("  #")[0].partition(" -- ")[0].split()
    known = command_pages.commands()
    name = " ".join(words[:3]) if " ".join(words[:3]) in known else " ".join(words[:2])
    if page == "commands.md" and name.endswith("OPTIONS]"):
        return
    assert name in known, f"{page}: {line}"
    options = {option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= options | {"--help"}, f"{page}: {line}"


@pytest.mark.slow
def test_interface_names_classes_and_functions():
    assert {"split", "assign", "Split"} <= set(names("paceline.solver"))
    assert {"EWMA", "NARX"} <= set(names("paceline.predictors"))
    assert {"attach", "audit"} <= set(names("paceline.torch"))
    assert not {"KINDS", "NAMES"} & set(names("paceline.predictors"))


def test_docstring_examples_have_headings():
    text = shown("See :class:`~paceline.Trace`.\n\n>>> 1\n1")
    assert text == "See `paceline.Trace`.\n\nExamples\n--------\n>>> 1\n1"
    assert shown(text) == text


def test_links_of_a_built_site_are_followed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#here">b</a><a href="a.html#top">a</a>', encoding="utf-8"
    )
    (tmp_path / "b.html").write_text('<p id="here"></p><img src="https://elsewhere.org/x.png">', encoding="utf-8")
    assert faults(tmp_path) == ["b.html loads https://elsewhere.org/x.png from another host"]
    (tmp_path / "b.html").write_text('<a href="c.html">c</a>', encoding="utf-8")
    assert faults(tmp_path) == [
        "a.html: the link b.html#here leads to no heading of the page",
        "b.html: the link c.html leads to no file of the site",
    ]


def test_the_keys_that_files_hold_are_described(tmp_path):
    """Keys of real files; those whose values are names or numbers of a fleet have no keys of their own."""
    described = set(re.findall(r"`(\w+)`", (DOCS / "reference" / "schemas.md").read_text(encoding="utf-8")))
    with Recorder(tmp_path / "rank0.jsonl", "0", default_covariates()) as recorder, recorder.iteration(samples=1):
        pass
    balancer = LoadBalancer(EWMA(), workers=["a", "b"], global_batch=8)
    used, report = balancer.plan, Report(samples=[4, 4], seconds=[1.0, 2.0])
    (sink,) = sinks(str(tmp_path / "run.jsonl"))
    sink(Iteration.of(used, report, balancer.step(report)))
    sink.close()
    Trace(samples=[[1.0]], seconds=[[1.0]]).save(tmp_path / "job.parquet")
    keys = set(json.loads((tmp_path / "rank0.jsonl").read_text(encoding="utf-8").splitlines()[0]))
    _, about, ended = map(json.loads, (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines())
    keys |= set(about) | set(parquet.read_schema(tmp_path / "job.parquet").names)
    assert keys - described == set()
    assert set(ended) == {"ended"}


@pytest.mark.slow
def test_the_figures_are_drawn_anew(tmp_path):
    how_it_works.levels(tmp_path / "levels.svg")
    how_it_works.waiting(tmp_path / "waiting.svg")
    assert all(
        (tmp_path / name).read_text(encoding="utf-8").startswith("<?xml") for name in ("levels.svg", "waiting.svg")
    )
    chosen = split(how_it_works.curves_of(how_it_works.SPEEDS_W), how_it_works.BATCH)
    assert chosen.sizes.tolist() == [101, 61, 30], "the page and its figure name these sizes"
    assert np.isclose(chosen.makespan, 1.0167, atol=1e-3)
