"""The models that jobs train: their names, the patches of photographs, and what to install for them."""

import numpy as np
import pytest

from paceline.lab import small_models
from paceline.lab.small_models import MODELS


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
