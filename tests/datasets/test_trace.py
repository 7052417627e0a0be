"""What a trace makes of its arguments: types, defaults, names, parts, and the sentence for each mistake."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paceline.datasets import Trace

MEASURED = ("samples", "seconds", "comm_seconds", "wait_seconds", "start", "work")


@st.composite
def traces(draw):
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 4)))
    amounts = st.one_of(st.just(np.nan), st.floats(0, 1e6))
    seconds = draw(arrays(np.float64, shape, elements=amounts))
    samples = draw(arrays(np.float64, shape, elements=amounts))
    with_covariates = draw(st.booleans())
    return Trace(
        samples,
        seconds,
        wait_seconds=draw(st.none() | arrays(np.float64, shape, elements=amounts)),
        work=draw(st.none() | arrays(np.float64, shape, elements=amounts)),
        covariates=draw(arrays(np.float64, (*shape, 2), elements=amounts)) if with_covariates else None,
        covariate_names=["cpu", "memory"] if with_covariates else [],
        workers=[f"gpu-{i}" for i in reversed(range(shape[1]))],
        meta={"job": "made", "unicode": "é"},
    )


def same(one: Trace, other: Trace) -> bool:
    panels = [(getattr(one, name), getattr(other, name)) for name in (*MEASURED, "covariates")]
    return (
        all((a is None) == (b is None) for a, b in panels)
        and all(a is None or np.array_equal(a, b, equal_nan=True) for a, b in panels)
        and (one.workers, one.covariate_names, dict(one.meta))
        == (other.workers, other.covariate_names, dict(other.meta))
    )


@pytest.mark.slow
@given(traces())
def test_a_trace_survives_parquet_whole(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    assert same(Trace.load(trace.save(path)), trace)


@pytest.mark.slow
@given(traces())
def test_frame_round_trip(trace):
    again = Trace.from_frame(trace.to_frame(), meta=trace.meta)
    assert same(again.select(workers=trace.workers), trace)


@given(traces())
def test_a_trace_survives_pickling(trace):
    assert same(pickle.loads(pickle.dumps(trace)), trace)


def test_a_trace_cannot_be_changed():
    source = np.ones((2, 2))
    trace = Trace(source, source, covariates=np.ones((2, 2, 1)), covariate_names=["cpu"], meta={"job": "a"})
    for panel in (trace.samples, trace.seconds, trace.covariates):
        with pytest.raises(ValueError, match="read-only"):
            panel[0] = 5.0
    with pytest.raises(TypeError):
        trace.meta["job"] = "b"
    with pytest.raises(AttributeError):
        trace.seconds = source
    source[:] = 7.0
    assert (trace.seconds == 1.0).all()


def test_covariates_named_missing_are_nan():
    trace = Trace([[1.0]], [[1.0]], covariates=[[[0.5, 0.7]]], covariate_names=["cpu", "memory"])
    np.testing.assert_array_equal(trace.covariates_named(["memory", "gpu"]), [[[0.7, np.nan]]])
    assert trace.covariates_named([]) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seconds": [[1.0, -1.0]]}, "seconds must be a number from 0 to .*, got -1.0 at iteration 0, worker 1"),
        ({"samples": [[1.0]]}, r"samples must have the shape of seconds \(1, 2\), got \(1, 1\)"),
        ({"seconds": [1.0, 2.0]}, r"seconds must have the shape \[iterations, workers\]"),
        ({"seconds": np.ones((0, 2))}, "at least one iteration"),
        ({"workers": ["a"]}, "workers must have 2 names, .* got 1"),
        ({"workers": ["a", "a"]}, r"workers must not repeat a name, got \['a'\]"),
        ({"covariate_names": ["cpu"]}, "covariates and covariate_names go together"),
        ({"covariates": np.ones((1, 2, 2)), "covariate_names": ["cpu"]}, "covariates must have the shape"),
    ],
)
def test_bad_arguments_are_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trace(**({"samples": [[1.0, 1.0]], "seconds": [[1.0, 1.0]]} | arguments))


FRAME = pd.DataFrame({"worker": ["a", "b"], "iteration": [0, 0], "samples": [8, 8], "seconds": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (FRAME.drop(columns="seconds"), r"columns \['seconds'\] are missing"),
        (FRAME.iloc[:0], "the frame has no rows"),
        (FRAME.assign(seconds=[1.0, -2.0]), "column 'seconds' must hold numbers from 0 to .*, but row 1 holds -2.0"),
        (FRAME.assign(seconds=["fast", "2"]), "column 'seconds' must hold numbers, but row 0 holds 'fast'"),
        (FRAME.assign(worker="a"), "worker a reports iteration 0 more than once"),
        (FRAME.assign(iteration=[0, 0.5]), "column 'iteration' must hold whole numbers"),
        (FRAME.assign(iteration=[0, np.nan]), "column 'iteration' must hold whole numbers"),
        (FRAME.assign(iteration=[0, 1e30]), r"at most 9007199254740991, but row 1 holds .*1e\+30"),
        (FRAME.assign(iteration=[0, np.inf]), "row 1 holds .*inf"),
        (FRAME.assign(worker=["a", None]), "column 'worker' must name a worker in every row, but row 1"),
    ],
)
def test_bad_file_is_named_with_cause(tmp_path, frame, sentence):
    path = tmp_path / "bad.parquet"
    frame.to_parquet(path)
    with pytest.raises(ValueError, match=sentence) as caught:
        Trace.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_cut_off_in_the_middle_is_named(tmp_path):
    path = Trace(np.ones((50, 2)), np.ones((50, 2))).save(tmp_path / "whole.parquet")
    for share in (0.0, 0.3, 0.99):
        cut = tmp_path / "cut.parquet"
        cut.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(ValueError, match=r"cut\.parquet: this is not a complete Parquet file"):
            Trace.load(cut)


def test_a_file_from_the_future_is_refused(tmp_path):
    import pyarrow.parquet as pq

    path = Trace([[1.0]], [[1.0]]).save(tmp_path / "trace.parquet")
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"paceline": '{"schema_version": 99}'}), path)
    with pytest.raises(ValueError, match=r"written with trace schema 99, .* reads schema 1: install"):
        Trace.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no trace file"):
        Trace.load(tmp_path / "nowhere.parquet")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_iteration_numbers_below_2_53(sign, kind):
    last, beyond = sign * (2**53 - 1), sign * 2**53
    frame = FRAME.assign(iteration=np.array([last, last - sign], dtype=kind))
    assert len(Trace.from_frame(frame)) == 2
    with pytest.raises(ValueError, match=f"at most {2**53 - 1}, but row 1 holds {beyond}"):
        Trace.from_frame(FRAME.assign(iteration=np.array([last, beyond], dtype=kind)))


def test_failed_write_keeps_old_file(tmp_path, monkeypatch):
    path = Trace([[1.0]], [[1.0]]).save(tmp_path / "trace.parquet")

    def fails(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("pyarrow.parquet.write_table", fails)
    with pytest.raises(OSError, match="disk full"):
        Trace([[2.0]], [[2.0]]).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]
    assert Trace.load(path).samples[0, 0] == 1.0


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


def test_names_and_meta_become_text():
    trace = Trace(FOUR, FOUR, workers=[3, 5], meta={"seed": 7}, covariates=np.ones((2, 2, 1)), covariate_names=[9])
    assert (trace.workers, dict(trace.meta), trace.covariate_names) == (("3", "5"), {"seed": "7"}, ("9",))
    plain = Trace([[1, 2, 3]], [[1, 2, 3]])
    assert (plain.workers, dict(plain.meta), plain.covariate_names) == (("0", "1", "2"), {}, ())
    assert [getattr(plain, name) for name in (*MEASURED[2:], "covariates")] == [None] * 5


@given(st.lists(st.tuples(*[st.sampled_from([NAN, 0.0, 1e-300, 2.0, 1e15])] * 2), min_size=1, max_size=6))
@settings(max_examples=40)
def test_speed_is_samples_over_seconds(cells):
    samples, seconds = np.array(cells).T[:, None, :]
    expected = [n / s if s > 0 and 0 < n / s < np.inf else NAN for n, s in cells]
    np.testing.assert_array_equal(Trace(samples, seconds).speed, [expected])


@given(st.slices(4), st.permutations(["w0", "w1", "w2"]), st.integers(1, 3))
@settings(max_examples=40)
def test_select_keeps_order_asked_for(iterations, names, count):
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
    np.testing.assert_array_equal(trace[iterations].work, trace.work[iterations])
    with pytest.raises(TypeError, match=r"takes a slice of iterations, such as trace\[:1000\], got 3"):
        trace[3]


def test_plot_has_a_line_for_each_worker():
    pytest.importorskip("matplotlib").use("Agg")
    trace = whole(4, 3)
    axes = trace.plot(title="speeds")
    assert [line.get_label() for line in axes.lines] == list(trace.workers)
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), trace.speed[:, 1])
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("speeds", "iteration", "samples/s")


def test_frame_meta_is_given_and_found():
    frame = pd.DataFrame({"worker": "a", "iteration": [0, 2], "samples": 1, "seconds": 1})
    trace = Trace.from_frame(frame, meta={"job": "x", "absent": "unknown"})
    assert dict(trace.meta) == {"job": "x", "absent": "1 of 3 iterations, for all workers"}
    assert dict(Trace.from_frame(frame[:1], meta={"job": "x"}).meta) == {"job": "x"}
    assert dict(Trace.from_frame(frame[:1]).meta) == {}
