"""Changes that an audit makes to torch, to loaders and to Python's start: each does what it says, and goes away."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import paceline.audit
from paceline.audit.comparisons import AuditPlan, BalancedRun
from paceline.audit.inside.balanced import Mixed, MixedStream, Restless, candidates, delivering
from paceline.audit.inside.begin import recorded
from paceline.audit.inside.names import Names
from paceline.audit.inside.patches import Patches, length_of, no_dropout
from paceline.audit.inside.step_recorder import Chance, StepRecorder, chance, folded
from paceline.audit.tape import load_all


def test_dropout_does_nothing_inside_in_functions_layers_attention_and_recurrence():
    image = torch.ones(2, 3, 4, 4)
    functions = [getattr(nn.functional, name) for name in ("dropout", "alpha_dropout", "dropout2d")]
    attention = nn.functional.scaled_dot_product_attention
    query = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    layers = [kind(4, 5, num_layers=2, dropout=0.9) for kind in (nn.LSTM, nn.GRU, nn.RNN)]
    rows = torch.randn(3, 2, 4)
    with no_dropout():
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
            assert getattr(nn.functional, name)(image, 0.9, True) is image
        assert torch.equal(nn.Dropout(0.9).train()(image), image)
        plain = attention(query, query, query)
        masked = nn.functional.scaled_dot_product_attention(query, query, query, None, 0.9, True)
        assert torch.equal(masked, attention(query, query, query, is_causal=True))
        for given_ in ({"dropout_p": 0.9}, {}):
            assert torch.equal(nn.functional.scaled_dot_product_attention(query, query, query, **given_), plain)
        assert torch.equal(nn.functional.scaled_dot_product_attention(query, query, query, None, 0.9), plain)
        for layer in layers:
            assert torch.equal(layer(rows)[0], layer(rows)[0])
    for layer in layers:
        assert not torch.equal(layer(rows)[0], layer(rows)[0]), "it has its own dropout again"
    assert [nn.functional.dropout, nn.functional.alpha_dropout, nn.functional.dropout2d] == functions
    assert nn.functional.scaled_dot_product_attention is attention


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(7.0))


def run(tmp_path, work, rank=0, **plan):
    """Record a script, and return its tape."""
    with recorded(AuditPlan(**{"steps": 2, **plan}), tmp_path, rank):
        work()
    (tape,) = load_all(tmp_path)
    return tape


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [3, 3]), (False, [3, 3, 1])])
def test_batches_of_a_stream_are_those_of_torch(tmp_path, drop_last, sizes):
    weight, seen = nn.Parameter(torch.ones(1)), []

    def work():
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for batch in DataLoader(Numbers(), batch_size=3, drop_last=drop_last, num_workers=0):
            seen.append(batch.tolist())
            (weight * batch.sum()).sum().backward()
            optimizer.step()

    tape = run(tmp_path, work, steps=9)
    assert [len(batch) for batch in seen] == sizes
    assert sum(seen, []) == list(range(sum(sizes)))  # noqa: RUF017
    assert [step.delivered for step in tape.steps] == [{"Numbers 0": k + 1} for k in range(len(sizes))]
    assert tape.facts["lengths"] == {"Numbers 0": 0}  # nobody knows


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_script_runs_in_its_precision_and_stays_where_it_is_if_frozen(tmp_path, precision, frozen):
    data, kinds, norms = TensorDataset(torch.arange(8.0).reshape(4, 2)), [], []
    before = torch.get_default_dtype(), torch.randint, nn.utils.clip_grad_norm_, np.random.default_rng

    def work():
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (inputs,) in DataLoader(data, batch_size=2, num_workers=2):
            with torch.autocast("cpu", torch.bfloat16):
                kinds.append((inputs.dtype, model(inputs).dtype))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1e-6)))
            nn.utils.clip_grad_value_(model.parameters(), 1e-7)
            optimizer.step()

    tape = run(tmp_path, work, precision=precision, frozen=frozen)
    kind = getattr(torch, precision)
    assert kinds == [(kind, kind if precision == "float64" else torch.bfloat16)] * 2
    assert tape.facts["dtypes"] == [precision]
    assert (torch.get_default_dtype(), torch.randint, nn.utils.clip_grad_norm_, np.random.default_rng) == before
    first, second = (step.parameters["weight"] for step in tape.steps)
    assert np.array_equal(first, tape.start["weight"]) == frozen
    assert np.array_equal(second, first) == frozen
    for step, norm in zip(tape.steps, norms, strict=True):
        length = np.sqrt(sum(np.square(one).sum() for one in step.gradients.values()))
        assert length == pytest.approx(norm, rel=1e-5) if frozen else length < 1e-5
    assert tape.facts["lengths"] == {"TensorDataset 0": 2}


def test_what_a_script_does_not_seed_draws_the_same_in_every_run_and_another_on_each_rank(tmp_path):
    drawn = []

    def work():
        import random

        drawn.append((random.random(), float(torch.rand(1)), np.random.rand(), np.random.default_rng().random()))  # noqa: NPY002
        assert np.random.default_rng(5).random() == 0.8050029237453802

    for k, rank in enumerate((0, 0, 1)):
        (tmp_path / str(k)).mkdir()
        with recorded(AuditPlan(), tmp_path / str(k), rank):
            work()
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 20), st.lists(st.lists(st.integers(0, 50), max_size=4)))
def test_an_order_is_mixed_within_its_blocks_only_and_replaced_where_it_is_told(seed, block, length, numbers):
    own = np.arange(100, 100 + length)
    order = SimpleNamespace(of=lambda epoch, ranks: own, name="order", __len__=None)
    found = Mixed(order, block, BalancedRun(seed=seed, numbers=numbers)).of(3, 2)
    given_ = [number for step in numbers for number in step][:length]
    assert found[: len(given_)].tolist() == given_
    plain = Mixed(order, block, BalancedRun(seed=seed)).of(3, 2)
    assert found[len(given_) :].tolist() == plain[len(given_) :].tolist()
    whole = length // block * block
    for first in range(0, whole, block):
        assert sorted(plain[first : first + block]) == own[first : first + block].tolist()
    assert plain[whole:].tolist() == own[whole:].tolist()
    assert own.tolist() == list(range(100, 100 + length)), "the order itself stays"
    if not seed:
        assert plain.tolist() == own.tolist()
    elif block > 4 and length >= 15:
        assert plain.tolist() != own.tolist()
        assert plain[:block].tolist() != (plain[block : 2 * block] - block).tolist(), (
            "each block has an order of its own"
        )
    assert Mixed(order, block, BalancedRun()).name == "order"


@given(st.integers(0, 9), st.integers(1, 5), st.integers(0, 20))
def test_a_stream_is_mixed_within_its_blocks_only(seed, block, length):
    class Stream(list):
        workers = "its own"

    found = MixedStream(Stream(range(length)), block, seed)
    samples = list(found)
    whole = length // block * block
    for first in range(0, whole, block):
        assert sorted(samples[first : first + block]) == list(range(first, first + block))
    assert samples[whole:] == list(range(whole, length))
    assert list(found) == samples
    if not seed:
        assert samples == list(range(length))
    elif block > 4 and length >= 15:
        assert samples != list(range(length))
    assert found.workers == "its own"


def test_speeds_of_restless_workers_differ_by_iteration_and_not_by_rank():
    one, other = Restless(), Restless()
    for each in (one, other):
        each.reset(["a", "b"])
        each.join("c")
        each.leave("a")
    assert one.workers == ("b", "c")
    seen = []
    for _ in range(3):
        speed = one.predict().speed
        assert np.array_equal(speed, other.predict().speed)
        assert ((speed >= 1) & (speed <= 3)).all()
        seen.append(speed.tolist())
        one.observe(None)
        other.observe(None)
    assert seen[0] != seen[1] != seen[2]
    later = Restless()
    later.reset(["b", "c"])
    later.load_state_dict(one.state_dict())
    assert np.array_equal(later.predict().speed, one.predict().speed)
    later.reset(["b", "c"])
    assert later.predict().speed.tolist() == seen[0]


def test_candidates_are_the_first_samples_with_their_sizes():
    class Samples:
        def __len__(self):
            return 100

        def __getitem__(self, number):
            return {"x": torch.ones(number + 2) * 0.5} if number != 1 else object()

    found = candidates(Samples())
    assert [number for number, _ in found] == list(range(64))
    assert [counts for _, counts in found[:3]] == [{"x": 2}, {}, {"x": 4}]
    assert len(candidates([torch.ones(3)] * 2)) == 2


def test_batches_of_a_balanced_loader_are_counted_and_converted():
    counted = []
    recorder = SimpleNamespace(handed_out=counted.append, delivered=lambda batch: ("delivered", batch))
    assert delivering(recorder, "l", None)([1, 2])[1].tolist() == [1, 2]
    assert delivering(recorder, "l", sum)([1, 2]) == ("delivered", 3)
    assert counted == ["l", "l"]


def test_draws_inside_leave_those_outside_as_they_were():
    import random

    before = chance()
    with Chance(7):
        inside = (random.random(), float(torch.rand(1)), np.random.rand())  # noqa: NPY002
        assert chance() != before
    assert chance() == before
    with Chance(7):
        assert inside == (random.random(), float(torch.rand(1)), np.random.rand())  # noqa: NPY002
    for draw in (random.random, lambda: torch.rand(1), np.random.rand):
        now = chance()
        draw()
        assert chance() != now


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int32, torch.float64])
def test_a_tensor_of_any_kind_is_kept_as_numbers_that_numpy_has(kind):
    tensor = torch.tensor([[1, 2], [3, 4]]).to(kind)
    found = folded(tensor)
    assert found.tolist() == [1, 2, 3, 4]
    assert found.dtype == (np.float64 if kind == torch.float64 else np.float32)
    tensor += 1
    assert found.tolist() == [1, 2, 3, 4], "a copy"
    assert folded(torch.eye(2).to_sparse()).tolist() == [1, 0, 0, 1]


def test_a_length_that_nobody_knows_is_zero():
    assert (length_of([1, 2]), length_of(iter([]))) == (2, 0)


def test_names_are_those_of_the_module_that_holds_most_and_no_two_are_the_same():
    names, whole, part = Names(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(3, 1)
    loose = nn.Parameter(torch.ones(1))
    for module in (part, whole, whole[0], whole):
        names.note(module)
    assert len(names.modules()) == 3
    found = names.of([*whole.parameters(), *part.parameters(), loose], nn.Module.named_parameters)
    assert list(found) == ["0.weight", "0.bias", "1.weight", "1.bias", "weight", "bias", "parameter 6"]
    other = nn.Linear(3, 1)
    names.note(other)
    assert list(names.of(other.parameters(), nn.Module.named_parameters)) == ["weight (2)", "bias (2)"]
    assert list(names.of(part.parameters(), nn.Module.named_parameters)) == ["weight", "bias"]
    assert names.that_mix() == ["BatchNorm1d"]
    whole.eval()
    assert names.that_mix() == []
    assert names.that_hook() == []
    whole[0].bias.register_hook(lambda grad: grad)
    assert names.that_hook() == ["0.bias", "bias"]


def test_names_are_without_those_of_wrappers():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    names, wrapped = Names(), Wrapper(Wrapper(nn.Linear(2, 1)))
    names.note(wrapped)
    assert list(names.of(wrapped.parameters(), nn.Module.named_parameters)) == ["weight", "bias"]


def test_a_replaced_attribute_comes_back_as_it_was():
    class Owner:
        @staticmethod
        def one():
            return 1

    patches = Patches(None)
    before = vars(Owner)["one"]
    patches.replace(Owner, "one", lambda given_: lambda: 2)
    patches.replace(Owner, "one", lambda given_: lambda: 3)
    assert Owner.one() == 3
    patches.undo()
    patches.undo()
    assert vars(Owner)["one"] is before


def test_a_recorder_notes_facts_of_each_step_and_writes_once(tmp_path):
    ended = []
    recorder = StepRecorder(AuditPlan(steps=5), tmp_path, lambda folder, ranks: ended.append((folder, ranks)))
    recorder.finish()
    assert not list(tmp_path.iterdir()), "nothing of a script without steps"
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    for number in range(2):
        parameter.grad = torch.ones(2)
        recorder.say(ratio=number)
        recorder.before_step(optimizer, False)
        recorder.before_step(optimizer, False)  # within another's step
        recorder.after_step(optimizer)
        recorder.after_step(optimizer)
    recorder.handed_out("l")
    recorder.finish()
    recorder.finish()
    assert ended == [(tmp_path, 1)]
    (tape,) = load_all(tmp_path)
    assert [step.facts for step in tape.steps] == [{"ratio": [0]}, {"ratio": [1]}]
    assert tape.start["parameter 0"].tolist() == [1, 1]
    assert (tape.rank, tape.world_size) == (0, 1)
    assert (tmp_path / "0.samples").exists()


START = Path(paceline.audit.__file__).parent / "bootstrap" / "sitecustomize.py"


@pytest.fixture
def start(monkeypatch):
    """The file that Python runs at its start, as a module."""
    monkeypatch.delenv("PACELINE_AUDIT_PLAN", raising=False)
    spec = importlib.util.spec_from_file_location("started", START)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_users_own_start_is_run_as_well_the_first_of_them(start, tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        if name != "a":
            (tmp_path / name / "sitecustomize.py").write_text(f"import sys\nsys.paceline_ran = {name!r}\n")
    monkeypatch.setattr(sys, "path", [str(START.parent), *(str(tmp_path / name) for name in "abc")])
    monkeypatch.setattr(sys, "paceline_ran", "", raising=False)
    start.run_next()
    assert sys.paceline_ran == "b"
    monkeypatch.setattr(sys, "path", [str(START.parent), str(tmp_path / "a")])
    monkeypatch.setattr(sys, "paceline_ran", "")
    start.run_next()
    assert sys.paceline_ran == ""
    monkeypatch.chdir(tmp_path / "c")
    monkeypatch.setattr(sys, "path", [""])
    start.run_next()
    assert sys.paceline_ran == "c"


def test_an_audit_begins_behind_torch_and_looks_at_nothing_else(start, monkeypatch):
    finder = start.AfterTorch()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert finder.find_spec("numpy") is None
    assert finder in sys.meta_path
    spec = finder.find_spec("torch")
    assert finder not in sys.meta_path
    assert isinstance(spec.loader, start.BeginAudit)
    assert spec.loader.name == "torch"
    begun = []
    monkeypatch.setattr("paceline.audit.inside.begin.begin", lambda: begun.append("begun"))
    inner = SimpleNamespace(exec_module=begun.append, create_module=lambda given_: ("made", given_))
    start.BeginAudit(inner).exec_module("module")
    assert begun == ["module", "begun"]
    assert start.BeginAudit(inner).create_module("spec") == ("made", "spec")


def test_what_is_audited_in_double_is_never_cast_and_all_is_as_before_afterwards():
    patches, before = Patches(None), torch.get_default_dtype()
    patches._double()
    try:
        assert torch.zeros(1).dtype == torch.float64
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not torch.is_autocast_enabled("cpu")
    finally:
        patches.undo()
    assert torch.get_default_dtype() == before
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
