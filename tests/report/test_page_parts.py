"""Parts of a page by hand: values in words, tables, thinned lines, bands, bars, and what the page itself refuses."""

import json
import math

import numpy as np
import pytest

from paceline import __version__
from paceline.report import blocks, read_page, write_page
from paceline.report import page as pages
from paceline.report.audit_page import audit_page, is_audit
from paceline.report.blocks import ChartBand, ChartLine, gantt, lines, named, of_fleet, section, table
from paceline.report.reason_counts import kind_of, reasons
from paceline.report.shown import WAYS, answer, say, shown

NAN = float("nan")
SHOWN = {
    "text": [("a", "a"), (3, "3")],
    "count": [(0.4, "0"), (12345.0, "12,345")],
    "number": [(9999.0, "9,999"), (9999.96, "1e+04"), (1e4, "10,000"), (-1e4, "-10,000"), (0.12345, "0.1235")],
    "percent": [(0.1234, "12 %"), (0.034, "3.4 %")],
    "ratio": [(0.12345, "0.123")],
    "times": [(1.236, "1.24x")],
    "tiny": [(0.00012345, "1.2e-04")],
    "seconds": [
        (0.0, "0 us"), (-0.5, "-500 ms"), (599.0, "599 s"), (600.0, "10 min"), (-600.0, "-10 min"),
        (10799.0, "180 min"), (10800.0, "3.0 h"), (-10800.0, "-3.0 h"), (36e5, "1,000.0 h"),
    ],
    "range": [((0.5, 1.0, 2.0), "1.000 (0.500 to 2.000)"), ((None, 1.0, None), "1.000"), ((NAN, 1.0, 2.0), "1.000")],
}  # fmt: skip


@pytest.mark.parametrize("how", SHOWN)
def test_values_are_shown_in_each_way(how):
    assert [shown(value, how) for value, _ in SHOWN[how]] == [text for _, text in SHOWN[how]]
    assert shown(None, how) == shown(NAN, how) == "not known"
    assert set(SHOWN) == set(WAYS)


def test_an_answer_holds_the_sentences_and_all_their_facts():
    one, other = say("{a} of it", a=(0.5, "percent")), say("in {b}.", b=(90.0, "seconds"))
    assert one == {"text": "50 % of it", "facts": {"a": 0.5}}
    assert shown("a") == "a"
    assert answer("Why?", "So", one, other) == {
        "asks": "Why?", "headline": "So", "text": "50 % of it in 90 s.", "facts": {"a": 0.5, "b": 90.0},
    }  # fmt: skip


def test_a_section_and_a_table_hold_what_they_were_given():
    made = table("rows", [("a", "text"), ("b", "count")], iter([("x", 1)]), note="so")
    assert made == {
        "block": "table", "caption": "rows", "note": "so", "rows": [["x", 1]],
        "columns": [{"name": "a", "how": "text"}, {"name": "b", "how": "count"}],
    }  # fmt: skip
    assert table("", [], [])["note"] == ""
    assert section("title", "about", made) == {"title": "title", "about": "about", "blocks": [made]}


@pytest.mark.parametrize(("length", "each"), [(3, 1), (300, 1), (301, 2), (600, 2), (601, 3)])
def test_a_long_line_is_drawn_as_means_of_neighbours_and_says_of_how_many(length, each):
    values = np.arange(length) / 7
    values[1] = np.nan
    band = ChartBand("range", values, values + 1)
    made = lines("title", "About.", np.arange(length), [ChartLine("one", values, 3)], x="step", unit="s", bands=[band])
    parts = np.array_split(np.arange(length), min(length, 300))
    expected = [[v for v in values[part] if not math.isnan(v)] for part in parts]
    means = [float(f"{sum(part) / len(part):.5g}") if part else None for part in expected]
    assert made["about"] == ("About." if each == 1 else f"About. Each point is the mean of {each} neighbours.")
    assert (made["title"], made["unit"], made["block"], made["x"]["name"]) == ("title", "s", "lines", "step")
    assert made["x"]["values"] == [float(f"{part.mean():.5g}") for part in parts]
    assert made["lines"] == [{"name": "one", "colour": 3, "values": pytest.approx(means)}]
    (drawn,) = made["bands"]
    assert (drawn["name"], drawn["colour"], drawn["low"]) == ("range", -1, pytest.approx(means))
    assert drawn["high"][-1] == pytest.approx(drawn["low"][-1] + 1, rel=1e-4)
    assert lines("", "", np.arange(2), [], x="", unit="")["bands"] == []


@pytest.mark.parametrize(("fleet", "first"), [(5, 5), (7, 6), (7, 2), (21, 2), (22, 2), (30, 9)])
def test_six_workers_at_most_have_a_line_and_all_others_a_band_without_the_outer_tenth_of_many(fleet, first):
    values = np.random.default_rng(fleet).random((4, fleet))
    values[0], values[1, -1] = np.nan, np.nan
    values[2, -2] = np.inf
    order = list(range(first))[::-1]
    drawn, bands = of_fleet(values, [str(k) for k in range(fleet)], order)
    own = order[:6]
    assert [(line.name, line.colour) for line in drawn] == [(f"worker {w}", k) for k, w in enumerate(own)]
    assert all(line.values is not None and np.shares_memory(line.values, values) for line in drawn)
    others = [w for w in range(fleet) if w not in own]
    if not others:
        assert bands == []
        return
    (band,) = bands
    many = len(others) >= 20
    assert band.name == f"{'90 % of ' * many}{len(others)} other{'s' * (len(others) > 1)}"
    assert band.colour == -1
    for k in range(4):
        known = sorted(v for v in values[k, others] if math.isfinite(v))
        ends = np.quantile(known, [0.05, 0.95] if many else [0, 1]) if known else [NAN, NAN]
        assert [band.low[k], band.high[k]] == pytest.approx(ends, nan_ok=True)


def test_bars_follow_each_other_as_iterations_do_and_others_are_their_median():
    seconds = np.array([[1.0, 2.0, 4.0, 3.0], [2.0, NAN, 1.0, 0.5]])
    made = gantt("title", "about", ["0", "b", "c", "d"], seconds, first=[1, 0])
    waits = [0.5, 1 - 3 / 6, 1 - (3.5 + 0.75) / 6]
    assert [row["name"] for row in made["rows"]] == ["b", "worker 0", "median of 2"]
    assert [row["waits"] for row in made["rows"]] == pytest.approx(waits, rel=1e-4)
    assert [row["bars"] for row in made["rows"]] == [
        [[0.0, 2.0, 4.0]], [[0.0, 1.0, 4.0], [4.0, 6.0, 6.0]], [[0.0, 3.5, 4.0], [4.0, 4.75, 6.0]],
    ]  # fmt: skip
    assert (made["block"], made["title"], made["about"], made["until"]) == ("gantt", "title", "about", 6.0)
    silent = gantt("", "", ["a", "3"], np.array([[1.0, NAN]]), first=[0], until=9.0)
    assert (silent["until"], silent["rows"][1]) == (9.0, {"name": "worker 3", "waits": None, "bars": []})
    assert len(gantt("", "", ["a"], np.ones((1, 1)), first=[0])["rows"]) == 1
    assert [named(name) for name in ("12", "a1", "")] == ["worker 12", "a1", ""]
    assert (blocks.ROWS, blocks.POINTS, blocks.NAMED, blocks.MANY) == (20, 300, 6, 20)


# -- reasons -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Moved 3 samples.", "Moved samples"),
        ("Kept 12.5 % of g1 and g10, at most 3 ms.", "Kept … of a worker and a worker, …"),
        ("In 3 us, 4 s or 5 months", "In …, … or … months"),
        ("g1x is no worker", "g1x is no worker".replace("1", "…")),
        ("nothing of it...", "nothing of it"),
    ],
)
def test_reasons_are_told_apart_without_numbers_and_names(sentence, kind):
    assert kind_of(sentence, ["g1", "g10"]) == kind
    assert reasons([sentence, sentence], ["g10", "g1"]) == {kind: 2}


# -- the page ------------------------------------------------------------------------------------------------------


def test_a_page_ends_with_what_it_was_made_from_and_holds_no_number_that_json_has_not():
    part = section("s", "a", table("t", [("c", "count")], [[np.float64("inf")], [np.int64(3)], [NAN], [(1, None)]]))
    made = pages.page("run", "T", [answer("q", "h")], [part], settings=[("a", "b")], data=[("f", "h", "d")])
    first, origin = made["sections"]
    assert first["blocks"][0]["rows"] == [[None], [3], [None], [[1, None]]]
    settings_of, data = origin["blocks"]
    assert origin["title"] == "Settings and data"
    assert settings_of["rows"] == [["a", "b"], ["paceline", __version__]]
    assert (data["rows"], data["caption"]) == ([["f", "h", "d"]], "Data")
    assert (made["kind"], made["title"], made["command"]) == ("run", "T", "")
    assert (made["version"], made["paceline_report"], len(made["verdict"])) == (__version__, 1, 1)
    json.dumps(made, allow_nan=False)


def test_a_page_and_its_numbers_are_written_beside_each_other_in_utf_8(tmp_path):
    made = pages.page("run", "Zürich \x1b", [], [], settings=[], data=[])
    assert write_page(made, str(tmp_path / "a.html")) == tmp_path / "a.html"
    assert (tmp_path / "a.json").read_bytes() == (json.dumps(made, indent=1) + "\n").encode()
    text = (tmp_path / "a.html").read_bytes().decode()
    assert "Zürich \\x1b" in text
    assert "\x1b" not in text
    assert read_page(tmp_path / "a.json") == made
    with pytest.raises(ValueError, match="JSON compliant"):
        write_page({**made, "title": NAN}, tmp_path / "b.html")
    with pytest.raises(FileNotFoundError, match="no to write"):
        write_page(made, tmp_path / "no" / "a.html")
    with pytest.raises(ValueError, match=r"must end in .html, got .*a.htm$"):
        write_page(made, tmp_path / "a.htm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not JSON"), ("[1]", "got None"), ('{"paceline_report": 2}', "got 2"), ("{}", "None")]
)
def test_only_the_json_of_a_page_of_this_or_an_earlier_version_is_read(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_page(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"paceline_report": 1, "title": "é"}', encoding="utf-8")
    assert read_page(tmp_path / "a.json")["title"] == "é"


VERDICT = {
    "status": "not_exact", "sentence": "Not exact: hooks.", "remedy": "Take them away.", "deviation": 0.5,
    "noise": None, "steps": 3, "ranks": 2, "first_step": 1, "precision": "", "parameter": "w",
    "notes": ["One.", "Two."], "runs": {"a": 0.25, "b": None, "c": 0.75},
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "remedy", "told"),
    [
        ("exact", "", ("Exact", "Balance it", "Balance it: unequal batches will train the same model.")),
        ("not_exact", "Take them away.", ("Not exact", "Change it", "Take them away.")),
        ("could_not_tell", "", ("Could not tell", "Look closer", "Run it without the audit first.")),
        ("later", "Wait.", ("Could not tell", "Look closer", "Wait.")),
    ],
)
def test_the_page_of_an_audit_says_what_to_do_next(status, remedy, told):
    made = audit_page({**VERDICT, "status": status, "remedy": remedy}, script="t.py")
    first, after = made["verdict"]
    assert (first["headline"], after["headline"], after["text"]) == told
    assert first["text"] == ("Hooks." if status == "not_exact" else "Not exact: hooks.")
    assert {key: first["facts"][key] for key in ("deviation", "noise", "steps", "ranks", "first_step")} == {
        "deviation": 0.5, "noise": None, "steps": 3, "ranks": 2, "first_step": 1,
    }  # fmt: skip
    compared, details, origin = made["sections"]
    assert compared["blocks"][0]["rows"] == [["c", 0.75], ["a", 0.25], ["b", None]]
    assert details["about"] == "One. Two."
    assert details["blocks"][0]["rows"] == [
        ["steps compared", "3"], ["ranks", "2"], ["largest deviation that counts", "5.0e-01"],
        ["deviates first in step", "1"], ["at", "w"],
    ]  # fmt: skip
    assert [block["rows"][0] for block in origin["blocks"]] == [["steps", "3"], ["t.py", "the audited script", ""]]
    assert (made["kind"], made["title"], made["command"]) == ("audit", "Audit of t.py", "")
    assert not any(
        "first in" in row[0]
        for row in audit_page({**VERDICT, "parameter": ""}, script="")["sections"][1]["blocks"][0]["rows"]
    )


def test_what_an_audit_printed_is_known_by_its_parts():
    assert is_audit(VERDICT)
    assert not any(is_audit({key: VERDICT[key] for key in VERDICT if key != part}) for part in ("status", "runs"))
    assert not is_audit([*VERDICT])
