"""The models that jobs train: their layers, their data and what they make of it, told by kept numbers."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from kept import require_kept

from paceline.lab import small_models
from paceline.lab.small_models import MODELS

KEPT = Path(__file__).with_name("models_of_jobs.json")


def told(tensor):
    """What is kept of a tensor: its shape, its kind, and sums that change with any value and with their order."""
    values = tensor.double().flatten().numpy()
    waves = np.cos(0.1 * np.arange(len(values)))
    return [list(tensor.shape), str(tensor.dtype), float(values.mean()), float(np.abs(values).max()), values @ waves]


@pytest.fixture(scope="module")
def patches_once():
    """The patches of photographs are cut once for all models."""
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(small_models, "_photo_patches", functools.cache(small_models._photo_patches))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_is_made_of_its_layers_and_learns_from_its_data(patches_once, name):
    task = MODELS[name]()
    with torch.no_grad():
        for number, parameter in enumerate(task.model.parameters()):
            waves = torch.cos(torch.arange(parameter.numel()) + float(number)).reshape(parameter.shape)
            parameter.copy_(waves / max(parameter.numel() / len(parameter), 1) ** 0.5)
        every = max(len(task.inputs) // 16, 1)
        inputs, targets = task.inputs[::every], task.targets[::every]
        output = task.model(inputs)
        loss = task.loss(output, targets)
    layers = [[kind, list(one.shape)] for kind, one in task.model.named_parameters()]
    found = {
        "data": task.data,
        "layers": layers,
        "inputs": told(task.inputs),
        "targets": told(task.targets),
        "loss": float(loss),
        "output": told(output),
    }
    require_kept(KEPT, name, found)
    assert task.loss.__name__ == ("cross_entropy" if not task.targets.is_floating_point() else "mse_loss")


def test_the_models_are_named_by_their_data_and_their_kind():
    assert {name: make.__name__.replace("_", "-") for name, make in MODELS.items()} == {name: name for name in MODELS}


def test_patches_of_a_photograph_lie_anywhere_inside_it(monkeypatch):
    """Photographs whose pixels tell their own place: 20 rows, 18 columns."""
    rows, columns = np.mgrid[:20, :18]
    photos = [np.stack([rows, columns, np.full_like(rows, number)], axis=2) for number in (3, 7)]
    images = type("Images", (), {"images": photos})
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: images)
    patches = small_models._photo_patches(200) * 255
    assert patches.shape == (400, 3, 16, 16)
    assert patches.dtype == np.float32
    assert np.allclose(patches[:, 2, 0, 0], np.repeat([3, 7], 200))
    corners = np.rint(patches[:, :2, 0, 0]).astype(int)
    inside = np.rint(patches[:, :2] - corners[:, :, None, None])
    assert (inside == np.mgrid[:16, :16]).all()
    assert set(map(tuple, corners.tolist())) == {(y, x) for y in range(4) for x in range(2)}


@pytest.mark.parametrize("missing", ["torch", "sklearn"])
def test_without_a_library_that_models_need_the_error_says_what_to_install(monkeypatch, missing):
    small_models.require_models("here")
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(ImportError, match=f"`{missing}` is needed by here; .*paceline.lab."):
        small_models.require_models("here")
