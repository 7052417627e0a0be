"""``paceline profile``: measuring a model's step over batch sizes."""

import pytest

from paceline.cli import main as cli
from paceline.datasets import read_profiles

MODULE = """
def make_step(batch_size, device):
    if batch_size > 37:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
    return lambda: sum(range(2000 * batch_size))

def broken(batch_size, device):
    raise RuntimeError("expected 3 channels")

constant = 3

def returns_nothing(batch_size, device):
    sum(range(2000 * batch_size))

def returns_a_number(batch_size, device):
    return 3.0

def fails_inside(batch_size, device):
    def step():
        return {}["missing"]
    return step

def fails_at_once(batch_size, device):
    return undefined_name

def fails_with_the_wrong_type(batch_size, device):
    return lambda: len(7)

def exits(batch_size, device):
    raise SystemExit(0)

"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "leaves.py").write_text("raise SystemExit(2)")
    monkeypatch.chdir(tmp_path)
    return name


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["paceline", "profile", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


@pytest.mark.slow
def test_profile_measures_and_fits(module, tmp_path, monkeypatch, capsys):
    assert not run(monkeypatch, f"{module}:make_step", "--sizes", "8,16,32,64,128", "--name", "mine")
    frame = read_profiles(tmp_path / "profile.csv")
    assert set(frame["device"]) == {"mine"}
    worked = frame.dropna(subset=["seconds"])["batch"]
    assert worked.max() in (36, 37), "the limit is found by bisection up to 5%"
    assert frame["batch"].max() == 64, "beyond the first failure nothing larger is tried"
    said = capsys.readouterr().out
    assert f"memory limit: {worked.max():.0f} samples" in said
    assert "t(x) = max(" in said
    assert "% in the median, by " in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent:make_step"], "no module 'absent' can be imported"),
        (["absent.deeper:make_step"], "no module 'absent.deeper' can be imported"),
        (["./{module}:make_step"], "must be named like package.module:make_step"),
        (["{module}:"], "must be named like package.module:make_step"),
        (["{module}:make_stp"], "has no function 'make_stp'; it has ['make_step', "),
        (["{module}:nothing"], "has no function 'nothing'"),
        (["{module}:constant"], "has no function 'constant'"),
        (["leaves.py:make_step"], "leaves.py exits when it is imported"),
        (["{module}"], "must be named like package.module:make_step"),
        (["{module}:make_step", "--sizes", "8,many"], "--sizes must be whole numbers"),
        (["{module}:make_step", "--sizes", "0,8"], "sizes must be batch sizes of at least 1 sample"),
        (["{module}:make_step", "--sizes", "50,60"], "even a batch of 50 does not fit into memory"),
        (["{module}:make_step", "--out", "profile.txt"], "--out must end in .csv"),
    ],
)
def test_mistakes_write_nothing(module, tmp_path, monkeypatch, capsys, arguments, sentence):
    assert run(monkeypatch, *(text.replace("{module}", module) for text in arguments)) == 2
    error = capsys.readouterr().err
    assert sentence.replace("{module}", module) in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("profile*"))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("broken", "raised RuntimeError: expected 3 channels ({module}.py, line 8, in broken)"),
        ("fails_inside", "raised KeyError: 'missing' ({module}.py, line"),
        ("fails_at_once", "raised NameError: name 'undefined_name' is not defined ({module}.py, line"),
        ("fails_with_the_wrong_type", "raised TypeError: object of type 'int' has no len() ({module}.py, line"),
        ("exits", "raised SystemExit: 0 ({module}.py, line"),
    ],
)
def test_model_error_is_told_with_its_place(module, monkeypatch, capsys, function, sentence):
    assert run(monkeypatch, f"{module}:{function}", "--sizes", "8") == 2
    error = capsys.readouterr().err
    assert "make_step(8, 'cpu'), or its step, " + sentence.replace("{module}", module) in error
    assert "Traceback" not in error


def test_the_example_trains_on_the_cpu(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert not run(monkeypatch, "--sizes", "1,4", "--passes", "1")
    frame = read_profiles(tmp_path / "profile.csv")
    assert (frame["seconds"] > 0).all()
    assert frame["device"].tolist() == ["cpu", "cpu"]
