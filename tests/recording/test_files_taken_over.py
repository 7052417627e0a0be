"""Files of runs that take each other's place, and how the file of a run begins and ends."""

import atexit
import json
import sys
from dataclasses import replace

import pytest
from recorded_runs import iterations, written

from paceline.recording import JsonLines, RunReader, read_run
from paceline.recording import json_lines as json_lines_module
from paceline.recording.growing_file import KNOWN_BYTES, LONGEST, GrowingFile, is_number, parsed


class Lines(GrowingFile):
    """Lines of a made format, each kept as it is."""

    header, schema = "made", 3

    def begins(self, header, fleet):
        self.begun_with = (header["made"], fleet)

    def record(self, fleet, line):
        return (fleet, line["value"]) if "value" in line else None


def text_of(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_file_of_another_fleet_is_another_file_although_all_lines_are_the_same(tmp_path):
    path, values = tmp_path / "a.jsonl", [{"value": 1.0, "filler": "x" * 1000} for _ in range(2 * KNOWN_BYTES // 1000)]
    path.write_text(text_of({"made": 1, "workers": ["a"]}, *values))
    reader = Lines(path)
    assert reader.poll() == len(values)
    assert reader.poll() == 0
    path.write_text(text_of({"made": 1, "workers": ["b"]}, *values))
    assert reader.poll() == len(values)
    assert {fleet for fleet, _ in reader.kept()} == {("b",)}
    assert len(reader) == len(values)
    path.write_text(text_of({"made": 1, "workers": ["b"]}, *values[:-1], {**values[-1], "value": 2.0}))
    assert reader.poll() == len(values)
    assert reader.kept(1) == [(("b",), 2.0)]


@pytest.mark.parametrize(("at", "known"), [(4000, True), (4090, False)])
def test_a_file_is_known_again_by_four_kilobytes_of_its_first_line_and_of_its_end(tmp_path, at, known):
    path, values = tmp_path / "a.jsonl", [{"value": 1.0, "filler": "x" * 2000}] * 3

    def content(letter):
        header = text_of({"made": 1, "workers": ["a" * 9000]})
        begin = len('{"made": 1, "workers": ["')
        place = begin + at
        return header[:place] + letter + header[place + 1 :] + text_of(*values)

    path.write_text(content("b"))
    reader = Lines(path)
    assert reader.poll() == 3
    path.write_text(content("c"))
    assert reader.poll() == (3 if known else 0)


def test_a_file_that_shrank_or_begins_with_half_a_line_is_read_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(text_of({"made": 2, "workers": ["a", "b"]})[:-5])
    reader = Lines(path)
    assert reader.poll() == 0
    path.write_text(text_of({"made": 2, "workers": ["a", "b"]}, {"value": 1}, {"value": 2}))
    assert reader.poll() == 2
    assert reader.begun_with == (2, ("a", "b"))
    path.write_text(text_of({"made": 2, "workers": ["a", "b"]}, {"value": 1}))
    assert (reader.poll(), len(reader), reader.kept()) == (1, 1, [(("a", "b"), 1)])


def test_lines_are_counted_as_records_skipped_or_lost_and_an_end_is_that_of_the_newest(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        text_of({"made": 1, "workers": ["a"]}, {"value": 1, "lost_before": 2}, {"other": 1}, [1], {"ended": 5})
        + "\n  \nno json\n"
        + text_of({"value": 3, "lost_before": -1}, {"value": 4, "lost_before": 3}, {"made": 1, "workers": ["a", "a"]})
        + text_of({"value": 5}, {"made": 3, "workers": ["c"]}, {"value": 6, "lost_before": "x"}, {"ended": 1})
    )
    reader = Lines(path, keep=2)
    assert reader.poll() == 4
    assert reader.kept() == [(("a",), 4), (("c",), 6)]
    assert reader.kept(1) == [(("c",), 6)]
    assert reader.kept(0) == []
    assert (reader.skipped, reader.lost, reader.ended) == (5, 5, True)
    with path.open("a") as file:
        file.write(text_of({"value": 7}))
    assert (reader.poll(), reader.ended) == (1, False)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            {"made": 4, "workers": ["a"], "version": "9.9"},
            "was written by paceline 9.9, whose format this version does not",
        ),
        ({"made": "1", "workers": ["a"]}, "is not the record of a run: its first line must be a JSON object with made"),
        ({"made": 1, "workers": []}, "is not the record of a run"),
        ({"made": 1, "workers": {"a": 1}}, "is not the record of a run"),
        ({"made": 1, "workers": ["a", 1]}, "is not the record of a run"),
        ({"made": 1}, "is not the record of a run"),
        ({"value": 1}, "is not the record of a run"),
    ],
)
def test_a_file_that_begins_with_no_header_is_refused(tmp_path, header, said):
    path = tmp_path / "a.jsonl"
    path.write_text(text_of(header))
    with pytest.raises(ValueError, match=said):
        Lines(path).poll()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Lines(tmp_path / "b.jsonl")
    with pytest.raises(TypeError, match="GrowingFile must define record"):
        GrowingFile(path).record((), {})


def test_a_line_that_is_too_long_is_one_skipped_line_however_it_comes(tmp_path):
    path = tmp_path / "a.jsonl"
    begin = text_of({"made": 1, "workers": ["a"]})
    path.write_text(begin + "x" * (LONGEST + 10))
    reader = Lines(path)
    assert (reader.poll(), reader.skipped) == (0, 1)
    with path.open("a") as file:
        file.write("x" * 5 + "\n" + text_of({"value": 1}))
    assert (reader.poll(), reader.skipped) == (1, 1)


def test_a_number_is_no_truth_value_and_none_of_too_many_digits():
    for value in (0, -1, 10**300 - 1, 1 - 10**300, 0.5, float("nan"), None):
        assert is_number(value)
    for value in (True, False, 10**300, -(10**300), "1", [1]):
        assert not is_number(value)
    assert (parsed(b"[1]"), parsed(b"{"), parsed(b'{"a": 1}')) == ({}, {}, {"a": 1})
    assert parsed(b"[" * 10**6) == {}


def test_a_run_without_iterations_has_truth_values_all_the_same(tmp_path):
    path = tmp_path / "run.jsonl"
    written(path, iterations(1)).close()
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    run = RunReader(path).run()
    assert (run.agreed.dtype, run.acted.dtype, len(run), run.workers) == (bool, bool, 0, ())
    assert run.seconds.shape == (0, 0)
    assert run.of_fleet["gain"].tolist() == []


# -- the file that is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "same", "ended"), [(False, True, True), (True, True, False), (False, False, False)])
def test_a_process_that_ends_well_says_so_in_the_file_and_no_other_does(tmp_path, monkeypatch, error, same, ended):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", registered.remove)
    sink = written(tmp_path / "a" / "run.jsonl", iterations(2))
    (at_end,) = registered
    monkeypatch.setattr(sys, "last_type", KeyError if error else None, raising=False)
    own = json_lines_module.os.getpid()
    monkeypatch.setattr(json_lines_module.os, "getpid", lambda: own if same else own + 1)
    at_end()
    reader = RunReader(tmp_path / "a" / "run.jsonl")
    assert (reader.poll(), reader.ended) == (2, ended)
    assert bool(registered) is not ended
    sink.close()
    assert registered == []
    sink.close()


def test_iterations_that_do_not_fit_are_counted_in_the_next_line_that_does_and_a_header_comes_first(
    tmp_path, monkeypatch
):
    fits, tried = [], []
    append = json_lines_module.Lines.append

    def limited(lines, text):
        tried.append(sorted(json.loads(text))[0])
        return fits.pop(0) and append(lines, text)

    monkeypatch.setattr(json_lines_module.Lines, "append", limited)
    sink, records = JsonLines(tmp_path / "run.jsonl"), list(iterations(5))
    for record, fit in zip(records, ([False], [True, False], [False], [True], [True]), strict=True):
        fits[:] = fit
        sink(record)
        assert fits == []
    assert sink.lost == 3
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line.get("lost_before") for line in lines] == [None, 3, None]
    assert [line.get("index") for line in lines] == [None, 3, 4]
    fits[:] = [True, True]
    sink(replace(records[0], plan=replace(records[0].plan, workers=("c", "d")), worker="c"))
    assert fits == []
    fits[:] = [True]
    sink.close()
    run = read_run(tmp_path / "run.jsonl")
    assert (run.lost, run.workers) == (3, ("gpu0", "gpu1", "c", "d"))
