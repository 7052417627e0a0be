"""Which batch a model was given is found out from sizes, whatever the loop fetches, skips or mixes in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.torch.weighing.dealt import Dealt
from paceline.coordinator.torch.weighing.handed import Handed
from paceline.coordinator.torch.weighing.sight import Sight, lengths

GLOBAL_BATCH = 12


def handed_out(*own, total=GLOBAL_BATCH):
    handed = Handed(rank=0, global_batch=GLOBAL_BATCH)
    for samples in own:
        handed.add(np.array([samples, total - samples]))
    return handed


@given(st.data(), st.lists(st.integers(1, 11), min_size=1, max_size=30), st.integers(1, 5))
def test_batches_computed_in_the_order_in_which_they_were_fetched_keep_their_shares(data, own, ahead):
    handed, sight, fetched = handed_out(), Sight(), 0
    for number, samples in enumerate(own):
        while fetched <= number or (fetched < len(own) and fetched <= number + ahead and data.draw(st.booleans())):
            handed.add(np.array([own[fetched], GLOBAL_BATCH - own[fetched]]))
            fetched += 1
        turn = handed.given([samples, samples], [6], sight)
        assert turn.known
        assert turn.share == samples / GLOBAL_BATCH


def test_batches_that_are_skipped_are_over():
    handed, sight = handed_out(4, 7, 9), Sight()
    assert handed.given([9], [], sight).fresh
    assert handed.in_flight == 0


def test_a_second_pass_over_a_batch_is_not_fresh():
    handed, sight = handed_out(4), Sight()
    assert [handed.given([4], [], sight).fresh for _ in range(3)] == [True, False, False]


def test_a_batch_of_the_last_few_samples_weighs_by_its_own_total():
    handed = handed_out(2, total=5)
    assert handed.given([2], [], Sight()).share == pytest.approx(0.4)


@pytest.mark.parametrize("per_sample", [2, 50])
def test_tokens_or_views_of_samples_are_as_many_for_each(per_sample):
    handed, sight = handed_out(4, 7), Sight()
    assert handed.given([4 * per_sample], [], sight).samples == 4
    assert handed.given([7 * per_sample], [], sight).samples == 7
    assert not handed.given([7 * per_sample + 1], [], sight).known


def test_what_the_loader_did_not_hand_out_weighs_by_its_rows_on_every_rank_alike():
    shares = []
    for rank in range(2):
        handed, sight = Handed(rank, GLOBAL_BATCH), Sight()
        handed.add(np.array([5, 2]))
        assert handed.given([[5, 2][rank]], [], sight).known
        shares.append(handed.given([5], [], sight).share)  # five rows from elsewhere, as many as rank 0 had
    assert shares[0] == shares[1]


@pytest.mark.parametrize("steps", [4, 8])
def test_time_first_is_told_from_rows_once_sizes_change_even_if_it_was_as_many_or_a_multiple(steps):
    handed, sight = handed_out(4, 4, 5, 7, 5), Sight()
    for samples in (4, 4, 5, 7, 5):
        turn = handed.given([steps], [samples], sight)
        assert (turn.samples, turn.known, turn.fresh) == (samples, True, True)
    assert handed.in_flight == 0


def test_rows_are_told_from_features_once_sizes_change_even_if_they_were_as_many():
    handed, sight = handed_out(4, 5), Sight()
    assert handed.given([4], [4], sight).known
    assert handed.given([5], [4], sight).samples == 5
    assert not handed.given([3], [4], sight).known


def test_two_models_see_the_same_batch_in_their_own_ways():
    handed, critic, generator = handed_out(4, 6), Sight(), Sight()
    assert handed.given([4], [3], critic).fresh
    assert handed.given([100], [4], generator).known  # noise, with time first
    assert handed.given([6], [3], critic).fresh


def test_lengths_are_found_in_whatever_a_model_is_given():
    images = [torch.zeros(3, 5, 5), torch.zeros(3, 6, 6)]
    assert lengths((images,), {"mask": None, "flag": 3})[0][0] == 2
    assert lengths((), {"inputs": {"ids": torch.zeros(7, 9)}}) == ([7], [9])
    assert lengths((object(),), {}) == ([], [])


def handed_with(*batches, sizes=(6, 6)):
    """Batches of equal sizes that count differently, and what tells them apart: their memory."""
    handed = Handed(0, sum(sizes))
    for weight, batch in enumerate(batches, start=1):
        handed.add(np.array(sizes), Dealt(np.array(sizes), weight / 10, 0.5), batch)
    return handed


def test_a_batch_is_recognised_by_its_memory_even_if_others_are_as_large():
    batches = [(torch.zeros(6, 3), torch.zeros(6)) for _ in range(4)]
    handed, sight = handed_with(*batches), Sight()
    shares = [handed.given([6], [3], sight, [batches[i][0].transpose(0, 1)]).share for i in (0, 2, 2, 3)]
    assert shares == [0.1, 0.3, 0.3, 0.4]  # the second is skipped, the third computed twice
    assert not handed.disordered
    assert handed.given([6], [3], sight, [batches[1][0]]).share == 0.2
    assert handed.disordered


def test_a_batch_that_is_gone_is_not_waited_for():
    batches = [(torch.zeros(6, 3),) for _ in range(3)]
    handed, sight = handed_with(*batches), Sight()
    last = batches.pop()
    del batches
    assert handed.given([6], [3], sight, list(last)).share == 0.3
    assert handed.in_flight == 0


def test_slices_of_one_dataset_do_not_tell_batches_apart_and_copies_do_not_either():
    whole = torch.zeros(18, 3)
    handed, sight = handed_with(*whole.split(6)), Sight()
    assert handed.given([6], [3], sight, [whole[12:]]).share == 0.1
    assert handed.guessed
    assert handed.given([6], [3], sight, [whole[12:] + 1]).share == 0.2


@pytest.mark.parametrize("odd", [torch.eye(6).to_sparse(), torch.zeros(0, 3), torch.zeros(6, 3, device="meta")])
def test_tensors_without_a_place_in_memory_of_their_own_do_not_tell_batches_apart(odd):
    batches = [(torch.zeros(6, 3), odd.clone()) for _ in range(3)]
    handed, sight = handed_with(*batches), Sight()
    shares = [handed.given([6], [3], sight, [x + 1, odd.clone()]).share for x, _ in batches[:2]]
    assert shares == [0.1, 0.2]
    assert handed.given([6], [3], sight, list(batches[2])).share == 0.3


def test_a_batch_of_which_rows_were_dropped_weighs_by_what_is_left():
    batches = [(torch.zeros(6, 3),) for _ in range(2)]
    handed, sight = handed_with(*batches), Sight()
    handed.given([6], [3], sight, list(batches[0]))
    turn = handed.given([4], [3], sight, [batches[1][0][:4]])
    assert (turn.known, turn.fresh, turn.share) == (False, True, 4 / 12)
    assert handed.in_flight == 0
