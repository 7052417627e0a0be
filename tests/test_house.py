"""The house keeps its shape: rooms import one way, importing costs little, the wheel holds every room."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import paceline

PACKAGE = Path(paceline.__file__).parent
CHECKOUT = Path(__file__).parent.parent

MAY_IMPORT = {
    "datasets": set(),
    "predictors": set(),
    "solver": set(),
    "training": {"datasets", "predictors"},
    "eval": {"datasets", "predictors", "solver", "training"},
    "coordinator": {"datasets", "predictors", "solver"},
}


def rooms_imported(source: Path) -> set[str]:
    """Rooms a file imports, at its top or inside a function; imports for type annotations alone do not count."""
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    return {module.split(".")[1] for module in modules if module.startswith("paceline.")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_one_way(room):
    for source in (PACKAGE / room).rglob("*.py"):
        beyond = rooms_imported(source) - {room} - MAY_IMPORT[room]
        if source.name == "checks.py":  # its example is a Trace, made when a check runs
            beyond -= {"datasets"}
        assert not beyond, f"{source.name} imports {beyond}"


def test_the_rooms_are_those_that_are_listed():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(MAY_IMPORT)


def test_importing_paceline_loads_numpy_and_nothing_heavy():
    heavy = ["torch", "pandas", "pyarrow", "scipy", "statsmodels", "sklearn", "matplotlib", "typer", "rich"]
    code = f"import sys, paceline; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_env())
    assert found.stdout.strip() == "[]"


def test_every_public_name_exists_and_is_documented():
    for room in ("", *MAY_IMPORT):
        module = __import__("paceline." + room if room else "paceline", fromlist=["__all__"])
        for name in module.__all__:
            thing = getattr(module, name)
            assert getattr(thing, "__doc__", None), f"{room}.{name} has no docstring"


@pytest.mark.checkout
def test_the_wheel_holds_every_room_and_no_other_top_level_name(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(CHECKOUT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"paceline"}
    for room in MAY_IMPORT:
        assert f"paceline/{room}/__init__.py" in names
    assert "paceline/py.typed" in names
    shipped = {Path(name).name for name in names if name.startswith("paceline/datasets/recorded/")}
    assert {path.name for path in (CHECKOUT / "datasets" / "recorded").glob("*.parquet")} <= shipped


@pytest.mark.checkout
def test_rooms_are_reached_through_links():
    for room in MAY_IMPORT:
        link = CHECKOUT / "src" / "paceline" / room
        assert link.is_symlink()
        assert link.resolve() == CHECKOUT / room


def _env():
    import os

    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
