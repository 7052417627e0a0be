"""Waits and gathers that listeners are told of, of a made-up place where torch has its own."""

import sys
import threading
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from paceline.recording.torch import collective_time  # noqa: E402
from paceline.recording.torch.collective_time import listen, unheard  # noqa: E402


class Told:
    """A listener that notes what it is told."""

    def __init__(self):
        self.log = []

    def wait_begins(self):
        self.log.append("begins")

    def wait_ends(self):
        self.log.append("ends")


@pytest.fixture
def place(monkeypatch):
    """A module with a wait, another wait around it, a class with one, and a gather."""
    made = ModuleType("made_up")
    made.inner = lambda *given, **named: (given, named)
    made.outer = lambda value: made.inner(value)
    made.gather = lambda group, *given, **named: (group, given, named)

    def fails():
        raise KeyError("lost")

    made.fails = fails
    made.Work = type("Work", (), {"wait": lambda self, value: (self, value)})
    monkeypatch.setitem(sys.modules, "made_up", made)
    waits = [("made_up", None, name) for name in ("inner", "outer", "fails", "missing")]
    waits += [("made_up", "Work", "wait"), ("made_up", "Missing", "wait"), ("no_such_module", None, "wait")]
    monkeypatch.setattr(collective_time, "WAITS", waits)
    monkeypatch.setattr(collective_time, "GATHERS", [("made_up", None, "gather")])
    monkeypatch.setattr(collective_time, "_listeners", [])
    monkeypatch.setattr(collective_time, "_originals", {})
    return made


def test_waits_are_told_to_all_listeners_of_the_thread_the_outermost_alone(place):
    before = dict(vars(place)), place.Work.wait
    one, other = Told(), Told()
    stop, stop_other = listen(one), listen(other)
    assert place.outer(3) == ((3,), {})
    assert place.inner(4, a=5) == ((4,), {"a": 5})
    work = place.Work()
    assert work.wait(6) == (work, 6)
    with pytest.raises(KeyError):
        place.fails()
    assert one.log == other.log == ["begins", "ends"] * 4
    with unheard(), unheard():
        place.inner()
    with unheard():
        place.inner()
    thread = threading.Thread(target=place.inner)
    thread.start()
    thread.join()
    assert len(one.log) == 8
    stop()
    stop()
    place.inner()
    assert (len(one.log), len(other.log)) == (8, 10)
    stop_other()
    assert (dict(vars(place)), place.Work.wait) == before
    place.inner()
    assert len(other.log) == 10


def test_a_listener_that_is_gone_is_told_nothing(place):
    stop = listen(Told())
    assert place.inner(1) == ((1,), {})
    stop()


def test_a_gather_is_checked_first_with_its_inputs_by_the_thread_that_trains(place):
    checked, listener, inside = [], Told(), []

    def check(group, tensor):
        checked.append((group, tensor))
        place.inner()
        inside.append(len(listener.log))

    stop, stop_plain = listen(listener, before_gather=check), listen(other := Told())
    assert place.gather("g", "out", "in", a=1) == ("g", ("out", "in"), {"a": 1})
    place.gather("h", ["out"], ["first", "second"])
    assert checked == [("g", "in"), ("h", "first")]
    assert inside == [0, 0], "what checks is no wait of the training"
    place.gather("g", "out")
    place.gather("g", outputs=1, inputs=2)
    with unheard():
        place.gather("g", "out", "in")
    thread = threading.Thread(target=place.gather, args=("g", "out", "in"))
    thread.start()
    thread.join()
    assert len(checked) == 2

    def refuse(group, tensor):
        raise ValueError("alike")

    stop()
    stop = listen(listener, before_gather=refuse)
    with pytest.raises(ValueError, match="alike"):
        place.gather("g", "out", "in")
    assert place.inner() == ((), {})
    assert listener.log == ["begins", "ends"], "an error leaves nobody inside"
    assert other.log == ["begins", "ends"]
    stop()
    stop_plain()


@pytest.mark.parametrize("initialized", [False, True])
def test_a_thread_that_torch_made_waits_for_all_listeners_of_a_device(place, initialized):
    listener = Told()
    stop = listen(listener)
    for kind, expected in ((threading._DummyThread, 2 * initialized), (threading.Thread, 0)):
        listener.log.clear()
        thread = object.__new__(kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_initialized", lambda: initialized)
            patch.setattr(threading, "get_ident", lambda: -1)
            patch.setattr(threading, "current_thread", lambda thread=thread: thread)
            place.inner()
        assert len(listener.log) == expected
    stop()
