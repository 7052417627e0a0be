"""Who takes which sample, recorded: states of one version go on in the next, and ranks never exchange assignments."""

import random
import zlib

import numpy as np
import pytest

from paceline.engines.torch.loading.source import OnDemand
from paceline.torch import BalancedLoader, Costs, StreamLoader

SAMPLES, BATCH = 83, 16
LENGTHS = [1 + number * 7 % 13 for number in range(SAMPLES)]
TERMS = [number * 5 % 4 for number in range(SAMPLES)]


class Rows(list):
    """A dataset of numbers, whose cost is a function of them."""


def length(sample):
    return LENGTHS[sample]


def terms(sample):
    return TERMS[sample]


DATASETS = {
    "slices": {},
    "in order, without the rest": {"shuffle": False, "drop_last": True},
    "steps of three": {"accumulate": 3, "seed": 5},
    "micro-batches": {"micro_batch": 3},
    "loaded ahead": {"num_workers": 1},
    "a sampler": {"sampler": [*range(0, SAMPLES, 2), 4, 4, 4]},
    "costs": {"costs": Costs(cost=LENGTHS, loss_terms=TERMS), "accumulate": 2},
    "lengths": {"costs": Costs(lengths=LENGTHS, cap=160.0), "micro_batch": 4},
    "padded": {"costs": Costs(lengths=LENGTHS, padded=True)},
    "budget": {"costs": Costs(cost=LENGTHS, global_tokens=90.0, loss_terms=TERMS), "global_batch": None},
}
STREAMS = {
    "stream": {},
    "mixed stream": {"window": 9, "seed": 3},
    "stream of costs": {"window": 4, "costs": Costs(lengths=length, loss_terms=terms)},
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


RECORDED = {
    "slices": "4dfb463e 6801c1e1 97efe963",
    "in order, without the rest": "feee00a8 9de8477b 5fd3d044",
    "steps of three": "4dec3348 31a26fca e1d2f7ac",
    "micro-batches": "74aa23f2 0022fc8e 8a307f00",
    "loaded ahead": "97aa7578 facd8fa6 b2b9393a",
    "a sampler": "e3c8e55f 9d3c2a92 6da2e475",
    "costs": "be139544 c490de3c 6947fe8d",
    "lengths": "fcca7e53 fc500328 c94016d2",
    "padded": "28d340ee 480bd645 249a0c0b",
    "budget": "24593f56 67aae591 7084bda3",
    "stream": "2d70dcb6 2c552ee2 9c747bb3",
    "mixed stream": "32522451 2d4d3e12 250823f9",
    "stream of costs": "bad059d3 d78cd7d1 e78c166a",
}


@pytest.mark.parametrize("kind", [*DATASETS, *STREAMS])
def test_every_rank_takes_the_samples_that_are_recorded(kind):
    assert [told(kind, ranks) for ranks in (1, 2, 3)] == RECORDED[kind].split()
