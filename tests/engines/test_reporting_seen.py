"""What ranks look at to see that they train alike, at its limits: buffers of the model, and the data."""

import math
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from paceline.torch.buffers import ENOUGH, FAR, FIRST, PARTED, THEN, Buffers
from paceline.torch.likeness import DIFFERENT, MOST, different, likeness

# -- buffers -----------------------------------------------------------------------------------------------------


class Held(torch.nn.Module):
    def __init__(self, **held):
        super().__init__()
        for name, value in held.items():
            self.register_buffer(name, value)


def test_the_sum_is_of_all_floating_buffers_but_those_of_batch_normalisation():
    inner = torch.nn.Sequential(torch.nn.BatchNorm1d(3), Held(steps=torch.ones(2, dtype=torch.int64), a=torch.ones(2)))
    looked = Buffers()
    small = torch.full((1,), 2.0**-30)
    assert looked.sum([Held(top=torch.full((2,), 4.0)), inner, Held(b=small)], 0) == 10.0 + 2.0**-30, "as doubles"
    assert looked._name == "top"
    assert Buffers().sum([inner], 0) == 2.0
    named = Buffers()
    named.sum([inner], 0)
    assert named._name == "1.a"


def test_buffers_are_looked_at_in_the_first_exchanges_and_then_now_and_then():
    looked, model = Buffers(), Held(a=torch.ones(3))
    seen = [exchange for exchange in range(4 * THEN + 2) if looked.sum([model], exchange) == 3.0]
    assert seen == [*range(FIRST), THEN, 2 * THEN, 3 * THEN, 4 * THEN]
    assert (FIRST, THEN, ENOUGH, FAR) == (8, 16, 2, 1e-6)
    assert not looked.apart


def test_where_there_is_nothing_to_look_at_nobody_looks_again():
    looked = Buffers()
    assert math.isnan(looked.sum([torch.nn.BatchNorm1d(3)], FIRST))
    assert not looked.apart, "this exchange has no look"
    assert math.isnan(looked.sum([torch.nn.BatchNorm1d(3)], 0))
    assert looked.apart
    assert math.isnan(looked.sum([Held(a=torch.ones(3))], 0))


def learned(*sums):
    """Warnings of these pairs of sums, each with whether batches were uneven."""
    looked = Buffers()
    return [looked.learn(np.array(pair), uneven=uneven) for pair, uneven in sums], looked


@pytest.mark.parametrize(("times", "warned"), [(ENOUGH - 1, False), (ENOUGH, True)])
@pytest.mark.parametrize("uneven", [True, False])
def test_buffers_that_part_with_unequal_batches_are_warned_of_if_they_were_shared_often_enough(times, warned, uneven):
    told, looked = learned(*[([k, k], False) for k in range(1, times + 1)], ([5.0, 5.1], uneven), ([6.0, 9.0], True))
    warned = warned and uneven
    assert told == [""] * times + [PARTED.format(name="buffer") * warned, ""]
    assert looked.apart


@pytest.mark.parametrize(
    "passes",
    [
        [([1, 1], False), ([1, 1], False)],  # they have not changed
        [([1, 1], True), ([2, 2], True), ([3, 3], False)],  # unequal batches say nothing
        [([1, 1], False), ([math.nan, 2], False), ([2, math.nan], False), ([1, 1], False)],  # not looked at
    ],
)
def test_what_did_not_change_or_came_of_unequal_batches_does_not_count_as_shared(passes):
    told, looked = learned(*passes, ([5.0, 6.0], True))
    assert told == [""] * (len(passes) + 1)
    assert looked.apart
    assert learned(*passes, ([2, 2], False), ([3, 3], False), ([5.0, 6.0], True))[0][-1] == PARTED.format(name="buffer")


@pytest.mark.parametrize(("sums", "apart"), [([-1e6, -1e6 + 1], False), ([1e6, 1e6 + 1.1], True), ([0.0, 0.0], False)])
def test_sums_are_apart_beyond_rounding(sums, apart):
    assert learned((sums, True))[1].apart == apart


def test_buffers_on_a_device_are_left_out():
    far = SimpleNamespace(is_floating_point=lambda: True, is_cuda=True)
    near = SimpleNamespace(is_floating_point=lambda: True, is_cuda=False, double=lambda: torch.ones(2))
    module = SimpleNamespace(named_buffers=lambda *, recurse: [("far", far), ("near", near)])
    looked = Buffers()
    assert looked.sum([SimpleNamespace(named_modules=lambda: [("part", module)])], 0) == 2.0
    assert looked._name == "part.near"


# -- the same data -----------------------------------------------------------------------------------------------


def checksum(numbers):
    return zlib.crc32(" ".join(f"{number:.3g}" for number in numbers).encode())


def test_a_sample_is_compared_by_its_first_numbers_to_three_digits():
    row = torch.linspace(0, 1, MOST + 1)
    for data in (row[None], row[None].numpy(), TensorDataset(row[None], torch.zeros(1))):
        assert likeness(data) == ("sample 0", checksum(row.tolist()[:MOST]))
    beyond, within = row.clone(), row.clone()
    beyond[MOST], within[MOST - 1] = 5.0, 5.0
    assert likeness(beyond[None]) == likeness(row[None]) != likeness(within[None])
    assert likeness(beyond[None].numpy()) == likeness(row[None].numpy()) != likeness(within[None].numpy())
    assert MOST == 64
    assert likeness(torch.tensor([1.0, 2.0])) == ("sample 0", checksum([1.0])), "a sample may be one number"
    assert likeness(torch.ones(1, 2, 2).bfloat16()) == ("sample 0", checksum([1.0] * 4))
    assert likeness(torch.ones(1, 2, requires_grad=True)) == ("sample 0", checksum([1.0] * 2))


@pytest.mark.parametrize(("dtype", "sees"), [("?", 1), ("i4", 1), ("u1", 1), ("f4", 1), ("c8", 1), ("O", 0), ("U1", 0)])
def test_numbers_of_any_kind_are_compared_and_objects_are_not(dtype, sees):
    assert (likeness(np.array([[1, 1]]).astype(dtype))[1] != 0) == bool(sees)


def test_a_subset_is_known_by_its_first_indices_and_its_data_and_parts_by_the_first_that_is_not_empty():
    data, numbers = torch.arange(200.0)[:, None], list(range(100))
    (_, of_data), (name, of_subset) = likeness(data), likeness(Subset(data, numbers))
    assert (name, of_subset) == ("the subset", checksum(numbers[:MOST]) ^ of_data)
    assert likeness(Subset(data, [*numbers[:MOST], 199])) == (name, of_subset)
    assert likeness(Subset(data, [*numbers[: MOST - 1], 199])) != (name, of_subset)
    assert likeness(Subset(data + 1, numbers)) != (name, of_subset)
    assert likeness(ConcatDataset([[], data, [5]])) == likeness(data)
    assert likeness([1.0]) == ("", 0)


def test_a_dataset_of_hugging_face_is_known_by_its_first_row(monkeypatch):
    class Dataset:
        def with_format(self, kind):
            assert kind == "arrow"
            return [SimpleNamespace(to_pydict=lambda: {"x": [1]}), None]

    assert likeness(Dataset()) == ("", 0)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Dataset))
    assert likeness(Dataset()) == ("sample 0", zlib.crc32(b"{'x': [1]}"))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())
    assert likeness(Dataset()) == ("", 0)


@pytest.mark.parametrize(("others", "warned"), [([], False), ([0], False), ([1], True), ([0, 1], True)])
def test_ranks_with_different_data_are_warned_and_told_where_it_shows(others, warned):
    data = torch.ones(3, 2)
    told = []
    exchange = SimpleNamespace(gather=lambda own: told.append(own) or [own, *([own[0], own[1] + k] for k in others)])
    assert different(exchange, data) == (DIFFERENT.format(what="sample 0") if warned else "")
    assert told == [list(likeness(data))]
