"""The words of a verdict, samples that travel between runs, and the start of an audit in a process."""

import collections
import importlib.util
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import paceline.audit
from paceline.audit.audit_verdict import PAGE, AuditStatus, AuditVerdict, Cause
from paceline.audit.inside.names import Names
from paceline.audit.inside.sample_order import (
    NUMBER,
    Supplies,
    UnwritableError,
    converted,
    counts,
    digest,
    leaves,
    read,
    written,
)

SHARED = {"steps": 3, "ranks": 2, "precision": "float32"}
WHERE = "3 steps on 2 ranks, float32"
WHY = "rows of a batch see each other"


@pytest.mark.parametrize(
    ("status", "known", "sentence"),
    [
        ("EXACT", {"deviation": 1.26e-9}, f"Exact: the largest relative deviation is 1.3e-09 ({WHERE})."),
        (
            "EXACT",
            {"noise": 2e-5},
            f"Exact: the largest relative deviation is 0.0e+00 ({WHERE}); two equal runs differ by 2.0e-05, so less "
            "cannot be seen.",
        ),
        ("COULD_NOT_TELL", {"cause": Cause.ROWS, "deviation": 1.0}, f"Could not tell: {WHY}."),
        ("COULD_NOT_TELL", {"cause": Cause.ROWS, "detail": "x"}, f"Could not tell: {WHY} (x)."),
        ("NOT_EXACT", {"cause": Cause.ROWS, "noise": 1.0}, f"Not exact: {WHY}."),
        (
            "NOT_EXACT",
            {"cause": Cause.ROWS, "deviation": 0.5, "detail": "x"},
            f"Not exact: gradients deviate by 5.0e-01 ({WHERE}): {WHY} (x).",
        ),
        (
            "NOT_EXACT",
            {"cause": Cause.ROWS, "deviation": 0.5, "first_step": 2, "parameter": "w"},
            f"Not exact: gradients deviate by 5.0e-01, first in step 2 at w ({WHERE}): {WHY}.",
        ),
        (
            "NOT_EXACT",
            {"cause": Cause.ROWS, "deviation": np.inf, "first_step": 2, "parameter": "first.w, first"},
            f"Not exact: in step 2 at first.w, first: {WHY}.",
        ),
    ],
)
def test_a_verdict_is_one_sentence_with_its_figure(status, known, sentence):
    verdict = AuditVerdict(status=AuditStatus[status], **SHARED, **known)
    assert verdict.sentence == sentence
    told = json.loads(verdict.to_json())
    assert (told["sentence"], told["remedy"], told["status"]) == (sentence, verdict.remedy, status.lower())
    assert told["cause"] == ("rows" if "cause" in known else None)
    assert set(told) == {*vars(verdict), "sentence", "remedy"}
    assert verdict.remedy == (f"{Cause.ROWS.remedy}. See {PAGE}#rows." if "cause" in known else "")
    assert AuditStatus[status].value == ("EXACT", "NOT_EXACT", "COULD_NOT_TELL").index(status)


def test_every_cause_has_words_of_its_own():
    assert len({cause.what for cause in Cause}) == len(Cause)
    assert [Cause.TERMS.what[:15], Cause.UNKNOWN.anchor] == ["each batch's lo", "unknown"]
    plain = AuditVerdict(status=AuditStatus.EXACT)
    assert (plain.cause, plain.detail, plain.deviation, plain.steps, plain.ranks) == (None, "", 0.0, 0, 0)
    assert (plain.first_step, plain.parameter, plain.precision, plain.noise) == (0, "", "", 0.0)
    assert (plain.notes, plain.runs) == ((), {})


# -- samples that travel ---------------------------------------------------------------------------------------------


class Pair(collections.namedtuple("Pair", "one other")):
    """Two parts."""


class Table(collections.UserDict):
    """A mapping of a class of its own, with a fact."""

    def copy(self):
        new = Table(self.data)
        new.fact = self.fact
        return new


def test_tensors_are_changed_wherever_they_lie_in_a_batch():
    table = Table({"x": torch.ones(1)})
    table.fact = "kept"
    proxy = types.MappingProxyType({"x": torch.ones(1), "n": 3})
    batch = {"pair": Pair(torch.ones(1), "text"), "list": [torch.ones(1), (torch.ones(1),)], "t": table}
    found = converted(batch, lambda part: part + 1)
    assert type(found["pair"]) is Pair
    assert (found["pair"].one.item(), found["pair"].other) == (2, "text")
    assert (type(found["list"]), type(found["list"][1])) == (list, tuple)
    assert [found["list"][0].item(), found["list"][1][0].item()] == [2, 2]
    assert (type(found["t"]), found["t"].fact, found["t"]["x"].item()) == (Table, "kept", 2)
    assert converted(proxy, lambda part: part + 1) == {"x": torch.full((1,), 2.0), "n": 3}
    assert batch["list"][0].item() == table["x"].item() == 1, "the batch itself stays"


def test_parts_of_a_sample_are_named_by_their_way_to_them():
    item = {"a": [torch.ones(2), {"b": np.zeros(3)}], "n": 4, "t": (5.5, torch.ones(1))}
    found = {path: tensor.tolist() for path, tensor in leaves(written(item))}
    # Within a dictionary each pair's name leads to its value; a list's parts are numbered.
    assert found == {"a.0": [1, 1], "a.1.b.0": [0, 0, 0], "n": 4, "t.0": 5.5, "t.1": [1]}
    assert dict(leaves(written(torch.ones(1)))).keys() == {""}
    assert counts(written({"a": [torch.ones(2), torch.full((3,), -100)]})) == {
        "a.0": 2,
        "a.0 that are 1": 2,
        "a.1": 3,
        "a.1 that count": 0,
    }


def test_what_is_read_is_a_copy_and_a_number_is_looked_up():
    tensor = torch.ones(2)
    known = written([tensor, np.ones(2), b"ab", {NUMBER: 1}])
    assert known == {
        "list": [known["list"][0], {"array": known["list"][1]["array"]}, {"bytes": [97, 98]}, known["list"][3]]
    }
    tensor += 1
    first, array, text, _ = read(known)
    assert first.tolist() == [1, 1]
    first += 5
    array += 5
    again = read(known)
    assert (again[0].tolist(), again[1].tolist(), text) == ([1, 1], [1, 1], b"ab")
    assert read({NUMBER: 7}, {7: "found"}) == "found"
    assert read({"tuple": [{NUMBER: 7}, {"list": [{NUMBER: 7}]}]}, {7: "found"}) == ("found", ["found"])
    assert read({"dict": [["x", {NUMBER: 7}]]}, {7: "found"}) == {"x": "found"}
    for wrong in (np.array(["text"]), np.array([1j]), {1, 2}, Pair(1, 2), range(3)):
        with pytest.raises(UnwritableError, match=type(wrong).__name__):
            written(wrong)
    view = torch.ones(1000)[:1]
    assert written(view).untyped_storage().nbytes() == 4


def test_a_checksum_is_of_bytes_for_tensors_and_of_kind_and_parts_otherwise():
    assert digest(torch.tensor([1, 2], dtype=torch.uint8)) == 3066839698
    assert digest(torch.ones(2, 3).T) == digest(torch.ones(3, 2)) == digest(torch.ones(6))
    assert digest(torch.zeros(0)) == 0
    assert digest(written([1])) != digest(written((1,)))
    assert digest(written(np.ones(2))) != digest(written(torch.ones(2).double()))
    assert digest(written({"a": 1, "b": 2})) != digest(written({"a": 2, "b": 1}))
    assert len({digest(one) for one in (1, 1.0, True, "1", None, "None")}) == 6


def test_samples_of_each_rank_are_loaded_once(tmp_path, monkeypatch):
    for rank in (0, 1):
        torch.save({"s": [[f"{rank}00", f"{rank}01"], [f"{rank}10"]]}, tmp_path / f"{rank}.samples")
    loaded, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda path, **told: loaded.append((path.name, told)) or load(path, **told))
    supplies = Supplies(str(tmp_path))
    assert [supplies.take("s", *ref) for ref in ((1, 0, 1), (0, 1, 0), (1, 1, 0))] == ["101", "010", "110"]
    assert loaded == [("1.samples", {"weights_only": True}), ("0.samples", {"weights_only": True})]


# -- names and the start ---------------------------------------------------------------------------------------------


def test_modules_and_parameters_that_are_gone_leave_their_names_to_others():
    names, first = Names(), torch.nn.Linear(1, 1)
    names.note(first)
    assert list(names.of(first.parameters(), torch.nn.Module.named_parameters)) == ["weight", "bias"]
    del first
    assert names.modules() == []
    second, third = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    for one in (second, third):
        names.note(one)
    asked = []

    def named(module):
        asked.append(module)
        return module.named_parameters()

    assert list(names.of(second.parameters(), named)) == ["weight", "bias"]
    assert list(names.of(third.parameters(), named)) == ["weight (2)", "bias (2)"]
    asked.clear()
    assert list(names.of([*third.parameters(), *second.parameters()], named)) == [
        "weight (2)",
        "bias (2)",
        "weight",
        "bias",
    ]
    assert asked == [], "all are known"


START = Path(paceline.audit.__file__).parent / "bootstrap" / "sitecustomize.py"


@pytest.mark.parametrize("planned", [True, False])
def test_an_audited_process_looks_out_for_torch_and_runs_the_users_start(tmp_path, monkeypatch, planned):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.paceline_ran = True\n")
    monkeypatch.setattr(sys, "path", [str(START.parent), str(tmp_path)])
    monkeypatch.setattr(sys, "paceline_ran", False, raising=False)
    monkeypatch.setattr(sys, "meta_path", before := list(sys.meta_path))
    found = list(before)
    monkeypatch.setenv("PACELINE_AUDIT_PLAN", "plan") if planned else monkeypatch.delenv("PACELINE_AUDIT_PLAN", False)
    spec = importlib.util.spec_from_file_location("started", START)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sys.paceline_ran is planned
    assert [type(one).__name__ for one in sys.meta_path[: len(before) - len(found)]] == ["AfterTorch"] * planned
    assert before[len(before) - len(found) :] == found
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finder = module.AfterTorch()
    sys.meta_path.append(finder)
    assert finder.find_spec("torch") is None
    assert module.BeginAudit(SimpleNamespace(own=3)).own == 3


def test_an_environment_without_this_library_takes_it_from_where_the_audit_runs(monkeypatch):
    begun, name = [], "paceline.audit.inside.begin"
    spec = importlib.util.spec_from_file_location("started", START)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.delenv("PACELINE_AUDIT_PLAN", raising=False)
    spec.loader.exec_module(module)

    class Path(list):
        def append(self, folder):
            begun.append(folder)
            sys.modules[name] = SimpleNamespace(begin=lambda: begun.append("begun"))

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "path", Path(sys.path))
    monkeypatch.setenv("PACELINE_AUDIT_PATH", "/there")
    module.BeginAudit(SimpleNamespace(exec_module=begun.append)).exec_module("torch")
    assert begun == ["torch", "/there", "begun"]
