"""Public sets, each on a table made here and read by hand: what counts, what is dropped, and what is refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from paceline.datasets.formats import cluster_traces
from paceline.datasets.readers import FORMATS, read_table, read_traces
from paceline.datasets.readers.reader_registry import _files_below, jobs_of, recognise

NAN = float("nan")


def written(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_clients_of_fedscale_have_the_time_of_a_sample(tmp_path):
    rows = "client,computation,communication\na,250,10\n,5,5\nb,0,20\na,9,9\nc,,30\n,6,6\n"
    (trace,) = read_traces(written(tmp_path, rows), "fedscale")
    assert trace.workers == ("a", "b", "c")
    np.testing.assert_array_equal(trace.seconds, [[0.25, NAN, NAN]])
    np.testing.assert_array_equal(trace.samples, [[1, NAN, NAN]])
    np.testing.assert_array_equal(trace.covariates[0, :, 0], [10, 20, 30])
    assert (trace.meta["rows_read"], trace.meta["rows_dropped"]) == ("6", "3")
    assert trace.meta["dropped"] == (
        "2 rows without a client, 1 repeated rows of a client, of which the first counts, "
        "2 clients whose computation is not positive"
    )
    told = {"a": {"computation": 500, "communication": 1.5}, "b": {"computation": -1, "communication": 2}}
    (trace,) = read_traces(written(tmp_path, told, "t.json"), "fedscale")
    np.testing.assert_array_equal(trace.seconds, [[0.5, NAN]])
    assert (trace.covariates[0, :, 0].tolist(), trace.meta["rows_read"]) == ([1.5, 2], "2")


@pytest.mark.parametrize("value", [True, "5", None, 1e300, -1e300, float("inf"), NAN])
def test_a_number_of_a_client_is_one_that_can_be(tmp_path, value):
    path = tmp_path / "t.json"
    assert cluster_traces._number(path, "a", {"x": -9.9e299}, "x") == -9.9e299
    with pytest.raises(ValueError, match="client 'a': 'x' must be a number, got "):
        cluster_traces._number(path, "a", {"x": value}, "x")
    for content in ([], {}):
        with pytest.raises(ValueError, match="must hold a JSON object with a client in each field"):
            read_traces(written(tmp_path, content, "t.json"), "fedscale")
    with pytest.raises(ValueError, match="has no row with a client"):
        read_traces(written(tmp_path, "client,computation,communication\n,1,1\n"), "fedscale")


def test_fedscale_is_told_by_both_of_its_keys():
    says = FORMATS["fedscale"].recognises
    both = '{"a": {"computation": 1, "communication": 2}}'
    assert says(Path("x.json"), both)
    assert not says(Path("x.txt"), both)
    assert not says(Path("x.json"), both.replace("computation", "c"))
    assert not says(Path("x.json"), both.replace("communication", "c"))


NOISE = "value,runtime,starttime,VM_id\n"


@pytest.mark.parametrize(("least", "machines"), [(None, ["1", "2"]), (1, ["1", "2", "3"]), (3, ["1"])])
def test_machines_of_azure_have_as_many_measurements_as_asked(tmp_path, least, machines):
    rows = [(1, 30), (1, 10), (2, 10), (1, 20), (2, 5), (1, 30), (3, 5)]
    text = NOISE + "".join(f"{10 * k + 10},1,1970-01-01 00:00:{at:02},{vm}\n" for k, (vm, at) in enumerate(rows))
    text += "0,1,1970-01-01 00:00:00,1\n5,1,,1\n5,1,1970-01-01 00:00:00,\n"
    path = written(tmp_path, text, "B__region__size__us_Per_Event.csv")
    named = {} if least is None else {"least": least}
    if least == 1:
        found = read_traces(path, "azure_vm_noise", **named)
    else:
        out = 3 - len(machines)
        with pytest.warns(
            UserWarning, match=f"{out} of 3 machines are left out, as they have fewer than {least or 2} "
        ):
            found = read_traces(path, "azure_vm_noise", **named)
    assert [trace.workers for trace in found] == [(f"vm {vm}",) for vm in machines]
    np.testing.assert_allclose(found[0].seconds[:, 0], [20e-6, 40e-6, 10e-6])
    assert found[0].start[:, 0].tolist() == [10, 20, 30]
    assert found[0].samples.tolist() == [[1]] * 3
    assert found[0].name == "B__region__size__us_Per_Event-vm1"
    left = {1: 0, None: 1, 3: 3}[least]
    dropped = (
        "1 values that are not positive, 2 rows without a machine or a time, 1 repeated rows of a machine and time"
    )
    assert found[0].meta["dropped"].startswith(dropped)
    assert (f", {left} rows of machines with too few measurements" in found[0].meta["dropped"]) is bool(left)


def test_rates_of_azure_are_samples_of_a_second(tmp_path):
    rows = "7,1,1970-01-01 00:00:00,1\n9,1,1970-01-02 00:00:00,1\n"
    path = written(tmp_path, NOISE + rows, "d/unit=TPS.csv")
    (trace,) = read_traces(path, "azure_vm_noise")
    assert (trace.samples.tolist(), trace.seconds.tolist()) == ([[7], [9]], [[1], [1]])
    assert trace.meta["units"] == "samples: TPS in one second"
    with pytest.raises(ValueError, match="has no row with a machine and a positive value"):
        read_traces(written(tmp_path, NOISE + "0,1,1970-01-01 00:00:00,1\n"), "azure_vm_noise")
    assert cluster_traces.named(Path("/a/b/c/d/e/unit=s.csv")) == ("b__c__d__e__unit=s", "s")
    assert cluster_traces.named(Path("/a/unit=s.csv")) == ("a__unit=s", "s")
    assert cluster_traces.named(Path("x__per_s.csv.gz")) == ("x__per_s", "per s")


def test_philly_is_told_by_its_name_and_columns_and_its_header_may_be_missing():
    names = cluster_traces.PHILLY_COLUMNS["mem"]
    assert cluster_traces._headed("time,MACHINE_ID,mem_total,mem_free,\n1", names)
    assert not cluster_traces._headed("time,machine_id,mem_total\n", names)
    for text, headed, ends in (
        ("a,b,c,d,\n", False, True),
        ("a,b,c,d\n", False, False),
        ("a,b,c,d,e\n", False, False),
        ("a,b,c,d,,\n", False, False),
        ("time,machine_id,mem_total,mem_free\na,b,c,d,\n", True, True),
        ("time,machine_id,mem_total,mem_free,\na,b,c,d\n", True, False),
    ):
        assert cluster_traces._ends_with_comma(text, names, headed) is ends, text
    says = FORMATS["philly_mem"].recognises
    for cells, named in ((3, False), (4, True), (5, True), (6, False)):
        assert says(Path("cluster_mem_util.csv"), ",".join("x" * cells)) is named
        assert not says(Path("other.csv"), ",".join("x" * cells))


def test_attempts_of_philly_count_their_hosts_and_gpus(tmp_path):
    def job(**more):
        detail = [{"gpus": ["g0", "g1"]}, {"gpus": ["g0"]}]
        return {"jobid": "j", "user": "u", "attempts": [{"start_time": "s", "detail": detail}, {"detail": []}], **more}

    table = read_table(written(tmp_path, [job(), job(attempts=[])], "cluster_job_log"))
    assert table[["hosts", "gpus"]].to_numpy().tolist() == [[2, 3], [0, 0]]
    assert table["start_time"].tolist()[0] == "s"
    with pytest.raises(ValueError, match="job 1 must be an object with 'attempts', each with a 'detail' of hosts"):
        read_table(written(tmp_path, [job(), job(attempts=[{"detail": [{}]}])], "cluster_job_log"))
    with pytest.raises(ValueError, match="must hold a JSON list of jobs, got a dict"):
        read_table(written(tmp_path, {}, "cluster_job_log"))


RUN = "_step,_runtime,_timestamp,t,n,load,note\n"


@pytest.mark.slow
def test_steps_of_wandb_have_the_newest_values_before_them_in_their_run(tmp_path):
    rows = "0,0,10,,,5,x\n1,0,20,500,4,,\n2,0,30,0,0,7,\n3,0,,9,9,9,\n4,0,40,-1,4,,\n5,0,50,250,-4,,\n0,0,60,250,8,8,\n"
    path = written(tmp_path, RUN + rows + "1,0,70,250,8,,\n", "r.x.csv")
    (trace,) = read_traces(path, "wandb", seconds="t", samples="n", unit="ms")
    np.testing.assert_array_equal(trace.seconds[:, 0], [0.5, 0, NAN, NAN, 0.25, 0.25])
    np.testing.assert_array_equal(trace.samples[:, 0], [4, 0, NAN, NAN, 8, 8])
    np.testing.assert_array_equal(trace.start[:, 0], [19.5, 30, NAN, NAN, 59.75, 69.75])
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [5, 5, 7, 7, NAN, 8])
    assert (trace.name, trace.covariate_names, trace.meta["restarts"]) == ("r", ("load",), "1")
    assert trace.meta["columns_dropped"] == "note: no numbers"
    assert trace.meta["dropped"] == "1 rows without a time, 2 steps with negative or unknown seconds or samples"
    (trace,) = read_traces(path, "wandb", seconds="t")
    assert trace.samples[0, 0] == 1.0
    assert trace.seconds[0, 0] == 500
    for name, said in (("z", "column 'z' is not there or holds no numbers"), ("note", "column 'note' is not there")):
        with pytest.raises(ValueError, match=said):
            read_traces(path, "wandb", seconds=name)
        with pytest.raises(ValueError, match=said):
            read_traces(path, "wandb", seconds="t", samples=name)
    with pytest.raises(ValueError, match="column 't' is empty in every row"):
        read_traces(written(tmp_path, RUN + "0,0,10,,1,1,\n"), "wandb", seconds="t")
    with pytest.raises(ValueError, match="column '_timestamp' is empty in every row"):
        read_traces(written(tmp_path, RUN + "0,0,,5,1,1,\n"), "wandb", seconds="t")


def test_usage_of_wandb_is_every_row_and_names_at_most_some_likely_times(tmp_path):
    names = ",".join(f"step{k}_time" for k in range(9))
    path = written(tmp_path, f"_step,_runtime,_timestamp,a/{names},system.cpu\n0,0,10{',1' * 9},3\n1,0,20{',1' * 9},\n")
    with pytest.warns(UserWarning, match=r"likely ones are \['a/step0_time', 'step1_time'"):
        (trace,) = read_traces(path, "wandb")
    assert trace.covariate_names == ("system.cpu",)
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [3, NAN])
    np.testing.assert_array_equal(trace.start[:, 0], [10, 20])


def test_files_of_a_folder_are_put_together_by_format_folder_and_job(tmp_path, caplog):
    usage = "time,machine_id,cpu_util\n2017-10-03 00:08:00 PDT,m1,12.5\n2017-10-03 00:09:00 PDT,m1,13\n"
    for name in ("a/x.csv", "a/y.csv", "b/x.csv", ".git/z.csv", "b/.hidden/z.csv"):
        written(tmp_path, usage, name)
    written(tmp_path, "something\n", "b/other.txt")
    board = "Wall time,Step,Value\n1,2,3\n2,3,4\n"
    for name in ("a/t1.csv", "a/t2.csv"):
        written(tmp_path, board, name)
    below = ["a/t1.csv", "a/t2.csv", "a/x.csv", "a/y.csv", "b/other.txt", "b/x.csv"]
    assert [str(file.relative_to(tmp_path)) for file in _files_below(tmp_path)] == below
    left = []
    found = [
        (chosen.name, [str(file.relative_to(tmp_path)) for file in files])
        for chosen, files in jobs_of(tmp_path, left_out=lambda file, why: left.append(file.name))
    ]
    assert ("tensorboard", ["a/t1.csv", "a/t2.csv"]) in found
    assert sorted(name for name, _ in found) == ["philly_cpu"] * 3 + ["tensorboard"]
    assert left == ["other.txt"]
    with caplog.at_level(logging.INFO):
        assert [chosen.name for chosen, _ in jobs_of(tmp_path, "tensorboard")] == ["tensorboard"]
    assert "left out: " in caplog.text
    with pytest.raises(ValueError, match=r"a: holds no file of dstat$"):
        list(jobs_of(tmp_path / "a", "dstat"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: holds no file of a format that is recognised$"):
        list(jobs_of(tmp_path / "empty"))
    with pytest.raises(ValueError, match="there is no format 'x'; there are "):
        list(jobs_of(tmp_path / "a/x.csv", "x"))
    assert recognise(tmp_path / "a/x.csv").name == "philly_cpu"
