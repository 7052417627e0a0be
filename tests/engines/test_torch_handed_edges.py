"""Edges of what the inputs of a model show of the loader's batches, each by hand."""

from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition, lengths


def add(handed, number, batch, rows=6, features=()):
    sizes = np.array([rows, 12 - rows])
    handed.add(sizes, RankBatch(sizes, number / 1000, number / 500, features=features), batch)


def handed_with(*batches, rows=6):
    handed = Handed(0, 12)
    for number, batch in enumerate(batches, start=1):
        add(handed, number, batch, rows)
    return handed, Recognition()


def share_of(handed, recognition, *inputs):
    return round(1000 * handed.given(handed.look(inputs), recognition).share)


def test_batches_that_are_computed_and_gone_take_no_place_of_those_that_wait():
    first = torch.zeros(6, 3)
    handed, recognition = handed_with([first])
    for number in range(2, 73):
        batch = torch.zeros(6, 3)
        add(handed, number, [batch])
        assert share_of(handed, recognition, batch) == number
        del batch
    assert handed.in_flight == 1
    assert (share_of(handed, recognition, first), handed.disordered) == (1, True)


@pytest.mark.parametrize("waiting", [64, 65])
def test_of_batches_that_wait_the_oldest_is_forgotten_once_there_are_too_many(waiting):
    batches = [torch.zeros(6, 3) for _ in range(waiting)]
    handed, recognition = handed_with(*batches)
    assert handed.in_flight == 64
    found = share_of(handed, recognition, batches[0])
    assert (found == 1) == (waiting == 64)


def test_the_batch_computed_last_stays_known_when_it_is_gone_and_others_are_forgotten():
    handed, recognition = handed_with([torch.zeros(6, 3)])
    assert share_of(handed, recognition, torch.zeros(6, 3)) == 1
    handed.clear()
    add(handed, 2, None, rows=4)
    assert (share_of(handed, recognition, torch.zeros(6, 3)), handed.fresh, handed.in_flight) == (1, False, 1)
    handed.clear()
    assert handed.in_flight == 0


def test_a_number_of_a_batch_is_one_row_of_it():
    batches = [torch.zeros(6, 3) for _ in range(2)]
    handed, recognition = handed_with(*batches)
    share_of(handed, recognition, batches[0])
    turn = handed.given(handed.look([batches[1][0, 0]]), recognition)
    assert (turn.samples, turn.share, turn.total, turn.known, turn.part) == (6, 1 / 12, 12, False, 1 / 12)
    assert (handed.fresh, handed.whole) == (True, True)
    turn = handed.given(handed.look([torch.zeros(())]), recognition)
    assert (turn.samples, turn.share, handed.fresh, handed.whole) == (1, 1 / 12, False, False)


def test_data_from_elsewhere_counts_for_the_next_batch_that_waits_and_has_its_cost():
    handed, recognition = Handed(0, 12), Recognition()
    turn = handed.given(handed.look([torch.zeros(5, 2)]), recognition)
    assert (turn.samples, turn.share, turn.total, turn.part, turn.features) == (5, 5 / 12, 12, 5 / 12, ())
    assert (turn.whole, turn.last) == (1.0, True)
    add(handed, 1, None, rows=6, features=(2.5,))
    handed.given(handed.look([torch.zeros(6, 2)]), recognition)
    for number, rows in ((2, 4), (3, 3)):
        sizes = np.array([rows, 6])
        handed.add(sizes, RankBatch(sizes, number / 1000, number / 500, features=(float(rows),)), None)
    turn = handed.given(handed.look([torch.zeros(5, 2)]), recognition)
    assert (turn.samples, turn.share, turn.total, turn.features, turn.known) == (4, 0.5, 10, (4.0,), False)
    assert (handed.fresh, handed.in_flight, handed.sizes.tolist()) == (True, 1, [4, 6])


@pytest.mark.parametrize("rows", [2, 7, 0])
@pytest.mark.parametrize("other", [(1, 3), (6, 3), (12, 3), (5, 4), (5, 3, 1), (5,), ()])
def test_rows_beside_a_batch_are_of_its_kind_more_than_one_and_no_views_of_it(other, rows):
    batch = [torch.zeros(6, 3), torch.zeros(6)]
    handed, recognition = handed_with(batch)
    doubles = torch.zeros(5, 3, dtype=torch.float64)
    share_of(handed, recognition, *batch, torch.zeros(other), doubles, torch.zeros(rows, 3))
    assert handed.beside == rows
    share_of(handed, recognition, batch[0], batch[0][:4])
    assert handed.beside == 0, "it is part of the batch"
    share_of(handed, recognition, torch.zeros(5, 3))
    assert handed.beside == 0, "nothing else was given"


def test_from_the_second_batch_on_the_first_input_is_enough_to_know_a_batch_again():
    handed, recognition = handed_with(None, None)
    copies = [torch.zeros(6, 3) for _ in range(3)]
    for number in (1, 2):
        turn = handed.given(handed.look([copies[number]]), recognition)
        handed.note(turn, [copies[number]])
    add(handed, 3, None)
    assert (share_of(handed, recognition, copies[1], torch.ones(6, 3)), handed.guessed) == (1, False)
    share_of(handed, recognition, torch.ones(6, 3), copies[1])
    assert handed.guessed


@pytest.mark.parametrize("table_first", [False, True])
def test_at_the_second_batch_all_inputs_must_be_those_of_the_first_to_be_taken_for_it(table_first):
    """What comes with every batch, such as a table, is not known as such yet."""
    table, copies = torch.zeros(50, 3), [torch.zeros(6, 3) for _ in range(2)]
    handed, recognition = handed_with(None, None)
    found = []
    for copy in copies:
        inputs = [table, copy] if table_first else [copy, table]
        turn = handed.given(handed.look(inputs), recognition)
        handed.note(turn, inputs)
        found.append((round(1000 * turn.share), handed.fresh))
    assert found == [(1, True), (2, True)]


def test_an_empty_input_hides_no_batch_that_the_others_show():
    handed, recognition = handed_with(None, None)
    copy, empty = torch.zeros(6, 3), torch.zeros(0, 3)
    turn = handed.given(handed.look([copy, empty]), recognition)
    handed.note(turn, [copy, empty])
    assert (share_of(handed, recognition, copy, empty), handed.guessed, handed.fresh) == (1, False, False)
    assert (share_of(handed, recognition, empty), handed.guessed) != (1, False), "nothing is seen in it"


def test_what_comes_with_several_batches_says_nothing_of_any_and_keeps_none():
    table = torch.zeros(50, 3)
    handed, recognition = handed_with()
    guessed = []
    for number in range(1, 6):
        add(handed, number, [torch.zeros(6, 3)])
        inputs = [table, torch.zeros(6, 3)]
        turn = handed.given(handed.look(inputs), recognition)
        handed.note(turn, inputs)
        guessed.append(handed.guessed)
        assert turn.share == number / 1000
    assert guessed == [False, True, False, False, False]


@pytest.mark.parametrize(("as_they_are", "held", "share"), [(True, True, 1), (True, False, 2), (False, True, 2)])
def test_what_may_be_made_of_the_last_batch_is_so_where_the_loop_passes_batches_as_they_are(as_they_are, held, share):
    batches = [torch.zeros(6, 3) for _ in range(3)]
    handed, recognition = handed_with(*batches)
    share_of(handed, recognition, batches[0] if as_they_are else batches[0] + 1)
    if not held:
        del batches[0]
    assert share_of(handed, recognition, torch.zeros(6, 3)) == share
    assert (handed.guessed, handed.fresh) == (True, share == 2)


def test_inputs_in_the_memory_of_two_batches_are_of_neither_for_sure():
    batches = [torch.zeros(6, 3) for _ in range(2)]
    handed, recognition = handed_with(*batches)
    share_of(handed, recognition, *batches)
    assert (handed.whole, handed.guessed) == (False, True)
    share_of(handed, recognition, batches[1])
    assert (handed.whole, handed.guessed) == (True, False)


def test_named_inputs_are_looked_at_like_others():
    batches = [torch.zeros(6, 3) for _ in range(2)]
    handed, recognition = handed_with(*batches)
    seen = handed.look([torch.zeros(4)], {"x": batches[1], "flag": True})
    assert (seen.rows, seen.second, [shape for *_, shape in seen.tensors]) == ([4, 6], [3], [(4,), (6, 3)])
    assert handed.given(seen, recognition).share == 0.002
    alone = handed.look([], {"x": batches[1]})
    assert (alone.rows, alone.second, len(alone.tensors)) == ([6], (), 1)


def test_lengths_are_those_of_lists_of_mappings_and_of_what_has_a_shape():
    tensors = [torch.zeros(3, 5), torch.zeros(4)]
    assert lengths(("text", b"raw", 3, None, [], ()), {}) == ([], [])
    assert lengths((tensors, {"a": {"b": np.zeros((2, 7, 9))}}), {"c": torch.zeros(())}) == ([2, 3, 4, 2], [5, 7])
    assert lengths((["ab", "c"], ((torch.zeros(0, 8),),)), {"d": [1]}) == ([2, 1, 1, 0, 1], [8])


def test_what_passes_made_is_of_the_batches_behind_them_whatever_else_is_given():
    asked, answers = [], []
    handed, recognition = Handed(0, 12, behind=lambda tensors: asked.append(list(tensors)) or answers), Recognition()
    for _ in range(2):
        add(handed, 1, None)
    turns = [handed.given(handed.look([torch.zeros(6, 3)]), recognition) for _ in range(2)]
    assert asked == [], "no pass made these"
    made, fixed = torch.zeros(6, 3, requires_grad=True) * 2, torch.zeros(6, 3)
    answers.append(SimpleNamespace(turn=turns[0]))
    seen = handed.look([fixed, made])
    assert (len(asked), [one is made for one in asked[0]], seen.through is answers) == (1, [True], True)
    assert (handed.given(seen, recognition) is turns[0], handed.guessed, handed.disordered) == (True, False, False)
    answers[:] = [SimpleNamespace(turn=turns[1])]
    assert handed.given(handed.look([made]), recognition) is turns[1], "batches of equal facts are two"
    answers.append(SimpleNamespace(turn=turns[0]))
    seen = handed.look([made])
    assert (seen.batch, len(seen.through), seen.rows) == (None, 2, [6]), "of two batches is of neither"


def test_a_slice_that_the_loop_let_go_before_a_later_batch_was_computed_is_not_waited_for_when_it_is_cut_again():
    whole = torch.zeros(12, 3)
    parts = list(whole.split(6))
    handed, recognition = handed_with(*parts)
    del parts[0]
    assert share_of(handed, recognition, parts[0]) == 2
    assert (share_of(handed, recognition, whole[:6]), handed.disordered, handed.fresh) == (2, False, False)


@pytest.mark.parametrize("counts", [{}, {"counts": False}, {"counts": True}])
def test_copies_of_batches_of_equal_weight_are_a_guess_where_terms_of_every_batch_are_counted(counts):
    handed, recognition = Handed(0, 12, **counts), Recognition()
    for _ in range(2):
        add(handed, 1, [torch.zeros(6, 3)])
    assert share_of(handed, recognition, torch.zeros(6, 3)) == 1
    assert handed.guessed == counts.get("counts", False)


def test_the_first_axis_counts_samples_more_often_than_the_second():
    handed, recognition = Handed(0, 12), Recognition()
    add(handed, 1, None, rows=3)
    add(handed, 2, None, rows=2)
    assert (share_of(handed, recognition, torch.zeros(2, 3)), handed.guessed) == (2, True)


def test_a_table_that_came_with_a_batch_that_is_still_there_does_not_stand_for_that_batch():
    table, held = torch.zeros(50, 3), [torch.zeros(6, 3) for _ in range(4)]
    handed, recognition = handed_with()
    for number, batch in enumerate(held, start=1):
        add(handed, number, [batch])
        inputs = [table, batch + 1.0]
        turn = handed.given(handed.look(inputs), recognition)
        handed.note(turn, inputs)
        assert turn.share == number / 1000


def test_facts_of_a_pass_and_of_a_batch_stay_as_they_are():
    facts = RankBatch.plain(np.array([6, 2]), rank=1)
    handed = Handed(1, 8)
    handed.add(facts.sizes, facts)
    turn = handed.given(handed.look([torch.zeros(2, 3)]), Recognition())
    for one, name in ((turn, "share"), (facts, "weight")):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, 0.5)
