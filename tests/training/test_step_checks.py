"""What is measured by ``paceline profile``: which steps are refused, with which sentence; what a failure says."""

import sys
import types

import pytest

from paceline.training.make_step import CheckedStep, StepError, failure, load_make_step


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the working folder, of a name of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    written = []

    def write(text, name="steps_here"):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        sys.modules.pop(name, None)

    yield write
    for name in written:
        sys.modules.pop(name, None)


def refused(text):
    with pytest.raises(StepError) as error:
        load_make_step(text)
    sentence, _, expected = str(error.value).partition("; expected is ")
    assert expected.startswith("make_step(batch_size, device), which returns a function that runs a training step")
    return sentence


@pytest.mark.parametrize("text", ["", "module", "module:", ":function", ".module:function", ":"])
def test_a_name_of_another_form_is_refused(text):
    assert refused(text) == f"the model must be named like package.module:make_step, got {text!r}"


def test_a_function_is_found_in_the_working_folder(module, tmp_path):
    module("def make_step(size, device): return lambda: None\nclass Made:\n    def __init__(self, size, device): pass")
    assert load_make_step("steps_here:make_step").__name__ == "make_step"
    assert load_make_step("steps_here:Made").__name__ == "Made"
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_what_is_not_there_or_does_not_take_a_batch_and_a_device_is_named(module, tmp_path):
    module("def make_step(size): pass\nmake_stop = 3\ndef several(size, device, *, more): pass")
    assert (
        refused("steps_here:make_steps") == "module 'steps_here' has no function 'make_steps', but it has 'make_step'"
    )
    assert refused("steps_here:zzz") == "module 'steps_here' has no function 'zzz'"
    assert refused("steps_here:make_stop") == (
        "steps_here:make_stop must be a function make_step(batch_size, device), got a int"
    )
    assert refused("steps_here:make_step") == (
        "steps_here:make_step(size) cannot be called with a batch size and a device: too many positional arguments"
    )
    assert refused("steps_here:several") == (
        "steps_here:several(size, device, *, more) cannot be called with a batch size and a device: "
        "missing a required argument: 'more'"
    )
    nowhere = f"neither installed nor in {tmp_path}"
    assert refused("nowhere_at_all:f") == f"there is no module 'nowhere_at_all', {nowhere}"
    assert refused("steps_here.py:f").startswith(f"there is no module 'steps_here.py', {nowhere}; give the module's")
    assert refused("steps_here.py:f").endswith("give the module's name, not its file: steps_here")
    assert (
        refused("sub/steps:f")
        == f"there is no module 'sub/steps', {nowhere}; give the module's name, not its file: steps"
    )
    assert refused("nowhere.inner:f") == f"there is no module 'nowhere.inner', {nowhere}"


def test_a_module_that_fails_when_it_is_imported_says_how(module):
    module("x = 1\nraise RuntimeError('no data')")
    assert (
        refused("steps_here:f")
        == "module 'steps_here' cannot be imported, it raised RuntimeError: no data (steps_here.py, line 2)"
    )
    module("import sys\n\nsys.exit(2)", "steps_exit")
    assert refused("steps_exit:f").startswith(
        "module 'steps_exit' cannot be imported, it raised SystemExit: 2 (steps_exit.py, line 3"
    )
    module("def (", "steps_torn")
    assert refused("steps_torn:f").endswith("SyntaxError: invalid syntax (steps_torn.py, line 1)")
    module("import not_installed_at_all", "steps_lacking")
    with pytest.raises(
        ModuleNotFoundError, match=r"^module 'steps_lacking' cannot be imported: No module named"
    ) as error:
        load_make_step("steps_lacking:f")
    assert error.value.name == "not_installed_at_all"


async def awaited(*arguments):
    return None


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (None, "returned None, and must return a function"),
        (3, "returned a int, and must return a function"),
        (
            lambda one: None,
            "returned a function(one), which cannot be called without arguments: missing a required argument: 'one'",
        ),
    ],
)
def test_what_is_no_step_is_refused(step, says):
    with pytest.raises(StepError) as error:
        CheckedStep(lambda size, device: step, 8, "cuda:1")
    assert str(error.value).startswith(f"make_step(8, 'cuda:1') {says}; expected is")


def test_a_make_step_that_is_async_is_refused():
    with pytest.raises(StepError, match=r"^make_step\(8, 'cpu'\) is async, and must be a plain function"):
        CheckedStep(awaited, 8, "cpu")


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (lambda: awaited(), "coroutine"),
        (lambda: (k for k in range(3)), "generator"),
        (lambda: lambda: None, "function"),
        (lambda: awaited.__get__(3), "method"),
    ],
)
def test_a_step_that_has_not_run_yet_is_refused(step, kind):
    with pytest.raises(StepError, match=rf"^the step that make_step\(8, 'cpu'\) returned returns a {kind} instead of"):
        CheckedStep(lambda size, device: step, 8, "cpu")()


def test_a_step_may_return_anything_else_and_is_called_with_the_batch_and_the_device():
    asked = []
    step = CheckedStep(
        lambda size, device: asked.append((size, device)) or (lambda: asked.append("run") or 3), 8, "cpu"
    )
    assert step() is None
    assert asked == [(8, "cpu"), "run"]
    assert CheckedStep(lambda size, device: max, 1, "cpu")._step is max, "no signature says what it takes"


@pytest.mark.parametrize(("seconds", "works"), [([1e-6, 1e-6, 0.0], True), ([0.99e-6, 1.0, 0.5e-6], False)])
def test_a_step_that_mostly_ends_within_a_microsecond_does_no_work(monkeypatch, seconds, works):
    now, takes = [0.0], iter(seconds)

    def step():
        now[0] += next(takes)

    checked = CheckedStep(lambda size, device: step, 8, "cpu")
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    for _ in seconds:
        now[0] = 0.0
        checked()
    if works:
        assert checked.require_work() is None
        return
    says = (
        r"^the step that make_step\(8, 'cpu'\) returned does no work: it ends after 0\.99 us, like an empty function;"
    )
    with pytest.raises(StepError, match=says):
        checked.require_work()


def raising(error):
    try:
        raise error
    except type(error) as raised:
        return raised


def test_a_failure_says_where_in_the_own_file_it_happened():
    code = compile("def make(error):\n\n    raise error", "mine.py", "exec")
    names = {}
    exec(code, names)

    def outer():
        try:
            names["make"](KeyError("k"))
        except KeyError as error:
            return error

    found = outer()
    assert failure("what failed:", found, names["make"]) == "what failed: KeyError: 'k' (mine.py, line 3)"
    assert failure("it raised", found, types.SimpleNamespace()) == "it raised KeyError: 'k' (mine.py, line 3)"
    assert failure("it raised", found, outer).startswith("it raised KeyError: 'k' (test_step_checks.py, line ")
    assert failure("it raised", ValueError()) == "it raised ValueError"
