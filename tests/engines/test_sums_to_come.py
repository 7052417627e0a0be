"""Whether gradients are still to be summed after a loop's end: told by counts that are the same on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.torch.sums_to_come import SumsToCome


def events(steps, ahead, batches, times):
    """Yield what a loop does: take a batch, sum gradients, or see its end; it fetches ``ahead`` batches early."""
    total = steps * batches
    done = 0
    for taken in range(1, total + ahead + 1):
        yield "take" if taken <= total else "end"
        if taken > ahead:
            done += 1
            if done % batches == 0:
                yield from ["sum"] * times


@given(st.integers(6, 9), st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_a_loop_that_has_ended_waits_until_its_last_sum_and_no_longer(steps, ahead, batches, times, loops):
    sums = SumsToCome(batches)
    for _ in range(loops):
        sums.start()
        seen = list(events(steps, ahead, batches, times))
        for place, event in enumerate(seen):
            if event == "take":
                sums.hand_out()
            elif event == "sum":
                sums.sent()
            if "take" not in seen[place + 1 :]:
                assert sums.waits == ("sum" in seen[place + 1 :])


@given(st.integers(1, 9))
def test_a_loop_that_sums_nothing_waits_for_nothing(taken):
    sums = SumsToCome(1)
    for _ in range(taken):
        sums.hand_out()
        assert not sums.waits


@given(st.integers(2, 9), st.integers(2, 4))
def test_accumulation_that_nobody_said_is_learned(steps, batches):
    sums = SumsToCome(1)
    for event in events(steps, 0, batches, 1):
        sums.hand_out() if event == "take" else sums.sent()
    assert not sums.waits
