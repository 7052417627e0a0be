"""Callbacks of trainers, called as the trainers call them, without the trainers themselves."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

lightning_module = importlib.import_module("paceline.recording.lightning_callback")
huggingface_module = importlib.import_module("paceline.recording.huggingface_callback")


class Noting:
    """Notes every call of any of its methods."""

    def __init__(self, *given):
        self.calls = [given]

    def __getattr__(self, name):
        return lambda *given: self.calls.append((name, *given))


def module(name, **parts):
    found = ModuleType(name)
    vars(found).update(parts)
    return found


def callback_of(patch, make, library, **parts):
    """Make a callback where the library has nothing but these parts."""
    asked = []
    owner = sys.modules[make.__module__]
    patch.setattr(owner, "require", lambda *given, **named: asked.append((given, named)))
    for part in (library.partition(".")[0], library):
        patch.setitem(sys.modules, part, module(part, **parts))
    return make, asked


BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.booleans()), max_size=6)


@given(BATCHES, st.booleans())
@settings(max_examples=15)
def test_a_lightning_step_ends_with_the_batch_after_which_the_optimiser_stepped(batches, counted):
    with pytest.MonkeyPatch.context() as patch:
        make, asked = callback_of(
            patch, lightning_module.lightning_callback, "lightning.pytorch", Callback=type("Callback", (), {})
        )
        patch.setattr(lightning_module, "Stopwatch", Noting)
        own = {"samples": lambda batch: -1.0, "work": lambda batch: -2.0} if counted else {}
        recording = make("recorder", **own)
        assert asked == [(("lightning",), {"needed_by": "lightning_callback", "extra": "lightning"})]
        recording.on_train_start(SimpleNamespace(strategy=SimpleNamespace(model="wrapped")), "module")
        expected = [("wrapped", "recorder")]
        for number, (rows, width, steps) in enumerate(batches):
            batch = {"x": torch.zeros(rows, width)}
            recording.on_train_batch_start("trainer", "module", batch, number)
            recording.on_before_backward("trainer", "module", "loss")
            expected += [("forward", *((-1.0, -2.0) if counted else (rows, rows * width))), ("backward",)]
            if steps:
                recording.on_before_optimizer_step("trainer", "module", "optimizer")
            recording.on_train_batch_end("trainer", "module", "outputs", batch, number)
            expected += [("stepping",), ("stepped",)] if steps else []
        recording.on_train_end("trainer", "module")
        assert recording.stopwatch.calls == [*expected, ("close",)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_hugging_face_trainer_is_watched_from_its_outermost_model(monkeypatch, wrapped):
    class Parallel:
        def __init__(self, module):
            self.module = module

    model, _other = torch.nn.Linear(1, 1), Parallel(torch.nn.Linear(1, 1))
    outer = Parallel(model) if wrapped else model
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Parallel)
    make, asked = callback_of(
        monkeypatch,
        huggingface_module.trainer_callback,
        "transformers",
        TrainerCallback=type("TrainerCallback", (), {}),
    )
    monkeypatch.setattr(huggingface_module, "watch", Noting)
    recording = make("recorder")
    assert asked == [(("transformers",), {"needed_by": "trainer_callback", "extra": "huggingface"})]
    recording.on_train_begin("args", "state", "control", model=model, optimizer="o")
    recording.on_train_end("args", "state", "control", model=model)
    assert recording.watching.calls == [(outer, None, "recorder"), ("close",)]
