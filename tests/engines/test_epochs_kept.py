"""Who takes which sample, recorded: states of one version go on in the next, and ranks never exchange assignments."""

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept

from paceline.torch import BalancedLoader, Costs, StreamLoader
from paceline.torch.source import OnDemand

SAMPLES, BATCH = 83, 16
LENGTHS = [1 + number * 7 % 13 for number in range(SAMPLES)]


class Rows(list):
    """A dataset of numbers, whose cost is a function of them."""


def length(sample):
    return LENGTHS[sample]


DATASETS = {
    "slices": {},
    "in order, without the rest": {"shuffle": False, "drop_last": True},
    "steps of three": {"accumulate": 3, "seed": 5},
    "micro-batches": {"micro_batch": 3},
    "loaded ahead": {"num_workers": 1},
    "a sampler": {"sampler": [*range(0, SAMPLES, 2), 4, 4, 4]},
    "costs": {"costs": Costs(cost=LENGTHS), "accumulate": 2},
    "lengths": {"costs": Costs(lengths=LENGTHS, cap=160.0), "micro_batch": 4},
    "padded": {"costs": Costs(lengths=LENGTHS, padded=True)},
    "budget": {"costs": Costs(cost=LENGTHS, global_tokens=90.0), "global_batch": None},
}
STREAMS = {
    "stream": {},
    "mixed stream": {"window": 9, "seed": 3},
    "stream of costs": {"window": 4, "costs": Costs(lengths=length)},
}


def loader(kind, rank, ranks):
    place = {"rank": rank, "world_size": ranks}
    if kind in STREAMS:
        return StreamLoader(Rows(range(SAMPLES)), BATCH, **place, **STREAMS[kind], collate_fn=list)
    made = BalancedLoader(Rows(range(SAMPLES)), **{"global_batch": BATCH, **DATASETS[kind], **place}, collate_fn=list)
    if kind == "loaded ahead":  # what comes does not depend on who loads it
        made._source = OnDemand(made.dataset, list)
    return made


def shares(loader, chance):
    """Shares of a full batch that change now and then, for all ranks alike."""
    parts = np.ones(loader.world_size, np.int64)
    for _ in range(loader.global_batch - loader.world_size):
        parts[int(chance() ** 2 * loader.world_size)] += 1
    return parts


def looped(loader, batches=999):
    """Yield all that is known of each batch of a loop, up to so many, to the end of a step."""
    chance = random.Random(loader.epoch).random  # random() gives the same numbers in every version of Python

    def change():
        if chance() < 0.5:
            loader.shares = shares(loader, chance)
        if loader.coefficients is not None and len(loader.coefficients) == 3:
            loader.coefficients = np.array([0.5, 0.25, 0.25])

    loader.before_batch = change
    for batch in loader:
        known = loader.rank_batch
        numbers = [f"{number:.9g}" for number in (known.weight, known.part, known.whole, *known.features)]
        facts = (numbers, known.rows, known.last)
        yield batch, facts, loader.batch_sizes.tolist(), loader.position, loader.since_uneven
        batches -= 1
        if batches <= 0 and loader.step_ends:
            return


def told(kind, ranks):
    """Checksum of two epochs and of the beginning of a third, which as many ranks and one more go on with."""
    said = []
    for rank in range(ranks):
        one = loader(kind, rank, ranks)
        said += [list(looped(one)), list(looped(one)), list(looped(one, 2))]
        saved = one.state_dict()
        said.append(sorted((name, np.asarray(value).tolist()) for name, value in saved.items()))
        for more in (0, 1):
            other = loader(kind, rank, ranks + more)
            other.load_state_dict(saved)
            said += [list(looped(other)), list(looped(other, 1)), kind in STREAMS or len(other)]
    return f"{zlib.crc32(repr(said).encode()):08x}"


KEPT = Path(__file__).parent / "epochs.json"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DATASETS, *STREAMS])
def test_every_rank_takes_the_samples_that_are_kept(kind):
    require_kept(KEPT, kind, [told(kind, ranks) for ranks in (1, 2, 3)])
