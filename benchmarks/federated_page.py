"""The page and the figure of ``federated.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from federated import Rare, Runs, Score
    from federated_lab import RoundSetting

Scores = Mapping[tuple[str, str, float], Mapping[str, "Score"]]
Evenness = Mapping[tuple[str, int, float], Mapping[str, Sequence[float]]]

ACCURACY_TARGET = 0.5
TIME_TARGET = 0.75
SPREAD_TARGET = 1.15
PLAN_TARGET = 20.0

COLORS = {
    "standard": "#000000",
    "balanced": "#0072B2",
    "adaptive-steps": "#009E73",
    "adaptive-rate": "#D55E00",
    "deadline-drop": "#CC79A7",
    "balanced-drop": "#56B4E9",
    "fedbuff": "#E69F00",
}
"""Told apart by color-blind eyes too (Okabe and Ito's palette)."""


@dataclass(frozen=True)
class About:
    """How the figures were made."""

    machine: str
    minutes: float
    seeds: int
    setting: RoundSetting


def page(
    path: Path,
    scores: Scores,
    evenness: Evenness,
    cost: Mapping[str, float],
    smallest: Mapping[int, tuple[float, float]],
    about: About,
    shown: Runs,
) -> None:
    figure(path.with_suffix(".png"), shown)
    parts = [
        HEAD.format(**vars(about)),
        "## Targets\n",
        *(f"- {line}" for line in targets(scores, evenness, cost)),
        "\n" + FIGURE,
        ACCURACY,
    ]
    for task in dict.fromkeys(task for task, _, _ in scores):
        parts += [f"### {task}\n", *accuracy_table({key: each for key, each in scores.items() if key[0] == task})]
    parts += [SMALLEST, *(f"| {least} | {points:+.2f} | {time:.2f} |" for least, (points, time) in smallest.items())]
    parts += ["\n" + EVENNESS, *evenness_table(evenness), COST.format(**cost).rstrip()]
    path.write_text("\n".join(parts) + "\n")


def targets(scores: Scores, evenness: Evenness, cost: Mapping[str, float]) -> list[str]:
    """Return a sentence for each target: missed ones first."""
    ours = [each["balanced"] for each in scores.values()]
    worst, slowest = min(one.points for one in ours), max(one.time for one in ours)
    kept = sum(one.points >= -ACCURACY_TARGET for one in ours)
    fast = sum(one.time <= TIME_TARGET and not one.never for one in ours)
    even = {
        label: [sum(each[label][column] <= SPREAD_TARGET for each in evenness.values()) for column in (1, 2, 3)]
        for label in ("in proportion", "phones")
    }
    ours_even, free_even, best_even = even["in proportion"]
    skewed = [each for key, each in scores.items() if key[1] != "IID"]
    beaten = {
        name: sum(each["balanced"].accuracy > each[name].accuracy for each in skewed)
        for name in ("adaptive-steps", "adaptive-rate")
    }
    lines = [
        (
            kept == len(ours),
            f"final accuracy within {ACCURACY_TARGET} points of standard federated learning: {kept} of "
            f"{len(ours)} settings, the worst mean {worst:+.2f} points",
        ),
        (
            fast == len(ours),
            f"target accuracy in at most {TIME_TARGET} of its time: {fast} of {len(ours)} settings, the "
            f"slowest {slowest:.2f}",
        ),
        *(
            (
                beaten[name] == len(skewed),
                f"higher final accuracy than {name} on data that are not IID: {beaten[name]} of {len(skewed)} settings",
            )
            for name in beaten
        ),
        (
            ours_even == len(evenness),
            f"slowest over median at most {SPREAD_TARGET}: {ours_even} of {len(evenness)} settings where time is in "
            f"proportion to samples, {free_even} with batches down to one sample, {best_even} for one who knows what "
            f"comes; with the phones' fixed cost {even['phones'][0]}, {even['phones'][1]} and {even['phones'][2]}",
        ),
        (
            cost["worst"] < PLAN_TARGET,
            f"a plan for 1,000 of 100,000 known clients in under {PLAN_TARGET:.0f} ms: "
            f"{cost['plan']:.1f} ms of computing, at worst {cost['worst']:.1f} ms",
        ),
    ]
    judged = [f"{'**Missed**' if not met else 'Met'}: {text}." for met, text in sorted(lines, key=lambda line: line[0])]
    return [*judged, *(faster(name, scores) for name in ("deadline-drop", "balanced-drop", "fedbuff"))]


def faster(name: str, scores: Scores) -> str:
    """Return a sentence on where a scheme that drops or does not wait is ahead, and at which price."""
    pairs = [(each[name], each["balanced"]) for each in scores.values()]
    ahead = sum(its.time < ours.time and not its.never for its, ours in pairs)
    never = sum(its.never > 0 for its, _ in pairs)
    worst = min(its.points for its, _ in pairs)
    return (
        f"No target: `{name}` reaches the target accuracy sooner than balanced batches in {ahead} of {len(pairs)} "
        f"settings, and with some seed never in {never}; its worst final accuracy is {worst:+.2f} points over standard."
    )


def accuracy_table(scores: Scores) -> list[str]:
    lines = [
        "| data | taking part | scheme | final accuracy | points over standard | time to target | time of all rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (_, level, participation), each in scores.items():
        for name, one in each.items():
            never = f" ({one.never} of the seeds never)" if one.never else ""
            half = "" if np.isnan(one.time_half) else f" ± {one.time_half:.2f}"  # one seed alone has none
            reached = "never" if np.isinf(one.time) else f"{one.time:.2f}{half}{never}"
            points = f"{one.points:+.2f} ± {one.points_half:.2f}"
            bold = "**" if name == "balanced" else ""
            lines.append(
                f"| {level} | {participation:.0%} | {bold}`{name}`{bold} | {one.accuracy:.1f}% | {points} | "
                f"{reached} | {one.total_time:.2f} |"
            )
    return [*lines, ""]


def evenness_table(evenness: Evenness) -> list[str]:
    lines = [
        "| speeds move as | clients | taking part | in proportion: standard | **balanced** | down to 1 | oracle | "
        "phones: standard | **balanced** | down to 1 | oracle |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (kind, clients, participation), each in evenness.items():
        cells = " | ".join(f"{value:.2f}" for value in (*each["in proportion"], *each["phones"]))
        lines.append(f"| `{kind}` | {clients} | {participation:.0%} | {cells} |")
    return [*lines, ""]


def predictors_page(
    path: Path, found: Mapping[tuple[int, int, str, str], Mapping[str, Rare]], machine: str, minutes: float, seeds: int
) -> None:
    """Write how rounds end with each predictor, relative to those of one who knows what comes."""
    names = list(next(iter(found.values())))
    lines = [
        "| clients | asked | speeds move as | time | " + " | ".join(f"`{name}`" for name in names) + " |",
        "| --- " * (4 + len(names)) + "|",
    ]
    for (clients, asked, kind, label), of_names in found.items():
        best = np.array(of_names["oracle"].seconds)
        cells = [
            f"{np.mean(np.array(of_names[name].seconds) / best):.2f} ({np.mean(of_names[name].spread):.2f})"
            for name in names
        ]
        lines.append(f"| {clients:,} | {asked} | `{kind}` | {label} | " + " | ".join(cells) + " |")
    gains = [
        f"- {1 - sum(of_names['local-level'].seconds) / sum(of_names['ewma, risk 0'].seconds):.1%}: "
        f"{clients:,} clients, `{kind}`, {label}"
        for (clients, _, kind, label), of_names in found.items()
    ]
    head = PREDICTORS.format(machine=machine, minutes=minutes, seeds=seeds, gains="\n".join(gains))
    path.write_text(head + "\n".join(lines) + "\n")


def figure(path: Path, runs: Runs) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.0, 3.6), dpi=120, layout="constrained")
    over_time, over_rounds = drawing.subplots(1, 2)
    for name, of_seeds in runs.items():
        style: dict[str, Any] = {"color": COLORS[name], "linewidth": 2.2 if name in ("standard", "balanced") else 1.2}
        hours = np.mean([[moment.seconds / 3600 for moment in run] for run in of_seeds], axis=0)
        accuracy = np.mean([[moment.accuracy for moment in run] for run in of_seeds], axis=0)
        over_time.plot(hours, 100 * accuracy, label=name, **style)
        if name in ("standard", "balanced"):
            spread = np.array([[moment.spread for moment in run] for run in of_seeds])
            known = np.isfinite(spread).any(axis=0)
            over_rounds.plot(np.flatnonzero(known) + 1, np.nanmedian(spread[:, known], axis=0), label=name, **style)
    over_time.set(xlabel="simulated hours", ylabel="accuracy in %", title="accuracy over time")
    over_rounds.set(xlabel="round", ylabel="slowest reply over the median", title="how even rounds are", ylim=(1, None))
    over_time.legend(frameon=False)
    drawing.savefig(path)


HEAD = """# Federated rounds that end together

`python benchmarks/federated.py`, on {machine}, one thread, {minutes:.0f} minutes of computing. Clients really
train (a network of one hidden layer, plain gradient descent, learning rate {setting.rate}, {setting.local_steps} local
steps, a mean batch of {setting.batch}, {setting.rounds} rounds, {seeds} seeds); time is simulated: phones of the flash
profiles (two models, their units log-normally apart by 0.4), links log-normal around 10 Mbit/s for a model of 1 MB, and
speeds that move as the workers of all nine recorded jobs did, each local step a row of the recording. The unit spread
and the links are our assumptions. ± is a 95% confidence half-width over the seeds.
"""

FIGURE = """![Accuracy over simulated time, and how even rounds are](federated.png)

`mixture`, 100 phones, Dirichlet 0.1, 30% of the clients in a round, the mean over the seeds.
"""

ACCURACY = """## Accuracy, and the time it takes

- *standard*: federated averaging, equal batches and steps. *balanced*: ours, only the batch differs.
- *adaptive-steps*: local steps by speed. *adaptive-rate*: batches by speed, learning rates in proportion to them.
- *deadline-drop*: after FedCS, the fastest 70% of the clients by forecast, the late dropped. *balanced-drop*: the
  same clients with balanced batches, nobody dropped. (Oort chooses among all clients by their losses; the replay draws
  a round's clients at random, so it has no row.)
- *fedbuff*: asynchronous, a step of the server for each 10 updates, as many updates as the others. With 30 or 100
  clients at once it so takes 3 or 10 server steps for each round of the others, which is where its accuracy comes
  from; it is shown as its users would run it.
- *time to target*: simulated time until the mean of 5 rounds reaches 98% of standard's final accuracy, over
  standard's.
- Final accuracy is the mean of the last 10 rounds.
"""

SMALLEST = """## How small a batch may be

`mixture`, 100 phones, 10% taking part, the mean over the three kinds of data and the seeds. A step on few samples is
noisy, and with ten clients in a round that shows; the default is a quarter of the mean batch.

| smallest batch | points over standard | time of all rounds over standard's |
| --- | --- | --- |"""

EVENNESS = """## How even rounds are

Slowest reply over the median, among clients that had replied three times before; the median over rounds and seeds.

- *in proportion*: a table in FedScale's layout, time in proportion to samples as in the paper's formula (20 ms a sample
  and 8 Mbit/s in the median, log deviation 0.6 each: our assumption).
- *phones*: as above. A step costs as much as 17 to 44 samples besides its samples, and no batch can shorten that.
- *balanced*: batches of at least a quarter of the mean, as by default; *down to 1*: of at least one sample.
- *oracle*: the exact split of the speeds and links to come, down to one sample. What exceeds 1 there, no batch can
  mend: clients whose link or fixed cost alone takes longer than the others' round. What *down to 1* has on top is due
  to forecasts: speeds that move between rounds, and links by 20%.
"""

COST = """## What a plan costs

100,000 known clients, 1,000 asked, a deadline: a plan takes {plan:.1f} ms of computing in the median and {worst:.1f}
ms at worst, learning the replies {learn:.1f} ms; the saved state is {state:.0f} MB.
"""

PREDICTORS = """# What forecasts the speeds of federated clients

`python benchmarks/federated.py --predictors`, on {machine}, one thread, {minutes:.0f} minutes of computing, {seeds}
seeds. Rounds are timed, nobody trains; clients, links and how speeds move are those of [federated.md](federated.md).
A client of 5,000 of which 50 are asked reports in every hundredth round: of those asked in the 100 rounds shown most
have never been seen.

Time of all rounds over that of the *oracle*, who knows every speed and link to come and is bound by the same smallest
batch; in brackets the slowest reply over the median, the median over rounds, among **all** that were asked. *Standard*:
equal batches. *risk 0*: a client never seen is taken at the mean of its device type, as all others at their forecast;
the others are run at the default risk of 0.7, at which the uncertain get less: clients never seen are taken at a
quantile of what is known of their device type. `local-level` is the core's default.

Time that the core saves over an EWMA that takes everybody at the mean:

{gains}

Between predictors at the same risk there is next to nothing: what is done about clients never seen decides. Where
speeds move as recorded and steps have the phones' fixed cost, little is left to gain: the oracle knows what nobody can.

"""
