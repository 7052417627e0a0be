"""Tables of public tools, and what their options change: units, samples, workers, periods and what values are."""

import json

import numpy as np
import pytest

from paceline.datasets import read_traces
from paceline.datasets.readers import FORMATS

NAN = float("nan")


@pytest.fixture
def chart(tmp_path):
    names = [f"{run} - t{end}" for run in ("fast", "slow") for end in ("", "__MIN", "__MAX")]
    path = tmp_path / "chart.csv"
    path.write_text(",".join(["Step", *names]) + "\n0,250,1,1,500,1,1\n1,125,1,1,,,\n")
    return path


@pytest.mark.parametrize(
    ("options", "workers", "speed"),
    [
        ({"values": "seconds", "unit": "ms", "samples": 32}, ("fast", "slow"), [[128, 64], [256, NAN]]),
        ({"values": "seconds"}, ("fast", "slow"), [[1 / 250, 1 / 500], [1 / 125, NAN]]),
        ({"values": "seconds", "workers": ["slow"], "unit": "ms"}, ("slow",), [[2], [NAN]]),
        ({"values": "rate", "workers": ["fast"]}, ("fast",), [[250], [125]]),
        ({"values": "rate"}, ("fast", "slow"), [[250, 500], [125, NAN]]),
    ],
)
def test_a_line_of_a_chart_is_a_worker(chart, options, workers, speed):
    (trace,) = read_traces(chart, "wandb_chart", **options)
    assert trace.workers == workers
    np.testing.assert_allclose(trace.speed, speed)


def test_a_chart_of_usage_has_no_speed_and_one_untold_is_refused(chart):
    (trace,) = read_traces(chart, "wandb_chart", values="usage")
    assert np.isnan(trace.speed).all()
    np.testing.assert_array_equal(trace.covariates[..., 0], [[250, 500], [125, NAN]])
    with pytest.raises(ValueError, match=r"chart\.csv: does not say what its values are: give values=seconds \(and un"):
        read_traces(chart, "wandb_chart")
    with pytest.raises(ValueError, match=r"there must be a column for each worker, but \['gone'\] is none of"):
        read_traces(chart, "wandb_chart", values="rate", workers=["gone"])


def test_a_chart_is_known_by_a_line_with_its_least_and_its_most():
    says = FORMATS["wandb_chart"].recognises
    for names, known in (
        (["Step", "a - t", "a - t__MIN", "a - t__MAX"], True),
        (["a - t", "a - t__MIN"], False),
        (["a - t", "a - t__MAX"], False),
        (["a - t__MIN", "a - t__MAX"], False),
    ):
        assert says(None, ",".join(names)) is known


def answered(path, series):
    result = [{"metric": {"pod": pod}, "values": values} for pod, values in series.items()]
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path


def test_a_step_of_a_query_is_an_iteration(tmp_path):
    path = answered(tmp_path / "a.json", {"a": [[0, "250"], [60, "500"], [180, "125"]], "b": [[60, "1000"]]})
    (trace,) = read_traces(path, "prometheus", values="seconds", unit="ms", samples=8)
    assert len(trace.workers) == 2
    np.testing.assert_allclose(trace.speed, [[32, NAN], [16, 8], [NAN, NAN], [64, NAN]])
    (rate,) = read_traces(path, "prometheus", values="rate", period=120)
    np.testing.assert_allclose(rate.speed, [[375, 1000], [125, NAN]])
    (usage,) = read_traces(path, "prometheus", values="usage")
    assert np.isnan(usage.speed).all()
    np.testing.assert_array_equal(usage.covariates[:, 1, 0], [NAN, 1000, NAN, NAN])
    with pytest.raises(ValueError, match=r"a\.json: does not say what its values are"):
        read_traces(path, "prometheus")


def test_a_query_of_one_moment_is_one_iteration(tmp_path):
    path = answered(tmp_path / "a.json", {"a": [[7, "2"]], "b": [[7, "4"]]})
    (trace,) = read_traces(path, "prometheus", values="rate")
    np.testing.assert_allclose(trace.speed, [[2, 4]])
