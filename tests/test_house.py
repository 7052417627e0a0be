"""The house keeps its shape: rooms import one way, importing costs little, the wheel holds every room."""

import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest
from house import FOUNDATION, MAY_IMPORT, MOST_FILES, House

import paceline

PACKAGE = Path(paceline.__file__).parent
CHECKOUT = Path(__file__).parent.parent
ROOMS = [room for room in MAY_IMPORT if room != FOUNDATION]
RULES = {
    "one_way": "imports run down the table, lazy ones too, and nothing imports the face",
    "cycles": "no files import each other in a circle, lazily or not",
    "private_attributes": "no file reaches into another file's private attributes",
    "unpickles": "nothing is unpickled, whoever wrote it",
    "named_twice": "no file name and no class name stands twice",
    "heavy": "no room holds more than a fifth of the lines",
    "crowded": f"no folder holds more than {MOST_FILES} modules",
}


@cache
def of_this_package():
    return House(PACKAGE)  # parsed once for all rules


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_the_house_keeps_its_rules(rule):
    found = list(getattr(of_this_package(), rule)())
    assert not found, f"{RULES[rule]}, but {found}"


PLANTED = {
    "a room above": ("one_way", {"solver/broken.py": "from paceline.coordinator import LoadBalancer"}),
    "a room above, lazily": (
        "one_way",
        {"solver/broken.py": "def late():\n    from paceline.coordinator import LoadBalancer"},
    ),
    "the face": ("one_way", {"solver/broken.py": "import paceline"}),
    "a name of the face": ("one_way", {"solver/broken.py": "from paceline import split"}),
    "the command line": ("one_way", {"eval/broken.py": "from paceline.cli import main", "cli/main.py": ""}),
    "a circle": (
        "cycles",
        {"solver/one.py": "import paceline.solver.two", "solver/two.py": "import paceline.solver.one"},
    ),
    "a lazy circle": (
        "cycles",
        {
            "solver/one.py": "import paceline.solver.two",
            "solver/two.py": "def late():\n    from paceline.solver import one",
        },
    ),
    "a file name again": ("named_twice", {"solver/one.py": "", "eval/one.py": ""}),
    "a class name again": ("named_twice", {"solver/one.py": "class Fleet: ...", "eval/two.py": "class Fleet: ..."}),
    "a room of half the lines": (
        "heavy",
        {f"{room}/of_{room}.py": "\n" * (900 if room == "eval" else 100) for room in ROOMS},
    ),
    "a private attribute": (
        "private_attributes",
        {
            "solver/one.py": "class One:\n    def __init__(self):\n        self._hidden = 1",
            "solver/two.py": "def peek(one):\n    return one._hidden",
        },
    ),
    "a pickle": ("unpickles", {"solver/broken.py": "def late():\n    import pickle"}),
    "a part of pickle": ("unpickles", {"solver/broken.py": "from pickle import loads"}),
    "objects on the wire": ("unpickles", {"solver/broken.py": "dist.all_gather_object(told, own)"}),
    "arrays that may be objects": ("unpickles", {"solver/broken.py": "np.load(path)"}),
    "weights that may be objects": ("unpickles", {"solver/broken.py": "torch.load(path, weights_only=False)"}),
    "a crowd": ("crowded", {f"solver/file{number}.py": "" for number in range(MOST_FILES)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("violation", PLANTED)
def test_a_planted_violation_is_found(tmp_path, violation):
    rule, files = PLANTED[violation]
    rooms = {f"{room}/__init__.py": "" for room in ROOMS}
    for name, source in {"__init__.py": "", "cli/__init__.py": "", **rooms, **files}.items():
        path = tmp_path / "paceline" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert {name: bool(list(getattr(House(tmp_path / "paceline"), name)())) for name in RULES} == {
        name: name == rule for name in RULES
    }


def test_the_rooms_are_those_that_are_listed():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == {*ROOMS, "cli"}


def test_importing_paceline_loads_numpy_and_nothing_heavy():
    heavy = ["torch", "pandas", "pyarrow", "scipy", "statsmodels", "sklearn", "matplotlib", "typer", "rich"]
    code = f"import sys, paceline; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_env())
    assert found.stdout.strip() == "[]"


def test_every_public_name_exists_and_is_documented():
    for room in ("", *ROOMS):
        module = __import__("paceline." + room if room else "paceline", fromlist=["__all__"])
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            assert getattr(thing, "__doc__", None), f"{room}.{name} has no docstring"


@pytest.mark.checkout
def test_the_wheel_holds_every_room_and_no_other_top_level_name(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"paceline"}
    for room in ROOMS:
        assert f"paceline/{room}/__init__.py" in names
    assert {"paceline/py.typed", "paceline/report/template/page.html"} <= set(names)
    shipped = {Path(name).name for name in names if name.startswith("paceline/datasets/recorded/")}
    assert {path.name for path in (CHECKOUT / "datasets" / "recorded").glob("*.parquet")} <= shipped


@pytest.mark.checkout
def test_rooms_are_reached_through_links():
    for room in ROOMS:
        link = CHECKOUT / "src" / "paceline" / room
        assert link.is_symlink()
        assert link.resolve() == CHECKOUT / room


def _env():
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
