"""Parts of the adapters for trainers by themselves, with stand-ins for the trainers."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from paceline.integrations import accelerate, fabric, lightning
from paceline.torch import BalancedLoader, Costs


def loader_of(samples=12, size=4, **options):
    return BalancedLoader(range(samples), size, rank=0, world_size=2, **options)


class Attached:
    """What ``attach`` returns, and what it was given."""

    def __init__(self, model, loader, **options):
        self.model, self.loader, self.options = model, loader, options
        self.loss = options.get("loss", "mean")
        self.on_iteration, self.loaded, self.scaled, self.closed = [], [], [], False

    def load_state_dict(self, state):
        self.loaded.append(state)

    def state_dict(self):
        return {"state": 7}

    def scale(self, loss):
        self.scaled.append(loss)
        return loss * 0.25

    def close(self):
        self.closed = True


@pytest.fixture
def callback(monkeypatch):
    """Make a callback without Lightning."""
    monkeypatch.setattr(lightning, "require", lambda *of, **named: None)
    monkeypatch.setattr(lightning, "import_module", lambda name: SimpleNamespace(Callback=object))
    monkeypatch.setattr(lightning, "attach", Attached)
    monkeypatch.setattr(lightning, "sinks", lambda *targets: [f"sink of {target}" for target in targets])
    return lightning.balance_callback


def trainer_of(world_size=2, **options):
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(model)
    usual = {"overfit_batches": 0, "reload_dataloaders_every_n_epochs": 0, "accumulate_grad_batches": 1}
    about = {"train_dataloader": loader_of(), "current_epoch": 6, "strategy": SimpleNamespace(model=model)}
    return SimpleNamespace(world_size=world_size, **usual | about | options)


@pytest.mark.parametrize(("metrics", "targets"), [("run.jsonl", ["run.jsonl"]), (["a", "b"], ["a", "b"]), ((), [])])
@pytest.mark.parametrize("saved", [{}, {"state": 3}])
def test_lightnings_callback_attaches_with_its_options_and_resumes_from_a_checkpoint(callback, metrics, targets, saved):
    one, trainer = callback(metrics=metrics, predictor="ewma"), trainer_of()
    one.load_state_dict(saved)
    assert one.state_dict() == {}
    one.on_train_start(trainer, None)
    balance = one.balance
    assert (balance.model, balance.loader) == (trainer.strategy.model, trainer.train_dataloader)
    assert balance.options == {"loss": "scaled", "predictor": "ewma"}
    assert balance.on_iteration == [f"sink of {target}" for target in targets]
    assert (balance.loaded, one.state_dict()) == ([saved] if saved else [], {"state": 7})
    one.on_train_epoch_start(trainer, None)
    assert trainer.train_dataloader._progress.next_epoch == 6
    trainer.strategy.model.eval()
    one.on_train_batch_start(trainer, None, None, 0)
    assert trainer.strategy.model.training
    one.on_exception(trainer, None, RuntimeError())
    assert (balance.closed, one.saved, one.state_dict()) == (True, None, {"state": 7})


def test_lightnings_callback_does_nothing_with_a_single_rank(callback):
    one, trainer = callback(), trainer_of(world_size=1)
    one.load_state_dict({"state": 3})
    trainer.strategy.model.eval()
    one.on_train_start(trainer, None)
    one.on_train_epoch_start(trainer, None)
    one.on_train_batch_start(trainer, None, None, 0)
    one.on_before_backward(trainer, None, None)
    one.teardown(trainer, None, "fit")
    assert (one.balance, one.state_dict(), one.saved) == (None, {}, {"state": 3})
    assert (trainer.train_dataloader._progress.next_epoch, trainer.strategy.model.training) == (0, False)


@pytest.mark.parametrize("loss_kind", ["scaled", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lightnings_callback_weights_the_gradient_of_a_loss_and_not_its_value(callback, loss_kind, dtype):
    one = callback(loss=loss_kind)
    one.on_train_start(trainer_of(), None)
    weight = torch.tensor(3.0, dtype=dtype, requires_grad=True)
    loss = weight * 2
    one.on_before_backward(None, None, loss)
    loss.backward()
    assert loss.item() == 6.0
    assert weight.grad.item() == (0.5 if loss_kind == "scaled" else 2.0)
    assert [(one.item(), one.dtype) for one in one.balance.scaled] == [(1.0, dtype)] * (loss_kind == "scaled")


def test_a_model_that_lightning_does_not_average_is_refused_with_the_name_of_its_strategy():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"each rank has the whole model, got SimpleNamespace: use strategy='ddp'"):
        lightning._model_of(trainer_of(strategy=SimpleNamespace(model=model)))
    with pytest.raises(TypeError, match="train_dataloader must return a BalancedLoader, got list"):
        lightning._loader_of(trainer_of(train_dataloader=[]))


class _FabricModule(torch.nn.Module):
    """Fabric's wrapper, which is known by its name."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_fabrics_wrapper_is_taken_off_down_to_what_averages_gradients():
    plain, averaging = torch.nn.Linear(1, 1), trainer_of().strategy.model
    assert fabric._wrapped(plain) is plain
    assert fabric._wrapped(_FabricModule(plain)) is plain
    assert fabric._wrapped(_FabricModule(averaging)) is averaging
    outer = torch.nn.Sequential(averaging)
    assert fabric._wrapped(_FabricModule(outer)) is averaging
    assert fabric._wrapped(outer) is outer


@settings(max_examples=40)
@given(st.integers(1, 4), st.none() | st.integers(1, 5), st.integers(20, 40), st.booleans(), st.integers(0, 3))
def test_accelerates_loader_counts_batches_of_one_process_and_draws_those_of_all(
    processes, batch_size, samples, drop_last, place
):
    state = SimpleNamespace(num_processes=processes, process_index=place % processes)
    known = SimpleNamespace(is_initialized=lambda: True, AcceleratorState=lambda: state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate, "require", lambda *of, **named: None)
        patch.setattr(accelerate, "import_module", lambda name: known)
        if batch_size is None:
            budget = accelerate.BalancedLoader(range(samples), costs=Costs(lengths=[1.0] * samples, global_tokens=8.0))
            assert len(budget) == BalancedLoader.__len__(budget) * processes
            return
        loader = accelerate.BalancedLoader(range(samples), batch_size, drop_last=drop_last)
    known = (loader.global_batch, loader.rank, loader.world_size, loader.counts_all)
    assert known == (batch_size * processes, place % processes, processes, False)
    full, rest = divmod(samples, batch_size)
    assert len(loader) == full + (rest > 0 and not drop_last)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_accelerate_is_told_of_the_loader_while_it_runs_and_of_its_last_batch(monkeypatch, leaves, placed):
    sent, told = [], []

    def send_to_device(batch, device, *, non_blocking):
        sent.append((device, non_blocking))
        return batch

    monkeypatch.setattr(accelerate, "import_module", lambda name: SimpleNamespace(send_to_device=send_to_device))
    state = SimpleNamespace(
        _add_dataloader=lambda one: told.append(("add", one)), _remove_dataloader=lambda one: told.append(("off", one))
    )
    facts = {"gradient_state": state, "device_placement": placed, "device": "there", "non_blocking": True}
    loader = loader_of()
    ours = accelerate.PreparedLoader(loader, SimpleNamespace(**facts))
    assert (ours.balance, ours.end_of_dataloader, len(ours), ours.dataset) == (None, False, 3, loader.dataset)
    ends = []
    for _ in ours:
        ends.append(ours.end_of_dataloader)
        assert told == [("add", ours)]
        if leaves:
            break
    if not leaves:
        assert (ends, ours.end_of_dataloader) == ([False, False, True], True)
        assert told == [("add", ours), ("off", ours)]
    assert sent == [("there", True)] * (len(ends) if placed else 0)
    next(iter(ours))
    assert not ours.end_of_dataloader
    ours.set_epoch(5)
    assert loader._progress.next_epoch == 5


@pytest.mark.parametrize("trains", [(), (0,), (1,), (0, 1)])
def test_every_prepared_model_that_trains_is_attached_and_those_after_the_first_with_its_loss(monkeypatch, trains):
    monkeypatch.setattr(accelerate, "attach", lambda *of, **named: made.append(Attached(*of, **named)) or made[-1])
    made, loader = [], loader_of()
    models = [torch.nn.Linear(1, 1).requires_grad_(place in trains) for place in range(2)]
    if not trains:
        with pytest.raises(TypeError, match="needs the model beside the BalancedLoader"):
            accelerate._attached([*models, loader], loader, {})
        return
    assert accelerate._attached([loader, *models], loader, {"loss": "sum", "predictor": "ewma"}) is made[0]
    assert [one.model for one in made] == [models[place] for place in trains]
    assert [one.options for one in made] == [{"loss": "sum", "predictor": "ewma"}, {"loss": "sum"}][: len(made)]
    assert {one.loader for one in made} == {loader}
