"""What is loaded ahead in processes, with a stand-in that loads in this one: what is asked for, kept, and dropped."""

import gc
from weakref import WeakMethod, ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.torch import prefetch
from paceline.torch.buffered import BufferAssigner
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.options import Loading
from paceline.torch.order import Order
from paceline.torch.prefetch import Prefetcher, Requests
from paceline.torch.sliced import SliceAssigner


class Ahead:
    """A data loader that asks for so many chunks at first, and for one more whenever one is taken away."""

    made, depth = [], 2

    def __init__(self, dataset, **options):
        self.dataset, self.options, self.asked = dataset, options, []
        Ahead.made.append(self)

    def __iter__(self):
        requests, under_way = iter(self.options["sampler"]), []

        def ask():
            if (request := next(requests, None)) is not None:
                self.asked.append(request[1].tolist())
                under_way.append(request)

        for _ in range(self.depth):
            ask()
        while under_way:
            request = under_way.pop(0)
            ask()  # as torch does: before the chunk is handed over
            yield self.options["collate_fn"](self.dataset[request])


@pytest.fixture
def stand_in(monkeypatch):
    """Let no process start; return the options of every data loader that is made."""
    use_stand_in(monkeypatch)
    return Ahead.made


def use_stand_in(monkeypatch, depth=2):
    monkeypatch.setattr(prefetch, "DataLoader", Ahead)
    monkeypatch.setattr(Ahead, "made", [])
    monkeypatch.setattr(Ahead, "depth", depth)


class Reads:
    """A dataset of numbers that notes in which portions they were read."""

    def __init__(self, fails=()):
        self.read, self.fails = [], set(fails)

    def __getitems__(self, samples):
        self.read.append(samples)
        if found := self.fails & set(samples):
            raise OSError(f"sample {min(found)} cannot be read")
        return [torch.tensor(sample) for sample in samples]


def of_two(kind, samples=200, rank=0, batch=6, sampler=None):
    ahead = {"ahead": 3} if kind is BufferAssigner else {}
    assigner = kind(Order(samples, shuffle=False, sampler=sampler), GlobalBatch(batch, 2), rank, **ahead)
    assigner.start(0)
    return assigner


def made(assigner, collate=None, dataset=None, **options):
    dataset = dataset or Reads()
    return Prefetcher(dataset, assigner, collate, Loading(num_workers=2, **options)), dataset


def batches(assigner, prefetcher, sizes):
    """Yield the samples of this rank and their batch, at these sizes of the first rank of two."""
    total = assigner.rule.samples
    for size in sizes:
        if assigner.over:
            return
        samples = assigner.next(np.array([size, total - size]), 1)[1].tolist()
        batch = prefetcher.take(np.array(samples))
        assigner.advance()
        yield samples, batch


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=25)


@pytest.mark.parametrize("kind", [BufferAssigner, SliceAssigner])
@pytest.mark.parametrize("rank", [0, 1])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), sizes=SIZES, depth=st.integers(1, 4), samples=st.integers(2, 60), single=st.booleans())
def test_nothing_is_read_twice(kind, rank, data, sizes, depth, samples, single):
    with pytest.MonkeyPatch.context() as patched:
        use_stand_in(patched, depth)
        assigner = of_two(kind, samples, rank)
        prefetcher, dataset = made(assigner, list if single else None)
        for epoch in range(2):
            assigner.start(epoch)
            prefetcher.restart()
            stop = data.draw(st.integers(0, 30))
            for number, (wanted, batch) in enumerate(batches(assigner, prefetcher, sizes)):
                assert [int(sample) for sample in batch] == wanted
                assert isinstance(batch, list if single else torch.Tensor)
                read = [sample for portion in dataset.read for sample in portion]
                assert epoch or len(read) == len(set(read))
                if number == stop:
                    break


@pytest.mark.parametrize("kind", [BufferAssigner, SliceAssigner])
@pytest.mark.parametrize("depth", [1, 3])
def test_constant_sizes_use_loaded_chunks(monkeypatch, kind, depth):
    use_stand_in(monkeypatch, depth)
    assigner = of_two(kind, 42)
    prefetcher, dataset = made(assigner)
    prefetcher.restart()
    found = list(batches(assigner, prefetcher, [3] * 20))
    assert [samples for samples, _ in found] == [[k, k + 1, k + 2] for k in range(0, 42, 6)]
    (loader,) = Ahead.made
    assert [one for one in loader.asked if one] == [samples for samples, _ in found] == dataset.read


def test_unasked_samples_are_read_at_once(monkeypatch):
    use_stand_in(monkeypatch, 1)
    assigner = of_two(SliceAssigner)
    prefetcher, dataset = made(assigner)
    prefetcher.restart()
    found = list(batches(assigner, prefetcher, [3, 3, 5, 5, 1]))
    assert [samples for samples, _ in found] == [[0, 1, 2], [6, 7, 8], [12, 13, 14, 15, 16], [18, 19, 20, 21, 22], [24]]
    # One batch ahead: the third was asked for with three samples, the fourth with five already, the fifth with five.
    (loader,) = Ahead.made
    assert loader.asked[:5] == [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 20, 21, 22], [24, 25, 26, 27, 28]]
    assert [15, 16] in dataset.read


def test_dataset_error_reaches_only_its_loop(stand_in):
    assigner = of_two(BufferAssigner)
    prefetcher, dataset = made(assigner, dataset=Reads(fails=[7]))
    prefetcher.restart()
    loop = batches(assigner, prefetcher, [3] * 9)
    assert next(loop)[1].tolist() == [0, 1, 2]
    with pytest.raises(OSError, match="sample 7 cannot be read"):
        next(loop)
    dataset.fails.clear()
    assigner.start(0)
    prefetcher.restart()
    found = [batch.tolist() for _, batch in batches(assigner, prefetcher, [3] * 3)]
    assert found == [[0, 1, 2], [6, 7, 8], [12, 13, 14]]


def test_requests_end_with_their_loader():
    class Maker:
        def next_request(self):
            return 4, np.array([2])

    maker = Maker()
    requests = iter(Requests(WeakMethod(maker.next_request)))
    assert next(requests)[0] == 4
    known = ref(maker)
    gc.disable()
    try:
        del maker
        assert known() is None
    finally:
        gc.enable()
    assert list(requests) == []
