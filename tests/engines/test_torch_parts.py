"""Parts of the engine against slow definitions of what they return."""

import re
from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.engines.torch.checked import apart
from paceline.engines.torch.weighting.hooks import gradients_in

SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3)


@given(SHAPES, st.booleans(), st.integers(0, 3))
def test_the_gradients_of_a_bucket_are_those_of_its_parameters(shapes, complex_too, before):
    """A bucket of complex gradients holds pairs of real numbers; ``gradients()`` of torch gives half of them."""
    dtype = torch.complex64 if complex_too else torch.float32
    wanted = [torch.randn(shape, dtype=dtype) for shape in shapes]
    flat = torch.cat([torch.zeros(before, dtype=dtype), *(one.flatten() for one in wanted)])[before:]
    buffer = torch.view_as_real(flat).flatten() if complex_too else flat
    bucket = SimpleNamespace(
        parameters=lambda: [torch.zeros(shape, dtype=dtype) for shape in shapes],
        gradients=lambda: None if complex_too else wanted,
        buffer=lambda: buffer,
    )
    found = gradients_in(bucket)
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=4))
def test_ranks_apart_are_told_their_own_places(places):
    names = [f"w{rank}" for rank in range(len(places))]
    sentence = apart(names, np.array(places, dtype=float))
    told = re.findall(r"(w\d) is at batch (\d+) of epoch (\d+)", sentence)
    if len(set(places)) > 1:
        assert told == [(name, str(batch), str(epoch)) for name, (epoch, batch) in zip(names, places, strict=True)]
    else:
        assert "had different samples by batch {1} of epoch {0}".format(*places[0]) in sentence
        assert not told
