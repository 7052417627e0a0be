"""``paceline profile``: measuring a model's step over batch sizes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from paceline import cli
from paceline.datasets.profiles import load_profile
from paceline.eval.curve_figure import curve_figure
from paceline.training import profile as profiling

MODULE = """
def make_step(batch_size, device):
    if batch_size > 37:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
    return lambda: sum(range(2000 * batch_size))

def broken(batch_size, device):
    raise RuntimeError("expected 3 channels")

constant = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["paceline", "profile", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_a_users_model_is_measured_written_and_drawn(module, tmp_path, monkeypatch, capsys):
    assert not run(monkeypatch, f"{module}:make_step", "--sizes", "8,16,32,64,128", "--repeats", "3", "--name", "mine")
    frame = load_profile(tmp_path / "profile.csv")
    assert set(frame["device"]) == {"mine"}
    worked = frame.dropna(subset=["seconds"])["batch"]
    assert worked.max() in (36, 37), "the limit is found by bisection up to 5 %"
    assert frame["batch"].max() == 64, "beyond the first failure nothing larger is tried"
    assert (tmp_path / "profile.png").stat().st_size > 1000
    said = capsys.readouterr().out
    assert f"memory limit: {worked.max():.0f} samples" in said
    assert "t(x) = max(" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent:make_step"], "there is no module 'absent'"),
        (["{module}:nothing"], "has no function 'nothing'"),
        (["{module}:constant"], "must be a function make_step"),
        (["{module}"], "must be named like package.module:make_step"),
        (["{module}:make_step", "--sizes", "8,many"], "--sizes must be whole numbers"),
        (["{module}:make_step", "--sizes", "0,8"], "sizes must be batch sizes of at least 1 sample"),
        (["{module}:make_step", "--sizes", "50,60"], "not even a batch of 50 fits into memory"),
        (["{module}:make_step", "--out", "profile.txt"], "--out must end in .csv"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_writes_nothing(module, tmp_path, monkeypatch, capsys, arguments, sentence):
    assert run(monkeypatch, *(text.replace("{module}", module) for text in arguments)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("profile*"))


def test_an_error_of_the_model_itself_is_not_taken_for_a_lack_of_memory(module):
    with pytest.raises(RuntimeError, match="expected 3 channels"):
        profiling.profile(profiling.load_make_step(f"{module}:broken"), [1, 2])


def test_an_import_that_fails_inside_the_users_module_is_shown_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "needy_model.py").write_text("import not_installed_here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        profiling.load_make_step("needy_model:make_step")


def test_the_median_time_of_a_step_is_measured_without_warm_up_and_building(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def make_step(size, device):
        clock[0] += 100.0
        lasts = iter([50.0, 50.0, 1.0 * size, 3.0 * size, 1.0 * size, 1.0 * size, 9.0])

        def step():
            clock[0] += next(lasts)

        return step

    assert profiling.profile(make_step, [5], warmup=2, repeats=5)["seconds"].tolist() == [5.0]


def test_each_size_is_measured_once_in_rising_order_and_its_step_is_let_go():
    alive, seen = set(), []

    class Step:
        def __init__(self, size):
            alive.add(size)
            self.size = size

        def __call__(self):
            assert alive == {self.size}, "the step before is still held, with its tensors"

        def __del__(self):
            alive.discard(self.size)

    profiling.profile(lambda size, device: Step(size), [4, 2, 4, 8], progress=seen.append)
    assert seen == [2, 4, 8]
    assert not alive


def test_out_of_memory_in_the_middle_of_a_step_counts_too():
    def make_step(size, device):
        def step():
            if size >= 3:
                raise MemoryError

        return step

    frame = profiling.profile(make_step, [1, 2, 4])
    assert frame["batch"].tolist() == [1, 2, 3, 4]
    assert [math.isnan(seconds) for seconds in frame["seconds"]] == [False, False, True, True]


def test_the_example_trains_on_the_cpu():
    pytest.importorskip("torch")
    frame = profiling.profile(profiling.example, [1, 4], repeats=2, warmup=1)
    assert (frame["seconds"] > 0).all()
    assert frame["device"].tolist() == ["cpu", "cpu"]


def test_without_a_gpu_cuda_is_refused_in_a_sentence():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match="it sees no CUDA device here"):
        profiling.profile(profiling.example, [1], device="cuda")


def test_more_curves_than_a_figure_can_show_are_refused(tmp_path):
    import pandas as pd

    part = profiling.profile(lambda size, device: lambda: None, [1, 2], repeats=1)
    frame = pd.concat([part.assign(device=f"gpu-{i}", seconds=np.array([1.0, 2.0])) for i in range(7)])
    with pytest.raises(ValueError, match="at most 6 curves to be drawn, got 7"):
        curve_figure(frame, tmp_path / "curves.png")
    assert curve_figure(frame[frame["device"] < "gpu-2"], tmp_path / "curves.svg").read_text().startswith("<?xml")
