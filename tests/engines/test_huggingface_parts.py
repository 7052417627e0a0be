"""Parts of the balanced Trainer by themselves: the kind of its loss, found by trying, its feed, and ends of epochs."""

import math
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.integrations.huggingface import BalancedTrainerMixin, Feed
from paceline.integrations.huggingface_loss import HALVED, SAME, has_labels, loss_of
from paceline.torch import BalancedLoader, BalanceWarning

LABELLED = {"labels": torch.ones(2), "x": torch.ones(2)}


class Tried:
    """A Trainer whose loss is ``divided / count + plain`` on this rank, and that of another rank beside it."""

    model_accepts_loss_kwargs, compute_loss_func = True, None

    def __init__(self, divided=1.0, plain=0.0, other=(0.0, 0.0), *, training=True):
        self.divided, self.plain, self.other = divided, plain, other
        self.args = SimpleNamespace(device="cpu")
        self.accelerator = SimpleNamespace(gather=self._gather)
        self.model = torch.nn.Linear(1, 1).train(training)
        self.counts, self.inside = [], False

    def _prepare_inputs(self, inputs):
        return inputs

    @contextmanager
    def compute_loss_context_manager(self):
        self.inside = True
        yield
        self.inside = False

    def compute_loss(self, model, inputs, num_items_in_batch):
        assert self.inside
        assert not model.training, "dropout, and statistics of a batch normalisation, would tell of the try"
        assert not torch.is_grad_enabled()
        assert inputs.pop("labels") is not None
        self.counts.append(float(num_items_in_batch))
        loss = self.divided / num_items_in_batch + self.plain
        return torch.stack([loss - 1e-3, loss + 1e-3])  # one of each device

    def _gather(self, losses):
        divided, plain = self.other
        return torch.cat([losses, torch.tensor([[divided / count + plain for count in self.counts]])])


def said_of(trainer, batch=LABELLED):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = loss_of(trainer, dict(batch))
    assert all(one.category is BalanceWarning for one in caught)
    return kind, [str(one.message) for one in caught]


part = st.sampled_from([0.0, 0.5, 1.0, 60.0, 1e4])


@settings(max_examples=30)
@given(part, part, st.tuples(part, part), st.booleans())
def test_a_loss_that_any_rank_divides_by_the_tokens_of_all_is_averaged_plainly(divided, plain, other, training):
    trainer, batch = Tried(divided, plain, other, training=training), dict(LABELLED)
    kind, sentences = said_of(trainer, batch)
    once, twice = ((divided + other[0]) / count + plain + other[1] for count in trainer.counts)
    assert trainer.counts[1] == 2 * trainer.counts[0]
    ratio = twice / once if once else 0.5
    assert kind == ("mean" if ratio > SAME else "sum")
    assert ["A part of the loss" in one for one in sentences] == [True] * (HALVED < ratio <= SAME)
    assert trainer.model.training == training
    assert set(batch) == set(LABELLED), "the Trainer takes the labels from what it is given"


def test_a_rank_whose_loss_is_no_number_is_left_out():
    assert said_of(Tried(math.nan, 0.0, (8.0, 0.0))) == ("sum", [])
    assert said_of(Tried(math.nan, 0.0, (0.0, 8.0))) == ("mean", [])


@pytest.mark.parametrize("takes", [(False, None), (True, None), (False, len), (True, len)])
@pytest.mark.parametrize("batch", [LABELLED, {"x": torch.ones(2)}, {"labels": [1, 2]}, [torch.ones(2)]])
def test_nothing_is_tried_where_no_tokens_are_counted(takes, batch):
    trainer = Tried()
    trainer.model_accepts_loss_kwargs, trainer.compute_loss_func = takes
    asks = takes != (False, None) and batch is LABELLED
    assert has_labels(batch) == (batch is LABELLED)
    assert loss_of(trainer, batch) == ("sum" if asks else "mean")
    assert len(trainer.counts) == 2 * asks


class Plain:
    """The Trainer's own."""

    args = SimpleNamespace(world_size=2, gradient_accumulation_steps=1)

    def training_step(self, model, inputs, num_items_in_batch):
        return torch.tensor(2.5)


class WithEpochs(Plain):
    """That of version 5."""

    def _run_epoch(self, **options):
        self.ran = options


class Balanced(BalancedTrainerMixin, WithEpochs):
    """As a user writes it."""


class Older(BalancedTrainerMixin, Plain):
    """As a user of version 4 writes it."""


@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 4))
def test_a_resumed_epoch_has_the_batches_that_are_left_and_a_last_step_of_fewer(length, batches, accumulate):
    loader = SimpleNamespace(position=(0, min(batches, length), 7), accumulate=accumulate)
    loader = type("Loader", (SimpleNamespace,), {"__len__": lambda self: length})(**vars(loader))
    left = length - loader.position[1]
    for kind in (Balanced, Older):
        trainer = kind()
        trainer.args = SimpleNamespace(gradient_accumulation_steps=accumulate)
        if kind is Older and 0 < left < length and left % accumulate:
            with pytest.raises(
                ValueError, match=f"last step has {left % accumulate} micro-batches instead of {accumulate}"
            ):
                trainer._note_rest(loader)
            continue
        trainer._note_rest(loader)
        if kind is Balanced:
            trainer._run_epoch(epoch=1)
            rest = {"steps_in_epoch": left, "num_update_steps_per_epoch": -(-left // accumulate)}
            assert trainer.ran == {"epoch": 1, **(rest if 0 < left < length else {})}
            trainer._run_epoch(epoch=2)
            assert trainer.ran == {"epoch": 2}, "the next epoch is whole"


def fed(**options):
    begun = []
    loader = BalancedLoader(torch.arange(22.0)[:, None], 8, rank=0, world_size=2, shuffle=False, **options)
    loader.shares = torch.tensor([6, 2]).numpy()
    return begun, loader, Feed(loader, lambda: begun.append(len(begun)), lambda batch: batch * 2)


def test_the_feed_sends_the_batches_of_the_loader_and_knows_the_share_of_each():
    begun, loader, feed = fed()
    assert (len(feed), feed.dataset) == (len(loader), loader.dataset)
    for epoch in (3, 5):
        feed.set_epoch(epoch)
        batches = list(feed)
        assert loader.epoch == epoch
        assert torch.cat(batches[:2]).flatten().tolist() == [2 * k for k in (*range(6), *range(8, 14))]
        assert [feed.next_share() for _ in batches[:2]] == [1.5, 1.5]
    assert begun == [0, 1], "asked before every epoch"
    next(iter(feed))
    assert feed.next_share() == 1.5, "what the epoch before has left over is forgotten"


def test_a_batch_packed_into_a_row_is_refused():
    _, _, feed = fed(collate_fn=lambda samples: torch.stack(samples).flatten()[None, :3])
    with pytest.raises(ValueError, match="a batch of 6 samples has no axis of this length"):
        next(iter(feed))


@pytest.mark.parametrize("loss", ["mean", "sum", "scaled"])
@pytest.mark.parametrize("share", [1.5, 0.25, 0.0])
def test_a_step_returns_the_share_of_a_mean_loss_in_that_of_all_ranks(loss, share):
    trainer = Balanced()
    trainer.balance, trainer._feed = SimpleNamespace(loss=loss), SimpleNamespace(next_share=lambda: share)
    trainer.model_accepts_loss_kwargs = trainer.compute_loss_func = None
    assert float(trainer.training_step(None, None)) == (2.5 * share if loss == "mean" else 2.5)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("tokens", [None, 0, 5])
def test_batches_with_and_without_labels_are_refused_where_tokens_are_counted(counts, labelled, tokens):
    trainer = Balanced()
    trainer.balance, trainer._feed = SimpleNamespace(loss="sum"), SimpleNamespace(next_share=lambda: 1.0)
    trainer.model_accepts_loss_kwargs, trainer.compute_loss_func = counts, None
    trainer._labelled = labelled
    if counts and (tokens is not None) != labelled:
        with pytest.raises(RuntimeError, match="some batches have labels and some have none"):
            trainer.training_step(None, None, tokens)
    else:
        assert float(trainer.training_step(None, None, tokens)) == 2.5


@pytest.mark.parametrize(("settings", "waits"), [({}, True), ({"non_blocking": True}, False)])
def test_a_batch_goes_to_the_device_as_the_trainer_is_told(settings, waits, monkeypatch):
    import sys

    def send(batch, device, non_blocking):
        return batch, device, non_blocking

    monkeypatch.setitem(sys.modules, "accelerate.utils", SimpleNamespace(send_to_device=send))
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace())
    trainer = Balanced()
    trainer.accelerator = SimpleNamespace(device="that", **settings)
    assert trainer._send("batch") == ("batch", "that", not waits)
