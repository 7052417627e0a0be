"""A fit that is interrupted goes on to the same weights, to the bit. Kills: test_random_kills.py."""

import pytest
from fit_cases import learnt, networks, wavy

from paceline.predictors import BarrierHead, GatedNARX, Mixture, Training
from paceline.training import fit

pytestmark = pytest.mark.slow
NETWORKS = pytest.mark.parametrize("predictor", networks(), ids=lambda p: type(p).__name__)


class StopHereError(Exception):
    pass


def interrupted_after(batches):
    """Return a function that ends a fit at its n-th report of progress in training."""
    left = iter(range(batches))

    def tell(moment):
        if moment.stage == "training" and next(left, None) is None:
            raise StopHereError

    return tell


@pytest.fixture(autouse=True)
def tell_every_batch(monkeypatch):
    monkeypatch.setattr("paceline.predictors.networks.descent.TOLD_EVERY", 0.0)


@pytest.mark.parametrize("memory", [1 << 20, 4000], ids=["memory", "files"])
@NETWORKS
def test_a_fit_interrupted_again_and_again_ends_with_the_same_weights(tmp_path, predictor, memory):
    traces = [wavy(seed) for seed in range(3)]
    uninterrupted = learnt(fit(predictor, traces, memory=memory))
    for batches in (1, 3, 2, 5, 1, 0, 4, 100, 100, 100):
        try:
            fitted = fit(
                predictor,
                traces,
                memory=memory,
                checkpoint=tmp_path / "fit",
                checkpoint_seconds=0.0,
                progress=interrupted_after(batches),
            )
            break
        except StopHereError:
            continue
    assert learnt(fitted) == uninterrupted


def test_predictors_of_several_trainings_resume_each(tmp_path):
    quick = Training(epochs=2, batch_size=64, closed_loop=2)
    traces = [wavy(seed, iterations=120) for seed in range(2)]
    for n, predictor in enumerate(
        [BarrierHead(hidden=3, training=quick), Mixture([GatedNARX(hidden=3, training=quick), "ewma"])]
    ):
        uninterrupted = learnt(fit(predictor, traces))
        place = {"checkpoint": tmp_path / str(n), "checkpoint_seconds": 0.0}
        for batches in (3, 9, 12):
            with pytest.raises(StopHereError):
                fit(predictor, traces, progress=interrupted_after(batches), **place)
        assert learnt(fit(predictor, traces, **place)) == uninterrupted


def test_a_finished_fit_is_not_repeated(tmp_path):
    narx, traces = networks()[0], [wavy(0)]
    first = fit(narx, traces, checkpoint=tmp_path / "fit")
    moments = []
    assert learnt(fit(narx, traces, checkpoint=tmp_path / "fit", progress=moments.append)) == learnt(first)
    assert not [moment for moment in moments if moment.stage == "training"]


@pytest.mark.parametrize("change", ["traces", "arguments", "held out"])
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, change):
    narx = networks()[0]
    fit(narx, [wavy(0)], checkpoint=tmp_path)
    other = networks()[0]
    other.hidden = 5 if change == "arguments" else other.hidden
    options = {"hold_out": ["b"]} if change == "held out" else {}
    with pytest.raises(ValueError, match="is the checkpoint of another fit"):
        fit(other, [wavy(1 if change == "traces" else 0)], checkpoint=tmp_path, **options)


@pytest.mark.parametrize("began_with", [None, 0, 1])
@pytest.mark.parametrize("goes_on_with", [None, 0, 1])
def test_a_checkpoint_serves_no_fit_that_starts_from_another_model(tmp_path, began_with, goes_on_with):
    starts = {None: None} | {seed: fit(networks()[0], [wavy(7 + seed)]) for seed in (0, 1)}
    first = fit(networks()[0], [wavy(0)], checkpoint=tmp_path, start=starts[began_with])
    if began_with == goes_on_with:
        again = fit(networks()[0], [wavy(0)], checkpoint=tmp_path, start=starts[goes_on_with])
        assert learnt(again) == learnt(first)
    else:
        with pytest.raises(ValueError, match="is the checkpoint of another fit"):
            fit(networks()[0], [wavy(0)], checkpoint=tmp_path, start=starts[goes_on_with])


def test_a_checkpoint_that_is_cut_off_is_named(tmp_path):
    fit(networks()[0], [wavy(0)], checkpoint=tmp_path)
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"training\.safetensors: is no checkpoint of a fit"):
        fit(networks()[0], [wavy(0)], checkpoint=tmp_path)
