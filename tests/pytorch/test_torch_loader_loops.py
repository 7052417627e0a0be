"""Loops that break off, peek, nest, fail and resume: no rank hangs, and every sample comes once an epoch, or an error.

Each of these hung, looped forever, or silently lost samples while prefetched batches did not know their loop.
"""

import gc
import io
import multiprocessing
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.torch import BalancedLoader

pytestmark = pytest.mark.timeout(60)

SAMPLES = 97
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Reads(torch.utils.data.Dataset):
    """Its samples are their numbers; one of them may not be readable."""

    def __init__(self, unreadable=-1, samples=SAMPLES):
        self.unreadable = unreadable
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index == self.unreadable:
            raise OSError(f"sample {index} cannot be read")
        return index


def fleet(world_size=2, dataset=None, **options):
    dataset = dataset or Reads()
    options = {"global_batch": 10, "seed": 4, **options}
    return [BalancedLoader(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def epoch_of(loaders):
    """Loop over all ranks, in turns, and return the samples that came."""
    return [sample for batches in zip(*loaders, strict=True) for batch in batches for sample in batch.tolist()]


def peek(loaders):
    return [next(iter(loader)).tolist() for loader in loaders]


def saved(loader):
    """Return the state as a checkpoint file has it."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file)


# -- one loop after the other -------------------------------------------------------------------------------------


@WORKERS
def test_peek_takes_nothing(num_workers):
    """As in torch's own tutorial: the length of a first batch is looked at, then the epoch is set."""
    loaders = fleet(num_workers=num_workers)
    for epoch in range(3):
        first = peek(loaders)
        for loader in loaders:
            loader.set_epoch(epoch)
        seen = epoch_of(loaders)
        assert sorted(seen) == list(range(SAMPLES))
        if epoch == 0:
            assert first[0] == seen[:5], "the peek looked at the very batch that came first then"


@WORKERS
def test_nested_loop_is_an_error(num_workers):
    (loader,) = fleet(1, num_workers=num_workers)
    inner = []

    def nested():
        for _ in loader:
            inner.extend(epoch_of([loader]))

    with pytest.raises(RuntimeError, match=r"this loop over the loader has ended.*Nested loops need a loader each"):
        nested()
    assert sorted(inner) == list(range(SAMPLES))


def test_ended_loop_stays_ended():
    (loader,) = fleet(1)
    waiting, finished = iter(loader), iter(loader)
    assert len(list(finished)) == len(loader)
    assert len(list(waiting)) == len(loader)
    assert list(finished) == list(waiting) == []


@WORKERS
def test_state_loaded_in_loop_ends_it(num_workers):
    loaders = fleet(num_workers=num_workers)
    loops = [iter(loader) for loader in loaders]
    before = [sample for _ in range(3) for loop in loops for sample in next(loop).tolist()]
    state = saved(loaders[0])
    for loop in loops:
        next(loop)
    for loader in loaders:
        loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="load_state_dict was called: start a new one"):
        next(loops[0])
    assert sorted(before + epoch_of(loaders)) == list(range(SAMPLES))
    assert sorted(epoch_of(loaders)) == list(range(SAMPLES))


@WORKERS
def test_peek_after_resume_takes_nothing(num_workers):
    loaders = fleet()
    loops = [iter(loader) for loader in loaders]
    before = [sample for _ in range(3) for loop in loops for sample in next(loop).tolist()]
    resumed = fleet(3, num_workers=num_workers)
    for loader in resumed:
        loader.load_state_dict(saved(loaders[1]))
    peek(resumed)
    for loader in resumed:
        loader.set_epoch(0)
    assert sorted(before + epoch_of(resumed)) == list(range(SAMPLES))
    for loader in resumed:
        loader.set_epoch(0)
    assert sorted(epoch_of(resumed)) == list(range(SAMPLES)), "once the rest is over, its epoch is whole again"


def test_a_resumed_rest_that_is_passed_over_is_told():
    (loader,) = fleet(1)
    next(iter(loader))
    state = saved(loader)
    loader.load_state_dict(state)
    loader.set_epoch(5)
    with pytest.warns(UserWarning, match=r"epoch 5 begins, but the loader was resumed in epoch 0, of which 87 samples"):
        assert len(epoch_of([loader])) == SAMPLES
    loader.load_state_dict(state)
    peek([loader])
    with pytest.warns(UserWarning, match=r"call set_epoch\(0\) before the loop"):
        peek([loader])
    loader.load_state_dict(state)
    loop = iter(loader)
    next(loop), next(loop)
    with warnings.catch_warnings(action="error"):  # left early, as any other epoch may be
        peek([loader])


# -- errors -------------------------------------------------------------------------------------------------------


@WORKERS
def test_loop_does_not_continue_after_error(num_workers):
    (loader,) = fleet(1, Reads(unreadable=35), shuffle=False, num_workers=num_workers)
    loop = iter(loader)
    seen = [sample for _ in range(3) for sample in next(loop).tolist()]
    with pytest.raises(OSError, match="sample 35 cannot be read"):
        next(loop)
    with pytest.raises(RuntimeError, match="this loop ended with an error"):
        next(loop)
    assert loader.position[:2] == (0, 3)
    loader.dataset.unreadable = -1
    loader.load_state_dict(loader.state_dict())
    if not num_workers:  # loading processes have a dataset of their own
        assert sorted(seen + epoch_of([loader])) == list(range(SAMPLES))


@pytest.mark.processes
def test_error_ahead_comes_in_its_turn():
    (loader,) = fleet(1, Reads(unreadable=15), shuffle=False, num_workers=1)
    peek([loader])
    loader.set_epoch(0)
    loop = iter(loader)
    assert next(loop).tolist() == list(range(10))
    with pytest.raises(OSError, match="sample 15 cannot be read"):
        next(loop)


# In a process of its own, as torch's handler of dead children would raise its error anywhere; without the handler the
# loop itself finds out, after the timeout.
DIES_ONCE = """
import os
import signal
import sys
from pathlib import Path

from paceline.torch import BalancedLoader

died = Path(sys.argv[1])


class DiesOnce:
    def __len__(self):
        return 97

    def __getitem__(self, index):
        if index == 60 and not died.exists():
            died.touch()
            os._exit(1)
        return index


loader = BalancedLoader(DiesOnce(), 10, rank=0, world_size=1, shuffle=False, num_workers=1, timeout=4)
loop = iter(loader)
next(loop)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
try:
    list(loop)
except (RuntimeError, OSError, EOFError):  # it may be a chunk, half handed over, that ends it
    print("ended")
print(sorted(sample for batch in loader for sample in batch.tolist()) == list(range(97)))
"""


def test_dead_loading_process_ends_the_loop(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", DIES_ONCE, str(tmp_path / "died")],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert ran.stdout.split() == ["ended", "True"], ran.stderr


@pytest.mark.processes
def test_stop_iteration_does_not_end_epoch():
    class Stops(Reads):
        def __getitem__(self, index):
            raise StopIteration

    for num_workers in (0, 1):
        (loader,) = fleet(1, Stops(), num_workers=num_workers)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)


def test_loading_processes_end_with_their_loader():
    gc.collect()
    others = set(multiprocessing.active_children())
    (loader,) = fleet(1, num_workers=1)
    loop = iter(loader)
    next(loop)
    peek([loader])
    assert set(multiprocessing.active_children()) > others
    gc.disable()
    try:
        del loader, loop
        assert set(multiprocessing.active_children()) <= others
    finally:
        gc.enable()


# -- resuming -----------------------------------------------------------------------------------------------------


def test_resume_on_too_many_ranks_refused():
    loaders = fleet(2, Reads(samples=23))
    for loader in loaders:
        loop = iter(loader)
        next(loop), next(loop)
    state = saved(loaders[0])
    many = fleet(4, Reads(samples=23))
    for loader in many:
        with pytest.raises(
            ValueError, match="3 samples are left of epoch 0, too few for 4 ranks, as each needs at least one"
        ):
            loader.load_state_dict(state)
        assert loader.position == (0, 0, 0), "nothing has changed"
        with pytest.warns(UserWarning, match="skipping 3 samples of epoch 0, as requested by skip_rest=True"):
            loader.load_state_dict(state, skip_rest=True)
    assert sorted(epoch_of(many)) == list(range(23))
    assert many[0].epoch == 1
    three = fleet(3, Reads(samples=23))
    for loader in three:
        loader.load_state_dict(state)
    assert len(epoch_of(three)) == 3


@pytest.mark.parametrize("drop_last", [False, True])
def test_state_between_epochs_resumes_next(drop_last):
    loaders = fleet(2, drop_last=drop_last)
    loaders[0].set_epoch(3)
    resumed = fleet(1, drop_last=drop_last)
    resumed[0].load_state_dict(saved(loaders[0]))
    length = SAMPLES // 10 * 10 if drop_last else SAMPLES
    assert (len(epoch_of(resumed)), resumed[0].epoch) == (length, 3)
    loop = iter(loaders[0])
    for _ in range(len(loaders[0])):
        next(loop)
    resumed[0].load_state_dict(saved(loaders[0]))
    assert (len(epoch_of(resumed)), resumed[0].epoch) == (length, 4)


@pytest.mark.parametrize(("name", "value"), [("shuffle", False), ("seed", 5)])
def test_a_state_of_another_order_is_refused(name, value):
    (loader,) = fleet(1)
    next(iter(loader))
    (other,) = fleet(1, **{name: value})
    with pytest.raises(ValueError, match=f"was saved with {name}=.*, but this loader has {value}"):
        other.load_state_dict(saved(loader))


# -- what the ranks tell each other -------------------------------------------------------------------------------


def test_positions_equal_where_ranks_loop_alike():
    first, second = fleet()
    loops = [iter(first), iter(second)]
    assert first.position == second.position == (0, 0, 0)
    for loop in loops:
        next(loop)
    assert first.position == second.position
    assert first.position[:2] == (0, 1)
    next(loops[0])
    assert first.position != second.position, "the first rank has looped alone"
    second.sizes = np.array([4, 6])
    next(loops[1])
    assert first.position[:2] == second.position[:2]
    assert first.position != second.position, "they assigned other sizes"
    second.load_state_dict(saved(first))
    assert first.position == second.position
    assert float(first.position[2]) == first.position[2] < 2**32


def test_settings_name_what_assignment_needs():
    first = BalancedLoader(range(50), 8, rank=0, world_size=2)
    many, few = (
        BalancedLoader(range(50), 8, rank=1, world_size=2, num_workers=2, prefetch_factor=3, timeout=9),
        BalancedLoader(range(50), 8, rank=0, world_size=2, num_workers=1),
    )
    assert many.settings() == few.settings()
    others = [
        BalancedLoader(range(50), 8, rank=0, world_size=2, **{name: value})
        for name, value in {"shuffle": False, "seed": 1, "drop_last": True, "accumulate": 2, "num_workers": 1}.items()
    ]
    others += [BalancedLoader(range(51), 8, rank=0, world_size=2), BalancedLoader(range(50), 9, rank=0, world_size=2)]
    others += [BalancedLoader(range(50), 8, rank=0, world_size=3)]
    for other in others:
        assert other.settings().keys() == first.settings().keys()
        assert other.settings() != first.settings()


def test_listeners_told_of_starts_and_batches():
    (loader,) = fleet(1, TensorDataset(torch.arange(25)))
    told = []
    loader.before_batch = lambda: told.append("before")
    loader.after_batch = lambda sizes, batch: told.append((sizes.tolist(), len(batch[0])))
    loader.on_start = lambda: told.append("start")
    loop = iter(loader)
    assert told == []
    next(loop)
    assert told == ["start", "before", ([10], 10)]
    told.clear()
    state = saved(loader)
    loader.load_state_dict(state)
    list(loader)
    assert told == ["start", "start", "before", ([10], 10), "before", ([5], 5)]
    told.clear()
    loader.sync_from(loader.position_state())
    assert told == ["start"]
