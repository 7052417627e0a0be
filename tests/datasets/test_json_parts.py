"""JSON of tables and of Prometheus, part by part: rows, columns, cells, and what is refused."""

import json

import numpy as np
import pytest

from paceline.datasets.readers.json_tables import _cell, _is_lines, json_table, prometheus_table
from paceline.datasets.readers.tally import Tally

NAN = float("nan")


def json_file(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def table_of(tmp_path, content):
    tally = Tally()
    table = json_table(json_file(tmp_path, content), tally)
    return table.astype(object).where(table.notna(), None).to_dict("list"), tally.meta()


def test_rows_of_json_need_not_hold_every_column(tmp_path):
    rows = [{"a": 1}, {"b": "x"}, {}, {"a": 2, "c": [1]}]
    expected = {"a": [1, None, None, 2], "b": [None, "x", None, None], "c": [None, None, None, "[1]"]}
    for content in (rows, "\n\n".join(map(json.dumps, rows)) + "\n"):
        assert table_of(tmp_path, content)[0] == expected
    assert table_of(tmp_path, rows)[1]["rows_read"] == "4"
    found, told = table_of(tmp_path, '{"a": 1}\n[2]\n{"a": 3}\n{"a": ')
    assert (found, told["rows_read"], told["dropped"]) == ({"a": [1, 3]}, "4", "2 lines that hold no whole JSON object")
    assert table_of(tmp_path, {"a": [1, 2], "b": ["x", {"y": 1}]})[0] == {"a": [1, 2], "b": ["x", '{"y": 1}']}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1], "a row must be a JSON object, got 1"),
        ([], "has no rows"),
        ({"a": []}, "has no rows"),
        ({}, "has no rows"),
        ({"a": [1], "b": 2, "c": [3]}, "has no rows|must hold lines of objects"),
        ('{"a":\n [1], "b": 2}', "must hold lines of objects, a list of objects, or an object of lists"),
        ("[\n1]", "a row must be a JSON object"),
        ({"a": [1], "b": [1, 2]}, "columns must have one length, got {'a': 1, 'b': 2}"),
    ],
)
def test_json_that_is_no_table_is_refused(tmp_path, content, said):
    if said.startswith("has no rows|"):
        assert table_of(tmp_path, content)[0] == {"a": ["[1]"], "b": [2], "c": ["[3]"]}
        return
    with pytest.raises(ValueError, match=said):
        table_of(tmp_path, content)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [4096, 4097])
def test_json_may_have_as_many_columns_as_parquet(tmp_path, columns):
    row = {f"c{k}": 0 for k in range(columns)}
    for content in ([row], [{**row, "c0": 1}, {}], {name: [0] for name in row}):
        if columns == 4096:
            assert len(table_of(tmp_path, content)[0]) == 4096
        else:
            with pytest.raises(ValueError, match=r"has (more than 4096|4097) columns; at most"):
                table_of(tmp_path, content)


def test_cells_of_json_are_numbers_that_a_float_holds_and_otherwise_text():
    for same in (True, None, 0, -5, 1.5, 9.9e299, -9.9e299, "x", ""):
        assert _cell(same) is same
    assert [_cell(value) for value in (2 * 10**300, -1e300, float("inf"))] == ["2" + "0" * 300, "-1e+300", "inf"]
    assert np.isnan(_cell(NAN))
    assert _cell([1, {"a": None}]) == '[1, {"a": null}]'
    assert _cell(["x" * 2000]) == '["' + "x" * 998


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 1}', True),
        ('{"a": [1]}', False),
        ('{"a": [1]}\n ', False),
        ('{"a": [1]}\n{"a": [2]}', True),
        ('\n {"a": [1], "b": 2}', True),
        ("{}", True),
        ("[1]\n[2]", False),
        ('{"a":\n1}', False),
    ],
)
def test_json_is_in_lines_if_its_first_line_is_an_object_and_not_the_whole_table(text, lines):
    assert _is_lines(text) is lines


def answer(*series, **changed):
    result = [{"metric": metric, "values": values} for metric, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result, **changed}}


def test_series_of_prometheus_are_named_by_the_labels_in_which_they_differ(tmp_path):
    values = [[1, "2"], [3, "NaN"]]
    for metrics, names in (
        ([{"job": "j", "host": "a"}, {"job": "j", "host": "b"}], ["a", "b"]),
        ([{"job": "j", "host": "a"}, {"job": "j"}], ["a", ""]),
        ([{"x": "1", "y": "1"}, {"x": "2", "y": "2"}], ["x=1,y=1", "x=2,y=2"]),
        ([{"x": "1", "y": "1"}, {"x": "2"}], ["x=1,y=1", "x=2,y="]),
        ([{"x": "1"}], ["0"]),
    ):
        told = answer(*[(metric, values) for metric in metrics])
        for content in (told, told["data"]):
            tally = Tally()
            table = prometheus_table(json_file(tmp_path, content), tally)
            assert list(table.columns) == ["worker", "start", "value"]
            assert table["worker"].tolist() == [name for name in names for _ in range(2)]
            assert table["start"].tolist() == [1, 3] * len(names)
            assert table["value"].tolist()[0] == 2.0
            assert np.isnan(table["value"].tolist()[1])
            assert tally.meta()["rows_read"] == str(2 * len(names))
    with pytest.raises(ValueError, match=r"series must differ in their labels, got \['0', '0'\]"):
        prometheus_table(json_file(tmp_path, answer(({}, values), ({}, values))), Tally())


@pytest.mark.parametrize("pair", [[1], [1, "x"], [1, None], 5, [1, 2, 3]])
def test_a_value_of_prometheus_is_a_pair(tmp_path, pair):
    with pytest.raises(ValueError, match="a value must be a pair of time and number, got "):
        prometheus_table(json_file(tmp_path, answer(({}, [[0, "1"], pair]))), Tally())


@pytest.mark.parametrize("wrong", [[], {"data": 5}, answer(resultType="vector"), answer(result={})])
def test_another_answer_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="must be the answer to a range query"):
        prometheus_table(json_file(tmp_path, wrong), Tally())
    for series in (5, {"metric": 1, "values": []}, {"metric": {}, "values": {}}):
        with pytest.raises(ValueError, match="a series must hold its metric and its values, got "):
            prometheus_table(json_file(tmp_path, answer(result=[series])), Tally())
