"""Options of a format: every command that reads a trace takes the same ones."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app, main

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


@pytest.mark.parametrize("repeated", [True, False])
def test_one_with_takes_several_options(tmp_path, monkeypatch, capsys, repeated):
    path = tmp_path / "log.csv"
    path.write_text(",".join(COLUMNS) + "\n" + "\n".join(f"{n // 2},{'ab'[n % 2]},{20 + n % 2}" for n in range(90)))
    options = ["worker=host name", "iteration=step", "seconds=duration_ms", "unit=ms", "samples=32"]
    words = [word for option in options for word in ("--with", option)] if repeated else ["--with", *options]
    monkeypatch.setattr("sys.argv", ["paceline", "data", "info", str(path), *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["workers"] == 2
