"""Options of a format: every command that reads a trace takes the same ones."""

import shlex

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app

COLUMNS = ["step", "host name", "duration_ms"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "simulate {0}",
        "evaluate ewma -t {0}",
        "replay ewma -t {0}",
        "fit ewma -f {0} -o {1}/m.safetensors",
        "data info {0}",
        "data load {0} -o {1}/t.parquet",
        "data load {0} -o {1}/t.csv",
    ],
)
def test_suggested_options_work_when_pasted(tmp_path, command):
    path = tmp_path / "log.csv"
    rows = [
        f"{step},{host},{(step + 7 * rank) % 13 + 20 + 9 * rank}"
        for step in range(120)
        for rank, host in enumerate("ab")
    ]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    refused = str(CliRunner().invoke(app, ["data", "info", str(path)]).exception)
    pasted = refused.partition("suggest ")[2].partition(" (samples")[0]
    named = command.format(*map(shlex.quote, (str(path), str(tmp_path))))
    done = CliRunner().invoke(app, shlex.split(f"{named} {pasted}"))
    assert done.exit_code == 0, done.output
