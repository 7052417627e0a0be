"""What a trace makes of its arguments: types, defaults, names, parts, and the sentence for each mistake."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.datasets.columns import MEASURED

NAN = float("nan")
FOUR = [[8, 8], [8, 8]]


def whole(iterations=3, workers=2, **changed):
    """A trace with every panel, each of its own numbers."""
    rng, shape = np.random.default_rng(0), (iterations, workers)
    panels = {name: rng.uniform(1, 9, shape) for name in MEASURED}
    names = [f"w{w}" for w in range(workers)]
    return Trace(
        **{
            **panels,
            "covariates": rng.uniform(1, 9, (*shape, 2)),
            "covariate_names": ["cpu", "memory"],
            "workers": names,
            "meta": {"job": "made"},
            **changed,
        }
    )


def test_numbers_of_any_type_become_floats_and_are_copied():
    given_TW = np.array([[1, 2]])
    trace = Trace(given_TW, [[3, 4]], covariates=[[[5], [6]]], covariate_names=["cpu"])
    for panel in (trace.samples, trace.seconds, trace.covariates):
        assert panel.dtype == np.float64
        assert not panel.flags.writeable
    assert given_TW.flags.writeable
    narrow = np.array([[0.1, 0.2]], dtype=np.float32)
    narrow.setflags(write=False)
    assert Trace(narrow, narrow).seconds.dtype == np.float64


def test_arrays_that_their_owner_made_read_only_are_shared_and_all_others_copied():
    frozen_TW, open_TW, covariates_TWD = np.full((2, 1), 3.0), np.full((2, 1), 4.0), np.full((2, 1, 1), 5.0)
    frozen_TW.setflags(write=False)
    covariates_TWD.setflags(write=False)
    trace = Trace(frozen_TW, open_TW, covariates=covariates_TWD, covariate_names=["cpu"])
    assert trace.samples is frozen_TW
    assert trace.covariates is covariates_TWD
    assert trace.seconds is not open_TW
    assert open_TW.flags.writeable


def test_names_and_meta_become_text_and_workers_are_numbered_where_they_have_no_name():
    trace = Trace(FOUR, FOUR, workers=[3, 5], meta={"seed": 7}, covariates=np.ones((2, 2, 1)), covariate_names=[9])
    assert (trace.workers, dict(trace.meta), trace.covariate_names) == (("3", "5"), {"seed": "7"}, ("9",))
    plain = Trace([[1, 2, 3]], [[1, 2, 3]])
    assert (plain.workers, dict(plain.meta), plain.covariate_names) == (("0", "1", "2"), {}, ())
    assert [getattr(plain, name) for name in (*MEASURED[2:], "covariates")] == [None] * 5


def test_a_trace_tells_its_length_its_name_and_its_shape():
    assert len(whole(3, 2)) == 3
    assert (whole().name, Trace([[1]], [[1]]).name) == ("made", "trace")
    assert repr(whole(3, 2)) == "<Trace 'made': 3 iterations x 2 workers; cpu, memory>"
    assert repr(Trace([[1]], [[1]])) == "<Trace 'trace': 1 iterations x 1 workers; no covariates>"


def test_two_traces_are_one_only_if_they_are_the_same_object():
    one, other = whole(), whole()
    assert one != other
    assert one == one
    assert len({one, other, one}) == 2


def test_a_pickled_trace_has_all_of_its_parts():
    trace = whole()
    again = pickle.loads(pickle.dumps(trace))
    for name in (*MEASURED, "covariates"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
    assert (again.workers, again.covariate_names, again.meta) == (trace.workers, trace.covariate_names, trace.meta)


@given(st.lists(st.tuples(*[st.sampled_from([NAN, 0.0, 1e-300, 2.0, 1e15])] * 2), min_size=1, max_size=6))
@settings(max_examples=40)
def test_speed_is_samples_over_seconds_where_that_is_a_positive_number(cells):
    samples, seconds = np.array(cells).T[:, None, :]
    expected = [n / s if s > 0 and 0 < n / s < np.inf else NAN for n, s in cells]
    np.testing.assert_array_equal(Trace(samples, seconds).speed, [expected])


@given(st.slices(4), st.permutations(["w0", "w1", "w2"]), st.integers(1, 3))
@settings(max_examples=40)
def test_a_part_has_the_iterations_and_workers_asked_for_in_that_order(iterations, names, count):
    trace, asked = whole(4, 3), names[:count]
    if not len(range(4)[iterations]):
        with pytest.raises(ValueError, match="at least one iteration"):
            trace.select(iterations, asked)
        return
    part = trace.select(iterations, asked)
    at = [trace.workers.index(name) for name in asked]
    assert (part.workers, part.covariate_names, part.meta) == (tuple(asked), trace.covariate_names, trace.meta)
    for name in (*MEASURED, "covariates"):
        np.testing.assert_array_equal(getattr(part, name), getattr(trace, name)[iterations][:, at])
    np.testing.assert_array_equal(trace.select(iterations).work, trace.work[iterations])


def test_a_part_of_a_trace_without_optional_panels_has_none_either():
    part = Trace(FOUR, FOUR).select(slice(1), workers=["1"])
    assert [getattr(part, name) for name in (*MEASURED[2:], "covariates")] == [None] * 5


def test_covariates_by_name_come_in_the_order_asked_for():
    trace = whole()
    found = trace.covariates_named(["memory", "none", "cpu"])
    np.testing.assert_array_equal(found[:, :, 0], trace.covariates[:, :, 1])
    assert np.isnan(found[:, :, 1]).all()
    np.testing.assert_array_equal(found[:, :, 2], trace.covariates[:, :, 0])
    assert np.isnan(Trace(FOUR, FOUR).covariates_named(["cpu"])).all()


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("bad", [-1e-300, -1.0, np.inf])
def test_every_measured_panel_refuses_the_first_number_that_cannot_be_and_a_start_takes_all(name, bad):
    panel = np.zeros((3, 2))
    panel[1, 1] = panel[2, 0] = bad
    if name == "start":
        np.testing.assert_array_equal(whole(3, 2, start=panel).start, panel)
        return
    with pytest.raises(ValueError, match=f"^{name} must be finite and not negative, got {bad} at iteration 1, worker"):
        whole(3, 2, **{name: panel})
    assert np.isnan(getattr(whole(3, 2, **{name: np.where(panel == bad, NAN, 0.0)}), name)).sum() == 2


@pytest.mark.parametrize("name", [*MEASURED[:1], *MEASURED[2:]])
def test_every_other_panel_has_the_shape_of_seconds(name):
    with pytest.raises(ValueError, match=rf"^{name} must have the shape of seconds \(3, 2\), got \(2, 2\)$"):
        whole(3, 2, **{name: np.ones((2, 2))})


@pytest.mark.parametrize("shape", [(), (2,), (1, 1, 1)])
def test_a_panel_has_two_axes(shape):
    with pytest.raises(ValueError, match=r"^seconds must have the shape \[iterations, workers\], got \("):
        Trace(np.ones(shape), np.ones(shape))


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_a_panel_holds_an_iteration_of_a_worker(shape):
    with pytest.raises(ValueError, match=r"^seconds must hold at least one iteration of one worker, got the shape"):
        Trace(np.ones(shape), np.ones(shape))


def test_covariates_and_their_names_go_together_and_have_one_shape():
    for part in ({"covariates": np.ones((2, 2, 1))}, {"covariate_names": ["cpu"]}):
        with pytest.raises(ValueError, match=r"^covariates and covariate_names go together: give both or neither$"):
            Trace(FOUR, FOUR, **part)
    for shape in ((2, 2, 2), (1, 2, 1), (2, 1, 1), (2, 2)):
        with pytest.raises(ValueError, match=r"^covariates must have the shape .* \(2, 2, 1\), got"):
            Trace(FOUR, FOUR, covariates=np.ones(shape), covariate_names=["cpu"])


@pytest.mark.parametrize(
    ("count", "said"), [(999, r"\['a', 'b'\]"), (1000, "repeated names"), (1001, "repeated names")]
)
def test_names_that_repeat_are_named_unless_there_are_a_thousand(count, said):
    names = ["b", "a", "b", "a", *map(str, range(count - 4))]
    with pytest.raises(ValueError, match=f"^workers must not repeat a name, got {said}$"):
        Trace(np.ones((1, count)), np.ones((1, count)), workers=names)
    with pytest.raises(ValueError, match=f"^covariate_names must not repeat a name, got {said}$"):
        Trace([[1]], [[1]], covariates=np.ones((1, 1, count)), covariate_names=names)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_each_worker_has_a_name(names):
    with pytest.raises(ValueError, match=f"^workers must name all 2 workers, got {len(names)} names$"):
        Trace(FOUR, FOUR, workers=names)


def test_a_file_gives_workers_back_in_their_own_order_and_one_without_names_in_that_of_the_frame(tmp_path):
    trace = replace(whole(2, 3), workers=["b", "c", "a"])
    path = trace.save(tmp_path / "t.parquet")
    again = Trace.load(path)
    assert (again.workers, dict(again.meta)) == (("b", "c", "a"), {"job": "made"})
    np.testing.assert_array_equal(again.work, trace.work)
    trace.to_frame().to_parquet(tmp_path / "plain.parquet")
    assert Trace.load(tmp_path / "plain.parquet").workers == ("a", "b", "c")


def test_the_meta_of_a_frame_is_what_is_given_and_what_was_found():
    frame = pd.DataFrame({"worker": "a", "iteration": [0, 2], "samples": 1, "seconds": 1})
    trace = Trace.from_frame(frame, meta={"job": "x", "absent": "unknown"})
    assert dict(trace.meta) == {"job": "x", "absent": "1 of 3 iterations, for all workers"}
    assert dict(Trace.from_frame(frame[:1], meta={"job": "x"}).meta) == {"job": "x"}
    assert dict(Trace.from_frame(frame[:1]).meta) == {}
