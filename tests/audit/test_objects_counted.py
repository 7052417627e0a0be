"""Sizes of a sample's parts, as the audit tells them, and what tells two samples apart."""

import pytest

torch = pytest.importorskip("torch")

from paceline.audit.inside.sample_order import counts, digest, written  # noqa: E402
from paceline.audit.launch import Launcher  # noqa: E402

PARTS = [
    ({"labels": torch.tensor([-100, 5, 7])}, {"labels": 3, "labels that count": 2}),
    ({"mask": torch.tensor([1, 0, 1, 1])}, {"mask": 4, "mask that are 1": 3}),
    ({"mask": torch.tensor([1.0, 0.0])}, {"mask": 2, "mask that are 1": 1}),
    ({"x": torch.tensor([1.5, 0.0])}, {"x": 2}),
    ({"x": torch.tensor([2, 1])}, {"x": 2, "x that count": 2}),
    ({"x": torch.zeros(0)}, {"x": 0}),
    ({"x": torch.zeros(0, dtype=torch.long)}, {"x": 0, "x that count": 0}),
    ({"x": torch.tensor(3)}, {}),
    ((torch.tensor([2.5]), torch.tensor([[0, 2]])), {"part 0": 1, "part 1": 2, "part 1 that count": 2}),
    (torch.tensor([4, 5]), {"a sample": 2, "a sample that count": 2}),
]


@pytest.mark.parametrize(("item", "expected"), PARTS)
def test_values_ones_and_labels_that_count_are_told_apart(item, expected):
    assert counts(written(item)) == expected


def test_objects_of_other_content_have_another_checksum_and_equal_ones_the_same():
    def objects():
        return [
            *(item for item, _ in PARTS), {}, [], None, "a", "b", 1, 1.0, {"a": 1}, {"b": 1}, {"a": 2}, [1, 2], [2, 1],
            torch.tensor([5, 4]), torch.tensor([4.0, 5.0]),
        ]  # fmt: skip

    found = [digest(written(item)) for item in objects()]
    assert found == [digest(written(item)) for item in objects()]
    assert len(set(found)) >= len(found) - 2  # of two kinds of nothing


def test_each_run_is_told_with_its_number_and_has_its_folder_with_the_plan(tmp_path, monkeypatch):
    told = []

    class Plan:
        def to_json(self):
            return "plan"

    monkeypatch.setattr(Launcher, "_started", lambda self, command, folder: f"{command[-1]} in {folder.name}")
    launcher = Launcher(("torchrun", "--nproc-per-node", "2", "t.py"), tmp_path, 9.0, told.append)
    first, alone = launcher(Plan(), False), launcher(Plan(), True)
    assert told == ["run 1", "run 2, as one process"]
    assert (first.error, alone.error) == ("t.py in 1", "t.py in 2")
    assert [(tmp_path / name / "plan").read_text() for name in "12"] == ["plan", "plan"]
    unknown = Launcher(["train"], tmp_path, 9.0, told.append)
    assert "does not say how many" in unknown(Plan(), True).error
    assert (unknown.runs, len(told)) == (0, 2)
