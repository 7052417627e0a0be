"""What all rooms stand on: reductions, curves, names that are drawn, calls that are spread, lines of a long command."""

import atexit
import dataclasses
import math
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import _exit, _heartbeat
from paceline._arrays import all_finite, anywhere, everywhere, mean, median
from paceline._curves import Curves, batch_seconds
from paceline._figures import BLACK, BLUE, GREEN, GREY, VERMILION, plain
from paceline._parallel import spread
from paceline._printable import encodable, printable
from paceline._require import require
from paceline._wording import SHOWN, count, duration, listed, percent, said

NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, 0.0]))


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=4))
@settings(max_examples=30)
def test_reductions_are_those_of_all_entries_of_all_rows(rows):
    table = np.array(rows, dtype=float).reshape(len(rows), 2)
    flat = table.ravel().tolist()
    assert anywhere(table > 0) is any(one > 0 for one in flat)
    assert anywhere(table) is any(one != 0 for one in flat)
    assert everywhere(table > 0) is all(one > 0 for one in flat)
    assert all_finite(table) is all(map(math.isfinite, flat))
    known = sorted(filter(math.isfinite, flat))
    half = len(known) // 2
    if known:
        assert mean(np.array(flat)) == pytest.approx(math.fsum(known) / len(known), abs=1e-6)
        assert median(np.array(flat)) == (known[half] + known[~half]) / 2
    else:
        assert math.isnan(mean(np.array(flat)))
        assert math.isnan(median(np.array(flat)))


SOME = st.floats(0.0, 10.0)


@given(st.lists(st.tuples(SOME, SOME, SOME, SOME, st.integers(0, 9)), min_size=1, max_size=5))
@settings(max_examples=30)
def test_a_batch_takes_its_line_or_the_floor_and_forever_beyond_the_limit(rows):
    floor, slope, intercept, limit, size = (np.array(column) for column in zip(*rows, strict=True))
    curves = Curves(floor=floor, slope=slope, intercept=intercept, limit=limit)
    takes = [max(one, base + each * number) for one, each, base, _, number in rows]
    assert batch_seconds(curves, size).tolist() == takes
    within = [time if row[4] <= row[3] else math.inf for time, row in zip(takes, rows, strict=True)]
    assert curves.seconds(size).tolist() == within
    assert curves.busy_seconds(size).tolist() == [
        time if row[4] else 0.0 for time, row in zip(takes, rows, strict=True)
    ]


def test_the_limit_of_a_curve_is_a_batch_that_fits():
    curves = Curves(*(np.full(3, number) for number in (0.5, 0.25, 1.0)), np.array([3.0, 4.0, 5.0]))
    assert curves.seconds(np.array([4, 4, 4])).tolist() == [math.inf, 2.0, 2.0]
    assert curves.busy_seconds(np.array([4, 0, 1])).tolist() == [2.0, 0.0, 1.25]


def test_a_speed_alone_makes_a_curve_without_floor_fixed_cost_or_limit():
    curves = Curves.from_speed([4.0, 8.0])
    assert [curves.floor.tolist(), curves.intercept.tolist()] == [[0.0, 0.0]] * 2
    assert (curves.slope.tolist(), curves.limit.tolist()) == ([0.25, 0.125], [math.inf, math.inf])
    with pytest.raises(dataclasses.FrozenInstanceError):
        curves.slope = curves.floor
    assert curves != Curves.from_speed([4.0, 8.0]), "curves are told apart by what they are, as arrays cannot be"
    assert len({curves, curves}) == 1


# -- words ---------------------------------------------------------------------------------------------------------


def test_a_share_has_a_decimal_below_ten_percent_unless_it_is_whole():
    told = {0.0: "0 %", 0.001: "0.1 %", 0.02: "2 %", 0.0949: "9.5 %", 0.09951: "10 %", 1.0: "100 %", 1.2345: "123 %"}
    told |= {0.104: "10 %", math.nextafter(0.0995, 0): "10 %"}  # the latter is 9.95 % to the last bit
    assert {share: percent(share) for share in told} == told
    assert [percent(-share) for share in (0.02, 0.0949, 0.09951)] == ["-2 %", "-9.5 %", "-10 %"]


def test_a_time_has_the_unit_in_which_it_has_three_digits():
    told = {0.0: "0 us", 9.994e-4: "999 us", 9.996e-4: "1 ms", 1.5e-3: "1.5 ms", 0.9994: "999 ms", 0.9995: "1 s"}
    told |= {1.234: "1.23 s", 999.4: "999 s", 999.5: "1000 s", 12345.6: "12346 s"}
    assert {seconds: duration(seconds) for seconds in told} == told


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=40)
def test_names_are_listed_with_commas_and_one_and(names, more):
    others = {0: [], 1: ["1 other"]}.get(more, [f"{more} others"])
    *first, last = [*names, *others]
    assert listed(names, more) == (f"{', '.join(first)} and {last}" if first else last)


def test_words_of_sentences():
    assert SHOWN == 3
    assert [count(number, "line") for number in (0, 1, 2, -1)] == ["0 lines", "1 line", "2 lines", "-1 lines"]
    assert [said(text) for text in ("It is so.", "so", "...")] == ["It is so", "so", ".."]
    assert listed(["a"], more=0) == listed(["a"]) == "a"


@given(st.text(max_size=20))
def test_every_sign_that_cannot_be_printed_is_escaped_and_no_other_changes(text):
    expected = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    assert printable(text) == expected
    assert printable(text).isprintable()
    assert encodable(f"{text}\udc80") == f"{text}\\udc80"


def test_names_are_safe_to_draw_in_colours_that_all_can_tell_apart():
    assert plain("a$b$\x1b") == r"a\$b\$\x1b"
    assert len({BLACK, GREY, BLUE, GREEN, VERMILION}) == 5


# -- calls, waits and lines ------------------------------------------------------------------------------------------


def test_calls_are_spread_in_order_by_joblib_once_somebody_has_loaded_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "joblib", raising=False)
    assert spread(divmod, [(7, 2), (9, 5)]) == [(3, 1), (1, 4)]
    spread_so = []

    def delayed(function):
        return lambda *arguments: (function, arguments)

    def parallel():
        return lambda calls: spread_so.extend(calls) or ["result"]

    monkeypatch.setitem(sys.modules, "joblib", SimpleNamespace(Parallel=parallel, delayed=delayed))
    assert spread(divmod, [(7, 2), (9, 5)]) == ["result"]
    assert spread_so == [(divmod, (7, 2)), (divmod, (9, 5))]


def test_a_missing_library_is_named_with_what_needs_it_and_what_to_install():
    require("json", needed_by="nothing", extra="all")
    with pytest.raises(ImportError) as refused:
        require("no_such_library", needed_by="this", extra="more")
    assert str(refused.value) == '`no_such_library` is needed by this; install it with `pip install "paceline[more]"`'


def test_a_process_waits_a_moment_at_its_end_and_once_however_often_it_is_asked(monkeypatch):
    waits = []
    monkeypatch.setattr(atexit, "register", lambda *asked: waits.append(asked))
    _exit.wait_at_exit.cache_clear()
    _exit.wait_at_exit()
    _exit.wait_at_exit()
    assert waits == [(time.sleep, 0.05)]
    _exit.wait_at_exit.cache_clear()


def test_a_line_comes_every_ten_seconds_with_the_time_since_the_beginning(monkeypatch):
    clock = iter([0.0, 100.0, 110.4, 1434.6])
    monkeypatch.setattr(_heartbeat, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines, waits = [], []
    with _heartbeat.Heartbeat(lines.append, "what takes no time"):
        pass
    beat = _heartbeat.Heartbeat(lines.append, "reading")
    over, third = threading.Event(), threading.Event()

    class Waits:
        def wait(self, seconds):
            waits.append(seconds)
            if len(waits) == 2:
                beat.tell("reading, 3 of 9")
            if len(waits) < 3:
                return False
            third.set()
            return over.wait(60)

        def set(self):
            over.set()

    beat._over = Waits()
    with beat as entered:
        assert entered is beat
        thread = next(one for one in threading.enumerate() if one.name == "paceline-heartbeat")
        assert thread.daemon, "it ends with its process"
        assert third.wait(60)
    assert lines == ["reading (10 s so far)", "reading, 3 of 9 (1,335 s so far)"]
    assert (waits, _heartbeat.EVERY) == ([10.0] * 3, 10.0)
    assert not thread.is_alive()
