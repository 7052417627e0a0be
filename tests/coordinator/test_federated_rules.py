"""Parts of a federated round, each beside an account of the same, client by client."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated import ForecastSource, Reason, RoundReport
from paceline.coordinator.federated.clients import (
    MOMENTS,
    Clients,
    Following,
    State,
    _fit,
    drawn,
    plausible_comm,
    plausible_speeds,
    summary_of,
)
from paceline.coordinator.federated.rounds import HELD, SOURCES, SPARED, reason_of

LAWS = settings(max_examples=60)
NAN = math.nan

replies = st.tuples(
    st.sampled_from([100.0, 1.0, 1e4, 0.0, NAN]),
    st.sampled_from([1.0, 2.0, 100.0, 101.0, 0.0, NAN]),
    st.sampled_from([NAN, NAN, 0.5, 1.0, 99.0, 150.0, -1.0]),
    st.sampled_from([NAN, NAN, 1.0, 1.5, 99.0, 100.0, 200.0]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, 1]),
)


def report_of(rows):
    samples, seconds, comm, elapsed, failed, full = map(list, zip(*rows, strict=True))
    names = [f"c{i}" for i in range(len(rows))]
    return RoundReport(
        clients=names,
        samples=samples,
        seconds=seconds,
        comm_seconds=comm,
        elapsed=elapsed,
        failed=failed,
        out_of_memory=full,
    )


def speed_of(row):
    samples, seconds, *_, failed, full = row
    return samples / seconds if samples > 0 and seconds > 0 and not failed and not full else NAN


def comm_of(row):
    _, seconds, comm, elapsed, *_ = row
    told = max(elapsed - seconds, 0.0) if comm != comm and elapsed == elapsed and seconds == seconds else comm
    return told if told >= 0 else NAN


def accepted_of(rows, usual, plausible):
    speeds = [speed_of(row) for row in rows]
    fits = [v == v and not row[1] > 1.01 * row[3] + 0.01 for v, row in zip(speeds, rows, strict=True)]
    known = sorted(v for v in speeds if v == v)
    usual = usual if usual == usual else known[(len(known) - 1) // 2] if known else NAN
    return [
        fit and v <= plausible * usual and (row[3] == row[3] or v >= usual / plausible)
        for fit, v, row in zip(fits, speeds, rows, strict=True)
    ]


@LAWS
@given(st.lists(replies, min_size=1, max_size=6), st.sampled_from([NAN, 50.0, 100.0]), st.sampled_from([1.5, 50.0]))
def test_a_speed_is_accepted_that_is_like_others_or_slow_by_the_servers_clock(rows, usual, plausible):
    report, wanted = report_of(rows), accepted_of(rows, usual, plausible)
    np.testing.assert_array_equal(report.speed, [speed_of(row) for row in rows])
    np.testing.assert_array_equal(report.communication, [comm_of(row) for row in rows])
    accepted_W = plausible_speeds(report, usual, plausible)
    assert accepted_W.tolist() == wanted
    took = [row[1] for row, good in zip(rows, wanted, strict=True) if good]
    for usual_comm in (NAN, 1.0, 40.0):
        most = plausible * max(usual_comm if usual_comm == usual_comm else 0.0, float(np.median(took)) if took else 0.0)
        timed = [
            (good or row[2] == row[2])
            and not row[4]
            and not row[5]
            and comm_of(row) <= (most if row[3] != row[3] else 1.01 * row[3] + 0.01)
            for row, good in zip(rows, wanted, strict=True)
        ]
        assert plausible_comm(report, accepted_W, usual_comm, plausible).tolist() == timed


@LAWS
@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 3)), max_size=8),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_an_unseen_client_is_drawn_from_its_type_as_far_as_that_was_seen(seen, asked):
    logs, devices = np.array([log for log, _ in seen]), np.array([device for _, device in seen], dtype=np.int64)
    mean_W, deviation_W, source_W = drawn(logs, devices, np.array(asked), prior=0.7)
    whole = (np.var(logs, ddof=1) if len(seen) > 1 else 0.04) if seen else math.inf
    for device, mean, deviation, source in zip(asked, mean_W, deviation_W, source_W, strict=True):
        alike = logs[devices == device] if device else logs[:0]
        if not seen:
            wanted = 0.7, math.inf, ForecastSource.NOTHING
        elif len(alike):
            squares = ((alike - alike.mean()) ** 2).sum() + 2 * whole
            variance = squares / (len(alike) + 1) * (1 + 1 / len(alike))
            wanted = alike.mean(), math.sqrt(variance), ForecastSource.DEVICE
        else:
            wanted = logs.mean(), math.sqrt(whole * (1 + 1 / len(seen))), ForecastSource.FLEET
        assert (mean, deviation) == pytest.approx(wanted[:2], abs=1e-9)
        assert source == wanted[2]


# -- clients that train by epochs ----------------------------------------------------------------------------------


class Suspect:
    """One client's fit, and what follows from it: an account in single numbers."""

    def __init__(self, again):
        self.again, self.state, self.turn, self.base, self.moments = again, State.TRUSTED, 0, 0.0, np.zeros(6)

    def learn(self, samples, seconds, size, batch):
        x, y = math.log(samples), math.log(seconds)
        if self.moments[0] == 1 and self.state is State.TRUSTED and x > self.moments[1]:
            self.moments = np.zeros(6)  # the first report may have been that of a cold start
        newest = np.array([1, x, y, x * x, x * y, y * y])
        self.moments = 0.9 * self.moments + newest
        slope, error, apart = (each.item() for each in _fit(self.moments[:, None]))
        most, least, astray = slope + 1.64 * error, slope - 1.64 * error, abs(math.log(size / batch))
        self.turn += 1
        if self.state is State.TRUSTED:
            ill = apart and most < 0.5 and astray >= math.log(1.3)
            rested = self.turn < 0 and self.turn >= -4 * self.again
            if (ill and (self.turn >= 4 or rested)) or (not apart and astray >= math.log(2) and self.turn >= 4):
                self.state, self.turn, self.base, self.moments = State.TESTED, 0, size, newest
            return ""
        over = self.state is State.TESTED and self.turn >= 8
        if least > 0.1 or (over and (slope > 0.1 or not apart)):
            was, self.state, self.turn = self.state, State.TRUSTED, -5 * self.again
            return "follows" if was is State.FLAT else ""
        if self.state is State.TESTED and (over or (apart and self.turn >= 4 and most < 0.1)):
            self.state, self.turn = State.FLAT, 0
            return "does not follow"
        return ""

    def size(self, batch, least):
        if self.state is State.TESTED:
            other = math.floor(self.base / 2 if self.base > batch else self.base * 2)
            wanted = self.base if self.turn % 2 else other
        elif self.state is State.FLAT:
            wanted = math.floor(max(batch / 2, 1.0)) if self.turn % self.again == self.again - 1 else batch
        else:
            return NAN
        return max(wanted, min(least, batch))


KINDS = st.tuples(
    st.sampled_from(["epochs", "steps", "cold", "changes", "noisy"]),
    st.sampled_from([12, 16, 20, 24, 26, 32, 40, 64, 70, 256]),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(KINDS, min_size=1, max_size=4), st.integers(2, 6), st.sampled_from([1, 8, 40]), st.integers(0, 99))
def test_who_is_suspected_tested_and_found_follows_from_each_clients_own_reports(kinds, again, least, seed):
    clients, chance = Clients(9), np.random.default_rng(seed)
    names = [f"c{i}" for i in range(len(kinds))]
    clients.join(names, round_index=0)
    following, alone = Following(clients, again), [Suspect(again) for _ in kinds]
    for k in range(75):
        there = np.flatnonzero(chance.random(len(kinds)) < 0.9)
        fixed = following.sizes(clients.rows(names), 32, least)
        np.testing.assert_array_equal(fixed, [one.size(32, least) for one in alone])
        sizes, seconds = [], []
        for i in there:
            kind, usual, moves = kinds[i]
            size = fixed[i] if fixed[i] == fixed[i] else usual * (1 + moves * (k % 3) / 4)
            flat = kind == "epochs" or (kind == "changes" and k < 45)
            took = 3.0 if flat else size / 20
            took *= 5.0 if kind == "cold" and k == 0 else math.exp(chance.normal(0, 0.5)) if kind == "noisy" else 1.0
            sizes.append(size)
            seconds.append(took)
        found, cleared = following.learn(there, 10.0 * np.array(sizes), np.array(seconds), np.array(sizes), 32.0)
        told = {int(i): alone[i].learn(10 * n, t, n, 32.0) for i, n, t in zip(there, sizes, seconds, strict=True)}
        assert sorted(found) == [i for i, news in told.items() if news == "does not follow"]
        assert sorted(cleared) == [i for i, news in told.items() if news == "follows"]
        assert following.state(clients.rows(names)).tolist() == [one.state for one in alone]
        usual = [math.exp(one.moments[2] / one.moments[0]) if one.state is State.FLAT else NAN for one in alone]
        assert following.seconds(clients.rows(names)) == pytest.approx(usual, nan_ok=True)
    rows = clients.rows(names)
    assert clients.column("turn")[rows].tolist() == [one.turn for one in alone]
    moments = np.stack([clients.column(moment)[rows] for moment in MOMENTS], axis=1)
    assert moments == pytest.approx(np.stack([one.moments for one in alone]))


# -- the words -----------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(
    st.sampled_from(list(Reason)),
    st.sampled_from(list(ForecastSource)),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.sampled_from([1.0, 1.1, 1.11]),
)
def test_a_reason_says_what_decides_what_is_missing_and_nothing_else(
    reason, source, silent, rejected, is_less, caution
):
    facts = {"size": 8, "mean": 16.0, "local_steps": 10, "speed": 20.0, "source": source, "comm": 1.0, "seconds": 5.0}
    facts |= {"silent": silent, "rejected": rejected, "is_reduced": is_less, "caution": caution, "deadline": 9.0}
    said = reason_of("c", reason, **facts)
    parts = said.split(". It ")
    assert len(parts) == 1 + bool(silent) + bool(rejected)
    if silent:
        assert f"has not replied for {silent} round{'s' * (silent > 1)}" in parts[1]
    if rejected:
        assert f"reported for {rejected} round{'s' * (rejected > 1)} a speed that cannot be" in parts[-1]
    special = {Reason.NO_ROOM, Reason.LEFT_OUT, Reason.TRIED_AGAIN, Reason.TESTED, Reason.FLAT}
    assert ("is not asked" in said) == (reason in {Reason.NO_ROOM, Reason.LEFT_OUT})
    assert ("9 s" in said) == (reason in {Reason.LEFT_OUT, Reason.TRIED_AGAIN})
    assert ("to see whether its time follows" in said) == (reason is Reason.TESTED)
    assert ("is not balanced: its time, 5 s," in said) == (reason is Reason.FLAT)
    if reason in special:
        return
    first = parts[0].removesuffix(".")
    if source is ForecastSource.NOTHING:
        less = "; as nobody has replied so far, it is less than the mean batch" * is_less
        assert first == f"c gets 8 samples a step: nobody has reported yet{less}"
        return
    spared = SPARED if caution > 1.1 and reason is Reason.BALANCED else ""
    assert first == (
        f"c gets 8 samples a step (50 % of the mean): 20 samples/s {SOURCES[source]} and 1 s to communicate make 5 s "
        f"for 10 local steps{HELD.get(reason, '')}{spared}"
    )


@LAWS
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([1.0, 2.0, 2.4, 2.5, 9.0]), st.sampled_from(list(ForecastSource))),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([Reason.BALANCED, Reason.LEAST, Reason.TRIED_AGAIN]),
)
def test_the_summary_counts_clients_and_names_the_last_if_it_is_late(rows, reason):
    sizes, seconds, sources = map(np.array, zip(*rows, strict=True))
    seconds = np.where(sizes > 0, seconds, 0.0)
    names, asked = [f"c{i}" for i in range(len(rows))], sizes > 0
    said = summary_of(names, sizes, seconds, sources, np.full(len(rows), reason))
    if not asked.any():
        assert said.startswith("Nobody is asked")
        return
    who = f"{asked.sum()} client{'s' * int(asked.sum() > 1)} asked"
    who += f", {(~asked).sum()} left out" if not asked.all() else ""
    if ForecastSource.NOTHING in sources:
        assert said == f"{who}: equal batches, as nobody has reported yet."
        return
    never = sum(source in (ForecastSource.DEVICE, ForecastSource.FLEET) for source in sources[asked])
    who += f"; {never} of them never seen" if never else ""
    usual, last = float(np.median(seconds[asked])), int(np.argmax(seconds))
    how = {Reason.LEAST: ", even with the smallest batch", Reason.BALANCED: ""}
    how[Reason.TRIED_AGAIN] = ", which is tried again with the smallest batch"
    late = f"; the last is {names[last]}{how[reason]}" if seconds.max() > 1.2 * usual else ""
    assert said == (
        f"{who}, with {sizes[asked].min()} to {sizes.max()} samples a step: all replies are expected after "
        f"{seconds.max():.3g} s, the median after {usual:.3g} s{late}."
    )
