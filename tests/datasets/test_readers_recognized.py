"""Files are recognized or refused, in a sentence that says what, where and what to do; tables are read."""

import gzip

import numpy as np
import pytest
from readings import DSTAT, DSTAT_ROW, MACHINES, only

from paceline.datasets import read_traces


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "machine_usage.csv",
            "m,0,1,1,,,1,1,1\nm,10,x,1,,,1,1,1\n",
            "column 'cpu_util_percent' must hold numbers, but row 2 holds 'x'",
        ),
        ("machine_usage.csv", "m,0,1,1,,,1,1,1\nm,10,1,1,,\n", "row 2 must have 9 cells, got 6"),
        ("machine_usage.csv", "m,0,1,1,,,1,1,1\nm,9e15,1,1,,,1,1,1\n", "do not fit into iterations of 10 s"),
        ("machine_usage.csv", ",0,1,1,,,1,1,1\n", "no row left with a worker and a time"),
        ("machine_usage.csv", "", "is empty"),
        ("job.csv", "worker,gpu,time,batch_time_norm\n", "has no rows"),
        (
            "smi.csv",
            "timestamp, index, power.draw [W]\n2014/02/14 14:30:00.000, 0, 5 W\nyesterday, 0, 5 W\n",
            "column 'timestamp' must hold times .* row 3 holds 'yesterday'",
        ),
        (
            "smi.csv",
            "timestamp, index, power.draw [W]\n2014-02-14 14:30:00 CEST, 0, 5 W\n",
            "column 'timestamp' must hold times .* row 2 holds",
        ),
        ("usage.json", '{"collection_id": "1", "average_usage": {}}\n{"a": \n', "line 2 must be one JSON object"),
        (
            "usage.json",
            '{"collection_id": 1, "average_usage": {"cpus": "much"}}\n',
            "'average_usage.cpus' must hold numbers, but row 1",
        ),
        ("sar.csv", "# hostname;interval;timestamp;%user\nh;60;2020-01-01 00:00:00 UTC\n", "row 2 must have 4 cells"),
        ("dstat.csv", DSTAT + DSTAT_ROW.format("a"), "'cpu_usr' must hold numbers, but row 8 holds 'a'"),
        ("dstat.csv", DSTAT, "has no rows"),
        ("dstat.csv", DSTAT + DSTAT_ROW.format(1), "has no row besides the first"),
        ("sar.csv", "# hostname;interval;timestamp;%user\n", "has no rows"),
        (
            "usage.json",
            '{"collection_id": 1, "average_usage": {}}\n[1]\n',
            "line 2 must be one .* got a list",
        ),
        ("job_1.csv", ",worker,gpu,time,batch_time_norm\n0,,25,1,500\n", "has no row with a worker and a time"),
        ("range.json", '{"resultType": "vector", "result": [{"metric": {}, "values": []}]}', "values=seconds"),
        ("log.txt", "Rank 0 GPUs relative perf: {0: 1e}\n", "line 1 has a score that is not a number"),
        ("model.pkl", b"\x80\x04\x95\x00", "is a pickle file, .* it was not opened"),
        ("usage.csv", b"\x80\x03}q\x00", "is a pickle"),
        ("x.csv", b"PK\x03\x04abc", "is a zip archive"),
        ("x.gz", gzip.compress(b"m,0,1\n" * 1000, mtime=0)[:-20], "truncated or damaged"),
        ("job.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "is a Git LFS pointer"),
        ("notes.txt", "nothing known\n", "matches no known format: name its format, one of those .* --with worker="),
    ],
)
def test_errors_say_what_where_and_what_to_do(made, name, content, sentence):
    path = made(name, content)
    with pytest.raises(ValueError, match=sentence) as error:
        read_traces(path)
    assert str(path) in str(error.value)


def test_unknown_formats_options_and_files_are_named(made, tmp_path):
    path = made("machine_usage.csv", MACHINES)
    with pytest.raises(ValueError, match="there is no format 'alibaba'"):
        read_traces(path, "alibaba")
    with pytest.raises(
        ValueError, match=r"unknown options \['speed'\] for format .*; it accepts \['period', 'workers'\]"
    ):
        read_traces(path, speed=1)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        read_traces(tmp_path / "nothing")


def test_folder_gives_traces_of_named_format(made, tmp_path):
    made("machine_usage.csv", MACHINES)
    made("job_1_norm.csv", ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n")
    made("README.md", "text")
    assert len(read_traces(tmp_path)) == 2
    assert [trace.meta["format"] for trace in read_traces(tmp_path, "pai_minibatch")] == ["pai_minibatch"]
    with pytest.raises(ValueError, match="contains no file of the format sar"):
        read_traces(tmp_path, "sar")


def test_hidden_folders_hold_no_data(tmp_path):
    """A clone's history lies beside its data; a subfolder of the data is read."""
    for folder in (".git", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.csv").write_text("worker,iteration,samples,seconds\na,0,1,1\n")
    (trace,) = read_traces(tmp_path)
    assert trace.name == "job"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (
            "alibaba_machine_usage",
            "machine_id,time_stamp,cpu_util_percent,mem_util_percent,mem_gps,mkpi,net_in,net_out,disk_io_percent",
        ),
        (
            "alibaba_container_usage",
            "container_id,machine_id,time_stamp,cpu_util_percent,mem_util_percent,cpi,mem_gps,mpki,net_in,net_out,"
            "disk_io_percent",
        ),
    ],
)
def test_headerless_set_recognized_with_header(made, name, columns):
    trace = only(made("mine.csv", columns + "\n" + ",".join("7" for _ in columns.split(",")) + "\n"))
    assert trace.meta["format"] == name
    assert np.isfinite(trace.covariates).all()
    assert trace.meta["rows_read"] == "1"
