"""A rank that lies in its report, or sends another report than the others: all decide alike, recover, or are told.

Axes: W ranks, F numbers in a rank's report.
"""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, RLS, Auto, LastValue
from paceline.recording.torch.busy_clock import Clock
from paceline.recording.torch.marks import CPUMarks
from paceline.torch import BalancedLoader, BalanceWarning, Costs, agreement, attach
from paceline.torch.planning import Planning
from paceline.torch.reports import COLUMNS, RankReports
from paceline.torch.sampled import Sampled
from paceline.torch.steps import Steps

GLOBAL_BATCH, SPEEDS = 48, (100.0, 50.0, 200.0, 80.0)
LIES = (math.nan, -1.0, 0.0, 1e300, -1e300, math.inf, -math.inf)
LYING, HONEST = 20, 25
"""Iterations in which a rank may lie, and those after them."""

ENDING = ("epoch", "batches", "assigned")
"""Columns that say where a rank stands in the data: samples are lost where ranks stand apart, which ends the job."""

KINDS = {"last value": LastValue, "EWMA": EWMA, "RLS": lambda: RLS(["load"]), "Auto": lambda: Auto(["load"])}


# -- ranks in one process, each in its turn ----------------------------------------------------------------------


class Table:
    """What the ranks of one process have sent each other."""

    def __init__(self, ranks):
        self.row_of, self.of_first = [[]] * ranks, []


class Seat:
    """One rank's exchange over a table; its next report says ``lie``, a column and a number, if it has one."""

    def __init__(self, table, rank):
        self.world_size = len(table.row_of)
        self.table, self.rank, self.lie, self.heard = table, rank, None, 0
        self.under_way = False

    def send(self, row):
        row = [float(number) for number in row]
        if self.lie is not None:
            row[self.lie[0]] = self.lie[1]
        self.table.row_of[self.rank], self.under_way = row, True

    def receive(self):
        self.under_way = False
        return np.array(self.table.row_of)

    def from_first(self, state):
        if self.rank == 0:
            self.table.of_first.append({name: np.array(value) for name, value in state.items()})
        self.heard += 1
        return {name: value.copy() for name, value in self.table.of_first[self.heard - 1].items()}


class Steady:
    """A covariate that stays as it is."""

    name, unit = "load", "share"

    def sample(self):
        return 0.25


class Member:
    """One rank: the library's own from the report on; in place of a model there is only the time that it takes."""

    def __init__(self, table, rank, ranks, kind, costly):
        lengths = np.random.default_rng(0).integers(1, 9, GLOBAL_BATCH * (LYING + HONEST + 1))
        place = {"rank": rank, "world_size": ranks, "costs": Costs(lengths=lengths) if costly else None}
        self.loader = BalancedLoader(range(len(lengths)), GLOBAL_BATCH, **place)
        self.seat, self.rank, self.seen, names = Seat(table, rank), rank, [], [f"w{place}" for place in range(ranks)]
        predictor = KINDS[kind]()
        covariates = [Steady()] * len(predictor.covariate_names)
        balancer = LoadBalancer(predictor, workers=names, global_batch=GLOBAL_BATCH, policy=Policy(warmup=1))
        self.planning = Planning(balancer, self.loader, self.seat, names, len(covariates))
        self.clock = Clock(CPUMarks())
        self.steps = Steps(self.loader, self.planning, self.seat, self.clock, Sampled(covariates))
        self.steps.observers.append(self.seen.append)
        self.loader.before_batch = self.steps.begin
        self.batches = iter(self.loader)

    def take(self):
        self.batch = next(self.batches).tolist()

    def compute(self, lie):
        features = self.loader.rank_batch.features
        self.clock.forward(len(self.batch), features=features)
        self.clock.measured((features[0] if features else len(self.batch)) / SPEEDS[self.rank])
        self.clock.ready()
        self.steps._kind.norms.logs.append(0.5)
        self.seat.lie = lie
        self.steps.send([])


def ran(ranks, kind, costly, liar=0, lies=()):
    """Run ranks, one of which lies in these iterations, and return the shares of the last plan, ``[W]``.

    In every iteration all ranks use the same sizes, none takes a sample of another's, and all plan the same.
    """
    table, lies = Table(ranks), dict(lies)
    members = [Member(table, rank, ranks, kind, costly) for rank in range(ranks)]
    for k in range(LYING + HONEST):
        for member in members:
            member.take()
        sizes, *others = [member.loader.batch_sizes.tolist() for member in members]
        assert all(other == sizes for other in others)
        assert sum(sizes) == GLOBAL_BATCH
        assert min(sizes) >= 1
        assert len({number for member in members for number in member.batch}) == GLOBAL_BATCH
        for member in members:
            member.compute(lies.get(k) if member.rank == liar else None)
        for member in members:
            member.steps.receive()
        assert len({member.planning.checksum for member in members if member.steps.rows.together}) <= 1
    for one in members[0].seen:
        assert (one.sizes >= 0).all()
        assert not (one.seconds <= 0).any()
        assert not np.isinf(one.wait_seconds).any()
    return members[0].planning.plan.sizes


@cache
def honest(ranks, kind, costly):
    return ran(ranks, kind, costly)


def makespan(sizes):
    return max(size / speed for size, speed in zip(sizes, SPEEDS, strict=False))


@st.composite
def fleets(draw):
    """A fleet, who lies in it, and each iteration's lie: the place of a number, and what it says."""
    ranks, kind, costly = draw(st.integers(2, 4)), draw(st.sampled_from(list(KINDS))), draw(st.booleans())
    more = len(KINDS[kind]().covariate_names) + 3 * costly
    places = [place for place in range(len(COLUMNS) + more) if place >= len(COLUMNS) or COLUMNS[place] not in ENDING]
    numbers = st.sampled_from(LIES) | st.floats(0.01, 1000)
    lies = draw(st.dictionaries(st.integers(1, LYING), st.tuples(st.sampled_from(places), numbers), min_size=1))
    return ranks, kind, costly, draw(st.integers(0, ranks - 1)), lies


def is_plausible(lies):
    """Return whether a rank says that it ran out of memory: from then on it gets less, whether it is true or not."""
    return (COLUMNS.index("out_of_memory"), 1.0) in lies.values()


@pytest.mark.slow
@settings(max_examples=15)
@given(fleets())
@example((2, "last value", True, 1, {5: (len(COLUMNS) + 1, math.nan)}))
@example((2, "last value", True, 1, {5: (len(COLUMNS) + 1, math.inf), 9: (len(COLUMNS), 1e300)}))
def test_whatever_a_rank_reports_all_plan_alike_and_soon_as_if_it_had_never_lied(fleet):
    ranks, kind, costly, liar, lies = fleet
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BalanceWarning)  # a lie may look like a wrong loss
        sizes = ran(ranks, kind, costly, liar, tuple(lies.items()))
    assert is_plausible(lies) or makespan(sizes) <= 1.1 * makespan(honest(ranks, kind, costly)), sizes


@pytest.mark.parametrize("column", ENDING)
@pytest.mark.parametrize("lie", [one for one in (*LIES, 7.0) if one != 0])
def test_a_rank_that_says_it_stands_elsewhere_in_the_data_ends_the_job_on_all_ranks_alike(column, lie):
    table, said = Table(3), []
    members = [Member(table, rank, 3, "EWMA", costly=False) for rank in range(3)]
    for member in members:
        member.take()
        member.compute((COLUMNS.index(column), lie) if member.rank == 1 else None)
    for member in members:
        member.steps.receive()
    for member in members:
        with pytest.raises(RuntimeError, match=r"the ranks (are not|had different)") as caught:
            member.take()
        said.append(str(caught.value))
    assert len(set(said)) == 1


@given(
    st.integers(0, 2),
    st.dictionaries(st.integers(0, len(COLUMNS) + 3), st.sampled_from(LIES) | st.floats(), max_size=6),
    st.integers(0, 2),
)
@example(rank=1, lies={COLUMNS.index("micro_batches"): 0.0}, features=0)
@example(rank=1, lies={len(COLUMNS) + 3: math.nan}, features=2)
def test_no_numbers_of_a_rank_change_what_is_known_of_the_others(rank, lies, features):
    rows_WF = np.array([[8.0, 2, 1, 0.5, 0.01, 0, 1, 0, 1, 1, 0.1, 24, 0, math.nan, 0.25, 0.5, 1, 1]] * 3)
    rows_WF[rank, list(lies)] = list(lies.values())
    rows = RankReports(rows_WF, features)
    report, others = rows.report(rows.covariates_WD), np.arange(3) != rank
    assert report.speed[others].tolist() == [16.0, 16.0]
    assert report.out_of_memory is None or not report.out_of_memory[others].any()
    assert np.isnan(report.speed[rank]) or report.speed[rank] > 0
    assert np.isnan(rows["seconds"][rank]) or 0 < rows["seconds"][rank] < math.inf
    assert np.isnan(rows["seconds"][rank]) or np.isfinite(rows.features_WF[rank]).all()


def test_a_cost_of_nothing_is_a_cost():
    rows_WF = np.array([[8.0, 2, 1, 0.5, 0.01, 0, 1, 0, 1, 1, 0.1, 24, 0, math.nan, 0.0, 3.0]] * 3)
    assert RankReports(rows_WF, 2)["seconds"].tolist() == [0.5] * 3


# -- what ranks must have in common ------------------------------------------------------------------------------


class Round:
    """One rank's exchange, with the others in threads."""

    def __init__(self, rank, told, barrier):
        self.rank, self.world_size, self._told, self._barrier = rank, len(told), told, barrier

    def gather(self, thing):
        self._told[self.rank] = thing
        self._barrier.wait(10)
        return list(self._told)


class Placed:
    """What agreement asks of a loader."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size


def agreed(facts_W):
    """Let ranks compare these facts; return what each said, or raised."""
    told, barrier = [None] * len(facts_W), Barrier(len(facts_W))

    def one(rank):
        try:
            loader, names = Placed(rank, len(facts_W)), [f"w{rank}" for rank in range(len(facts_W))]
            return agreement.agree(Round(rank, told, barrier), loader, facts_W[rank], names)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(facts_W)) as pool:
        return list(pool.map(one, range(len(facts_W))))


FACTS = st.dictionaries(st.sampled_from(["version of paceline", "policy", "loss", "columns"]), st.sampled_from("ab"))


@settings(max_examples=40)
@given(st.lists(FACTS, min_size=2, max_size=3))
@example([{"loss": "a"}, {"loss": "a", "columns": "b"}])
def test_ranks_that_differ_in_any_fact_are_all_refused_and_with_one_sentence(facts_W):
    """A fact that only one rank names, as one of another version does, let the others go on into a wait for it."""
    said = agreed(facts_W)
    assert len(set(said)) == 1
    if any(facts != facts_W[0] for facts in facts_W):
        names = [name for facts in facts_W for name in facts if len({str(f.get(name)) for f in facts_W}) > 1]
        assert any(said[0].startswith(f"the ranks must agree on the {name}, got") for name in names)
    else:
        assert said[0] == tuple(f"w{rank}" for rank in range(len(facts_W)))


# -- what a small fleet goes through, job after job --------------------------------------------------------------


class Watched(EWMA):
    """Reads one covariate."""

    covariate_names = ("load",)


def job(predictor=None, **options):
    """Return the balance, and the steps of its loop over as many epochs as one likes."""
    torch.manual_seed(0)
    inner = torch.nn.Linear(4, 2)
    inner.register_buffer("centre", torch.zeros(2))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = BalancedLoader(torch.utils.data.TensorDataset(torch.randn(10 * GLOBAL_BATCH, 4)), GLOBAL_BATCH)
    how = {"predictor": predictor or Watched(), "policy": Policy(warmup=1), "timeout": 20.0, "covariates": [Steady()]}
    balance = attach(model, loader, **(how | options))

    def steps():
        while True:
            for (inputs,) in loader:
                balance.measured(len(inputs) / SPEEDS[loader.rank])
                yield loader.batch_sizes.tolist()
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()

    return balance, model, steps()


def lies_sent(balance, rank):
    """Let the second rank's next reports say what the returned list holds: places and numbers, or nothing."""
    lies, send = [], balance._steps.exchange.send

    def sent(row):
        row, lie = list(row), lies.pop() if lies else None
        if lie and rank == 1:
            row[lie[0]] = lie[1]
        send(row)

    balance._steps.exchange.send = sent
    return lies


def every_column(rank):
    """Let the second rank lie in every column in turn, with two honest reports after each lie."""
    balance, model, steps = job()
    lies, sizes, heard = lies_sent(balance, rank), [], []
    balance.on_iteration.append(lambda iteration: heard.append(iteration.wait_seconds))
    places = [place for place in range(len(COLUMNS) + 1) if place >= len(COLUMNS) or COLUMNS[place] not in ENDING]
    told = [None] * 12 + [one for place in places for lie in LIES for one in ((place, lie), None, None)] + [None] * 20
    lies.extend(reversed(told))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while lies:
            sizes.append(next(steps))
    steps.close()
    weights = [one.tolist() for one in model.parameters()]
    balance.close()
    said = [str(one.message) for one in caught if not issubclass(one.category, BalanceWarning)]
    return sizes, weights, said, len(heard)


def elsewhere(rank):
    """Let the second rank say that it stands elsewhere in the data; return the error that ends the job."""
    said = []
    for column in ENDING:
        balance, _, steps = job()
        lies = lies_sent(balance, rank)
        lies.extend([(COLUMNS.index(column), math.nan), None])
        with pytest.raises(RuntimeError) as caught:
            for _ in steps:
                pass
        said.append(str(caught.value))
        balance.close()
    return said


def other_reports(rank):
    """Attach ranks whose reports differ in length; return what each was told."""
    said = []
    names = Watched.covariate_names
    Watched.covariate_names = names * rank
    with pytest.raises(ValueError, match="must agree") as caught:
        job()
    said.append(str(caught.value))
    Watched.covariate_names = names
    agreement.COLUMNS = (*COLUMNS, "colour") if rank else COLUMNS
    with pytest.raises(ValueError, match="must agree") as caught:
        job()
    agreement.COLUMNS = COLUMNS
    said.append(str(caught.value))
    return said


def all_jobs(rank):
    return {job.__name__: job(rank) for job in (other_reports, every_column, elsewhere)}


@pytest.fixture(scope="module")
def ranks():
    """What both ranks returned, by job."""
    first, second = run_ranks(2, all_jobs)
    return {name: (first[name], second[name]) for name in first}


def test_a_rank_that_lies_in_every_column_in_turn_changes_no_gradient_and_sizes_come_back(ranks):
    (sizes, weights, said, heard), (sizes_too, weights_too, said_too, _) = ranks["every_column"]
    assert sizes == sizes_too
    assert weights == weights_too
    assert said == said_too == []
    assert heard == len(sizes) - 1
    assert all(sum(one) == GLOBAL_BATCH and min(one) >= 1 for one in sizes)
    assert makespan(sizes[-1]) <= 1.1 * makespan(sizes[11]) < makespan(sizes[0])


def test_a_rank_that_says_it_stands_elsewhere_ends_every_rank_with_the_same_sentence(ranks):
    first, second = ranks["elsewhere"]
    assert first == second
    assert "the ranks are not at the same place of the data" in first[0]
    assert "the ranks are not at the same place of the data" in first[1]
    assert "the ranks had different samples by batch" in first[2]


def test_ranks_whose_reports_differ_in_length_are_refused_as_they_attach(ranks):
    first, second = ranks["other_reports"]
    assert first == second
    assert first[0] == "the ranks must agree on the covariates, got [] on rank 0, ['load'] on rank 1"
    assert first[1].startswith("the ranks must agree on the columns of a report, got ['samples', 'micro_batches'")
