"""Readers of batch-time profiles: small files made here, and the real ones where they are."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import read_profiles
from paceline.predictors import BatchTime

CURVE = ["source", "device", "model", "held"]
COLUMNS = ("source", "device", "model", "batch", "seconds", "comm_seconds", "held")

REAL = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[3] / "shared" / "data")) / "batch_profiles"
needs_real = pytest.mark.skipif(
    not REAL.is_dir(),
    reason=f"the recorded batch profiles are not in {REAL}: point PACELINE_DATA to the folder that holds them",
)


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_gavel_rates_become_seconds(tmp_path):
    jobs = {
        "('LM (batch size 20)', 1)": {"null": 4.0},
        "('LM (batch size 80)', 2)": {"null": 0},
        "('A3C', 1)": {"null": 9},
    }
    frame = read_profiles(written(tmp_path / "rates.json", {"k80": jobs}), "gavel")
    assert tuple(frame.columns) == COLUMNS
    assert frame[["device", "model", "batch", "held"]].to_numpy().tolist() == [
        ["k80", "LM", 20.0, "1 workers"],
        ["k80", "LM", 80.0, "2 workers"],
    ], "jobs without a batch size in their name have no curve"
    assert frame["seconds"][0] == 0.25
    assert np.isnan(frame["seconds"][1])


def test_zeus_epochs_become_steps(tmp_path):
    text = (
        "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\ncifar,net,100,adam,250,20,99\n"
    )
    path = written(tmp_path / "summary_power_v100.csv", text)
    known = read_profiles(path, "zeus", epoch_samples={"cifar": 50_000}).iloc[0]
    assert (known["device"], known["model"], known["held"]) == ("v100", "net/cifar", "adam, 250 W")
    assert known["seconds"] == pytest.approx(20 / 500)
    unknown = read_profiles(path, "zeus").iloc[0]
    assert unknown["seconds"] == pytest.approx(20 * 100)
    assert unknown["held"].endswith("seconds x samples of an epoch")


def test_pollux_compute_excludes_sync(tmp_path):
    text = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,4,8,0.75,0.25\n"
    row = read_profiles(written(tmp_path / "bert_scalability.csv", text), "pollux").iloc[0]
    assert (row["model"], row["batch"], row["seconds"], row["comm_seconds"]) == ("bert", 8, 0.5, 0.25)
    assert row["held"] == "num_nodes 2, num_replicas 4"


def test_flash_sizes_are_in_samples_again(tmp_path):
    path = written(tmp_path / "nexus6_lstm.json", {"X": [[0.2, 0.4, 0.6, 0.8]], "Y": [[1.5]]})
    row = read_profiles(path, "flash").iloc[0]
    assert (row["device"], row["model"], row["batch"], row["seconds"]) == ("nexus6", "lstm", 30, 1.5)
    assert row["held"] == "in 200, out 400, steps 8"


@pytest.mark.parametrize(
    ("name", "kind", "content", "sentence"),
    [
        ("a.json", "gavel", "{", r"a\.json: is not a complete JSON file"),
        ("a.json", "gavel", [1], r"a\.json: must hold a JSON object, got a list"),
        ("a.json", "gavel", {"k80": {"LM": {"null": 1}}}, r"a\.json: entry 'LM' of 'k80' must be"),
        ("a.json", "gavel", {"k80": {"('LM (batch size 2)', 1)": {}}}, r"a\.json: entry .* of 'k80' must be"),
        ("a.json", "gavel", {}, r"a\.json: holds no measurement"),
        ("a.json", "gavel", {"k80": 0}, r"a\.json: 'k80' must hold a mapping of jobs"),
        ("a.json", "gavel", {"k80": {"(1, 1)": {"null": 1}}}, r"a\.json: entry '\(1, 1\)' of 'k80' must be"),
        ("a.json", "gavel", {"k80": {"(" * 5000: {"null": 1}}}, r"a\.json: entry '\(\(.* of 'k80' must be"),
        ("a.json", "gavel", "[" * 100_000, r"a\.json: is not a complete JSON file"),
        ("a.json", "gavel", "9" * 5000, r"a\.json: is not a complete JSON file"),
        ("a_lstm.json", "flash", {"X": 1, "Y": 1}, r"a_lstm\.json: must hold X and Y, lists"),
        ("a_lstm.json", "flash", {"X": [[0.5, 1, 0, {}]], "Y": [[1]]}, r"row 1: X must hold 4 numbers"),
        ("a_lstm.json", "flash", {"X": [[1, 1, 1, 1]], "Y": [1]}, r"row 1: X must hold 4 numbers and Y 1"),
        ("a_lstm.json", "flash", '{"X": [[1, 1, Infinity, 1]], "Y": [[1]]}', r"row 1: X must hold 4 numbers"),
        ("a_lstm.json", "flash", {"X": [[1, 1, 1]], "Y": [[1]]}, r"a_lstm\.json, row 1: X must hold 4 numbers"),
        ("a_lstm.json", "flash", {"X": [[1, 1, 1, 1]], "Y": [[-1]]}, r"row 1: seconds must be a number, positive"),
        ("a_gru.json", "flash", {"X": [], "Y": []}, r"a_gru\.json: a flash file is named"),
        (
            "a_placements.csv",
            "pollux",
            "placement,local_bsz,step_time\n1,2,3\n",
            r"columns \['sync_time'\] are missing",
        ),
        (
            "a_placements.csv",
            "pollux",
            "placement,local_bsz,step_time,sync_time\n1,4,1.0,0.1\n1,8,fast,0.1\n",
            r"a_placements\.csv, row 3: step_time must be a number, positive, got 'fast'",
        ),
        (
            "a_placements.csv",
            "pollux",
            "placement,local_bsz,step_time,sync_time\n1,4,1.0,0.1\n1,8,0.1,0.2\n",
            r"a_placements\.csv, row 3: seconds must be a number, positive",
        ),
        ("a_other.csv", "pollux", "x\n1\n", r"a_other\.csv: a pollux file is named"),
        ("a.csv", "zeus", "", r"a\.csv: has no header and no rows"),
        (
            "a.csv",
            "excel",
            "",
            r"format must be one of \['paceline', 'gavel', 'zeus', 'pollux', 'flash'\], got 'excel'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_and_row(tmp_path, name, kind, content, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_profiles(written(tmp_path / name, content), kind)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for read in (lambda path: read_profiles(path, "gavel"), read_profiles):
        with pytest.raises(FileNotFoundError, match=r"there is no profile .*absent\.csv"):
            read(tmp_path / "absent.csv")


def saved(frame, path):
    frame.to_csv(path, index=False)
    return path


def made():
    rows = [("measured", "gpu", "net", 8.0, 0.125, np.nan, ""), ("measured", "gpu", "net", 16.0, np.nan, np.nan, "")]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_a_saved_profile_comes_back(tmp_path):
    pd.testing.assert_frame_equal(read_profiles(saved(made(), tmp_path / "profile.csv")), made())


def test_a_broken_row_of_a_saved_profile_is_named(tmp_path):
    path = saved(made(), tmp_path / "profile.csv")
    path.write_text(path.read_text("utf-8").replace("16.0", "many"))
    with pytest.raises(ValueError, match=r"profile\.csv, row 3: batch must be a number, positive, got 'many'"):
        read_profiles(path)


@pytest.mark.slow
@needs_real
@pytest.mark.parametrize(("kind", "curves"), [("gavel", 100), ("zeus", 80), ("pollux", 400), ("flash", 750)])
def test_the_recorded_profiles_are_read_whole(kind, curves):
    paths = [path for path in sorted((REAL / kind).iterdir()) if path.suffix in {".json", ".csv"}]
    frame = pd.concat([read_profiles(path, kind) for path in paths])
    assert (frame["batch"] > 0).all()
    assert (frame["seconds"].dropna() > 0).all()
    assert frame.groupby(CURVE).ngroups >= curves
    assert not frame.duplicated([*CURVE, "batch"]).any(), "every curve holds each batch once"


@pytest.mark.checkout
def test_the_page_on_profiling_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """Two devices, profiled: t = max(.02, .01 + .001 x) on one, three times as slow on the other."""
    monkeypatch.chdir(tmp_path)
    for device, factor in (("a100", 1.0), ("t4", 3.0)):
        rows = [
            ("mine", device, "net", x, factor * max(0.02, 0.01 + 0.001 * x), np.nan, "")
            for x in (4, 8, 16, 32, 64, 128)
        ]
        saved(pd.DataFrame(rows, columns=list(COLUMNS)), tmp_path / f"{device}.csv")
    page = (Path(__file__).parents[2] / "docs" / "howto" / "profiling.md").read_text("utf-8")
    namespace = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(code, namespace)
    sizes = namespace["chosen"].sizes
    assert sizes.sum() == 256
    assert abs(sizes[0] - sizes[1]) <= 1
    assert sizes[2] < sizes[0] / 2


def test_uncertainty_saved_and_weights_fit(tmp_path):
    """Two sizes of six are off by half, and known to be uncertain."""
    size = np.array([8.0, 16, 32, 64, 128, 256])
    seconds = 0.01 + 1e-4 * size
    seconds[[2, 4]] *= 1.5
    rows = pd.DataFrame({"source": "measured", "device": "mine", "model": "net", "batch": size, "seconds": seconds})
    rows = rows.assign(comm_seconds=np.nan, held="", uncertainty=[0.01, 0.01, 0.5, 0.01, 0.5, np.nan])
    back = read_profiles(saved(rows, tmp_path / "p.csv"))
    np.testing.assert_array_equal(back["uncertainty"], rows["uncertainty"])
    fitted = BatchTime(devices={"0": "mine"}).fit_profiles(back)
    floor, slope, intercept, *_ = fitted.curves_["mine"]
    assert np.allclose(np.maximum(floor, intercept + slope * size[[0, 1, 3, 5]]), seconds[[0, 1, 3, 5]], rtol=0.02)
