"""The outcomes of live experiments: every number once more from its definition, and what is shown and drawn of them."""

import io
import math
import statistics
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import t

from paceline.cli.live_command import async_table, outcome_table
from paceline.lab import EQUAL, AsyncOutcome, AsyncSetting, ExperimentOutcome, Setting
from paceline.lab.asynchronous import AsyncTurn, write_turns
from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.figure import loss_figure
from paceline.lab.outcome import IterationResult, RankResult, TurnResult

FEW = settings(max_examples=12)


def made(seed, schemes=("ewma", "auto"), rounds=2, contention="none", steps=(6, 12)):
    """An outcome with measurements of every kind at random."""
    chance = np.random.default_rng(seed)
    setting = Setting(schemes=schemes, rounds=rounds, global_batch=100, contention=contention)
    taken = dict.fromkeys((EQUAL, *schemes), 5)
    turns = [[], []]
    for scheme, number in setting.turns:
        seconds = chance.uniform(0.05, 0.2, chance.integers(*steps)).tolist()
        for rank in range(2):
            turns[rank].append(
                TurnResult(scheme, number, taken[scheme], seconds, 3.5 * sum(seconds), chance.uniform(0, 1))
            )
        taken[scheme] += len(seconds)
    records = {scheme: [] for scheme in schemes}
    for scheme in schemes:
        for index in range(0, taken[scheme], 2):
            first = int(chance.choice([30, 40]))
            own = [math.nan, math.nan] if index == 10 else chance.uniform(0.03, 0.15, 2).tolist()
            over = chance.uniform(1e-5, 1e-3)
            records[scheme].append(IterationResult(index, [first, 100 - first], own, own, over, False, ""))
    losses = [{s: chance.uniform(0.5, 2, n).tolist() for s, n in taken.items()} for _ in range(2)]
    share = {s: chance.uniform(0.3, 0.7, n) for s, n in taken.items()}
    weights = [{s: part.tolist() for s, part in share.items()}, {s: (1 - part).tolist() for s, part in share.items()}]
    results = [RankResult(turns[rank], losses[rank], weights[rank], records) for rank in range(2)]
    return ExperimentOutcome(setting, results)


def rate(seconds):
    counted = seconds[3:] if len(seconds) > 3 else seconds[-1:]
    return len(counted) / sum(counted)


def ratios(outcome, scheme):
    turns = outcome.turns
    for k, turn in enumerate(turns):
        if turn.scheme == scheme:
            yield rate(turn.seconds) / (0.5 * rate(turns[k - 1].seconds) + 0.5 * rate(turns[k + 1].seconds))


def interval(numbers):
    """The geometric mean of ratios, and the half-width of its interval."""
    logs = [math.log(one) for one in numbers]
    mean = math.exp(statistics.mean(logs))
    if len(logs) < 2:
        return mean, math.nan
    return mean, mean * t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))


def measured(outcome, scheme):
    """Walls, sizes and busy seconds of the iterations that count and that were recorded."""
    walls = {}
    for turn in outcome.turns:
        if turn.scheme == scheme:
            walls |= {turn.first + k: one for k, one in enumerate(turn.seconds) if k >= min(3, len(turn.seconds) - 1)}
    for record in outcome.results[0].records[scheme]:
        if record.index in walls and not any(map(math.isnan, record.seconds)):
            yield walls[record.index], record.sizes, record.seconds


def best_of(fixed, slopes, total):
    """The shortest time that any whole split of a batch over two ranks has."""
    return min(max(fixed[0] + one * slopes[0], fixed[1] + (total - one) * slopes[1]) for one in range(1, total))


@given(st.integers(0, 10**6), st.sampled_from(["none", "between"]), st.integers(1, 3))
@FEW
def test_row_numbers_follow_their_definitions(seed, contention, rounds):
    outcome = made(seed, contention=contention, rounds=rounds)
    fixed = [0.0, 0.04 if contention == "between" else 0.0]
    for row in outcome.rows:
        scheme = row.scheme
        numbers = list(ratios(outcome, scheme))
        np.testing.assert_allclose(outcome.pairs(scheme), numbers)
        assert (row.speed_up, row.half_width) == pytest.approx(interval(numbers), nan_ok=True)
        equal, best, walls, waits = 0.0, 0.0, 0.0, []
        for wall, sizes, own in measured(outcome, scheme):
            slopes = [max(o - f, 1e-6) / s for o, f, s in zip(own, fixed, sizes, strict=True)]
            rest = max(wall - max(own), 0.0)
            equal += max(f + 50 * slope for f, slope in zip(fixed, slopes, strict=True)) + rest
            best += best_of(fixed, slopes, 100) + rest
            walls += wall
            waits += [1 - one / max(own) for one in own]
        assert row.waiting == pytest.approx(statistics.mean(waits))
        assert row.oracle == pytest.approx(equal / best)
        assert row.reached == pytest.approx(best / walls)
        records = outcome.results[0].records[scheme]
        spent, before = [], -1
        for record in records:
            spent += [record.overhead] * (record.index - before)
            before = record.index
        assert row.overhead == pytest.approx(statistics.median(spent))
        changes = sum(now.sizes != then.sizes for then, now in pairwise(records))
        assert row.changes == pytest.approx(100 * changes / len(outcome.losses(scheme)))
        losses = {
            name: [
                sum(r.losses[name][k] * r.weights[name][k] for r in outcome.results)
                for k in range(len(outcome.results[0].losses[name]))
            ]
            for name in (scheme, EQUAL)
        }
        np.testing.assert_allclose(outcome.losses(scheme), losses[scheme])
        gap = max(abs(one - other) for one, other in zip(losses[scheme], losses[EQUAL], strict=False))
        assert row.loss_gap == pytest.approx(gap / losses[EQUAL][0])
    both = [one / other for one, other in zip(ratios(outcome, "ewma"), ratios(outcome, "auto"), strict=True)]
    assert outcome.paired("ewma", "auto") == pytest.approx(interval(both), nan_ok=True)
    spent = sum(sum(turn.seconds) for turn in outcome.turns)
    own = sum(turn.own for result in outcome.results for turn in result.turns)
    assert outcome.foreign_cores == pytest.approx(3.5 - own / spent)


@given(st.integers(0, 10**6), st.floats(1.2, 4.0))
@FEW
def test_outcome_reports_the_slowdown_of_others(seed, slower):
    outcome = made(seed, schemes=("ewma",), rounds=3, steps=(12, 16))
    records = outcome.results[0].records["ewma"]
    records[:] = [replace(one, seconds=[0.001 * one.sizes[0], 0.001 * one.sizes[1]]) for one in records]
    slow = [k % 3 == 0 for k in range(len(records))]
    for k, one in enumerate(records):
        if slow[k]:
            records[k] = replace(one, seconds=[one.seconds[0] * 1.25, one.seconds[1] * slower])
    told = outcome.slowdown_of_others("ewma")
    assert told == pytest.approx(1.25) if slower >= 1.5 else math.isnan(told)


@given(drawn=st.lists(st.tuples(st.sampled_from(["saps", "asp"]), st.integers(0, 10**6)), min_size=1, max_size=5))
@FEW
def test_async_row_numbers_follow_their_definitions(tmp_path_factory, drawn):
    turns = []
    for name, seed in [("saps", 1), ("asp", 2), *drawn]:
        chance = np.random.default_rng(seed)
        applied = np.cumsum(chance.integers(1, 100, 4)).tolist()
        turns.append(
            AsyncTurn(
                scheme=name,
                seed=seed,
                seconds=float(chance.uniform(1, 3)),
                applied=[0, *applied],
                losses=chance.uniform(0, 2, 5).tolist(),
                samples=chance.integers(1, 100, 2).tolist(),
                waited=chance.uniform(0, 1, 2).tolist(),
                staleness=float(chance.uniform(0, 3)),
                largest=int(chance.integers(1, 9)),
                bound=int(chance.integers(-1, 9)),
                wasted=float(chance.uniform(0, 1)),
            )
        )
    outcome = AsyncOutcome(AsyncSetting(schemes=("saps", "asp")), turns)
    least = min(turn.applied[-1] for turn in turns)
    assert outcome.equal_samples == least
    for row in outcome.rows:
        own = [turn for turn in turns if turn.scheme == row.scheme]
        rates = sorted(sum(turn.samples) / turn.seconds for turn in own)
        assert row.samples_per_second == pytest.approx(statistics.median(rates))
        assert row.spread == (rates[0], rates[-1])
        assert row.loss == pytest.approx(statistics.median(np.interp(least, one.applied, one.losses) for one in own))
        assert row.staleness == statistics.median(turn.staleness for turn in own)
        assert (row.largest, row.bound) == (max(turn.largest for turn in own), own[0].bound)
        assert row.waiting == pytest.approx(max(max(turn.waited) / turn.seconds for turn in own))
        assert row.wasted == max(turn.wasted for turn in own)
        assert row.slow_share == pytest.approx(statistics.median(one.samples[1] / sum(one.samples) for one in own))
    path = tmp_path_factory.getbasetemp() / "turns.json"
    write_turns(turns, path)
    assert AsyncTurn.read(path) == turns


def test_async_turn_without_updates_has_no_slow_share():
    turn = AsyncTurn("asp", 0, 1.0, [0], [1.0], [0, 0], [0.0, 0.0], 0.0, 0, -1, 0.0)
    assert AsyncOutcome(AsyncSetting(schemes=("asp",)), [turn]).rows[0].slow_share == 0.0


# -- shown and drawn -------------------------------------------------------------------------------------------------


def printed(table):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.export_text().splitlines()]


def test_outcome_table_shows_its_rows():
    outcome = made(3, contention="hogs")
    title, *lines = printed(outcome_table(outcome))
    assert " ".join(title) == str(DISTURBANCES["hogs"])
    for row in outcome.rows:
        cells = [row.scheme, f"{row.speed_up:.2f}", "±", f"{row.half_width:.2f}", f"{row.oracle:.2f}"]
        cells += [f"{row.reached:.0%}", f"{row.waiting:.0%}", f"{row.overhead * 1e6:.0f}", "us"]
        (shown,) = [[cell for cell in one if cell not in "│┃"] for one in lines if row.scheme in one]
        assert shown == cells


@pytest.mark.parametrize(("bound", "said"), [(-1, "none"), (0, "0"), (20, "20")])
def test_async_table_shows_its_rows(bound, said):
    turn = AsyncTurn("asp", 0, 2.0, [0, 12345], [2.0, 0.6789], [15000, 5000], [0.0, 0.5], 1.25, 4, bound, 0.0314)
    outcome = AsyncOutcome(AsyncSetting(schemes=("asp",), contention="none"), [turn])
    title, *lines = printed(async_table(outcome))
    assert " ".join(title) == "no rank is disturbed"
    assert any("12,345" in line for line in lines)
    (shown,) = [[cell for cell in one if cell not in "│┃"] for one in lines if "asp" in one]
    assert shown == ["asp", "10,000", "10,000-10,000", "0.679", "1.2", "4", said, "25%", "3.1%", "25%"]


@pytest.mark.parametrize("schemes", [("ewma",), ("ewma", "auto")])
def test_loss_figure_draws_smoothed_losses(tmp_path, monkeypatch, schemes):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **how: figures.append((figure, path, how)))
    outcome = made(5, schemes=schemes, rounds=2, steps=(20, 25))
    assert loss_figure(outcome, tmp_path / "loss.svg") == tmp_path / "loss.svg"
    ((figure, _, kind),) = figures
    assert kind == {"format": "svg"}
    assert figure.get_suptitle() == "no rank is disturbed"
    over_samples, over_time = figure.axes
    assert over_samples.get_yscale() == "log"
    assert [text.get_text() for text in over_time.get_legend().get_texts()] == [EQUAL, *schemes]
    last = max(len(outcome.losses(scheme)) for scheme in schemes)
    for number, scheme in enumerate((EQUAL, *schemes)):
        losses = outcome.losses(scheme)
        smooth = [losses[max(k + 1 - 15, 0) : k + 1].mean() for k in range(len(losses))]
        x, y = over_samples.lines[number].get_data()
        np.testing.assert_allclose(x, [0.1 * (k + 1) for k in range(min(len(losses), last))])
        np.testing.assert_allclose(y, smooth[:last])
        x, y = over_time.lines[number].get_data()
        seconds = np.cumsum([one for turn in outcome.turns if turn.scheme == scheme for one in turn.seconds])
        before = len(losses) - len(seconds)  # warm-up
        np.testing.assert_allclose(x, seconds[: last - before])
        np.testing.assert_allclose(y, smooth[before:last])
        assert (over_time.lines[number].get_linewidth() > 2) == (scheme == EQUAL)
