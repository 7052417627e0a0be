"""Batch-time profiles: written, read, fitted."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import read_profiles
from paceline.predictors import BatchTime

COLUMNS = ("source", "device", "model", "batch", "seconds", "comm_seconds", "held")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"a\.csv: the file has no header and no rows"),
        (f"{','.join(COLUMNS)}\n", r"a\.csv has no rows"),
        ("source,device,model,batch\nmine,t4,net,8\n", r"columns \['seconds', 'comm_seconds', 'held'\] are missing"),
        (
            f"{','.join(COLUMNS)}\nmine,t4,net,8,1,,\nmine,t4,net,,1,,\n",
            r"a\.csv: batch must be a number above 0, but row 3 holds",
        ),
        (f"{','.join(COLUMNS)}\nmine,t4,net,8,-1,,\n", r"seconds must be a number above 0, but row 2 holds '-1'"),
        (
            f"{','.join(COLUMNS)}\nmine,t4,net,8,1,-1,\n",
            r"comm_seconds must be a number of at least 0, but row 2 holds '-1'",
        ),
    ],
)
def test_profile_error_names_file_and_row(tmp_path, text, sentence):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_profiles(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no profile .*absent\.csv"):
        read_profiles(tmp_path / "absent.csv")


def saved(frame, path):
    frame.to_csv(path, index=False)
    return path


def made():
    rows = [("measured", "gpu", "net", 8.0, 0.125, np.nan, ""), ("measured", "gpu", "net", 16.0, np.nan, np.nan, "")]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_a_saved_profile_comes_back(tmp_path):
    pd.testing.assert_frame_equal(read_profiles(saved(made(), tmp_path / "profile.csv")), made())


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
