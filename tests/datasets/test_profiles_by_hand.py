"""Rows of published profiles of batch times, and of our own, read one by one."""

import json

import numpy as np
import pandas as pd
import pytest

from paceline.datasets.profiles import COLUMNS, load_profile, read_profiles, save_profile


def test_texts_of_a_profile_stay_texts_and_other_columns_are_left(tmp_path):
    rows = [("NA", "007", "null", 8.0, 0.5, np.nan, "1.0"), ("", "nan", "n", 1e-9, np.nan, 0.0, "")]
    profile = pd.DataFrame(rows, columns=list(COLUMNS)).assign(more=1)[["more", *reversed(COLUMNS)]]
    path = save_profile(profile, str(tmp_path / "a.csv"))
    assert path == tmp_path / "a.csv"
    assert path.read_text().splitlines()[1] == "NA,007,null,8.0,0.5,,1.0"
    found = load_profile(str(path))
    pd.testing.assert_frame_equal(found, pd.DataFrame(rows, columns=list(COLUMNS)))
    with pytest.raises(
        ValueError, match=r"^profile must have the columns \['source', .*\], but \['device', 'held'\] a"
    ):
        save_profile(profile.drop(columns=["held", "device"]), path)


HEADER = ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("s,d,m,0,1,,h", "batch must be a number, positive, got '0'"),
        ("s,d,m,-1,1,,h", "batch must be a number, positive, got '-1'"),
        ("s,d,m,,1,,h", "batch must be a number, positive, got ''"),
        ("s,d,m,inf,1,,h", "batch must be a number, positive, got 'inf'"),
        ("s,d,m,1,0,,h", "seconds must be a number, positive, got '0'"),
        ("s,d,m,1,nan,,h", "seconds must be a number, positive, got 'nan'"),
        ("s,d,m,1,1,-0.1,h", "comm_seconds must be a number, at least 0, got '-0.1'"),
    ],
)
def test_a_wrong_number_of_a_profile_is_named_with_its_row(tmp_path, cells, said):
    (tmp_path / "a.csv").write_text(f"{HEADER}\ns,d,m,1,1,0,h\n{cells}\n")
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - all of it is compared
        read_profiles(tmp_path / "a.csv")
    assert str(refused.value) == f"{tmp_path / 'a.csv'}, row 3: {said}"


def test_a_table_that_lacks_columns_or_rows_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("source,device,more\n")
    with pytest.raises(ValueError, match=r"a\.csv: columns \['model', 'batch', .* are missing, it has \['source', 'de"):
        read_profiles(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(f"{HEADER}\n")
    with pytest.raises(ValueError, match=r"a\.csv: holds no measurement$"):
        read_profiles(tmp_path / "a.csv")


def test_rows_of_gavel_and_zeus_are_numbered_as_in_their_files(tmp_path):
    rates = {"v100": {"('LM (batch size 8)', 4)": {"null": -2.0}, "('LM (batch size 0)', 1)": {"null": 1.0}}}
    (tmp_path / "a.json").write_text(json.dumps(rates))
    with pytest.raises(ValueError, match=r"a\.json, row 2: batch must be a number, positive, got '0'"):
        read_profiles(tmp_path / "a.json", "gavel")
    rates["v100"].popitem()
    (tmp_path / "a.json").write_text(json.dumps(rates))
    (row,) = read_profiles(tmp_path / "a.json", "gavel").to_numpy().tolist()
    assert [*row[:4], row[6]] == ["gavel", "v100", "LM", 8.0, "4 workers"]
    assert np.isnan(row[4:6]).all(), "a rate below 0 is none"
    header = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch\n"
    path = tmp_path / "summary_power_a40.csv"
    path.write_text(f"{header}d,n,8,adam,100,2.0\nd,n,8,adam,100,0\n")
    with pytest.raises(ValueError, match=r"a40\.csv, row 3: time_per_epoch must be a number, positive, got '0'"):
        read_profiles(path, "zeus")
    path.write_text(f"{header}d,n,8,adam,100,2.0\nd,n,-8,adam,100,2\n")
    with pytest.raises(ValueError, match=r"a40\.csv, row 3: batch_size must be a number, positive, got '-8'"):
        read_profiles(path, "zeus")
    path.write_text(f"{header}d,n,8,adam,100,2.0\ne,n,8,adam,100,2\n")
    found = read_profiles(path, "zeus", epoch_samples={"d": 32})
    assert found["seconds"].tolist() == [0.5, 16.0]
    assert found["held"].tolist() == ["adam, 100 W", "adam, 100 W, seconds x samples of an epoch"]
    assert (found["device"].tolist(), found["source"].tolist()) == (["a40"] * 2, ["zeus"] * 2)


def test_pollux_holds_a_placement_and_its_times_are_positive(tmp_path):
    header, path = "placement,local_bsz,step_time,sync_time\n", tmp_path / "deep_net_placements.csv"
    path.write_text(f"{header}22,4,0.75,0.25\n")
    assert read_profiles(path, "pollux").to_numpy().tolist() == [
        ["pollux", "t4", "deep_net", 4.0, 0.5, 0.25, "placement 22"]
    ]
    for row, named in (("22,4,0,0.25", "step_time"), ("22,4,0.75,x", "sync_time")):
        path.write_text(f"{header}{row}\n")
        with pytest.raises(ValueError, match=rf"csv, row 2: {named} must be a number, positive"):
            read_profiles(path, "pollux")


@pytest.mark.parametrize(
    ("layer", "held"),
    [
        ("lstm", "in 200, out 400, steps 8"),
        ("embedding", "in 2000, out 400, steps 8"),
        ("output", "in 200, out 4000, steps 8"),
    ],
)
def test_flash_scales_the_sizes_of_each_layer(tmp_path, layer, held):
    path = tmp_path / f"big_phone_{layer}.json"
    path.write_text(json.dumps({"X": [[0.2, 0.4, 0.61, 0.8]] * 2, "Y": [[1.5], [2]]}))
    found = read_profiles(path, "flash").to_numpy().tolist()
    assert [row[:5] for row in found] == [["flash", "big_phone", layer, 30.0, seconds] for seconds in (1.5, 2.0)]
    assert [row[6] for row in found] == [held] * 2
    for features, time in (([1, 1, 1, "1"], [1]), ([1] * 5, [1]), ([1] * 4, [1, 1]), (1, [1])):
        path.write_text(json.dumps({"X": [[1] * 4, features], "Y": [[1], time]}))
        with pytest.raises(ValueError, match=r"json, row 2: X must hold 4 numbers and Y 1, got "):
            read_profiles(path, "flash")
    path.write_text(json.dumps({"X": [[1] * 4] * 2, "Y": [[1]]}))
    with pytest.raises(ValueError, match=r"json: must hold X and Y, lists of the same length$"):
        read_profiles(path, "flash")
