"""Laws of every page: names are escaped, no network, the same bytes again."""

import base64
import hashlib
import json
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_pages import Parsed, slowed_run, slowed_trace

from paceline._text import escape_surrogates, to_printable
from paceline.eval import Balanced, leaderboard, replay_all
from paceline.predictors import EWMA
from paceline.recording import read_run
from paceline.report import evaluation_page, render, replay_page, run_page, write_page

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "{{ 7 * 7 }}",
    "&lt;",
]
HOSTILE += ["a\x1b]0;owned\x07", "\u202eevil", "\ud800", "'); alert(1); ('", "<!--", "]]>", "http://evil.example/x.js"]


def run_of(folder, names, why=""):
    return run_page(slowed_run(folder / "run.jsonl", names, why=why), command="paceline report")


def evaluation_of(folder, names, job="job"):
    traces, models = [slowed_trace(names, job), slowed_trace(names, f"{job} 2", at=20)], {"ewma": EWMA()}
    board = leaderboard(models, traces, warmup=10)
    return evaluation_page(board, models, traces, warmup=10, command="paceline evaluate")


def replay_of(folder, names, job="job"):
    trace = slowed_trace(names, job)
    return replay_page(replay_all({"ewma": Balanced(EWMA())}, [trace], warmup=10), [trace], command="paceline replay")


KINDS = {"run": run_of, "evaluation": evaluation_of, "replay": replay_of}
NAMES = ["gpu0", "gpu1", "gpu2", "gpu3"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return {kind: made(tmp_path_factory.mktemp(kind), NAMES) for kind, made in KINDS.items()}


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.slow
def test_hostile_names_are_escaped(kind, pages, tmp_path):
    """A page with hostile names has the elements and attributes of one with harmless names, and shows the names."""
    options = {"why": "<b>because</b>"} if kind == "run" else {"job": HOSTILE[0]}
    for first in range(0, len(HOSTILE), 4):
        names = HOSTILE[first : first + 4]
        if kind == "evaluation":  # a table of pandas cannot hold a lone surrogate, whatever is done with it
            names = [escape_surrogates(name) for name in names]
        made = KINDS[kind](tmp_path, names, **options)
        (tmp_path / "run.jsonl").unlink(missing_ok=True)
        page = Parsed(render(made))
        assert page.shape == Parsed(render(pages[kind])).shape
        assert not [name for _, attributes in page.elements for name, _ in attributes if name.startswith("on")]
        seen = " ".join([*page.texts, *page.hidden_texts])
        assert any(to_printable(name) in seen for name in names)
        assert not [char for char in render(made) if not char.isprintable() and char != "\n"]


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.text(min_size=1, max_size=30).filter(lambda text: not text.isdigit()), min_size=4, max_size=4, unique=True
    )
)
def test_any_text_can_stand_anywhere_in_a_page(pages, texts):
    """Every text of a page's data is replaced by any other, and the elements stay."""

    def replaced(value, key=""):
        if isinstance(value, dict):
            return {name: replaced(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [replaced(one, key) for one in value]
        keep = not isinstance(value, str) or key in ("block", "how", "command", "about", "note", "version")
        return value if keep else texts[len(value) % 4]

    for page in pages.values():
        assert Parsed(render(replaced(page))).shape == Parsed(render(page)).shape


@each_kind
def test_a_page_needs_no_other_file_and_no_network(kind, pages):
    text = render(pages[kind])
    page = Parsed(text)
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    places = [
        value for _, attributes in page.elements for name, value in attributes if name in ("src", "href", "srcset")
    ]
    assert places
    assert all(place.startswith("#section-") for place in places)
    (policy,) = [
        dict(known)["content"] for tag, known in page.elements if tag == "meta" and "http-equiv" in dict(known)
    ]
    (script,) = [text for (tag, known), text in page.raw if tag == "script" and "type" not in known]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


@each_kind
@pytest.mark.slow
def test_same_data_makes_same_bytes(kind, pages, tmp_path):
    first, again = (_without_times_of_calls(one) for one in (pages[kind], KINDS[kind](tmp_path, NAMES)))
    path = write_page(again, tmp_path / "page.html")
    assert path.read_text("utf-8") == render(first)
    assert render(json.loads(json.dumps(again))) == path.read_text("utf-8")
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".jsonl"] == ["page.html"]


def _without_times_of_calls(page):
    """A copy of a page without the time of a call, which is measured, and never the same."""
    page = deepcopy(page)
    for block in (block for part in page["sections"] for block in part["blocks"] if block["block"] == "table"):
        for k in (k for k, column in enumerate(block["columns"]) if column["name"] == "a call"):
            block["rows"] = [[*row[:k], None, *row[k + 1 :]] for row in block["rows"]]
    return page


@each_kind
def test_a_page_can_be_read_without_seeing_it(kind, pages):
    page = Parsed(render(pages[kind]))
    pictures = [dict(known) for tag, known in page.elements if tag == "svg"]
    assert all(known.get("aria-hidden") == "true" or known.get("aria-label") for known in pictures)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    assert all(dict(known).get("scope") for tag, known in page.elements if tag == "th")
    assert ("lang", "en") in dict(page.elements)["html"]
    identities = [value for _, known in page.elements for name, value in known if name == "id"]
    assert len(identities) == len(set(identities))
    named = {value for _, known in page.elements for name, value in known if name == "aria-labelledby"}
    assert named <= set(identities)


@cache
def thousand(folder):
    return run_of(Path(folder), [f"gpu{k}" for k in range(1000)])


@pytest.mark.slow
def test_page_of_a_thousand_workers_is_small(tmp_path_factory):
    page = thousand(str(tmp_path_factory.mktemp("thousand")))
    text = render(page)
    assert len(text) < 250_000
    assert "980 more rows are left out" in text
    (workers,) = [
        block for part in page["sections"] for block in part["blocks"] if block.get("caption") == "All workers"
    ]
    assert len(workers["rows"]) == 1000
    assert workers["rows"][0][0] == "gpu2", "the slow one comes first"
    charts = [block for part in page["sections"] for block in part["blocks"] if block["block"] == "gantt"]
    assert all(len(chart["rows"]) <= 13 and chart["rows"][0]["name"] == "gpu2" for chart in charts)
    assert len(charts[0]["rows"]) == 13, "the others are one row"


@pytest.mark.parametrize("name", ["page", "page.pdf", "page.json"])
def test_a_page_is_written_as_html_or_not_at_all(tmp_path, name, pages):
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_page(pages["run"], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_page_of_one_iteration_shows_a_huge_number(tmp_path):
    path = tmp_path / "run.jsonl"
    slowed_run(path, NAMES, iterations=1)
    path.write_text(path.read_text("utf-8").replace('"index": 0', f'"index": {10**17}'))
    assert "1e+17" in render(run_page(read_run(path)))
