"""Readers under bad input: traces or a ValueError that names the file, never another error, never a hang."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readings import formats

from paceline.datasets import Trace, read_traces

HIVEMIND_PARTS = ["dataload", "dataload_cuda_move", "forward", "loss_calc", "backward", "opt_step", "step"]

GOOD = {
    "csv": "worker,iteration,samples,seconds,cpu\na,0,8,0.5,1\nb,0,8,1,2\n",
    "hivemind": "_step,_runtime,_timestamp,"
    + ",".join(f"02_timing/{part}_time_s" for part in HIVEMIND_PARTS)
    + ",01_general/step,01_general/locally_processed_samples\n1,1,100,1,1,1,1,1,1,5,0,32\n2,2,106,1,1,1,1,1,1,5,1,64\n",
    "hivemind_monitor": "_timestamp,04_peers/peer_1_samples_per_second\n1,5\n2,6\n",
    "pai_minibatch": ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,25,11,250\n",
    "azure_vm_noise": "value,runtime,starttime,VM_id\n10,1,2023-09-02 05:13:10.610,0\n20,1,2023-09-01 05:13:10,0\n",
    "alibaba_machine_usage": "m_1,0,50,60,,,1.5,2.5,3\nm_2,10,-1,61,1,2,1.5,2.5,101\n",
    "alibaba_container_usage": "c_1,m_1,0,50,60,1.2,,,1.5,2.5,3\nc_1,m_1,10,50,60,1.2,,,1.5,2.5,3\n",
    "google_2019": '{"start_time": "6000000", "collection_id": "9", "instance_index": 3, "page_cache_memory": 1}\n',
    "wandb": "_step,_runtime,_timestamp,system.cpu,time_s\n0,0,100,10,\n1,1,101,,0.5\n",
    "tensorboard": "Wall time,Step,Value\n100,0,1\n102,25,1\n",
    "pytorch_log": "Epoch: [0][10/5005]\tTime 0.500 (0.6)\tData 0.010 (0.2)\n",
    "dstat": '"Dstat 0.7.2 CSV output"\n"total cpu usage",,\n"usr","sys","idl"\n1,1,98\n2,1,97\n',
    "sar": "# hostname;interval;timestamp;CPU;%user;%idle\nh1;60;2020-01-01 00:01:00 UTC;-1;10.5;89.5\n",
    "nvidia_smi": "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
    "2024/09/08 13:03:31.000, 0, 100%, 51234 MiB\n2024/09/08 13:03:31.000, 1, [N/A], 51234 MiB\n",
    "nvrx_scores": "Rank 0 GPUs relative perf: {0: 0.96, 1: 0.90}\nRank 0 GPUs relative perf: {0: 0.9, 1: 1.0}\n",
    "megatron_timers": "times across ranks (ms):\n  forward-compute:\n     rank  0: 10.00\n     rank  1: 20.00\n"
    "  backward-compute:\n     rank  0: 10.00\n     rank  1: 20.00\n",
    "json": '{"worker": "a", "iteration": 0, "samples": 8, "seconds": 0.5}\n'
    '{"worker": "b", "iteration": 0, "samples": 8, "seconds": 1}\n',
    "wandb_chart": '"Step","a - t","a - t__MIN","a - t__MAX","b - t","b - t__MIN","b - t__MAX"\n'
    "0,1,1,1,2,2,2\n5,1,1,1,,,\n",
    "prometheus": '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"gpu":"0"},"values":'
    '[[1700000000,"0.5"],[1700000015,"NaN"]]},{"metric":{"gpu":"1"},"values":[[1700000000.5,"1"]]}]}}',
}
OPTIONS = {
    "wandb": {"seconds": "time_s"},
    "wandb_chart": {"values": "seconds"},
    "prometheus": {"values": "seconds"},
}
"""Without these the formats do not say what was measured."""

SPANS = (
    '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100}',
    '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 50}',
    '{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 60, "dur": 30}',
)
FOLDERS = {"torch_profiler": '{"distributedInfo": {"rank": 1},\n"traceEvents": [\n' + ",\n".join(SPANS) + "\n]}\n"}
"""Formats with a file for each worker: the text of one of them."""

BINARY = ("parquet", "bytedance_llm")
"""Parquet: bytes are changed at random, as there is no text to change."""


def read_or_refused(path, name):
    """Read as this format; the result must be traces, or an error that names the file."""
    try:
        traces = read_traces(path, name, **OPTIONS.get(name, {}))
    except ValueError as error:
        if str(path) not in str(error):
            raise AssertionError(f"the sentence does not name the file: {error}") from error
        return
    for trace in traces:
        assert trace.seconds.size
        assert int(trace.meta.get("rows_dropped", 0)) <= int(trace.meta.get("rows_read", 0))


def damaged(text):
    """Ways to break a file: truncation, NUL bytes, other separators, repeated or shuffled rows, garbage cells."""
    data = text.encode()
    lines = text.splitlines(keepends=True)
    wild = st.sampled_from(
        ["nan", "-1", "1e400", "inf", "0", "", "x", '"', "9" * 30, "1e18", "-5", "\u00e9", "-0.0", "{", "NA"]
    )
    numbers = [k for k, c in enumerate(text) if c.isdigit()]
    return st.one_of(
        st.integers(0, len(data)).map(lambda k: data[:k]),
        st.integers(0, len(data)).map(lambda k: data[:k] + b"\0" * 7 + data[k:]),
        st.sampled_from([";", "\t", "|", " "]).map(lambda s: text.replace(",", s).encode()),
        st.permutations(lines).map(lambda rows: "".join(rows).encode()),
        st.lists(st.sampled_from(lines), max_size=6).map(lambda rows: (text + "".join(rows)).encode()),
        st.tuples(st.sampled_from(numbers or [0]), wild).map(
            lambda kw: (text[: kw[0]] + kw[1] + text[kw[0] + 1 :]).encode()
        ),
        st.binary(max_size=200),
        st.binary(max_size=40).map(lambda extra: data + extra),
    )


def test_every_format_is_fuzzed():
    assert {*GOOD, *FOLDERS, *BINARY} == set(formats())


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_what_the_fuzzer_starts_from_is_read(name, tmp_path):
    path = tmp_path / ("x.json" if name == "google_2019" else "x.csv")
    path.write_text(GOOD[name])
    assert len(read_traces(path, name, **OPTIONS.get(name, {}))) == 1


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.slow
def test_damaged_files_read_or_refused(name, tmp_path):
    path = tmp_path / ("x.json" if name == "google_2019" else "x.csv")

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(damaged(GOOD[name]))
    def check(data):
        path.write_bytes(data)
        read_or_refused(path, name)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_folder_read_or_refused(name, tmp_path):
    (tmp_path / "rank0.json").write_text(FOLDERS[name].replace('"rank": 1', '"rank": 0'))
    path = tmp_path / "rank1.json"
    path.write_text(FOLDERS[name])
    assert len(read_traces(tmp_path)) == 1

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(damaged(FOLDERS[name]))
    def check(data):
        path.write_bytes(data)
        read_or_refused(tmp_path, name)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", BINARY)
def test_damaged_parquet_read_or_refused(name, tmp_path):
    import pandas as pd

    path = tmp_path / "x.parquet"
    columns = {"rank": 0, "stage": 0, "step": range(50), "optype": "forward-compute", "duration": 0.5, "seq_id": 0}
    if name == "bytedance_llm":
        pd.DataFrame(columns).to_parquet(path)
    else:
        Trace(np.full((50, 2), 8.0), np.full((50, 2), 0.5)).save(path)
    whole = path.read_bytes()

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, len(whole) - 1), st.binary(max_size=4), st.booleans())
    def check(at, put, cut):
        path.write_bytes(whole[:at] + put + (b"" if cut else whole[at + len(put) :]))
        read_or_refused(path, name)

    check()


@settings(max_examples=80)
@given(st.binary(max_size=300))
def test_random_bytes_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"random\.bin"):
        read_traces(path)


@settings(max_examples=20)
@given(st.integers(1, 400))
def test_cut_compressed_files_are_refused(tmp_path_factory, cut):
    path = tmp_path_factory.getbasetemp() / "machine_usage.csv.gz"
    rng = np.random.default_rng(0)
    whole = gzip.compress("".join(f"m,{10 * k},{rng.integers(99)},1,,,1,1,1\n" for k in range(500)).encode())
    path.write_bytes(whole[:-cut])
    with pytest.raises(ValueError, match="machine_usage"):
        read_traces(path)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 100)), min_size=1, max_size=40))
def test_nothing_is_lost_without_being_counted(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "machine_usage.csv"
    path.write_text("".join(f"m{worker},{10 * time},{cpu},1,,,1,1,1\n" for worker, time, cpu in rows))
    (trace,) = read_traces(path)
    held = np.isfinite(trace.covariates_named(["mem_util_percent"])).sum()
    assert held + int(trace.meta["rows_dropped"]) == len(rows) == int(trace.meta["rows_read"])


def test_time_beyond_float_resolution_refused(tmp_path):
    path = tmp_path / "x.csv"  # this line once took 3 GB
    path.write_bytes(b"c,,888808888889888888888888,,,,8,,,,")
    with pytest.raises(ValueError, match=r"x\.csv: 1 rows from 8\.888\d*e\+23 s .* do not fit"):
        read_traces(path, "alibaba_container_usage")
