"""What a fit refuses, who is held out, what its result depends on, and what it tells and warns of, to the word."""

import hashlib
import json
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import EWMA, RLS, LastValue
from paceline.predictors.fitting import Fitting, Survey
from paceline.training import fit

fits = sys.modules["paceline.training.fit"]


def job(name, workers=("a", "b"), iterations=6, seed=0):
    rng = np.random.default_rng(seed)
    shape = (iterations, len(workers))
    return Trace(np.full(shape, 8.0), rng.uniform(1, 2, shape), workers=workers, meta={"job": name})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hold_out": "ab"}, r"hold_out must be a share in \[0, 1\) or a list of workers' names, got 'ab'"),
        ({"hold_out": 1}, r"hold_out must be a share in \[0, 1\) or a list of workers' names, got 1"),
        ({"hold_out": -0.01}, r"hold_out must be a share in \[0, 1\) or a list of workers' names, got -0.01"),
        (
            {"checkpoint_seconds": -0.1},
            "checkpoint_seconds must be at least 0 s and memory at least 1 byte, got -0.1 and .*",
        ),
        ({"memory": 0}, "checkpoint_seconds must be at least 0 s and memory at least 1 byte, got 60.0 and 0"),
        ({"precision": "half"}, "precision must be 'single' or 'mixed', got 'half'"),
        ({"device": "gpu"}, "device must be 'cpu', or 'cuda' where torch finds such a device, got 'gpu' here"),
        (
            {"checkpoint": "s3://key:hush@b/x"},
            r"checkpoint must be a local folder, got an address",
        ),
    ],
)
def test_an_option_that_is_out_of_range_is_refused(options, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        fit(EWMA(), [job("one")], **options)


def test_options_at_the_ends_of_their_ranges_are_taken():
    fit(EWMA(), [job("one")], hold_out=0, checkpoint_seconds=0, memory=1)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_torch_finds_is_taken(monkeypatch, device):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.warns(UserWarning, match="^device changed nothing: only networks are trained so$"):
        fit(EWMA(), [job("one")], device=device)
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        fit(EWMA(), [job("one")], device="xpu")


def test_workers_are_held_out_by_a_digest_of_seed_and_name():
    for share, seed in ((0.3, 0), (0.3, 5), (0.0, 0), (0.999, 1)):
        held = fits.held_out_by(share, seed)
        for k in range(50):
            digest = int(hashlib.sha256(f"{seed}/w{k}".encode()).hexdigest()[:16], 16)
            assert held(f"w{k}") == (digest < int(share * 2**64))
    named = fits.held_out_by(["a"], 0)
    assert (named("a"), named("b")) == (True, False)


def test_a_share_that_holds_out_nobody_or_all_is_refused_with_the_first_workers():
    told = Survey.of([job("one", tuple("abcdef"))])
    for held, count in (((), 0), ("abcdef", 6)):
        says = (
            rf"hold_out=0\.5 holds out {count} of the 6 workers \['a', 'b', 'c', 'd', 'e'\]: name those to hold out, or"
        )
        with pytest.raises(ValueError, match=says):
            fits._checked_share(frozenset(held), told, 0.5)
    assert fits._checked_share(frozenset("a"), told, 0.5) == {"a"}


def test_a_fit_is_identified_by_all_that_its_weights_depend_on():
    source = SimpleNamespace(facts=[SimpleNamespace(digest="one"), SimpleNamespace(digest="two")])
    plain, model = Fitting(held_out=frozenset("ba"), memory=7), EWMA(smoothing=None)

    def identity(model=model, source=source, fitting=plain):
        return fits._identity(model, source, fitting)

    told = [repr(model), {}, ["one", "two"], [["a", "b"], False, 7, "cpu"]]
    assert identity() == hashlib.sha256(json.dumps(told).encode()).hexdigest()
    learnt = EWMA(smoothing=None).fit([job("one", seed=1)])
    others = [
        identity(model=EWMA(smoothing=0.3)),
        identity(source=SimpleNamespace(facts=source.facts[:1])),
        *(
            identity(fitting=replace(plain, **changes))
            for changes in ({"held_out": None}, {"mixed": True}, {"memory": 8}, {"device": "cuda"})
        ),
        identity(model=learnt, fitting=replace(plain, warm=True)),
    ]
    assert len({identity(), *others}) == 1 + len(others)
    assert identity(model=learnt) == identity(), "what was learnt before counts where the fit starts from it"
    for changes in ({"checkpoint_seconds": 1.0}, {"folder": 3}, {"distributed": True}):
        assert identity(fitting=replace(plain, **changes)) == identity()


def test_the_notes_about_reading_go_with_the_end_of_a_fit_wherever_they_lie(tmp_path):
    for place in ("reading-0/windows", "inner/reading-0", "inner/reading-1", "deep/er/reading-0", "kept"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "kept" / "training.safetensors").write_bytes(b"x")
    fits._forget_reading(Fitting(folder=tmp_path))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"inner", "inner/reading-1", "deep", "deep/er", "kept", "kept/training.safetensors"}
    assert fits._forget_reading(Fitting()) is None


def warned(function, *arguments, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*arguments, **options)
    return [str(one.message) for one in found]


def test_options_that_changed_nothing_are_named(tmp_path):
    told, all_of = Survey.of([job("one")]), Fitting(folder=tmp_path / "new", mixed=True, device="cuda")
    asked = [(all_of, "checkpoint and precision and device"), (Fitting(device="cuda"), "device"), (Fitting(), "")]
    for fitting, named in asked:
        expected = [f"{named} changed nothing: only networks are trained so"] * bool(named)
        assert warned(fits._say_ignored, fitting, told, 0.0, trained=False) == expected
        assert warned(fits._say_ignored, fitting, told, 0.0, trained=True) == []
    (tmp_path / "new").mkdir()
    assert len(warned(fits._say_ignored, all_of, told, 0.0, trained=False)) == 1
    (tmp_path / "new" / "training.safetensors").touch()
    assert warned(fits._say_ignored, all_of, told, 0.0, trained=False) == []
    names = [*"zyxwvu", "a"]
    assert warned(fits._say_ignored, Fitting(), told, names, trained=True) == [
        "hold_out names ['u', 'v', 'w', 'x', 'y'], who are in none of the traces"
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_files_that_were_left_out_are_counted_and_the_first_three_named(count):
    source = SimpleNamespace(left_out=[f"file {k}" for k in range(count)])
    names = "; ".join(f"file {k}" for k in range(min(count, 3)))
    more = {4: "; and 1 more", 5: "; and 2 more"}.get(count, "")
    expected = [f"{count} files were left out of the fit: {names}{more}"] * bool(count)
    assert warned(fits._say_left_out, source) == expected


def test_the_spread_of_the_data_is_added_to_that_of_the_model_it_starts_from():
    one, other = (Survey.of([job("one", seed=k)]) for k in range(2))
    model = RLS(covariates=())
    fits._refer(model, one)
    assert model.reference_ == one.reference(())
    fits._refer(model, other)
    assert model.reference_ == one.reference(()) + other.reference(())
    model.reference_ = replace(one.reference(()), covariates=(one.change,))
    fits._refer(model, other)
    assert model.reference_ == other.reference(()), "it reads other covariates now"
    still = LastValue()
    fits._refer(still, one)
    assert still.reference_ is None
