"""Charts show their data: what is drawn is read back, and is what was known."""

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.report.drawing import gantt_chart, line_chart, ranges, ticks, within

WIDE, HIGH = 1000.0, 300.0
VALUES = st.one_of(st.none(), st.integers(-50, 50), st.floats(1e-3, 1e6))
few = settings(max_examples=40)
ALONG = st.lists(st.integers(0, 500), min_size=1, max_size=12, unique=True).map(sorted)


def chart_of(along, values, low, high):
    line, band = {"name": "a", "values": values}, {"name": "b", "low": low, "high": high}
    return line_chart({"title": "T", "unit": "ms", "x": {"values": along}, "lines": [line], "bands": [band]})


def runs(rows):
    """Return the pieces of rows in which everything is known."""
    pieces = [[]]
    for row in rows:
        pieces = [*pieces, []] if None in row else [*pieces[:-1], [*pieces[-1], row]]
    return [piece for piece in pieces if piece]


def sides(along, values):
    """Return the ends of both axes: 0 is seen unless the values lie far above it, or some below."""
    left, right = (along[0], along[-1]) if len(along) > 1 else (along[0] - 0.5, along[0] + 0.5)
    known = [value for value in values if value is not None] or None
    if known is None:
        return left, right, 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * 0.05 if high > low else abs(high) * 0.05 if high else 1.0
    from_zero = low == high if high * 0.5 <= low else low >= 0
    return left, right, 0.0 if from_zero and low >= 0 else low - room, high + room


def drawn(path, ends):
    """Return the points of each piece of a path, as places along both axes."""
    left, right, low, high = ends
    found = []
    for piece in path.split("M")[1:]:
        points = [tuple(map(float, point.split())) for point in re.sub(r"h\.01$|Z$", "", piece).split("L")]
        found.append([(left + x / WIDE * (right - left), high - y / HIGH * (high - low)) for x, y in points])
    return found


def agree(found, expected, ends):
    """Require that points are where they should be, to a tenth of a unit of the drawing."""
    left, right, low, high = ends
    assert [len(piece) for piece in found] == [len(piece) for piece in expected]
    for one, other in zip(*([point for piece in rows for point in piece] for rows in (found, expected)), strict=True):
        assert one[0] == pytest.approx(other[0], abs=0.051 * (right - left) / WIDE)
        assert one[1] == pytest.approx(other[1], abs=0.051 * (high - low) / HIGH)


@few
@given(st.data(), ALONG)
def test_a_line_and_a_band_go_through_every_known_point_and_no_other(data, along):
    values, low, high = (data.draw(st.lists(VALUES, min_size=len(along), max_size=len(along))) for _ in range(3))
    chart, ends = chart_of(along, values, low, high), sides(along, [*values, *low, *high])
    agree(drawn(chart["lines"][0]["path"], ends), runs(zip(along, values, strict=True)), ends)
    there_and_back = [
        [*((x, y) for x, y, _ in rows), *((x, y) for x, _, y in rows[::-1])]
        for rows in runs(zip(along, low, high, strict=True))
    ]
    agree(drawn(chart["bands"][0]["path"], ends), there_and_back, ends)
    assert chart["bands"][0]["path"].count("Z") == len(there_and_back), "every area is closed"
    lone = [piece for piece in chart["lines"][0]["path"].split("M")[1:] if "L" not in piece]
    assert all(piece.endswith("h.01") for piece in lone), "a lone point is a dot"
    assert (chart["from"], chart["to"]) == ends[:2]
    assert chart["step"] == (ends[1] - ends[0]) / max(len(along) - 1, 1)


@few
@given(st.data(), ALONG)
def test_ticks_of_a_chart_stand_where_their_numbers_lie(data, along):
    values = data.draw(st.lists(VALUES, min_size=len(along), max_size=len(along)))
    nothing = [None] * len(along)
    chart, (left, right, low, high) = chart_of(along, values, nothing, nothing), sides(along, values)
    for marks, first, last, count in ((chart["across"], left, right, 5), (chart["up"], low, high, 4)):
        assert [text for _, text in marks] == [f"{value:,.12g}" for value in ticks(first, last, count)]
        for (place, _), value in zip(marks, ticks(first, last, count), strict=True):
            assert place == pytest.approx(100 * (value - first) / (last - first), abs=6e-4)
    known = [value for value in values if value is not None]
    words = f"{np.mean(known):,.3g} ms in the mean, from {min(known):,.3g} to {max(known):,.3g}." if known else ""
    assert chart["words"] == f"T. a: {words or 'not known.'}"


@few
@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e9), st.integers(2, 8))
def test_ticks_are_the_multiples_of_the_smallest_round_step_that_leaves_few(low, width, count):
    high = low + width
    least = 0.7 * (high - low) / count
    steps = sorted(factor * 10.0**power for power in range(-6, 11) for factor in (1, 2, 5))
    step = next(step for step in steps if step >= least)
    assume(all(abs(other / least - 1) > 1e-9 for other in steps))
    expected = step * np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1)
    np.testing.assert_allclose(ticks(low, high, count), expected, rtol=1e-9, atol=1e-9 * step)


def test_an_axis_of_one_value_has_its_tick():
    assert ticks(3.0, 3.0) == [3.0]


@few
@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=4), st.sampled_from([0.25, 0.999, 1.0, 4.0, None]))
def test_boxes_of_a_gantt_chart_are_its_bars_on_an_axis_in_its_unit(waits, until):
    rows = [{"name": f"w{k}", "waits": share, "bars": [[0.0, share, 0.95]]} for k, share in enumerate(waits)]
    chart = gantt_chart({"title": "T", "until": until, "rows": rows})
    end, scale = until or 1.0, 1e3 if until and until < 1 else 1.0
    for k, (row, share) in enumerate(zip(chart["rows"], waits, strict=True)):
        assert (row["name"], row["waits"], row["top"]) == (f"w{k}", share, 22.0 * k)
        assert row["boxes"] == [[pytest.approx(WIDE * time / end, abs=0.006) for time in (0.0, share, 0.95)]]
    assert (chart["unit"], chart["scale"], chart["high"]) == ("ms" if scale > 1 else "s", scale, 22.0 * len(waits))
    assert (chart["from"], chart["to"], chart["step"]) == (0.0, end * scale, pytest.approx(end * scale / 200))
    assert [text for _, text in chart["across"]] == [f"{value:,.12g}" for value in ticks(0.0, end * scale)]
    for place, text in chart["across"]:
        assert place == pytest.approx(100 * float(text.replace(",", "")) / (end * scale), abs=6e-4)
    assert chart["words"].count(" waits ") == len(waits)


@few
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(0.01, 5.0))] * 3), min_size=1, max_size=5))
def test_a_scale_of_ranges_holds_them_all_and_one_with_a_margin(rows):
    scale = ranges([(0, row) for row in rows], 1)
    known = [1.0, *(value for row in rows for value in row if value is not None)]
    low, high = min(known), max(known)
    room = 0.04 * (high - low) if high > low else 0.04
    assert (scale["low"], scale["high"]) == (pytest.approx(low - room), pytest.approx(high + room))
    assert scale["one"] == within(1.0, scale)
    for value in known:
        assert within(value, scale) == pytest.approx(100 * (value - low + room) / (high - low + 2 * room), abs=6e-4)
