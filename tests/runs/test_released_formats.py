"""The numbers of the formats in which runs and pages are written: older versions refuse files of a newer one."""

import json

import pytest
from made_runs import made_run
from recorded_runs import iterations, written

from paceline.report import read_page, run_page, write_page
from paceline.runs import json_rounds, read_run


def test_runs_and_pages_are_written_in_the_first_format_and_later_ones_are_refused(tmp_path):
    run, page = tmp_path / "run.jsonl", tmp_path / "page.json"
    written(run, iterations(3)).close()
    head, *lines = run.read_text().splitlines()
    assert json.loads(head)["paceline_run"] == 1
    assert json_rounds.SCHEMA == 1
    run.write_text("\n".join([json.dumps(json.loads(head) | {"paceline_run": 2}), *lines]) + "\n")
    with pytest.raises(ValueError, match="whose format this version does not know"):
        read_run(run)

    write_page(run_page(made_run(12, 2), digest="ab"), page.with_suffix(".html"))
    known = json.loads(page.read_text())
    assert known["paceline_report"] == 1
    assert read_page(page) == known
    for schema in (2, "1", None):
        page.write_text(json.dumps(known | {"paceline_report": schema}))
        with pytest.raises(ValueError, match="schema 1 at most, got"):
            read_page(page)
