"""Files are recognized or refused, in a sentence that says what, where and what to do; tables are read."""

import gzip

import pytest
from readings import DSTAT, DSTAT_ROW, SAR

from paceline.datasets import read_traces


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "job.csv",
            "worker,gpu,time,batch_time_norm\n0,0,25,x\n",
            "'batch_time_norm' must hold numbers, but row 2 holds 'x'",
        ),
        ("job.csv", "worker,gpu,time,batch_time_norm\n0,0,25,1\n0,0\n", "row 3 must have 4 cells, got 2"),
        ("job.csv", "", "is empty"),
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
        ("sar.csv", "# hostname;interval;timestamp;%user\nh;60;2020-01-01 00:00:00 UTC\n", "row 2 must have 4 cells"),
        ("dstat.csv", DSTAT + DSTAT_ROW.format("a"), "'cpu_usr' must hold numbers, but row 8 holds 'a'"),
        ("dstat.csv", DSTAT, "has no rows"),
        ("dstat.csv", DSTAT + DSTAT_ROW.format(1), "has no row besides the first"),
        ("sar.csv", "# hostname;interval;timestamp;%user\n", "has no rows"),
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
    path = made("sar.csv", SAR)
    with pytest.raises(ValueError, match="there is no format 'sadf'"):
        read_traces(path, "sadf")
    with pytest.raises(ValueError, match=r"unknown options \['speed'\] for format .*; it accepts \['period'\]"):
        read_traces(path, speed=1)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        read_traces(tmp_path / "nothing")


def test_folder_gives_traces_of_named_format(made, tmp_path):
    made("sar.csv", SAR)
    made("job_1_norm.csv", ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n")
    made("README.md", "text")
    assert len(read_traces(tmp_path)) == 2
    assert [trace.meta["format"] for trace in read_traces(tmp_path, "pai_minibatch")] == ["pai_minibatch"]
    with pytest.raises(ValueError, match="contains no file of the format dstat"):
        read_traces(tmp_path, "dstat")


def test_hidden_folders_hold_no_data(tmp_path):
    """A clone's history lies beside its data; a subfolder of the data is read."""
    for folder in (".git", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.csv").write_text("worker,iteration,samples,seconds\na,0,1,1\n")
    (trace,) = read_traces(tmp_path)
    assert trace.name == "job"
