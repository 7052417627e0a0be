"""Excerpts of every format, whole and damaged, are read as they were: numbers, names, units, and what was dropped."""

import gzip
import json
import re
import warnings
from pathlib import Path

import layouts
import numpy as np
import pytest
from kept import plain, require_kept
from readings import BITBRAINS, DSTAT, DSTAT_ROW, MACHINES
from test_readers_fuzz import FOLDERS, GOOD, OPTIONS
from test_readers_speed import hivemind_log

from paceline.datasets import read_traces
from paceline.datasets.readers import FORMATS

KEPT = Path(__file__).parent / "readings.json"

SAR = (
    "# hostname;interval;timestamp;CPU;%user;%idle\nh1;60;2020-01-01 00:01:00 UTC;-1;10.5;89.5\n"
    "h1;60;2020-01-01 00:01:00 UTC;0;11;89\nh1;-1;2020-01-01 00:01:30 UTC;LINUX-RESTART (2 CPU)\n"
    "h2;60;2020-01-01 00:02:00 UTC;0;20;80\n# hostname;interval;timestamp;IFACE;rxpck/s\nh1;30;1577836860;eth0;7\n"
    "h1;30;1577836890;eth0;8.5\n# hostname;interval;timestamp;runq-sz;ldavg-1\nh1;600;2020-01-01 00:10:00;1;0.5\n"
)
MORE = {
    "alibaba_machine_usage": MACHINES + "m_2,25,-1,61,1,2,1.5,2.5,3\nm_2,25,9,61,1,2,1.5,2.5,3\n",
    "alibaba_container_usage": "c_1,m_1,0,50,60,1.2,,,1.5,2.5,3\nc_2,m_1,10,40,61,1.3,,-1,1.5,2.5,101\n"
    "c_1,m_1,30,51,62,1.4,2,3,1.5,2.5,3\n",
    "alibaba_gpu_sensor": "j,t,w1,i1,m1,V100,120,80,1,2,3,4,5,6,7,8\nj,t,w2,i2,m1,V100,,90,1,2,3,4,5,6,7,\n",
    "alibaba_gpu_machine_metric": "w1,m1,0,9,1,2,3,4,5,6,7,8\nw2,m1,0,9,1,2,3,,5,6,7,9\n",
    "google_2019": "".join(
        json.dumps({"start_time": str(begin), "collection_id": "9", "instance_index": k, **more}) + "\n"
        for begin, k, more in (
            (600_000_000, 3, {"average_usage": {"cpus": 0.5, "memory": 0.25}}),
            (900_000_000, 3, {"average_usage": {"cpus": 0.75}, "cycles_per_instruction": 1.5, "sample_rate": "1"}),
            (900_000_000, 4, {"maximum_usage.cpus": 2, "assigned_memory": 0.5, "random_sample_usage": {"cpus": 1}}),
            (0, 4, {"assigned_memory": 0.5}),
        )
    ),
    "bitbrains": BITBRAINS
    + "1372629804;\t4;\t11704;\t10912;\t93.2;\t67108864;\t6129274.4;\t0.1;\t20.4;\t1;\t2\n"
    + "1372630104;\t4;\t11704;\t10;\t3.25;\t67108864;\t612;\t0.5;\t2.5;\t3;\t4\n",
    "philly_cpu": "time,machine_id,cpu_util\n2017-10-03 00:08:00 PDT,m1,12.5\n2017-10-02 23:09:00 PST,m1,NA\n"
    "2017-10-03 00:10:00 PDT,m2,50\n2017-10-03T09:10:00+02:00,m2,5\n2017-10-03 00:09:00 PDT,m1,13\n",
    "supercloud_cpu": GOOD["supercloud_cpu"]
    + "".join(f"{k},n{k % 2},{k % 3},0,{1600000000 + 10 * k},2,1,{k}.5,9,9,0,1,1\n" for k in (1, -1, 2, -4, 3)),
    "supercloud_gpu": GOOD["supercloud_gpu"] + "1600000000.2,1,5,1,2,1,40,41,7.5\n1600000000.3,0,51,1,1,1,40,40,70.5\n",
    "azure_vm_cpu": "0,vm1,1,9,5.5\n0,vm2,2,8,6\n600,vm1,1,9,6\n300,vm2,2,8,6.5\n",
    "azure_vm_noise": GOOD["azure_vm_noise"] + "5,1,2023-09-03 05:13:10,1\n-1,1,2023-09-04 05:13:10,0\n",
    "hivemind": hivemind_log([4, 3], resumed=True),
    "hivemind_monitor": "_timestamp,04_peers/peer_1_samples_per_second,04_peers/peer_10_samples_per_second\n1,5,\n"
    "2,6,7.5\n4,,8\n",
    "pai_minibatch": ",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,50,1,250\n2,0,25,11,1000\n3,0,25,11,7\n"
    "4,1,50,21,0\n5,1,50,31,-3\n",
    "wandb": "_step,_runtime,_timestamp,system.cpu,time_s,note,loss\n0,0,100,10,,hello,\n1,1,101,,0.5,,1\n"
    "2,2,102,30,,,\n3,3,103,90,0.25,,2\n0,4,,1,1,,\n1,5,105,7,0.125,,3\n2,6,106,,-1,,3\n3,7,107,8,1,,\n",
    "nab": "timestamp,value\n2014-02-14 14:35:00,0.134\n2014-02-14 14:30:00,0.132\n2014-02-14 14:30:00,9\n"
    "2014-02-14 14:50:00,inf\n",
    "tensorboard": "Wall time,Step,Value\n100,0,1\n100,5,1\n102,25,1\n104,65,1\n105,30,2\n106,50,2\n",
    "mxnet_log": "Node[0] Epoch[0] Batch [0-20]\tSpeed: 100.5 samples/sec\nother\n\nNode[11] Epoch[0] Batch [20]\t"
    "Speed: 5e1 samples/sec\nNode[0] Epoch[0] Batch [40]\tSpeed: 99 samples/sec\nEpoch[0] Batch [20] Speed: 1e999 "
    "samples/sec\n",
    "maskrcnn_log": "".join(
        f"INFO: eta: 1:00 iter: {k} loss: 1 time: 0.{k} (0.6) data: 0.0{k} (0.02) {tail}\n"
        for k, tail in ((20, "max mem: 4000"), (40, ""), (30, "max mem: 4500"), (50, "max mem: 1"))
    ),
    "pytorch_log": "Epoch: [0][10/5005]\tTime 0.500 (0.6)\tData 0.010 (0.2)\nTest: [0/6]\tTime 4.5 (4.5)\n"
    "Epoch: [0][20/5005] Time 0.25 (0.6) Speed 512.0 (5)\n3: TRAIN [0][10/3880]\tTime 0.25 (0.3)\tData 1.2e-04 (1e-4)"
    "\tTok/s 40000 (39000)\nEpoch: [0][30/5005] Time 0.125 (0.6)\n",
    "dstat": DSTAT + "".join(DSTAT_ROW.format(k) for k in (50, 1.5, 2.5)) + DSTAT + DSTAT_ROW.format(60) + "9,,,,,,,,,,"
    ",,,,,,,,,\n",
    "sar": SAR,
    "nvrx_scores": "x\nRank 0 GPUs relative perf: {0: 0.96, 1: 0.90}\nRank 0 GPUs relative perf: {0: 0.9, 1: nan}\n",
    "traceml_summary": GOOD["traceml_summary"].replace('"forward_ms": 11', '"forward_ms": 11, "input_wait_ms": 3'),
    "megatron_timers": GOOD["megatron_timers"] * 2,
    "fedscale": "client,computation,communication\na,20,500\nb,0,9\nc,50,\n",
    "wandb_chart": GOOD["wandb_chart"] + "9,0.5,1,1,4,4,4\n",
    "prometheus": GOOD["prometheus"],
    "alibaba_genai": GOOD["alibaba_genai"],
    "spdl_ranks": GOOD["spdl_ranks"],
    "pai_variation": ",0,1,2\njob_00,0.25,0.5,0.125\njob_01,0.75,,\n",
    "philly_mem": GOOD["philly_mem"] + "2017-10-03 00:09:00 PST,m2,528,300\n",
    "philly_gpu": GOOD["philly_gpu"] + "2017-10-03 00:10:00 PDT,m,,NA,3,4,5,6,7,8,\n",
    "csv": "worker,iteration,samples,seconds,cpu,note\na,0,8,0.5,1,x\nb,0,8,1,2,y\na,1,8,0.25,,z\na,2,9,9,9,z\n"
    "b,4,0,0.5,3,\n",
    "json": GOOD["json"] + '{"worker": "a", "iteration": 2, "samples": 16, "seconds": 2, "cpu": 0.5}\n',
}
CHOSEN = {
    "alibaba_machine_usage": {"period": 30, "workers": ["m_2"]},
    "google_2019": {"period": 600},
    "supercloud_cpu": {"period": 20},
    "azure_vm_noise": {"least": 1},
    "wandb": {"seconds": "time_s", "samples": "loss", "unit": "ms"},
    "tensorboard": {"value_is_rate": True},
    "sar": {"period": 60, "workers": ["h1", "h2 cpu 0"]},
    "prometheus": {"values": "rate", "period": 30},
    "wandb_chart": {"values": "usage"},
    "alibaba_genai": {"values": "rate", "period": 30},
    "spdl_ranks": {"samples": 16, "unit": "ms", "period": 120},
}
"""Options beside those without which a format does not say what was measured."""


def thinned(lines):
    """Leave out a cell in every third line: the first number behind the second separator, or the first number."""
    return [
        re.sub(r"([,;:]\s*)-?\d+(\.\d+)?", r"\1", line, count=1) if k % 3 == 2 else line for k, line in enumerate(lines)
    ]


WAYS = {
    "whole": lambda lines: lines,
    "last line first": lambda lines: [lines[0], *lines[:0:-1]],
    "lines twice": lambda lines: [lines[0], *(line for line in lines[1:] for _ in range(2))],
    "cells left out": thinned,
    "negative": lambda lines: [lines[0], *(re.sub(r"([,;])(\d+\.\d)", r"\1-\2", line, count=1) for line in lines[1:])],
}


def outcome(path, name, options):
    """Return the traces as plain values, or the sentence with which the file is refused, without its path."""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            traces = read_traces(path, name, **options)
    except ValueError as error:
        return re.sub(r"(as expected: ).*", r"\1...", str(error), flags=re.DOTALL).replace(str(path), "FILE")[:160]
    said = [str(one.message).replace(str(path), "FILE") for one in warned]
    return plain([*(told(trace, path) for trace in traces), *said])


def told(trace, path):
    """Return all that is known of a trace."""
    panels = {"samples": trace.samples, "seconds": trace.seconds, "waited": trace.wait_seconds, "start": trace.start}
    panels |= {name: trace.covariates[..., d] for d, name in enumerate(trace.covariate_names)}
    known = {name: panel.T for name, panel in panels.items() if panel is not None and np.isfinite(panel).any()}
    # Digits that rounding to six would lose: times since 1970 count from the first.
    if "start" in known and known["start"].size:
        first = float(np.nanmin(known["start"]))
        known |= {"first": f"{first:.3f}", "start": known["start"] - first}
    meta = {key: value.replace(str(path), "FILE") for key, value in trace.meta.items()}
    return {"workers": list(trace.workers), "length": len(trace), **known, "meta": meta}


def changes(outcome, whole):
    """Return an outcome without the facts that are those of the whole excerpt."""
    if whole is None or isinstance(outcome, str):
        return outcome
    usual = whole[0]["meta"].items()
    return (
        [{**one, "meta": dict(one["meta"].items() - usual)} if isinstance(one, dict) else one for one in outcome]
        if outcome != whole
        else "as the whole"
    )


def test_every_format_in_text_is_kept():
    assert set(MORE) == set(GOOD)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_an_excerpt_is_read_as_it_was(name, tmp_path):
    lines = MORE[name].splitlines(keepends=True)
    path = tmp_path / ("job.json" if name == "google_2019" else "job.csv")
    found = {}
    for way, changed in WAYS.items():
        path.write_text("".join(changed(lines)))
        found[way] = changes(outcome(path, name, OPTIONS.get(name, {})), found.get("whole"))
    path.write_text(MORE[name])
    if name in CHOSEN:
        found["options"] = changes(outcome(path, name, {**OPTIONS.get(name, {}), **CHOSEN[name]}), found["whole"])
    require_kept(KEPT, name, found)


LAYOUTS = ("hivemind", "pai_minibatch", "azure_vm_noise", "bytedance_llm", "tensorboard", "sync_switch", "spdl_ranks")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_is_read_as_it_was(layout, tmp_path):
    folder = tmp_path / "job"  # of which some readers take the name
    folder.mkdir()
    getattr(layouts, layout)(folder)
    require_kept(KEPT, f"folder of {layout}", outcome(folder, None, {}))


def test_profiles_of_ranks_are_read_as_they_were(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rank0.json").write_text(FOLDERS["torch_profiler"].replace('"rank": 1', '"rank": 0'))
    (folder / "rank1.json").write_text(FOLDERS["torch_profiler"].replace('"dur": 30', '"dur": 15'))
    require_kept(KEPT, "folder of torch_profiler", outcome(folder, None, {}))


def test_every_format_says_what_it_said():
    told_of = {
        name: [one.about, one.files, one.gives, one.seen, one.columns, one.job(Path("folder/hivemind-7-a.csv"))]
        for name, one in FORMATS.items()
    }
    require_kept(KEPT, "formats", told_of)


def test_a_compressed_excerpt_is_read_as_the_plain_one(tmp_path):
    for name in ("alibaba_machine_usage", "csv", "mxnet_log"):
        (tmp_path / "job.csv").write_text(MORE[name])
        (tmp_path / "job.csv.gz").write_bytes(gzip.compress(MORE[name].encode(), mtime=0))
        whole, packed = (outcome(tmp_path / file, name, {}) for file in ("job.csv", "job.csv.gz"))
        for trace in whole + packed:
            trace["meta"].pop("source", None)  # the file's own name
        assert whole == packed
