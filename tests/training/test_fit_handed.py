"""What ``fit`` hands on: its options to the predictor, moments to whoever asked, and processes to torch."""

import logging
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_fit_told import job

from paceline.datasets import Trace
from paceline.predictors import EWMA, NARX, LastValue, Training
from paceline.predictors.fitting import Moment, Survey
from paceline.predictors.fitting.how import MEMORY
from paceline.training import Source, fit, save_model

fits = sys.modules["paceline.training.fit"]


@pytest.fixture
def handed(monkeypatch):
    """What a predictor was given to learn from, and how."""
    found = []
    monkeypatch.setattr(fits, "fit_with", lambda *given: found.append(given))
    return found


@pytest.mark.filterwarnings("ignore:.* changed nothing")
def test_every_option_reaches_the_predictor(handed, monkeypatch, tmp_path):
    monkeypatch.setattr(fits, "require", lambda *library, **why: None)
    found = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", found)
    joined, model, traces, known = [], EWMA(smoothing=None), [job("one", tuple("abcdef"))], []
    monkeypatch.setattr(fits, "_identity", lambda *given: known.append(given) or "who")
    monkeypatch.setattr(fits, "_join_processes", lambda: joined.append(True))
    options = {"hold_out": ["b", "a"], "checkpoint": str(tmp_path / "c"), "checkpoint_seconds": 7.0, "device": "cuda"}
    fitted = fit(
        model, traces, **options, precision="mixed", distributed=True, memory=9, start=EWMA(smoothing=None), warn=False
    )
    ((given, source, fitting),) = handed
    assert given is fitted
    assert given is not model
    assert list(source) == traces
    assert fitting.survey == Survey.of(traces, held_out=frozenset("ab").__contains__)
    assert (fitting.held_out, fitting.warm, fitting.mixed, fitting.distributed) == (frozenset("ab"), True, True, True)
    assert (fitting.folder, fitting.checkpoint_seconds) == (tmp_path / "c", 7.0)
    assert (fitting.device, fitting.memory) == ("cuda", 9)
    assert fitting.identity == "who"
    assert known == [(given, source, replace(fitting, identity=""))]
    assert joined == [True]


def test_by_default_nothing_is_held_out_or_kept_and_one_process_fits_on_the_processor(handed, monkeypatch):
    monkeypatch.setattr(fits, "_join_processes", lambda: pytest.fail("it is one process"))
    fit(EWMA(), Source([job("one")]))
    ((_, _, fitting),) = handed
    assert (fitting.held_out, fitting.warm, fitting.mixed, fitting.distributed) == (None, False, False, False)
    assert (fitting.folder, fitting.checkpoint_seconds, fitting.device, fitting.memory) == (None, 60.0, "cpu", MEMORY)


def test_a_share_is_held_out_by_its_seed_and_a_list_by_its_names(handed):
    traces = [job("one", tuple(f"w{k}" for k in range(40)))]
    for seed in (0, 5):
        fit(EWMA(), traces, hold_out=0.25, seed=seed)
        wanted = frozenset(filter(fits.held_out_by(0.25, seed), traces[0].workers))
        assert handed[-1][2].held_out == wanted
        assert 0 < len(wanted) < 40
    assert handed[0][2].held_out != handed[1][2].held_out
    fit(EWMA(), traces, hold_out=0.25)
    assert handed[-1][2].held_out == handed[0][2].held_out


@pytest.mark.filterwarnings("ignore:.* changed nothing")
def test_notes_about_reading_are_of_whom_was_held_out_and_of_this_process(handed, monkeypatch, tmp_path):
    told = []
    survey = Survey.of([job("one")])
    monkeypatch.setattr(fits, "surveyed", lambda *given: told.append(given[3:]) or survey)
    monkeypatch.setattr(fits, "_join_processes", lambda: None)
    monkeypatch.setenv("RANK", "3")
    source = Source([job("one")])
    fit(EWMA(), source, checkpoint=tmp_path / "c", hold_out=["a"], checkpoint_seconds=5.0, warn=False)
    fit(EWMA(), source, checkpoint=tmp_path / "c", distributed=True, seed=4, warn=False)
    fit(EWMA(), source)
    assert told == [
        (tmp_path / "c" / "reading-0" / "traces", repr((["a"], 0)), 5.0),
        (tmp_path / "c" / "reading-3" / "traces", repr((0.0, 4)), 60.0),
        (None, repr((0.0, 0)), 60.0),
    ]


def test_each_trace_that_is_read_is_told_with_how_many_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(fits.time, "perf_counter", lambda: now[0])
    seen = []

    def traces():
        for k in range(3):
            yield job(f"job{k}")

    def tell(moment):
        now[0] += 2.0
        seen.append(moment)

    fit(EWMA(), traces(), progress=tell)
    assert [(one.stage, one.done, one.total) for one in seen] == [("read", k, 3) for k in (1, 2, 3)]
    assert seen[0].rate == pytest.approx(1e9), "no time passed"
    assert [one.rate for one in seen[1:]] == [1.0, 0.75]


def test_a_file_of_several_traces_is_told_as_far_as_they_were_read(tmp_path, monkeypatch):
    source = Source([job("one")])
    tell = []
    told = fits._teller(source, tell.append)
    for k in range(3):
        source.facts.append(k)
        told(None)
    assert [(one.done, one.total) for one in tell] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("asked", [True, False])
def test_a_bar_is_shown_if_asked_for(monkeypatch, asked):
    seen = []

    class Bar:
        def __enter__(self):
            seen.append("began")
            return seen.append

        def __exit__(self, *error):
            seen.append("over")

    monkeypatch.setattr(fits, "Bar", Bar)
    fit(EWMA(), [job("one")], progress=asked)
    moments = [one for one in seen if isinstance(one, Moment)]
    assert (seen[:1] + seen[-1:], len(moments)) == ((["began", "over"], 1) if asked else ([], 0))


def test_what_was_fitted_is_logged_with_its_traces_and_seconds(caplog, monkeypatch):
    now = iter([0.0, 0.0, 1.0, 2.0, 12.34])
    monkeypatch.setattr(fits.time, "perf_counter", lambda: next(now))
    with caplog.at_level(logging.INFO, "paceline.training.fit"):
        fit(EWMA(), [job("one"), job("two")])
    assert caplog.messages[-1] == "fitted EWMA to 2 traces in 12.3 s"


def test_what_was_left_out_is_warned_of_unless_that_is_not_wanted(tmp_path):
    job("one").save(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").touch()
    with pytest.warns(UserWarning, match="^1 files were left out of the fit: "):
        fit(EWMA(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(EWMA(), tmp_path, warn=False)
    with pytest.raises(ValueError, match=r"b\.parquet"):
        fit(EWMA(), tmp_path, strict=True)
    with pytest.warns(UserWarning, match="^hold_out names"):
        fit(EWMA(), [job("one")], hold_out=["a", "x"], warn=False)


# -- starts --------------------------------------------------------------------------------------------------------


class Own:
    workers, covariate_names = (), ()

    def fit(self, traces):
        return self

    reset = join = leave = rename = observe = predict = state_dict = load_state_dict = fit


@pytest.mark.parametrize(
    ("predictor", "start", "says"),
    [
        (Own(), EWMA(), "start needs predictors that inherit from FleetPredictor, got Own"),
        (EWMA(), Own(), "start needs predictors that inherit from FleetPredictor, got EWMA"),
        (EWMA(), LastValue(), "start must be a EWMA as the predictor is, got a LastValue"),
        (
            NARX(lags=3, hidden=4),
            NARX(lags=4, hidden=5),
            "start must have the predictor's own arguments, but it has lags=4, not 3, hidden=5, not 4",
        ),
    ],
)
def test_a_start_that_cannot_be_gone_on_from_is_refused(predictor, start, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        fit(predictor, [job("one")], start=start)


def test_a_start_gives_what_it_learnt_and_nothing_of_its_fleet(handed, tmp_path):
    start = EWMA(smoothing=None).fit([Trace([[8.0]] * 5, [[0.9**k] for k in range(5)])])
    start.reset(["x"])
    for one in (start, save_model(start, tmp_path / "a.safetensors"), str(tmp_path / "a.safetensors")):
        fitted = fit(EWMA(smoothing=None), [job("one")], start=one)
        assert (fitted.smoothing_, fitted.workers) == (start.smoothing_, ())
    trained = NARX(lags=3, hidden=4, training=Training(epochs=1))
    fits._start_from(NARX(lags=3, hidden=4, training=Training(epochs=9)), trained)


# -- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("joined", "rank"), [(True, None), (True, "0"), (False, "0"), (False, None)])
def test_processes_of_torchrun_join_once(monkeypatch, joined, rank):
    done = []
    monkeypatch.setattr(fits, "require", lambda library, **why: done.append((library, why)))
    monkeypatch.setattr(fits, "wait_at_exit", lambda: done.append("waits"))
    dist = SimpleNamespace(is_initialized=lambda: joined, init_process_group=done.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=dist))
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    if not joined and rank is None:
        with pytest.raises(
            ValueError, match=r"^distributed=True needs the processes of torchrun: start the script with"
        ):
            fits._join_processes()
    else:
        fits._join_processes()
    needed = ("torch", {"needed_by": "fit(..., distributed=True)", "extra": "torch"})
    assert done == [needed, "waits", *(["gloo"] if not joined and rank else [])]


def test_a_device_needs_torch(monkeypatch):
    needed = []
    monkeypatch.setattr(fits, "require", lambda library, **why: needed.append((library, why)))
    found = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", found)
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        fit(EWMA(), [job("one")], device="xpu")
    assert needed == [("torch", {"needed_by": "fitting on xpu", "extra": "torch"})]
