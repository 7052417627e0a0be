"""Who gathers is told by the caller's module, and a Trainer makes its feed of batches once for its data and sizes."""

from types import SimpleNamespace

import pytest

from paceline.integrations import huggingface
from paceline.integrations.huggingface import BalancedTrainerMixin
from paceline.torch import equal_shapes


@pytest.mark.parametrize(
    ("modules", "shards"),
    [
        (["paceline.here", "script"], False),
        (["paceline.here", "torch.distributed.fsdp"], True),
        (["paceline.here", "deepspeed.runtime"], True),
        (["paceline.here", "megatron.core"], True),
        (["paceline.here", "my.deepspeed.copy"], False),
        (["paceline.here", "torch.distributed.nn.functional", "paceline.recording", "torch.distributed.fsdp"], True),
        (["paceline.here", "torch.distributed.distributed_c10d", "torch.distributed.c10d_logger", "script"], False),
        (["paceline.here", "script", "torch.distributed.fsdp"], False),
        (["torch.distributed.fsdp", "paceline.here", "script"], False),
        (["paceline.here", "torch.distributed.c10d_logger"], False),
        (["paceline.here", None, "torch.distributed.fsdp"], False),
        (["script"], False),
    ],
)
def test_sharding_library_is_detected(monkeypatch, modules, shards):
    """The first of the modules is the one that asks."""
    frame = None
    for name in reversed(modules):
        frame = SimpleNamespace(f_back=frame, f_globals={} if name is None else {"__name__": name})
    monkeypatch.setattr(equal_shapes, "sys", SimpleNamespace(_getframe=lambda above: {1: frame}[above]))
    assert equal_shapes._shards() is shards


class Plain:
    """A Trainer of two ranks, of which only the loader is asked."""

    train_dataset = "data"

    def __init__(self):
        self.args = SimpleNamespace(world_size=2, train_batch_size=4, gradient_accumulation_steps=1)

    def get_train_dataloader(self):
        return "the Trainer's own"


class Fed(BalancedTrainerMixin, Plain):
    def _loader(self):
        return (self.train_dataset, self.args.train_batch_size, self.args.gradient_accumulation_steps)


def test_feed_made_once_per_data_and_sizes(monkeypatch):
    refused, trainer = [], Fed()
    monkeypatch.setattr(huggingface, "Feed", lambda loader, begin, send: SimpleNamespace(of=(loader, begin, send)))
    monkeypatch.setattr(huggingface, "refuse_ignored", lambda *of: refused.append(of))

    def changed(**facts):
        vars(trainer.args).update(facts)
        feed = trainer.get_train_dataloader()
        assert trainer.get_train_dataloader() is feed, "nothing has changed"
        assert feed.of == (trainer._loader(), trainer._begin, trainer._send)
        return feed

    feeds = [changed()]
    assert trainer.args.ignore_data_skip is True
    feeds += [changed(train_batch_size=2), changed(gradient_accumulation_steps=3)]
    trainer.train_dataset = "other data"
    feeds.append(changed())
    assert len({id(one) for one in feeds}) == 4
    assert refused == [(trainer, BalancedTrainerMixin)] * 4
    trainer.args = SimpleNamespace(world_size=1)
    assert trainer.get_train_dataloader() == "the Trainer's own"
    assert not hasattr(trainer.args, "ignore_data_skip")
