"""Which batch a model was given is found out from sizes, whatever the loop fetches, skips or mixes in."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.torch.weighting.doubts import doubts
from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition, lengths

GLOBAL_BATCH = 12


def handed_out(*own, total=GLOBAL_BATCH):
    handed = Handed(rank=0, global_batch=GLOBAL_BATCH)
    for samples in own:
        handed.add(np.array([samples, total - samples]))
    return handed


def turn_of(handed, recognition, *inputs):
    return handed.given(handed.look(inputs), recognition)


@given(st.data(), st.lists(st.integers(1, 11), min_size=1, max_size=30), st.integers(1, 5))
def test_batches_computed_in_the_order_in_which_they_were_fetched_keep_their_shares(data, own, ahead):
    handed, recognition, fetched = handed_out(), Recognition(), 0
    for number, samples in enumerate(own):
        while fetched <= number or (fetched < len(own) and fetched <= number + ahead and data.draw(st.booleans())):
            handed.add(np.array([own[fetched], GLOBAL_BATCH - own[fetched]]))
            fetched += 1
        turn = turn_of(handed, recognition, torch.zeros(samples, 6), torch.zeros(samples))
        assert turn.known
        assert turn.share == samples / GLOBAL_BATCH


@pytest.mark.slow
@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=12), st.booleans())
def test_a_pass_over_any_batch_that_is_there_gets_its_weight_or_is_said_to_be_a_guess(data, own, counts):
    """The law: whatever is fetched, skipped, copied or computed again, a wrong turn is never silent."""
    handed, recognition, held = Handed(0, GLOBAL_BATCH, counts=counts), Recognition(), {}
    for number, samples in enumerate(own):
        held[number] = torch.zeros(samples, 2)
        rank_batch = RankBatch(np.array([samples, 5]), (1 + number) / 100, (1 + number) / 50)
        handed.add(rank_batch.sizes, rank_batch, [held[number]])
        for _ in range(data.draw(st.integers(0, 3))):
            chosen = data.draw(st.sampled_from(sorted(held)))
            given = data.draw(st.sampled_from([held[chosen], held[chosen][:, 1:], held[chosen] + 0.1]))
            turn = turn_of(handed, recognition, given)
            guessed, disordered = handed.guessed, handed.disordered
            handed.note(turn, [given])
            assert turn.share == (1 + chosen) / 100 or guessed or disordered or not turn.known
        if data.draw(st.booleans()):  # the loop lets go of a batch
            held.pop(data.draw(st.sampled_from(sorted(held))))
        if not held:
            break


def test_a_batch_that_was_taken_for_skipped_is_not_silently_another_by_the_length_of_its_second_axis():
    handed, recognition = handed_out(1, 1, 2), Recognition()
    turn_of(handed, recognition, torch.zeros(2, 2))
    turn_of(handed, recognition, torch.zeros(1, 2))  # a late batch: its one row is none of the two, its two columns are
    assert handed.guessed


@pytest.mark.parametrize("as_a_copy", [False, True])
def test_a_batch_that_was_taken_for_skipped_and_is_still_held_is_not_silently_the_next_of_its_size(as_a_copy):
    handed, recognition = Handed(0, GLOBAL_BATCH), Recognition()
    held = [torch.zeros(samples, 2) for samples in (1, 3, 1)]
    for number, batch in enumerate(held):
        handed.add(np.array([len(batch), 5]), RankBatch(np.array([len(batch), 5]), number / 100, number / 50), [batch])
    turn_of(handed, recognition, held[1].clone())  # of the three only the second has three rows
    assert handed.in_flight == 1
    turn = turn_of(handed, recognition, held[0].clone() if as_a_copy else held[0])
    assert (turn.share, handed.guessed, handed.disordered) == ((0.02, True, False) if as_a_copy else (0.0, False, True))


def test_batches_that_are_skipped_are_over():
    handed, recognition = handed_out(4, 7, 9), Recognition()
    turn_of(handed, recognition, torch.zeros(9, 2))
    assert (handed.fresh, handed.in_flight) == (True, 0)


def test_a_second_pass_over_a_batch_is_not_fresh():
    handed, recognition, fresh = handed_out(4), Recognition(), []
    for _ in range(3):
        turn_of(handed, recognition, torch.zeros(4, 2))
        fresh.append(handed.fresh)
    assert fresh == [True, False, False]


def test_a_batch_of_the_last_few_samples_weights_by_its_own_total():
    handed = handed_out(2, total=5)
    assert turn_of(handed, Recognition(), torch.zeros(2, 2)).share == pytest.approx(0.4)


@pytest.mark.parametrize("per_sample", [2, 50])
def test_tokens_or_views_of_samples_are_as_many_for_each(per_sample):
    handed, recognition = handed_out(4, 7), Recognition()
    assert turn_of(handed, recognition, torch.zeros(4 * per_sample)).samples == 4
    assert turn_of(handed, recognition, torch.zeros(7 * per_sample)).samples == 7
    assert not turn_of(handed, recognition, torch.zeros(7 * per_sample + 1)).known


def test_what_the_loader_did_not_hand_out_weights_by_its_rows_on_every_rank_alike():
    shares = []
    for rank in range(2):
        handed, recognition = Handed(rank, GLOBAL_BATCH), Recognition()
        handed.add(np.array([5, 2]))
        assert turn_of(handed, recognition, torch.zeros([5, 2][rank], 3)).known
        shares.append(
            turn_of(handed, recognition, torch.zeros(5, 3)).share
        )  # five rows from elsewhere, as many as rank 0 had
    assert shares[0] == shares[1]


@pytest.mark.parametrize("steps", [4, 8])
def test_time_first_is_told_from_rows_once_sizes_change_even_if_it_was_as_many_or_a_multiple(steps):
    handed, recognition = handed_out(4, 4, 5, 7, 5), Recognition()
    for samples in (4, 4, 5, 7, 5):
        turn = turn_of(handed, recognition, torch.zeros(steps, samples))
        assert (turn.samples, turn.known, handed.fresh) == (samples, True, True)
    assert handed.in_flight == 0


def test_rows_are_told_from_features_once_sizes_change_even_if_they_were_as_many():
    handed, recognition = handed_out(4, 5), Recognition()
    assert turn_of(handed, recognition, torch.zeros(4, 4)).known
    assert turn_of(handed, recognition, torch.zeros(5, 4)).samples == 5
    assert not turn_of(handed, recognition, torch.zeros(3, 4)).known


@pytest.mark.parametrize("rows", [(2, 6), (6, 2)])
def test_of_skipped_batches_that_fit_in_different_ways_none_is_taken_without_doubt(rows):
    """The first batch has as many samples as features, or time steps: either axis may count samples."""
    handed, recognition = Handed(0, 24), Recognition()
    handed.add(np.array([6, 18]))
    handed.given(handed.look([torch.zeros(6, 6)]), recognition)
    handed.add(np.array([6, 18]))
    handed.add(np.array([2, 5]))
    handed.given(handed.look([torch.zeros(*rows)]), recognition)
    assert handed.guessed


def test_two_models_see_the_same_batch_in_their_own_ways():
    handed, critic, generator, fresh = handed_out(4, 6), Recognition(), Recognition(), []
    for recognition, shape in ((critic, (4, 3)), (generator, (100, 4)), (critic, (6, 3))):  # noise, with time first
        assert turn_of(handed, recognition, torch.zeros(shape)).known
        fresh.append(handed.fresh)
    assert fresh == [True, False, True]


def test_lengths_are_found_in_whatever_a_model_is_given():
    images = [torch.zeros(3, 5, 5), torch.zeros(3, 6, 6)]
    assert lengths((images,), {"mask": None, "flag": 3})[0][0] == 2
    assert lengths((), {"inputs": {"ids": torch.zeros(7, 9)}}) == ([7], [9])
    assert lengths((object(),), {}) == ([], [])


def handed_with(*batches, sizes=(6, 6)):
    """Batches of equal sizes that count differently, and what tells them apart: their memory."""
    handed = Handed(0, sum(sizes))
    for weight, batch in enumerate(batches, start=1):
        handed.add(np.array(sizes), RankBatch(np.array(sizes), weight / 10, 0.5), batch)
    return handed


def test_a_batch_is_recognised_by_its_memory_even_if_others_are_as_large():
    batches = [(torch.zeros(6, 3), torch.zeros(6)) for _ in range(4)]
    handed, recognition = handed_with(*batches), Recognition()
    shares = [turn_of(handed, recognition, batches[i][0][:, 1:]).share for i in (0, 2, 2, 3)]
    assert shares == [0.1, 0.3, 0.3, 0.4]  # the second is skipped, the third computed twice
    assert not handed.disordered
    assert turn_of(handed, recognition, batches[1][0]).share == 0.2
    assert handed.disordered


def test_slices_of_one_dataset_tell_batches_apart_and_copies_are_a_guess():
    whole = torch.zeros(18, 3)
    parts = whole.split(6)
    handed, recognition = handed_with(*parts), Recognition()
    assert turn_of(handed, recognition, whole[12:]).share == 0.3
    assert not handed.guessed
    turn_of(handed, recognition, whole[12:] + 1)
    assert handed.guessed


def test_a_batch_that_is_gone_is_not_waited_for():
    batches = [(torch.zeros(6, 3),) for _ in range(3)]
    handed, recognition = handed_with(*batches), Recognition()
    last = batches.pop()
    del batches
    assert turn_of(handed, recognition, *last).share == 0.3
    assert handed.in_flight == 0


def test_what_was_given_of_a_batch_or_made_of_it_is_recognised_after_the_next_was_fetched():
    batches = [(torch.zeros(6, 3),) for _ in range(3)]
    handed, recognition = handed_with(*batches[:2]), Recognition()
    for number, copied in enumerate((batches[0][0] + 1, batches[1][0] + 1)):
        turn = turn_of(handed, recognition, batches[number][0])
        made = copied * 2
        handed.note(turn, [copied])
        handed.note(turn, [made], made=True)
    handed.add(np.array([6, 6]), RankBatch(np.array([6, 6]), 0.3, 0.5), batches[2])
    assert [turn_of(handed, recognition, one).share for one in (copied, made.detach(), copied[:, 1:])] == [0.2] * 3
    assert not handed.guessed


def test_a_table_that_comes_with_every_batch_says_nothing_of_any():
    table = torch.zeros(50, 3)
    handed, recognition, shares = handed_with(), Recognition(), []
    for number in range(1, 5):
        handed.add(np.array([6, 6]), RankBatch(np.array([6, 6]), number / 10, 0.5), [torch.zeros(6, 3)])
        inputs = [table, torch.zeros(6, 3)]  # as copied to a device
        turn = handed.given(handed.look(inputs), recognition)
        handed.note(turn, inputs)
        shares.append((turn.share, handed.guessed))
    assert [share for share, guessed in shares if not guessed] == [0.1, 0.3, 0.4]


@pytest.mark.parametrize("odd", [torch.eye(6).to_sparse(), torch.zeros(0, 3), torch.zeros(6, 3, device="meta")])
def test_tensors_without_a_place_in_memory_of_their_own_do_not_tell_batches_apart(odd):
    batches = [(torch.zeros(6, 3), odd.clone()) for _ in range(3)]
    handed, recognition = handed_with(*batches), Recognition()
    assert turn_of(handed, recognition, batches[0][0] + 1, odd.clone()).share == 0.1
    assert turn_of(handed, recognition, *batches[2]).share == 0.3


def test_a_batch_of_which_rows_were_dropped_weights_by_what_is_left():
    batches = [(torch.zeros(6, 3),) for _ in range(2)]
    handed, recognition = handed_with(*batches), Recognition()
    turn_of(handed, recognition, *batches[0])
    turn = turn_of(handed, recognition, batches[1][0][:4])
    assert (turn.known, handed.fresh, turn.share) == (False, True, 4 / 12)
    assert handed.in_flight == 0


def test_rows_beside_a_batch_that_look_like_its_samples_are_seen_and_other_inputs_are_not():
    batch = torch.zeros(6, 3)
    handed, recognition = handed_with((batch,)), Recognition()
    others = {5: torch.zeros(5, 3), 0: torch.zeros(5, 5)}
    for rows, other in others.items():
        turn_of(handed, recognition, batch, other)
        assert handed.beside == rows
    turn_of(handed, recognition, batch, torch.zeros(12, 3), torch.zeros(1, 3), torch.zeros(5, 3).int())
    assert handed.beside == 0


@pytest.mark.parametrize("facts", list(product([False, True], repeat=6)))
def test_what_is_doubted_follows_from_what_is_known_of_the_pass(facts):
    disordered, guesses, fresh, known, scaled, has_rows = facts
    handed = SimpleNamespace(disordered=disordered, guessed=guesses, fresh=fresh, beside=7 if has_rows else 0)
    found = dict(doubts(handed, SimpleNamespace(known=known), [5, 2] if has_rows else [], scaled=scaled))
    told = {"disordered": disordered, "order": known and guesses, "beside": has_rows}
    told |= {"rows": not known and not scaled, "unseen": not known and scaled and fresh}
    assert set(found) == {about for about, is_so in told.items() if is_so}
    assert ("order" not in found) or (f"taken for the {'next' if fresh else 'last'} one" in found["order"])
    rows = "was given 5 rows" if has_rows else "was given unknown rows"
    assert all(rows in found[about] for about in ("rows", "unseen") if about in found)
    assert not has_rows or "was given 7 rows beside a batch" in found["beside"]
