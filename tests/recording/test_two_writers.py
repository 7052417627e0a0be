"""Two jobs and one file: the second is refused by name, and no line is read under a header that is not its own."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from recorded_runs import iterations

from paceline.recording import JsonLines, read_run


@pytest.mark.processes
def test_second_writer_is_refused_and_names_the_first(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    code = "import sys; sys.path[:0] = {}; from recorded_runs import iterations\n"
    code += "from paceline.recording import JsonLines\n"
    code += "sink = JsonLines(sys.argv[1]); [sink(one) for one in iterations(3)]; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code.format(sys.path), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout.readline() == "ready\n"
        before = path.read_bytes()
        sink = JsonLines(path)
        for one in iterations(2):
            sink(one)
        assert path.read_bytes() == before
        assert re.search(rf"written by process {first.pid} on .* which started \d{{4}}-", caplog.text)
        first.communicate("\n")
    sink = JsonLines(path)
    for one in iterations(2):
        sink(one)
    sink.close()
    assert len(read_run(path)) == 5


def test_two_sinks_of_one_process_share_a_file(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        sink = JsonLines(path)
        for one in iterations(2):
            sink(one)
    assert len(read_run(path)) == 4
    assert not caplog.text


def lines_of(path, batch, count):
    sink = JsonLines(path)
    for one in iterations(count):
        sink(one)
    sink.close()
    header, *rows, _ = map(json.loads, path.read_text().splitlines())
    header["workers"], header["global_batch"] = [f"{batch}-{name}" for name in header["workers"]], batch
    total = sum(rows[0]["planned"])
    rows = [
        {**row, "planned": [batch - total + row["planned"][0], *row["planned"][1:]], "index": batch} for row in rows
    ]
    return header, rows


@pytest.mark.parametrize("names_its_run", [True, False])
def test_interleaved_lines_are_read_under_their_own_header(tmp_path, names_its_run):
    """A file from before locks, or of a disk without: lines are the right job's, or are skipped and counted."""
    one, two = (lines_of(tmp_path / f"{batch}.jsonl", batch, 5) for batch in (60, 90))
    mixed = [one[0], two[0], *(row for pair in zip(one[1], two[1], strict=True) for row in pair)]
    if not names_its_run:
        mixed = [{key: value for key, value in line.items() if key != "run"} for line in mixed]
    path = tmp_path / "both.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in mixed))
    run = read_run(path)
    index = run.of_fleet["index"]
    for w, worker in enumerate(run.workers):
        of_worker = np.isfinite(run.seconds[:, w])
        assert set(index[of_worker]) <= {float(worker.partition("-")[0])}
    assert len(run) + run.skipped == 10
    assert len(run) == (10 if names_its_run else 5)
