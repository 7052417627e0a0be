"""What fails for want of an extra names the line that installs it, for every extra."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ranks import run_ranks

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
PACKAGES = {"sklearn": "scikit-learn", "prometheus_client": "prometheus-client"}

CALLS = {
    "torch": [
        ("torch", "import paceline.torch"),
        ("torch", "import paceline.integrations.lightning"),
        ("torch", "from paceline.predictors import *; NARX().fit([])"),
        ("torch", "from paceline.predictors import *; GatedNARX().fit([])"),
        ("torch", "from paceline.predictors import *; LSTM().fit([])"),
        ("torch", "from paceline.recording import TensorBoard; TensorBoard('runs')"),
        ("torch", "from paceline.training.profile import example; example(8, 'cpu')"),
        ("lab", "from paceline.lab import *; experiment(ExperimentSetting())"),
    ],
    "sklearn": [
        ("lab", "from paceline.lab import *; experiment(ExperimentSetting())"),
    ],
    "statsmodels": [
        (
            "arima",
            "from paceline.predictors import ARIMA; from paceline.datasets import recorded; "
            "ARIMA(method='likelihood').fit(recorded.load_split('fit')[:1])",
        )
    ],
    "jinja2": [("report", "from paceline.report import *; write_page({}, 'x.html')")],
    "tensorboard": [("metrics", "from paceline.recording import TensorBoard; TensorBoard('runs')")],
    "prometheus_client": [("metrics", "from paceline.recording import Prometheus; Prometheus(0)")],
    "torchft": [("torchft", "import paceline.integrations.torchft")],
    "accelerate": [("huggingface", "from paceline.integrations.accelerate import prepare; prepare(None)")],
    "lightning": [
        ("lightning", "from paceline.integrations.lightning import balance_callback; balance_callback()"),
    ],
}
"""What a user may call first without the library, and the extra that the error must name."""


def said_without(library, calls):
    """Return what each call says where a library is not installed."""
    sys.modules[library] = None
    said = []
    for call in calls:
        try:
            exec(call, {})
            said.append("no error")
        except ImportError as error:
            said.append(str(error))
    return said


def forked(_, folder, library, calls):
    os.chdir(folder)
    return said_without(library, calls)


def fresh(folder, library, calls):
    """Ask a process of its own: those that are forked have loaded torch."""
    code = f"from test_extras import *; print(*said_without({library!r}, {calls!r}), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, cwd=folder, env=environment, text=True, timeout=120).splitlines()


@pytest.mark.parametrize("library", CALLS)
def test_missing_library_names_install_line(library, tmp_path):
    calls = [call for _, call in CALLS[library]]
    told = (tmp_path, library, calls)
    found = fresh(*told) if library == "torch" else run_ranks(1, forked, *told, joined=False)[0]
    for (extra, call), said in zip(CALLS[library], found, strict=True):
        wanted = rf"`{library}` is needed by .*; install it in your clone of paceline: pip install \"\.\[{extra}\]\""
        assert re.fullmatch(wanted, said), f"{call} said {said}"


@pytest.mark.checkout
def test_named_extras_install_what_is_missing():
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    for library, calls in CALLS.items():
        for extra in {extra for extra, _ in calls}:
            assert PACKAGES.get(library, library) in installed(extra, extras), f"{extra} does not install {library}"


@pytest.mark.checkout
def test_extras_of_integrations_bring_torch():
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in ("ray", "flower", "torchft", "lightning", "huggingface"):  # paceline.integrations asks for it
        assert "torch" in installed(extra, extras), extra


@pytest.mark.checkout
def test_every_extra_of_a_user_is_among_all():
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    named = set(re.findall(r"[\w-]+", extras["all"][0].partition("[")[2]))
    assert named == set(extras) - {
        "all",
        "dev",
        "peers",
        "flower",
        "torchft",
    }  # the last two are not for every environment


def installed(extra, extras):
    """Names of the packages that an extra installs."""
    found = set()
    for requirement in extras[extra]:
        if requirement.startswith("paceline["):
            for inner in re.findall(r"[\w-]+", requirement.partition("[")[2]):
                found |= installed(inner, extras)
        else:
            found.add(re.match(r"[\w-]+", requirement)[0])
    return found
