"""What a source reads, keeps in memory, tells and refuses, file by file, in its first pass and in later ones."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.training import sources
from paceline.training.sources import Fact, Source, digest_of


def job(name, value=0.5, iterations=4, **meta):
    shape = (iterations, 2)
    return Trace(np.full(shape, 8.0), np.full(shape, value), meta={"job": name, **meta})


IDLE = Trace(np.zeros((4, 2)), np.ones((4, 2)), meta={"job": "idle"})
BYTES = 2 * 4 * 2 * 8
"""Bytes of the two panels of a job."""


@pytest.fixture
def several(tmp_path, monkeypatch):
    """A folder of files, each of which holds the traces that are given, and how often each is read."""
    held, read = {}, []

    def made(**files):
        for name, traces in files.items():
            job(name).save(tmp_path / f"{name}.parquet")
            held[name] = traces
        return tmp_path

    def read_job(chosen, files):
        (file,) = files
        read.append(file.stem)
        for one in held[file.stem]:
            if isinstance(one, Exception):
                raise one
            yield one

    monkeypatch.setattr(sources, "read_job", read_job)
    made.read = read
    return made


@pytest.mark.parametrize("spare", [-1, 0])
def test_traces_of_files_stay_in_memory_while_they_have_room_to_the_byte(several, monkeypatch, spare):
    folder = several(a=[job("a0"), job("a1")], b=[job("b0")], c=[job("c0")])
    monkeypatch.setattr(sources, "REMEMBERED", 3 * BYTES + spare)
    source = Source(folder)
    names = ["a0", "a1", "b0", "c0"]
    assert [one.name for one in source] == names
    assert several.read == ["a", "b", "c"]
    several.read.clear()
    assert [one.name for one in source] == names
    assert several.read == (["c"] if spare == 0 else ["b", "c"])
    for count, files in ((2, ["c"]), (3, ["c"]), (4, [])):
        several.read.clear()
        assert [one.name for one in source.after(count)] == names[count:]
        assert several.read == (["b"] * (spare < 0 and count == 2) + files)


def test_a_file_of_which_only_a_part_has_room_is_read_again_as_a_whole(several, monkeypatch):
    folder = several(a=[job("a0"), job("a1"), IDLE, job("a2")], b=[job("b0", iterations=1)])
    monkeypatch.setattr(sources, "REMEMBERED", 2 * BYTES)
    source = Source(folder)
    first = list(source)
    again = list(source)
    assert several.read == ["a", "b", "a", "b"]
    assert [one.name for one in again] == [one.name for one in first] == ["a0", "a1", "a2", "b0"]
    assert [one.meta["file"] for one in again] == [one.meta["file"] for one in first]
    assert first[0].meta["file"] == str(folder / "a.parquet")
    assert [one.name for one in source.after(1)] == ["a1", "a2", "b0"]


def test_what_is_in_memory_has_no_file_and_is_the_very_same(monkeypatch):
    monkeypatch.setattr(sources, "REMEMBERED", 0)
    traces = [job("a"), job("b")]
    for given in (traces, tuple(traces), iter(traces)):
        source = Source(given)
        assert len(source) == 2
        for _ in range(2):
            assert all(one is other for one, other in zip(source, traces, strict=True))
    assert [one.name for one in Source(traces[0])] == ["a"]
    assert [fact.file for fact in source.facts] == ["", ""]
    assert source.facts[0] == Fact("a", "", 4, 2, digest_of(traces[0]))


def test_a_pass_that_was_left_begins_anew(several):
    source = Source(several(a=[job("a0")], b=[job("b0")]))
    assert next(iter(source)).name == "a0"
    assert [one.name for one in source] == ["a0", "b0"]
    assert [fact.name for fact in source.facts] == ["a0", "b0"]
    several.read.clear()
    assert [one.name for one in source] == ["a0", "b0"]
    assert several.read == [], "the first whole pass kept them"


def test_each_file_is_left_out_once_with_what_went_wrong_first(several):
    refused, odd = ValueError("second"), OSError("late")
    folder = several(a=[IDLE, refused], b=[job("b0"), odd, job("b1")], c=[job("c0")])
    source = Source(folder)
    for _ in range(2):
        assert [one.name for one in source] == ["b0", "c0"]
        assert [(left.file, left.why) for left in source.left_out] == [
            (
                str(folder / "a.parquet"),
                "trace 'idle' has no speed to fit: all its samples or seconds are missing or 0",
            ),
            (str(folder / "b.parquet"), "late"),
        ]
        assert str(source.left_out[1]) == f"{folder / 'b.parquet'}: late"
    with pytest.raises(ValueError, match=r"a\.parquet: trace 'idle' has no speed to fit"):
        list(Source(folder, strict=True))
    with pytest.raises(ValueError, match=r"b\.parquet: late$") as told:
        list(Source(folder / "b.parquet", strict=True))
    assert told.value.__cause__ is odd


@pytest.mark.parametrize("count", [1, 3, 4])
def test_of_nothing_to_fit_the_first_three_files_are_named(several, count):
    folder = several(**{f"f{k}": [OSError(f"wrong {k}")] for k in range(count)})
    why = "".join(f"; {folder / f'f{k}.parquet'}: wrong {k}" for k in range(min(count, 3)))
    with pytest.raises(ValueError) as told:  # noqa: PT011 - all of it is compared
        list(Source(folder))
    assert str(told.value) == f"traces must hold at least one trace to fit, got none{why}"


def test_of_derived_speeds_beside_measured_ones_five_are_named():
    traces = [job(f"d{k}", derived="from usage") for k in range(7)]
    assert len(list(Source(traces))) == 7
    with pytest.raises(ValueError) as told:  # noqa: PT011 - all of it is compared
        list(Source([*traces, job("measured")]))
    assert str(told.value) == (
        f"traces {[f'd{k}' for k in range(5)]} have speeds derived from resource usage and others have measured ones; "
        "fit the two kinds separately"
    )


@pytest.mark.parametrize("given", [3, None, pd.DataFrame({"a": [1]}), [3], [pd.DataFrame({"a": [1]})]])
def test_what_is_no_trace_is_named_by_its_kind(given):
    one = given[0] if isinstance(given, list) else given
    says = (
        "traces must be a Trace, a file, a folder, an address, or a list of these, got an object of "
        f"{type(one).__name__}: Trace.from_frame makes a trace of a frame"
    )
    with pytest.raises(TypeError) as told:
        Source(given)
    assert str(told.value) == says
    with pytest.raises(TypeError, match=r"^an iterator of traces must yield Trace, got int$"):
        Source(iter([3]))
    with pytest.raises(FileNotFoundError, match=r"^there is no file or folder nowhere/at/all$"):
        Source("nowhere/at/all")


@pytest.mark.parametrize("speed", [0.0, np.nan, np.inf])
def test_a_speed_is_a_number_above_nothing(speed):
    with np.errstate(all="ignore"):
        samples = np.array([[0.0 if speed == 0 else np.nan]])
    with pytest.raises(ValueError, match="trace 'one' has no speed to fit"):
        list(Source(Trace(samples, [[1.0]], meta={"job": "one"})))


def test_files_that_changed_or_are_gone_are_read_from_the_first(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    for k in range(3):
        job(f"job{k}").save(folder / f"{k}.parquet")

    def found():
        source = Source(folder)
        passing = iter(source)
        assert [next(passing).name for _ in range(3)] == ["job0", "job1", "job2"]
        return source.so_far()

    noted = found()
    assert [len(one) for one in noted["stamps"]] == [1, 1]
    ((name, size, _),) = noted["stamps"][0]
    assert (name, size) == (str(folder / "0.parquet"), (folder / "0.parquet").stat().st_size)
    for part in range(3):
        changed = replace_in(noted, part)
        assert not Source(folder).resume(changed)
    whole = Source(folder)
    assert whole.resume(noted)
    assert [fact.name for fact in whole.facts] == ["job0", "job1"]
    gone = Source(folder)
    (folder / "1.parquet").unlink()
    assert not gone.resume(noted)
    assert gone.facts == []


def replace_in(noted, part):
    """Return the note with another name, size or time of its second file."""
    stamps = [[list(file) for file in one] for one in noted["stamps"]]
    stamps[1][0][part] = "other" if part == 0 else stamps[1][0][part] + 1
    return noted | {"stamps": stamps}


def test_the_digest_tells_panels_that_are_there_from_others():
    trace = job("a")
    more = [
        replace(trace, comm_seconds=trace.seconds),
        replace(trace, covariates=np.ones((4, 2, 1)), covariate_names=["c"]),
    ]
    assert len({digest_of(one) for one in [trace, *more]}) == 3
