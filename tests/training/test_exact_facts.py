"""What fitting notes and tells is exact: digests, passes that go on, limits to the byte, cards, places of warnings."""

import json
import math
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fit_cases import folder_of, wavy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kept import require_kept

from paceline.datasets import Trace
from paceline.predictors import EWMA
from paceline.training import fit, load_model, save_model, shipped, sources
from paceline.training.card import MOST_LISTED, card_of
from paceline.training.entry import Entry, Evaluation, Score
from paceline.training.model_registry import Registry, fitted_to
from paceline.training.profile import profile
from paceline.training.sources import Fact, Source, digest_of
from paceline.training.stores import files, read

KEPT = Path(__file__).parent / "facts.json"


def full_trace(seed=0):
    """A trace with every panel that there is, and gaps."""
    rng, shape = np.random.default_rng(seed), (70, 3)
    panels = {name: rng.uniform(1, 2, shape) for name in ("samples", "seconds", "comm_seconds", "wait_seconds", "work")}
    panels["seconds"][rng.random(shape) < 0.2] = np.nan
    covariates = rng.uniform(0, 1, (*shape, 2))
    return Trace(**panels, start=1.7e9 + panels["work"], covariates=covariates, covariate_names=["a", "b"])


def test_a_trace_of_an_iterator_that_is_kept_on_disk_loses_nothing(monkeypatch):
    monkeypatch.setattr(sources, "KEPT", 1)
    traces = [full_trace(0), wavy(1)]
    for trace, again in zip(traces, Source(iter(traces)), strict=True):
        for name in ("samples", "seconds", "comm_seconds", "wait_seconds", "start", "work", "covariates"):
            one, other = getattr(trace, name), getattr(again, name)
            assert (one is None) == (other is None), name
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_traces_of_an_iterator_are_kept_in_memory_up_to_the_last_byte(monkeypatch, kept):
    traces = [full_trace(seed) for seed in range(3)]
    panels = ("samples", "seconds", "comm_seconds", "wait_seconds", "work", "start", "covariates")
    size = sum(getattr(traces[0], name).nbytes for name in panels)
    for room, in_memory in ((kept * size, kept), (kept * size + size - 1, kept)):
        monkeypatch.setattr(sources, "KEPT", room)
        again = list(Source(iter(traces)))
        assert sum(one is other for one, other in zip(traces, again, strict=True)) == in_memory


CHANGES = {
    "samples": lambda trace: replace(trace, samples=trace.samples + 1),
    "seconds": lambda trace: replace(trace, seconds=trace.seconds * 2),
    "comm_seconds": lambda trace: replace(trace, comm_seconds=trace.comm_seconds * 2),
    "covariates": lambda trace: replace(trace, covariates=trace.covariates + 1),
    "workers": lambda trace: replace(trace, workers=("x", "y", "z")),
    "covariate_names": lambda trace: replace(trace, covariate_names=("x", "y")),
    "shape": lambda trace: trace.select(slice(1, None)),
}
NO_CHANGES = {
    "meta": lambda trace: replace(trace, meta={"job": "renamed"}),
    "the sign of zero": lambda trace: replace(trace, samples=np.where(trace.samples == 0, -0.0, trace.samples)),
    "another NaN": lambda trace: replace(trace, seconds=np.where(np.isnan(trace.seconds), -np.nan, trace.seconds)),
    "wait_seconds": lambda trace: replace(trace, wait_seconds=None),
}


def test_a_digest_is_that_of_the_numbers_and_names_alone(monkeypatch):
    trace = full_trace()
    trace = replace(trace, samples=np.where(np.arange(70)[:, None] == 5, 0.0, trace.samples))
    digest = digest_of(trace)
    assert len(digest) == 16
    assert len({digest, *(digest_of(change(trace)) for change in CHANGES.values())}) == 1 + len(CHANGES)
    assert {digest_of(change(trace)) for change in NO_CHANGES.values()} == {digest}
    for size in (1, 100, 1000):
        monkeypatch.setattr(sources, "BLOCK_BYTES", size)
        assert digest_of(trace) == digest


@pytest.mark.slow
@pytest.mark.parametrize("remembered", [0, 1 << 26])
def test_a_pass_that_begins_later_yields_the_rest(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr(sources, "REMEMBERED", remembered)
    folder = folder_of(tmp_path / "jobs", 2)
    (folder / "noise__TPS.csv").write_text(
        "value,runtime,starttime,VM_id\n"
        + "".join(f"{k + 1},1,2023-09-0{k + 1} 05:13:10,{vm}\n" for k in range(3) for vm in (0, 1))
    )
    for begun in (False, True):
        source = Source([folder, wavy(7)])
        names = [trace.name for trace in source] if begun else [trace.name for trace in Source([folder, wavy(7)])]
        assert len(names) == 5
        for count in range(6):
            fresh = source if begun else Source([folder, wavy(7)])
            assert [trace.name for trace in fresh.after(count)] == names[count:]
            assert [trace.name for trace in islice(fresh, 2)] == names[:2]


def test_a_speed_in_any_iteration_is_found():
    for at in (0, 63, 64, 65, 127, 128, 149):
        seconds = np.full((150, 1), np.nan)
        seconds[at] = 1.0
        assert len(list(Source(Trace(np.ones((150, 1)), seconds)))) == 1
    with pytest.raises(ValueError, match="has no speed to fit"):
        list(Source(Trace(np.ones((150, 1)), np.full((150, 1), np.nan))))


@pytest.mark.parametrize("spare", [0, 1, -1])
def test_a_file_of_a_store_may_have_as_many_bytes_as_are_allowed(tmp_path, monkeypatch, spare):
    path = full_trace().save(tmp_path / "job.parquet")
    monkeypatch.setenv("PACELINE_STORE_BYTES", str(path.stat().st_size + spare))
    (file,) = files(f"file://{path}")
    if spare < 0:
        with pytest.raises(ValueError, match=f"is larger than {path.stat().st_size - 1} bytes"):
            list(read(file))
    else:
        assert len(list(read(file))) == 1


@pytest.mark.slow
def test_a_header_may_have_as_many_characters_as_are_allowed(tmp_path, monkeypatch):
    path = save_model(EWMA(smoothing=0.5), tmp_path / "model.safetensors", fitted_on="x" * 500)
    size = len(json.dumps({"fitted_on": "x" * 500}))
    allowed = []
    for most in range(size, size + 400):
        monkeypatch.setattr("paceline.training.model_files.MOST_HEADER", most)
        try:
            load_model(path)
            allowed.append(most)
        except ValueError as error:
            assert f"longer than {most} characters" in str(error)  # noqa: PT017
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        assert allowed[0] == len(file.metadata()["paceline"])
    assert allowed == list(range(allowed[0], size + 400))


def test_a_file_alone_knows_the_first_hundred_names(tmp_path):
    registry = Registry(tmp_path / "models")
    facts = [Fact(f"job{k}", "", 10, 2, "ab") for k in range(103)]
    registry.add("first", EWMA(), command="by hand", data=facts)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(registry.path("first").read_bytes())
    assert fitted_to(copy) == tuple(Fact(f"job{k}", "", 0, 0, "") for k in range(100))
    assert fitted_to(registry.path("first")) == fitted_to(registry.folder) == tuple(facts)


# -- profiles ----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.integers(1, 320))
@example([1, 300], 1)
def test_the_limit_of_memory_is_found_to_a_twentieth_or_to_one_sample(sizes, limit):
    seen = []

    def make_step(size, device):
        def step():
            if size > limit:
                raise MemoryError
            sum(range(1000))

        return step

    arguments = {"warmup": 0, "repeats": 1, "progress": seen.append}
    if min(sizes) > limit:
        with pytest.raises(ValueError, match=f"not even a batch of {min(sizes)} fits"):
            profile(make_step, sizes, **arguments)
        return
    with pytest.MonkeyPatch.context() as patch:  # to look for garbage takes longer than all else
        patch.setattr("paceline.training.profile._free_memory", lambda device: None)
        frame = profile(make_step, sizes, **arguments)
    assert len(seen) == len(set(seen)) == len(frame)
    assert frame["batch"].tolist() == sorted(seen)
    assert [math.isnan(seconds) for seconds in frame["seconds"]] == [size > limit for size in sorted(seen)]
    if max(sizes) <= limit:
        assert sorted(seen) == sorted(set(sizes))
    else:
        worked, failed = max(s for s in seen if s <= limit), min(s for s in seen if s > limit)
        assert failed - worked <= max(1, 0.05 * worked)


# -- what is told ------------------------------------------------------------------------------------------------


def entries():
    score = Score("ewma | x", 0.875, 0.5, 0.9, 0.0625)
    facts = tuple(Fact(f"job{k}", "", k, 2 * k, f"{k:x}" * (k % 3 > 0)) for k in range(MOST_LISTED + 3))
    common = {"name": "a", "kind": "EWMA", "configuration": "EWMA()", "digest": "0" * 64, "made": "2026"}
    for name, baseline in (("worse", 0.75), ("as good", 0.875), ("better", 0.9)):
        evaluation = Evaluation(facts[:2], score, (replace(score, rmse=baseline),), (("a/w1", 1.25),), 1.5, 0.03125)
        yield name, Entry(**common, command="fit\nmore", start="b`c", data=facts[:3], evaluation=evaluation)
    yield "of many", Entry(**common, command="", data=facts)
    yield "as many as are listed", Entry(**common, command="x", data=facts[:MOST_LISTED])
    yield "of nothing", Entry(**common, command="x")


@pytest.mark.parametrize(("name", "entry"), list(entries()))
def test_a_card_says_what_it_said(name, entry):
    require_kept(KEPT, f"card: {name}", card_of(entry).splitlines())


def test_the_shipped_network_is_fitted_to_what_it_was(monkeypatch):
    asked = []

    def fleet(*arguments):
        asked.append(list(arguments))
        return full_trace(len(asked))

    monkeypatch.setattr(shipped, "synthetic_fleet", fleet)
    monkeypatch.setattr(shipped.recorded, "load_split", lambda split: [full_trace(99)] if split == "fit" else [])
    found = [[len(trace), float(np.nanmean(np.log(trace.speed)))] for trace in shipped.traces()]
    require_kept(KEPT, "shipped", {"asked": asked, "traces": found})


def test_a_varied_trace_is_what_it_was():
    found = [shipped.varied(full_trace(seed), np.random.default_rng(seed)) for seed in range(4)]
    require_kept(KEPT, "varied", [[len(one), np.nanmean(np.log(one.speed), axis=0), one.speed[-1]] for one in found])


def test_warnings_of_a_fit_point_at_the_line_that_calls_it(tmp_path):
    folder = folder_of(tmp_path / "jobs", 1)
    (folder / "broken.parquet").touch()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit(EWMA(smoothing=None), folder, precision="mixed", hold_out=["a", "nobody"])
    assert len(warned) == 3
    assert {one.filename for one in warned} == {__file__}
