"""A backward pass finds the forward passes behind it, and tells their owners."""

from types import SimpleNamespace

import pytest
import torch

from paceline.torch.weighting import graph
from paceline.torch.weighting.graph import MOST, Pass, behind, watch


def test_torchs_own_backward_is_back_once_nobody_watches():
    class Owner:
        pass

    owners = [Owner(), Owner()]
    unwatch = [watch(one) for one in owners]
    assert torch.autograd.backward is graph._backward
    Pass(owners[0], SimpleNamespace(through=()))
    unwatch[0]()
    assert torch.autograd.backward is graph._backward, "another watches"
    assert graph._passes
    unwatch[1]()
    assert torch.autograd.backward is graph._torch_backward
    assert graph._torch_backward.__module__ == "torch.autograd"
    assert (graph._passes, graph._begins) == ([], [])


class Watched:
    """An owner that notes what it is told."""

    def __init__(self, takes=True):
        self.told, self.wanted, self._takes = [], [], takes

    def takes(self, inputs):
        self.wanted.append(list(inputs))
        return self._takes

    def backward_begins(self, passes):
        self.told.append(("begins", passes))

    def backward_ended(self):
        self.told.append("ended")

    def backward_failed(self):
        self.told.append("failed")


@pytest.fixture
def watched():
    made = []

    def make(**options):
        owner = Watched(**options)
        made.append((owner, watch(owner)))
        return owner

    yield make
    for _, stop in made:
        stop()


def passed(owner, weight, through=()):
    one = Pass(owner, SimpleNamespace(through=through))
    output = (weight * 2.0).sum()
    one.ends()
    return one, output


def test_a_backward_pass_tells_the_owners_of_the_passes_behind_it_and_no_others(watched):
    first, second, idle = watched(), watched(), watched()
    weight = torch.ones(3, requires_grad=True)
    one, output = passed(first, weight)
    other, more = passed(second, weight, through=(one,))
    empty = Pass(idle, SimpleNamespace(through=()))
    empty.ends()
    assert behind([weight * 2.0]) == []
    assert set(behind([output * more, output])) == {one, other}
    assert behind([more]) == [other, one], "also those that its inputs show"
    torch.autograd.backward([output, more], retain_graph=True)
    assert second.told == [("begins", [other]), "ended"]
    assert first.told == [("begins", [one]), "ended"]
    assert (idle.told, first.wanted) == ([], [])
    torch.autograd.backward(torch.autograd.graph.get_gradient_edge(output), grad_tensors=torch.ones(()))
    assert first.told[2:] == [("begins", [one]), "ended"]


@pytest.mark.parametrize("form", ["named", "place", "mapping", "one"])
def test_a_backward_pass_for_other_inputs_is_told_to_owners_that_take_these(watched, form):
    weight, beside = (torch.ones(3, requires_grad=True) for _ in range(2))
    taking, other = watched(), watched(takes=False)
    _, output = passed(taking, weight)
    _, more = passed(other, weight)
    loss = output + more + beside.sum()
    inputs = {"mapping": {"x": beside}.values(), "one": beside}.get(form, [beside])
    if form == "place":
        torch.autograd.backward(loss, None, None, False, None, inputs)
    else:
        torch.autograd.backward(loss, inputs=beside if form == "one" else list(inputs))
    assert [len(taking.told), other.told] == [2, []]
    assert [[id(one) for one in wanted] for wanted in taking.wanted] == [[id(beside)]]


def test_a_backward_pass_that_fails_is_told_and_one_within_another_is_not(watched):
    owner, weight = watched(), torch.ones(3, requires_grad=True)
    one, output = passed(owner, weight)

    def fail(gradient):
        raise ArithmeticError

    def within(gradient):
        with torch.enable_grad():
            passed(owner, weight)[1].backward()

    weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        output.backward()
    assert owner.told == [("begins", [one]), "failed"]
    other = torch.ones(3, requires_grad=True)
    _, output = passed(owner, other)
    owner.told.clear()
    weight = torch.ones(3, requires_grad=True)
    other.register_hook(within)
    output.backward()
    assert len(owner.told) == 2
    assert weight.grad.tolist() == [2.0] * 3


def test_the_newest_passes_are_remembered_in_their_order(watched):
    owner, weight = watched(), torch.ones(1, requires_grad=True)
    first, oldest = passed(owner, weight)
    for _ in range(MOST - len(graph._passes)):
        newest, output = passed(owner, weight)
    assert (len(graph._passes), behind([oldest])) == (MOST, [first])
    newest, output = passed(owner, weight)
    assert len(graph._passes) == len(graph._begins) == MOST // 2 + 1
    assert (behind([oldest]), behind([output])) == ([], [newest])
    assert graph._begins == [one.begin for one in graph._passes]
