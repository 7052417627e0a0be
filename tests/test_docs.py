"""What the documents say is there: links, lists and counts agree with the code."""

import re
import tomllib
from pathlib import Path

import pytest
from readings import formats

from paceline.predictors import NAMES

CHECKOUT = Path(__file__).parent.parent
PAGES = [
    path
    for path in (*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md"), *CHECKOUT.glob("benchmarks/*.md"))
    if path.is_file()
]

pytestmark = pytest.mark.checkout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_a_page_begins_with_its_title(page):
    """A page that was cut off in front, or emptied, would still hold its tables."""
    assert page.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_to_file_and_heading(page):
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")) if "://" not in link]
    for file, _, heading in (link.partition("#") for link in links):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not heading or heading in _headings(target), f"{file}#{heading}"


def _headings(page):
    """The names by which a page's headings are linked: in small letters, with hyphens for spaces and no other signs."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_predictor_table_is_complete():
    table = (CHECKOUT / "docs" / "reference" / "predictors.md").read_text(encoding="utf-8").split("##")[0]
    named = {name for line in table.splitlines() if line.startswith("| `") for name in _first_cell(line)}
    assert named == set(NAMES)


def _first_cell(line):
    return re.findall(r"`([^`]+)`", line.split("|")[1])


@pytest.mark.parametrize("page", ["README.md", "docs/reference/commands.md"])
def test_the_number_of_formats_is_that_of_the_registry(page):
    counts = re.findall(r"\b(\d+)\s+(?:public |trace )?formats\b", (CHECKOUT / page).read_text(encoding="utf-8"))
    assert counts
    assert all(int(count) == len(formats()) for count in counts)


def test_every_format_is_described():
    page = (CHECKOUT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    assert [name for name in formats() if f"`{name}`" not in page] == []


def test_all_files_agree_on_the_version():
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (CHECKOUT / "CITATION.cff").read_text(encoding="utf-8")


def test_readme_numbers_equal_benchmark():
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    page = (CHECKOUT / "benchmarks" / "live.md").read_text(encoding="utf-8")
    sections = {"3 competing processes": "hogs", "half a core": "quota", "a quarter of a core": "bursty"}
    sections["no disturbance"] = "none"
    for words, name in sections.items():
        speed_up, half_width = re.search(rf"\| {words}.*\| ([\d.]+) ± ([\d.]+)", readme).groups()
        section = page.split(f"## `{name}`:")[1]
        measured, around = re.search(r"`auto` \| ([\d.]+) ± ([\d.]+)", section).groups()
        assert (float(speed_up), float(half_width)) == (round(float(measured), 2), round(float(around), 2)), name
    reached = sorted(int(cell) for cell in re.findall(r"\n\| `auto` \|[^|]*\|[^|]*\| (\d+)% \|", page))
    assert f"reaches {reached[0]} to {reached[-1]}% of an oracle" in readme


def test_benchmark_pages_name_their_command():
    pages = list((CHECKOUT / "benchmarks").glob("*.md"))
    assert pages
    for page in pages:
        named = re.findall(r"python (benchmarks/\w+\.py)", page.read_text(encoding="utf-8"))
        assert named, f"{page.name} names no command"
        assert all((CHECKOUT / name).is_file() for name in named), page.name
