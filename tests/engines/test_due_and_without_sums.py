"""When a server writes a checkpoint; and models that sum nothing until the last micro-batch of a step."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.parameter_server.service import Service
from paceline.torch import balance as module
from paceline.torch.balance import Balance


@given(
    growth=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    every=st.sampled_from([None, 0, 1, 20, 45]),
    has_checkpoint=st.booleans(),
    finished_at=st.integers(0, 14),
    begins=st.integers(0, 50),
)
def test_a_checkpoint_is_due_after_so_many_samples_and_once_at_the_end(
    growth, every, has_checkpoint, finished_at, begins
):
    sampler = SimpleNamespace(applied=begins)
    one = SimpleNamespace(
        _changed=threading.Condition(),
        _asked=begins,
        checkpoint="here" if has_checkpoint else None,
        checkpoint_every=every,
        server=SimpleNamespace(sampler=sampler, finished=False),
    )
    since = 0
    for number, more in enumerate(growth):
        sampler.applied += more
        since += more
        one.server.finished = number >= finished_at
        due = has_checkpoint and since > 0 and (one.server.finished or bool(every and since >= every))
        assert Service._is_due(one) == due
        since = 0 if due else since
        assert one._asked == sampler.applied - since


@pytest.mark.parametrize("step_ends", [False, True])
def test_nothing_is_summed_while_gradients_accumulate_but_in_the_last_micro_batch(monkeypatch, step_ends):
    entered = []

    class Wrapped:
        def __init__(self, name):
            self.name = name

        @contextmanager
        def no_sync(self):
            entered.append(self.name)
            yield
            entered.append(f"{self.name} again")

    wrapped = {"first": Wrapped("first"), "plain": None, "second": Wrapped("second")}
    monkeypatch.setattr(module, "ddp_of", wrapped.get)
    one = SimpleNamespace(_loader=SimpleNamespace(step_ends=step_ends), models=tuple(wrapped))
    with Balance.accumulating(one):
        assert entered == ([] if step_ends else ["first", "second"])
    assert entered == ([] if step_ends else ["first", "second", "second again", "first again"])
