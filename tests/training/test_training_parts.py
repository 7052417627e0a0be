"""Parts of training that others call: CUDA's clock, the command that makes the network, registries, resumed passes."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import EWMA
from paceline.training import load_model, model_files, profile, save_model, shipped
from paceline.training.entry import Evaluation, Score
from paceline.training.model_registry import Registry
from paceline.training.sources import Fact, LeftOut, Source


def trace(name, **meta):
    return Trace(np.full((4, 2), 8.0), np.full((4, 2), 0.5), meta={"job": name, **meta})


# -- clocks ------------------------------------------------------------------------------------------------------


def test_steps_on_cuda_take_the_thousandths_of_a_second_between_their_events(monkeypatch):
    torch = pytest.importorskip("torch")
    done, now = [], [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")
            self.at = now[0]

        def elapsed_time(self, later):
            return later.at - self.at

    @contextmanager
    def device(chosen):
        done.append(str(chosen))
        yield
        done.append("left")

    def step():
        now[0] += 250.0 * 2 ** done.count("step")
        done.append("step")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    assert profile._cuda_seconds(step, "cuda:1", 3) == [0.25, 0.5, 1.0]
    assert done == ["cuda:1", "wait", "event", *["step", "event"] * 3, "wait", "left"]


# -- the shipped network -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_fits_the_shipped_network_to_its_traces_and_writes_its_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    chosen = [
        Trace(
            samples=np.ones((80, 3)),
            seconds=rng.uniform(1, 2, (80, 3)),
            covariates=rng.uniform(0, 1, (80, 3, len(shipped.COVARIATES))),
            covariate_names=list(shipped.COVARIATES),
        )
    ]
    monkeypatch.setattr(shipped, "traces", lambda: chosen)
    monkeypatch.setattr(shipped, "TRAINING", replace(shipped.TRAINING, epochs=1))
    for _ in range(2):  # the folder may be there
        shipped.main(tmp_path / "fitted")
    (file,) = (tmp_path / "fitted").iterdir()
    made = load_model(file)
    wanted = shipped.GatedNARX(hidden=32, covariates=shipped.COVARIATES, training=shipped.TRAINING)
    assert file.name == "gated-narx.safetensors"
    assert repr(made) == repr(wanted)
    save_model(wanted.fit(chosen), tmp_path / "own.safetensors", fitted_on="x")
    own = load_model(tmp_path / "own.safetensors")
    for one in (made, own):
        one.reset(["a", "b"])
    np.testing.assert_array_equal(made.predict().speed, own.predict().speed)
    assert b"seeds 1000 and up, of paceline.training.shipped" in file.read_bytes()


# -- what is known of a model ------------------------------------------------------------------------------------


def test_a_file_that_is_added_keeps_its_evaluation_its_command_and_its_data(tmp_path):
    registry = Registry(tmp_path / "models")
    save_model(EWMA(smoothing=0.3), tmp_path / "a.safetensors", fitted_on="monday, tuesday")
    measured = Evaluation((Fact("wednesday", "", 4, 2, "ab"),), Score("a", 0.9, 0.8, 0.9, 0.1), (), (), 1.5, 0.25)
    added = registry.add_file("a", tmp_path / "a.safetensors", command="by hand", evaluation=measured)
    assert added == Registry(tmp_path / "models").entry("a")
    assert (added.evaluation, added.command, added.start) == (measured, "by hand", "")
    assert added.data == (Fact("monday", "", 0, 0, ""), Fact("tuesday", "", 0, 0, ""))


def test_a_file_is_named_once_where_it_was_left_out():
    assert str(LeftOut("a.csv", "has no rows")) == "a.csv: has no rows"
    assert str(LeftOut("a.csv", "a.csv: has no rows")) == "a.csv: has no rows"


@pytest.mark.parametrize("content", ["", "worker,iteration,samples,seconds\na,0,0,0\n"])
def test_a_strict_source_names_the_file_that_it_refuses_once(tmp_path, content):
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "bad.csv"))) as refused:
        list(Source(tmp_path, strict=True))
    assert str(refused.value).count(str(tmp_path / "bad.csv")) == 1


def test_texts_of_a_model_take_as_much_room_as_a_header_may_and_no_more(monkeypatch):
    monkeypatch.setattr(model_files, "MOST_HEADER", 10_000)
    about = {"format_version": 1, "kind": "EWMA", "configuration": {}, "fitted_on": ""}
    for longest in (1000, 1001):  # an array gives each of the ten the room of the longest
        told = about | {"text": {"workers": ["x" * longest, *[""] * 9], "none": []}}
        if longest == 1000:
            assert model_files._about(Path("a"), json.dumps(told)) == told
            continue
        with pytest.raises(ValueError, match=r"^a: the texts 'workers' of the model's header are too long$"):
            model_files._about(Path("a"), json.dumps(told))


# -- a pass that goes on -----------------------------------------------------------------------------------------


def folder_with(folder, *traces):
    folder.mkdir()
    for k, one in enumerate(traces):
        one.save(folder / f"{k}.parquet")
    return folder


def test_a_pass_that_goes_on_knows_what_the_one_before_had_found(tmp_path):
    folder = folder_with(tmp_path / "jobs", *(trace(f"job{k}", derived="from usage") for k in range(3)))
    Trace(np.zeros((4, 2)), np.ones((4, 2)), meta={"job": "idle"}).save(folder / "0b.parquet")
    first, seen = Source(folder), []
    for one in first:
        seen.append(one.name)
        assert first.at_first_of_file
        if len(seen) == 3:
            break
    found, second = first.so_far(), Source(folder)
    assert [fact["name"] for fact in found["facts"]] == ["job0", "job1"]
    assert found["derived"] == [0, 1]
    assert found["usable"] == [1, 0, 1]
    assert second.resume(found)
    assert [one.name for one in second] == ["job2"]
    assert [one.name for one in second] == ["job0", "job1", "job2"], "another pass begins at the first file"
    assert [fact.name for fact in second.facts] == ["job0", "job1", "job2"]
    assert [left.file for left in second.left_out] == [str(folder / "0b.parquet")]


@pytest.mark.parametrize(("derived", "named"), [([0, 1], ["job0", "job1"]), ([2], ["job2"])])
def test_a_pass_that_goes_on_refuses_measured_speeds_beside_derived_ones(tmp_path, derived, named):
    about = [{"derived": "from usage"} if k in derived else {} for k in range(3)]
    folder = folder_with(tmp_path / "jobs", *(trace(f"job{k}", **about[k]) for k in range(3)))
    first, second = Source(folder), Source(folder)
    passing = iter(first)
    assert [next(passing).name for _ in range(2)] == ["job0", "job1"]
    assert second.resume(first.so_far())
    for going_on in (passing, iter(second)):
        with pytest.raises(ValueError, match=re.escape(f"traces {named} have speeds derived from resource usage and")):
            list(going_on)
    assert [fact.name for fact in second.facts] == ["job0", "job1", "job2"]


def test_a_pass_over_traces_in_memory_does_not_go_on():
    first, traces = Source([trace("a"), trace("b")]), [trace("a"), trace("b")]
    passing = iter(first)
    next(passing)
    next(passing)
    assert Source(traces).resume(first.so_far()) is False
