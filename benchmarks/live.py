"""What balancing gains in a real training on this machine, and what it costs where there is nothing to gain.

python benchmarks/live.py            # about 20 minutes on a machine that does nothing else; writes live.md
python benchmarks/live.py --quick    # a minute; prints only
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import machine

from paceline.lab import DISTURBANCES, ExperimentOutcome, ExperimentSetting, can_set_quotas, experiment
from paceline.lab.experiment import DISTURBED_RANK, confidence_half_width

BOTH = ("ewma", "auto")
TARGETS = {"none": 0.99, "quota": 1.6, "hogs": 1.3, "bursty": 1.2}
SETTINGS = [
    ExperimentSetting(contention="none", schemes=("control", "auto"), rounds=10, seconds=2.0),
    ExperimentSetting(contention="quota", schemes=BOTH, rounds=8, seconds=2.0),
    ExperimentSetting(contention="hogs", schemes=BOTH, rounds=8, seconds=2.0),
    # A turn holds several bursts: with one or two, what a round happens to hold decides more than the scheme does.
    ExperimentSetting(contention="bursty", schemes=BOTH, rounds=8, seconds=6.0),
    ExperimentSetting(contention="bursty-hogs", schemes=BOTH, rounds=8, seconds=6.0),
    ExperimentSetting(contention="between", schemes=BOTH, rounds=8, seconds=2.0),
]


def foreign_cores(outcome: ExperimentOutcome) -> float:
    """Return the mean number of cores busy with other processes, the competitors of the experiment included."""
    spent = sum(sum(turn.seconds) for turn in outcome.turns)
    cpu_seconds = sum(turn.rank_cpu_seconds for result in outcome.results for turn in result.turns)
    return float((sum(turn.machine_cpu_seconds for turn in outcome.turns) - cpu_seconds) / spent)


def paired(outcome: ExperimentOutcome, scheme: str, other: str) -> tuple[float, float]:
    """Return how much faster one scheme was than another in the same rounds, and the half-width of that."""
    logs = np.log(outcome.paired_speed_ups(scheme) / outcome.paired_speed_ups(other))
    ratio = float(np.exp(logs.mean()))
    return ratio, confidence_half_width(logs) * ratio


def slowdown_of_others(outcome: ExperimentOutcome, scheme: str) -> float:
    """Return how much longer the other ranks take for a sample while the disturbed one is slow.

    Above 1, the cores share hardware, and balancing gains less than the speed of the disturbed rank alone suggests.
    NaN if the disturbed rank is never clearly slower than at other times.
    """
    _, sizes_KW, busy_KW = outcome.measurements(scheme)
    each_KW = busy_KW / sizes_KW
    fast, slow = np.quantile(each_KW[:, DISTURBED_RANK], (0.1, 0.9))
    slow_K = each_KW[:, DISTURBED_RANK] > np.sqrt(fast * slow)
    if slow < 1.5 * fast:  # the slowest tenth hardly differs from the fastest
        return float("nan")
    others_KW = np.delete(each_KW, DISTURBED_RANK, axis=1)
    return float(np.median(others_KW[slow_K]) / np.median(others_KW[~slow_K]))


def section(outcome: ExperimentOutcome) -> str:
    name = outcome.setting.contention
    lines = [f"| {HEADINGS} |", "| --- |" + " --- |" * HEADINGS.count("|")]
    for row in outcome.rows:
        cells = [
            f"`{row.scheme}`",
            f"{row.speed_up:.3f} ± {row.half_width:.3f}",
            f"{row.oracle:.2f}",
            f"{row.share_of_oracle:.0%}",
            f"{row.waiting_share:.1%}",
            f"{row.changes:.0f}",
            f"{row.overhead * 1e6:.0f} us",
            f"{row.loss_gap:.1g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    step = 1e3 * sum(outcome.turns[0].seconds) / len(outcome.turns[0].seconds)
    about = (
        f"{outcome.setting.rounds} rounds, turns of {outcome.setting.seconds:g} s, an iteration of equal batches takes "
        f"{step:.0f} ms; {max(foreign_cores(outcome), 0):.2f} cores were busy beside the two ranks"
        + (", the competing processes among them" if DISTURBANCES[name].num_hogs else "")
    )
    if DISTURBANCES[name].burst_seconds is not None:
        slower = slowdown_of_others(outcome, outcome.setting.schemes[-1])
        about += f"; while the disturbed rank is slow, the other takes {slower:.2f} times as long for a sample"
    table = "\n".join(lines)
    target = f"Target {TARGETS[name]:g}x. " if name in TARGETS else ""
    versus = ""
    if set(BOTH) <= set(outcome.setting.schemes):
        ratio, half = paired(outcome, "auto", "ewma")
        versus = f"\n`auto` over `ewma` in the same rounds: {ratio:.3f} ± {half:.3f}.\n"
    return f"## `{name}`: {DISTURBANCES[name]}\n\n{target}{about[0].upper()}{about[1:]}.\n\n{table}\n{versus}"


HEADINGS = (
    "balanced by | speed-up over equal batches | oracle | reached | waiting | changes in 100 | added time | loss gap"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short turns; print only")
    parser.add_argument("--only", nargs="*", help="these contentions only; print only")
    asked = parser.parse_args()
    settings = [setting for setting in SETTINGS if not asked.only or setting.contention in asked.only]
    if not can_set_quotas():
        settings = [setting for setting in settings if DISTURBANCES[setting.contention].quota is None]
    if asked.quick:
        settings = [replace(setting, rounds=2, seconds=1.5, schemes=("control", *BOTH)) for setting in settings]
    outcomes = []
    for setting in settings:
        outcomes.append(experiment(setting))
        print(section(outcomes[-1]), flush=True)
    if not asked.quick and not asked.only:
        Path(__file__).with_suffix(".md").write_text(
            PAGE.format(machine=machine("torch"), sections="\n".join(map(section, outcomes)), notes=NOTES)
        )


NOTES = """## What stands in the way

- Added time: a plan is made at every iteration, in Python whose code and data the model has just displaced from the
  caches; before, most iterations made none. Where nobody is disturbed, .3 ms are wanted.
- `none`: the two cores are not equally fast at every moment, and sizes follow that more often than they need to.
- Rows of one contention differ from run to run by more than their half-widths say: `between`, run again alone
  (`paceline live ewma auto -c between --rounds 8 --seconds 2`), had `auto` ahead of `ewma`, 1.14 ± .06 to 1.08 ± .07.
- `bursty` and `bursty-hogs`: 93% of the oracle are wanted. Sizes that followed at once would gain 0.8125 / 0.625 =
  1.3x under `bursty`, which is calm half of the time and has a quarter of the speed in the other half. It takes
  iterations, of up to four times the usual length, until sizes fit a burst. The oracle's column counts iterations, not
  seconds: in a replay of the balanced iterations equal batches would have spent far longer in the bursts than they do
  in turns of equal length. While competing processes run, the other rank slows down too, and what it takes over gains
  less.
- The quotas here have a period of 5 ms. With the kernel's usual 100 ms single steps mislead more, and reports of what
  lasts gain more.
"""

PAGE = """# What balancing gains in a real training

Command: `python benchmarks/live.py`

Machine: {machine}

Two ranks of `DistributedDataParallel` on gloo, one thread and one core each, train a small convolutional network on
scikit-learn's digits. Every scheme trains a model of its own from the same start, on the same samples in the same
order. Turns of a scheme and of equal batches (plain `DistributedDataParallel`, nothing attached) alternate in one run,
every other round in the opposite order.

- *speed-up*: iterations per second in a turn over those in the two turns of equal batches beside it; geometric mean
  over rounds, with the half-width of the 95% confidence interval.
- *oracle*: the speed-up that the exact solver reaches over equal batches in a replay of the same iterations if it
  knows the speeds to come, under a quota those that last; *reached*: the oracle's time over the scheme's.
- *waiting*: share of the ranks' time, up to the end of the slowest, that was spent waiting for it.
- *added time*: median over iterations of the time that balancing takes on the critical path.
- *loss gap*: largest difference of the loss from that of equal batches after as many samples, relative to the first
  loss.
- `control` forecasts and reports, but keeps equal batches: what looking costs.

{sections}
{notes}"""

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
