"""Whatever happens to a fleet of loaders: no hang, every sample exactly once an epoch, batches of the announced sizes.

A few ranks are simulated in one process. They load with different numbers of processes, break off, peek, resume, with
other ranks too, stray and adopt, while sizes change before any batch. A model of one set, the samples that the epoch
has left, says what may come.
"""

import multiprocessing
import signal
import warnings
from contextlib import contextmanager
from weakref import ref

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from paceline.torch import BalancedLoader

SEED = 11

# Forked from a process without threads: one forked from this one, with its many loaders, may never start.
SERVER = multiprocessing.get_context("forkserver")
# With ours in place of the default list, every process would import pytest again: ten times what its loading costs.
SERVER.set_forkserver_preload(["__main__", "paceline.torch.loader"])

BATCHES = st.integers(1, 3)
"""Batches that a loading process loads ahead."""


class Fleet(RuleBasedStateMachine):
    """Loaders of all ranks, and the samples that their epoch has left.

    Attributes
    ----------
    ahead
        Whether all ranks load ahead, each in its way, or none.
    left
        Samples of the current epoch that have not come yet; None, for unknown, while a rank has strayed.
    epoch, next_epoch
        The epoch under way, and the one that comes next.
    rest
        The epoch that was resumed, and the samples that it had left then.
    saved
        A state, with the epoch and the samples that it had left, and whether an epoch was under way.
    """

    ahead = False

    # -- the fleet ------------------------------------------------------------------------------------------------

    def form(self, data, world_size):
        """Form a new fleet; how a rank loads is its own business."""
        # Drawn before loaders are made: a draw may end a run, and what its frame holds then ends late.
        loading = [(1 + (rank == 0), data.draw(BATCHES)) if self.ahead else (0, 2) for rank in range(world_size)]
        self.world_size = world_size
        self.loops, self.older = [], []
        self.turns = [0] * world_size
        self.strays = self.adopts_from = self.state = None
        self.loaders = [self.loader(rank, *loading[rank]) for rank in range(world_size)]

    def loader(self, rank, num_workers, prefetch_factor):
        loader = BalancedLoader(
            range(self.samples),
            self.global_batch,
            rank=rank,
            world_size=self.world_size,
            seed=SEED,
            drop_last=self.drop_last,
            accumulate=self.accumulate,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            collate_fn=self.collate,
            multiprocessing_context=SERVER if num_workers else None,
        )
        known = ref(loader)  # weakly: loading processes end late if their loader is part of a cycle
        loader.before_batch = lambda: self.before_batch(rank, known())
        return loader

    def before_batch(self, rank, loader):
        """Do what a balancer does: adopt the place of another rank, and set equal new sizes on all ranks."""
        if self.adopts_from is not None:
            if rank == self.adopts_from:
                self.state, self.restart = loader.position_state(), loader.state_dict()
            loader.sync_from(self.state)
        astray = rank == self.strays and self.adopts_from is None
        loader.sizes = self.random_sizes(np.random.default_rng([self.turns[rank], int(astray)]))
        self.turns[rank] += 1

    def random_sizes(self, rng):
        spare = self.global_batch - self.world_size
        return 1 + rng.multinomial(spare, rng.dirichlet(np.ones(self.world_size)))

    @initialize(data=st.data(), world_size=st.integers(1, 4))
    def begin(self, data, world_size):
        self.drop_last = data.draw(st.booleans())
        self.accumulate = data.draw(st.integers(1, 3))
        self.collate = data.draw(st.sampled_from([None, list]))
        self.global_batch = data.draw(st.integers(4, 20))
        self.samples = data.draw(st.integers(self.global_batch, 150))
        self.left, self.epoch, self.next_epoch, self.rest = None, None, 0, None
        self.saved = None
        self.form(data, world_size)

    def teardown(self):
        self.loaders, self.loops, self.older = [], [], []

    # -- what happens to it ---------------------------------------------------------------------------------------

    @rule(again=st.booleans())
    def loop(self, again):
        """Begin a loop, no matter how the previous one ended; perhaps over the same epoch."""
        if again and self.epoch is not None:
            self.set_epoch(self.epoch)
        self.start()
        self.older += self.loops
        self.loops = [iter(loader) for loader in self.loaders]
        self.batch()

    @rule(again=st.booleans())
    def peek(self, again):
        """Take a first batch, then begin the epoch again and run it."""
        self.older += self.loops
        self.start()
        self.loops = [iter(loader) for loader in self.loaders]
        self.batch()
        self.loops = []
        if again:
            self.set_epoch(self.epoch)

    @precondition(lambda self: self.loops)
    @rule(batches=st.integers(1, 6))
    def go_on(self, batches):
        while self.loops and batches:
            self.batch()
            batches -= 1

    @precondition(lambda self: self.loops)
    @rule()
    def finish(self):
        while self.loops:
            self.batch()

    @precondition(lambda self: self.older)
    @rule()
    def ask_an_older_loop(self):
        for loop in self.older:
            with pytest.raises((RuntimeError, StopIteration)):
                next(loop)
        self.older = []

    @precondition(lambda self: self.left is not None or self.epoch is None)
    @rule(data=st.data())
    def save(self, data):
        loader = self.loaders[data.draw(st.integers(0, self.world_size - 1))]
        self.saved = (loader.state_dict(), self.epoch, None if self.left is None else set(self.left), self.next_epoch)

    @precondition(lambda self: self.saved)
    @rule()
    def resume(self):
        """Go back, in this very process."""
        self.older += self.loops
        self.take_up()

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), world_size=st.integers(1, 4))
    def resume_with_others(self, data, world_size):
        self.form(data, world_size)
        self.take_up()

    @precondition(lambda self: len(self.loops) > 1 and self.left is not None)
    @rule(data=st.data(), batches=st.integers(1, 3))
    def stray(self, data, batches):
        """One rank assigns other sizes than all others for a while; then all go on from where some rank stands."""
        self.strays = data.draw(st.integers(0, self.world_size - 1))
        self.left = None
        while self.loops and batches:
            self.batch()
            batches -= 1
        self.adopts_from = data.draw(st.integers(0, self.world_size - 1))
        while self.loops and self.adopts_from is not None:  # at the start of the next step
            self.batch()
        self.strays = self.adopts_from = None

    # -- what must hold -------------------------------------------------------------------------------------------

    def set_epoch(self, epoch):
        for loader in self.loaders:
            loader.set_epoch(epoch)
        self.next_epoch = epoch

    def start(self):
        self.epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        if self.rest is not None and self.rest[0] == self.epoch:
            self.left = set(self.rest[1])
        else:
            self.left = set(range(self.samples))
            if self.rest is not None and self.rest[1]:
                self.rest = None

    def take_up(self):
        """Load the state into all loaders; or see them refuse it, when too few samples are left."""
        state, self.epoch, left, self.next_epoch = self.saved
        self.loops, self.rest = [], None
        self.left = None if left is None else set(left)
        under_way = left is not None and len(left) >= (self.global_batch if self.drop_last else 1)
        too_few = under_way and len(left) < self.world_size
        for loader in self.loaders:
            if too_few:
                with pytest.raises(ValueError, match=f"{len(left)} samples are left of epoch {self.epoch}"):
                    loader.load_state_dict(state)
                with pytest.warns(UserWarning, match=f"{len(left)} samples of epoch {self.epoch} are left out"):
                    loader.load_state_dict(state, skip_rest=True)
            else:
                loader.load_state_dict(state)
        if under_way and not too_few:
            self.rest, self.next_epoch = (self.epoch, set(left)), self.epoch
        elif under_way:
            self.left, self.next_epoch = set(), max(self.next_epoch, self.epoch + 1)
            self.rest = (self.epoch, set())
        elif left is not None:  # nothing is left of it: set again, it is empty
            self.rest = (self.epoch, set())
        self.turns = [0] * self.world_size

    def batch(self):
        """Take the next batch on every rank; or see the epoch end on every rank."""
        first = self.adopts_from or 0
        batches = {}
        for rank in [first, *(rank for rank in range(self.world_size) if rank != first)]:
            with within_cpu(5), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the rest of a resumed epoch that is passed over
                batches[rank] = next(self.loops[rank], None)
        if self.state is not None:  # all have adopted it
            self.left = self.left_of(self.restart)
            self.strays = self.adopts_from = self.state = None
        if batches[0] is None:
            assert all(batch is None for batch in batches.values())
            self.end()
            return
        samples = [int(sample) for batch in batches.values() for sample in batch]
        for rank, loader in enumerate(self.loaders):
            assert len(batches[rank]) == loader.batch_sizes[rank]
            if self.strays is None:
                assert loader.batch_sizes.tolist() == self.loaders[0].batch_sizes.tolist()
                assert loader.position == self.loaders[0].position
        if self.left is not None:
            assert len(set(samples)) == len(samples), "samples came twice in a batch"
            assert self.left.issuperset(samples), "samples came twice in an epoch"
            self.left -= set(samples)

    def end(self):
        self.loops = []
        if self.left is not None:
            assert len(self.left) < (self.global_batch if self.drop_last else 1), f"{len(self.left)} did not come"
        self.rest = None

    def left_of(self, state):
        """Return the samples that are left, as a single rank would get them."""
        alone = BalancedLoader(range(self.samples), self.global_batch, rank=0, world_size=1, seed=SEED)
        alone.load_state_dict(state)
        return {sample for batch in alone for sample in batch.tolist()}


class FleetThatLoadsAhead(Fleet):
    """The same with loading processes: to start them is nearly all the work, so there are few of these fleets."""

    ahead = True


@contextmanager
def within_cpu(seconds):
    """Fail when a rank goes round in circles: by the CPU time of this process, which no other process can take.

    A rank that waits takes none, but never waits for ever: it has always asked for something, and torch raises an
    error if a process that should answer has died.
    """

    def strike(*_):
        raise AssertionError(f"no batch came within {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, strike)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(("kind", "fleets"), [(Fleet, 60), (FleetThatLoadsAhead, 10)])
@pytest.mark.slow
def test_no_rank_hangs_whatever_the_fleet_does(kind, fleets):
    first = SERVER.Process(target=int)  # it starts the server, which takes its time
    first.start()
    first.join()
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=fleets,
            stateful_step_count=15,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # what hangs is too slow to be shrunk
            suppress_health_check=list(HealthCheck),
        ),
    )
