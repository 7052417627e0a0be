"""What a loader of streams refuses, and what it says of itself."""

import re

import pytest

from paceline.torch import Costs, StreamLoader


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("seed", -1), ("global_batch", 1)])
def test_a_stream_refuses_what_is_below_its_least(name, value):
    given = {"global_batch": 2, "rank": 0, "world_size": 2}
    least = {"window": "1 sample", "seed": "0", "global_batch": "2 samples, one for each rank"}[name]
    with pytest.raises(ValueError, match="^" + re.escape(f"{name} must be at least {least}, got {value}")):
        StreamLoader(range(9), **{**given, name: value})
    loader = StreamLoader(range(9), **given)
    assert loader.settings() == {"global_batch": 2, "world_size": 2, "window": 1, "seed": 0}


def test_stream_has_a_coefficient_per_feature():
    def made(**costs):
        return StreamLoader(range(9), 2, rank=0, world_size=2, costs=Costs(**costs), seed=2, window=3)

    both = made(lengths=float, cost=float, cap=9.0, padded=True)
    assert both.settings() == {
        "global_batch": 2,
        "world_size": 2,
        "window": 3,
        "seed": 2,
        "cap": 9.0,
        "global_tokens": None,
        "padded": True,
        "numbers of a sample": ["cost", "lengths"],
    }
    assert both.coefficients.tolist() == [1.0]
    assert made(lengths=float).coefficients.tolist() == [1.0, 0.0, 0.0]
    state = made(lengths=float).state_dict()
    with pytest.raises(ValueError, match="saved with seed=2, but this loader has 0"):
        StreamLoader(range(9), 2, rank=0, world_size=2, window=3).load_state_dict(state)
