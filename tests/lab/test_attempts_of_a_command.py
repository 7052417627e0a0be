"""Which files of a recorded command count, and what becomes of a command that recorded nothing."""

import json
from itertools import permutations

import pytest

from paceline.datasets import load
from paceline.lab.collect import command
from paceline.lab.collect.command import Recorded, _last_attempts, collect_command
from paceline.recording import Recorder


def wrote(folder, name, lines):
    (folder / name).write_text("".join(f"line {k}\n" for k in range(lines)))


def test_of_each_rank_the_last_attempt_that_recorded_an_iteration_counts(tmp_path):
    lines = {
        "rank0.jsonl": 5,
        "rank0.1.jsonl": 2,
        "rank0.2.jsonl": 1,  # a header alone
        "rank1.jsonl": 3,
        "rank1.9.jsonl": 4,
        "rank1.10.jsonl": 2,
        "rank2.jsonl": 0,
        "rank10.3.jsonl": 2,
        "rank3.1.jsonl": 1,
        "rank3.jsonl": 2,
        "other.jsonl": 9,
    }
    for name, count in lines.items():
        wrote(tmp_path, name, count)
    found = [file.name for file in _last_attempts(tmp_path)]
    assert found == ["rank0.1.jsonl", "rank1.10.jsonl", "rank3.jsonl", "rank10.3.jsonl"]
    (tmp_path / "rank2.1.jsonl").write_text("a header\nhalf an iteration")
    assert [file.name for file in _last_attempts(tmp_path)][2] == "rank2.1.jsonl"


@pytest.mark.parametrize("order", list(permutations(["rank0.jsonl", "rank0.1.jsonl", "rank0.2.jsonl"])))
def test_attempts_count_in_whichever_order_they_are_found(tmp_path, order):
    class Found(list):
        def glob(self, pattern):
            assert pattern == "rank*.jsonl"
            return self

    for name in order:
        wrote(tmp_path, name, 2)
    assert _last_attempts(Found(tmp_path / name for name in order)) == [tmp_path / "rank0.2.jsonl"]


def test_a_command_that_recorded_nothing_has_its_status_and_no_trace(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(command, "_run", lambda *told: ran.append(told) or 3)
    path = tmp_path / "deep" / "a.parquet"
    assert collect_command(["x"], str(path)) == Recorded(3, [], None)
    assert ran == [(["x"], tmp_path / "deep" / "a", [])]
    assert not path.exists()
    assert path.with_suffix("").is_dir()
    with pytest.raises(FileExistsError, match="deep/a exists, and a recording is never overwritten: choose a new name"):
        collect_command(["x"], path)
    (tmp_path / "b.parquet").write_text("kept")
    with pytest.raises(FileExistsError, match=r"b\.parquet exists"):
        collect_command(["x"], tmp_path / "b.parquet")
    assert len(ran) == 1


def test_workers_of_a_command_become_one_trace_with_what_their_headers_say(tmp_path, monkeypatch):
    def run(words, folder, places):
        for rank in (1, 0):
            meta = {"own": f"of {rank}", "job": "its", "status": "lost"}
            with Recorder(folder / f"rank{rank}.jsonl", str(rank), meta=meta) as recorder:
                for _ in range(2):
                    with recorder.iteration(samples=8 + rank):
                        pass
        return 0

    monkeypatch.setattr(command, "_run", run)
    recorded = collect_command(["python", "a.py"], tmp_path / "a.parquet")
    assert [file.name for file in recorded.files] == ["rank0.jsonl", "rank1.jsonl"]
    trace = load(tmp_path / "a.parquet")
    assert (trace.workers, trace.samples.tolist()) == (("0", "1"), [[8, 9]] * 2)
    said = [trace.meta[name] for name in ("own", "job", "status", "command", "source")]
    assert said == ["of 0", "a", "0", "python a.py", "recorded by paceline collect"]
    assert json.loads(recorded.files[0].read_text().splitlines()[0])["meta"]["own"] == "of 0"
