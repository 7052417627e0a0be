"""Model files that somebody made to do harm: each ends in one sentence that names the file, and takes no memory."""

import json

import numpy as np
import pytest
from bounded import bounded
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from paceline.predictors import ARIMA, EWMA, KINDS, LSTM, NARX, RLS, GatedNARX, Training, checks
from paceline.training import describe_model, fit, load_model, save_model

GOOD = {"format_version": 1, "kind": "EWMA", "configuration": {"smoothing": 0.2}, "fitted_on": "", "text": {}}


def model_file(folder, about, **arrays):
    path = folder / "model.safetensors"
    header = about if isinstance(about, str) else json.dumps(about)
    path.write_bytes(save(arrays, metadata={"paceline": header}))
    return path


def refused(path, sentence=None, load=load_model):
    with pytest.raises(ValueError, match=sentence) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).count("model again") <= 1


def test_reference_file_is_loaded(tmp_path):
    assert load_model(model_file(tmp_path, GOOD)).smoothing == 0.2


@pytest.mark.parametrize(
    "header",
    ["", "{", "[]", "7", "null", '"text"', "[" * 100_000, "{}", '{"format_version": [1]}', '{"format_version": 1}'],
)
@pytest.mark.parametrize("load", [load_model, describe_model])
def test_a_header_that_is_none_is_refused(tmp_path, header, load):
    refused(model_file(tmp_path, header), "header|format", load)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": ["EWMA"]},
        {"kind": None},
        {"kind": "FleetPredictor"},
        {"configuration": None},
        {"configuration": [1]},
        {"configuration": {"smoothing": "0.2"}},
        {"configuration": {"smoothing": [0.2]}},
        {"configuration": {"smoothing": {}}},
        {"configuration": {"smoothing": 1e300}},
        {"configuration": {"self": 1}},
        {"configuration": {"other": 1}},
        {"text": None},
        {"text": {"names": "abc"}},
        {"text": {"names": [["a"]]}},
        {"text": {"names": [1]}},
        {"text": {"surplus": ["a"]}},
        {"fitted_on": 7},
    ],
)
def test_a_header_with_one_wrong_part_is_refused(tmp_path, changed):
    refused(model_file(tmp_path, GOOD | changed))


@pytest.mark.parametrize(
    ("kind", "configuration"),
    [
        ("ARIMA", {"order": [0, 10**9, 0]}),
        ("ARIMA", {"order": [500, 0, 500]}),
        ("ARIMA", {"order": 7}),
        ("NARX", {"lags": 10**12}),
        ("NARX", {"covariate_lags": 10**12, "covariates": ["cpu"]}),
        ("NARX", {"training": {"epochs": "many"}}),
        ("NARX", {"training": {"unknown": 1}}),
        ("NARX", {"training": 7}),
        ("GatedNARX", {"covariate_lags": 10**11, "covariates": ["cpu"]}),
        ("LSTM", {"hidden": 10**11}),
        ("Mixture", {"experts": ["narx:lags=10000000000"]}),
        ("Mixture", {"experts": 7}),
        ("Mixture", {"experts": [["ewma"]]}),
        ("Calibrated", {"predictor": "arima:order=(900,0,900)"}),
        ("Calibrated", {"predictor": "ewma:smoothing=" + "(" * 5000 + ")" * 5000}),
        ("Calibrated", {"predictor": "no such thing"}),
        ("Calibrated", {"predictor": {"a": 1}}),
        ("BatchTime", {"relative_speed": "narx:lags=10000000000"}),
    ],
)
def test_impossible_configuration_refused(tmp_path, kind, configuration):
    refused(model_file(tmp_path, GOOD | {"kind": kind, "configuration": configuration}), "cannot be loaded")


@pytest.fixture(scope="module")
def fitted():
    quick, trace = Training(epochs=1), checks.example_trace()
    plain = [EWMA(smoothing=None), NARX(lags=3, hidden=4, training=quick), GatedNARX(hidden=4, training=quick)]
    others = [LSTM(hidden=4, training=quick), ARIMA(order=(1, 0, 1)), RLS()]
    return {type(one).__name__: fit(one, [trace]) for one in (*plain, *others)}


KINDS_FITTED = ["EWMA", "NARX", "GatedNARX", "LSTM", "ARIMA", "RLS"]


def wrong_shapes(value):
    yield np.concatenate([value.ravel(), value.ravel(), value.ravel()[:1]])
    if value.ndim == 2 and value.shape[0] != value.shape[1]:
        yield np.ascontiguousarray(value.T)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_FITTED)
def test_wrong_array_shape_refused(tmp_path, fitted, kind):
    path = save_model(fitted[kind], tmp_path / "good.safetensors")
    about, arrays = describe_model(path), fitted[kind].state_dict()
    numbers = {
        name.removeprefix("learned/"): np.ascontiguousarray(value)
        for name, value in arrays.items()
        if name.startswith("learned/") and value.dtype.kind != "U"
    }
    load_model(path)
    load_model(model_file(tmp_path, about, **numbers))
    for name, value in numbers.items():
        for wrong in wrong_shapes(value):
            refused(model_file(tmp_path, about, **(numbers | {name: wrong})), "cannot be loaded")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("NARX", "w1", np.nan),
        ("NARX", "covariate_mean", np.inf),
        ("EWMA", "smoothing", 7.0),
        ("EWMA", "smoothing", np.nan),
        ("RLS", "prior_variance", -1.0),
        ("RLS", "prior_weights", np.nan),
        ("ARIMA", "order", 10**9),
    ],
)
def test_number_out_of_range_refused(tmp_path, fitted, kind, name, value):
    path = save_model(fitted[kind], tmp_path / "good.safetensors")
    about, arrays = describe_model(path), fitted[kind].state_dict()
    numbers = {
        n.removeprefix("learned/"): np.array(v)
        for n, v in arrays.items()
        if n.startswith("learned/") and v.dtype.kind != "U"
    }
    numbers[name] = np.full_like(numbers[name], value)
    refused(model_file(tmp_path, about, **numbers), "cannot be loaded: .*fit and save the model again$")


LOADED = """
import sys
from paceline.training import load_model
import paceline.predictors, safetensors.numpy
limit(megabytes=600, cpu_seconds=20)
try:
    load_model(sys.argv[1])
except ValueError as error:
    assert sys.argv[1] in str(error)
    print("refused")
"""


def test_a_header_of_long_texts_takes_no_memory(tmp_path):
    """An array of texts gives each of them the room of the longest."""
    about = GOOD | {"text": {"names": ["x" * 1_000_000, *[""] * 100_000]}}
    assert bounded(LOADED, model_file(tmp_path, about)) == "refused"


def test_a_header_of_empty_lists_takes_no_memory(tmp_path):
    about = json.dumps(GOOD)[:-1] + ', "more": [' + "[]," * 20_000_000 + "[]]}"
    assert bounded(LOADED, model_file(tmp_path, about)) == "refused"


def loaded_or_refused(path):
    try:
        load_model(path)
    except ValueError as error:
        if str(path) not in str(error):
            raise AssertionError(f"the sentence does not name the file: {error}") from error


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["ewma", "narx"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = sorted({name for kind in KINDS for name in kind().get_params(deep=False)})


@settings(max_examples=150)
@given(st.sampled_from([kind.__name__ for kind in KINDS]), st.dictionaries(st.sampled_from(ARGUMENTS), plain))
@pytest.mark.slow
def test_any_configuration_loaded_or_refused(tmp_path_factory, kind, configuration):
    path = model_file(tmp_path_factory.getbasetemp(), GOOD | {"kind": kind, "configuration": configuration})
    loaded_or_refused(path)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4), st.sampled_from(KINDS_FITTED))
def test_flipped_bytes_loaded_or_refused(tmp_path_factory, fitted, at, instead, kind):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    save_model(fitted[kind], path)
    whole = path.read_bytes()
    at %= len(whole)
    path.write_bytes(whole[:at] + instead + whole[at + len(instead) :])
    loaded_or_refused(path)
