"""A long command that writes to a file says now and then how far it is."""

import re

import pytest
from test_cli import fails, fitting, run, trace  # noqa: F401 - fixtures

from paceline.predictors import EWMA


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr("paceline._runtime.HEARTBEAT_SECONDS", 0.001)


class Waits(EWMA):
    """Waits, once it forecasts, until a line that names what is done was written."""

    def __init__(self, written):
        super().__init__()
        self.written = written

    def __deepcopy__(self, memo):
        return Waits(self.written)

    def predict(self, *, covariates=None, horizon=1):
        if self.written is not None:
            self.written()
            self.written = None
        return super().predict(covariates=covariates, horizon=horizon)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"), [("replay", r"replaying .*, 0 of 1 traces done \(\d"), ("evaluate", "scoring 1 predictors")]
)
def test_a_redirected_command_says_how_far_it_is(often, capsys, monkeypatch, trace, fitting, command, told):  # noqa: F811
    seen = []

    def written():
        while not re.search(told, "".join(seen)):
            seen.append(capsys.readouterr().err)

    monkeypatch.setattr("paceline.cli.options.load_predictor", lambda text: Waits(written))
    monkeypatch.setattr("sys.argv", ["paceline", command, "ewma", "-t", trace, "-f", fitting])
    from paceline.cli import main

    main.app(standalone_mode=False)


def test_the_version_is_printed():
    assert re.fullmatch(r"paceline \d+\.\d+\.\d+\n", run("--version"))
