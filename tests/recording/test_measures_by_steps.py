"""Measures of several micro-batches, as a plan of whole steps takes them."""

from paceline.recording.torch.busy_clock import Measure


def test_the_micro_batches_of_a_step_count_as_one_and_all_else_stays():
    measure = Measure(samples=24.0, micro_batches=6.0, steps=2.0, seconds=0.5, comm_seconds=0.125)
    assert measure.by_steps() == Measure(24.0, 2.0, 2.0, 0.5, 0.125)
    assert measure.micro_batches == 6.0
