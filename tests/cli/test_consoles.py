"""Streams of the commands: results on the standard output, all else beside it, in the words that were given."""

import json
from io import StringIO
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from paceline.audit.audit_verdict import AuditStatus, AuditVerdict, Cause
from paceline.cli import audit as audit_command
from paceline.cli import live_command
from paceline.cli import main as cli
from paceline.cli.show import SafeConsole
from paceline.lab.experiment import AsyncOutcome, AsyncSetting, ExperimentOutcome
from paceline.lab.experiment.asynchronous import AsyncTurn

LONG = "a note of [1] word " + "and 2 others " * 20


@pytest.fixture
def terminal(monkeypatch):
    """A narrow terminal with colours, in the place of the audit's."""
    console = SafeConsole(file=StringIO(), force_terminal=True, color_system="standard", width=40)
    monkeypatch.setattr(audit_command, "out", console)
    return console.file


VERDICTS = {
    32: AuditVerdict(status=AuditStatus.EXACT, steps=3, ranks=2, precision="float64", notes=(LONG,)),
    31: AuditVerdict(status=AuditStatus.NOT_EXACT, cause=Cause.HOOKS, deviation=0.5, steps=3, ranks=2, detail="on [a]"),
    33: AuditVerdict(status=AuditStatus.COULD_NOT_TELL, cause=Cause.NO_STEPS),
}


@pytest.mark.parametrize("colour", VERDICTS)
def test_a_verdict_is_one_coloured_line_and_its_remedy_one_plain_line(terminal, monkeypatch, colour):
    verdict, asked = VERDICTS[colour], []
    monkeypatch.setattr("paceline.audit.Launcher", lambda *told, **named: (told, named))
    monkeypatch.setattr(
        "paceline.audit.Audit",
        lambda launcher, steps: asked.append((launcher, steps)) or SimpleNamespace(verdict=lambda: verdict),
    )
    result = CliRunner().invoke(cli.app, ["audit", "--steps", "5", "--timeout", "7", "--", "python", "train.py"])
    assert result.exit_code == verdict.status.value
    lines = [f"\x1b[1;{colour}m{verdict.sentence}\x1b[0m", *filter(None, [verdict.remedy])]
    assert terminal.getvalue().splitlines() == lines
    assert " ".join(LONG.split()) in result.stderr or not verdict.notes
    assert result.stdout == ""
    (((program, _, timeout), named), steps) = asked[0]
    assert (program[-1], timeout, steps, list(named)) == ("train.py", 7, 5, ["tell"])


@pytest.mark.slow
def test_a_live_experiment_tells_its_table_alone_and_draws_nothing_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.cli.live_command._watched", lambda setting: ExperimentOutcome(setting, []))
    monkeypatch.setattr("paceline.lab.experiment.outcome.ExperimentOutcome.rows", [])
    drawn = []
    monkeypatch.setattr("paceline.lab.experiment.figure.loss_figure", lambda outcome, path: drawn.append(path) or path)
    plain = CliRunner().invoke(cli.app, ["live", "ewma", "-c", "none"], catch_exceptions=False)
    assert "speed-up over equal batches" in plain.stdout
    assert (plain.stderr, drawn) == ("", [])
    picture = tmp_path / "a.png"
    told = CliRunner().invoke(cli.app, ["live", "ewma", "-c", "none", "--figure", str(picture)], catch_exceptions=False)
    assert told.stdout == plain.stdout
    assert told.stderr.replace("\n", "") == f"drawn: {picture}"


def test_a_verdict_for_machines_is_laid_out_for_people_too():
    text = VERDICTS[31].to_json()
    assert text == json.dumps(json.loads(text), indent=2)
    assert json.loads(text)["sentence"] == VERDICTS[31].sentence


@pytest.mark.slow
def test_a_models_card_is_printed_as_it_stands_if_asked(monkeypatch):
    card = "# A *model*\n\n- [red] one\n"
    monkeypatch.setattr(
        "paceline.training.model_registry.Registry", lambda path: SimpleNamespace(card=lambda name: card)
    )
    raw = CliRunner().invoke(cli.app, ["models", "info", "a", "--markdown"], catch_exceptions=False)
    assert raw.stdout == card + "\n"
    shown = CliRunner().invoke(cli.app, ["models", "info", "a"], catch_exceptions=False).stdout
    assert "*" not in shown
    assert "A model" in shown


def test_the_slowest_and_the_fastest_turn_of_an_asynchronous_scheme_are_told():
    turns = [AsyncTurn("asp", 0, 1.0, [0, 9], [1.0, 0.5], [n, n], [0.0, 0.0], 0.0, 0, -1, 0.0) for n in (50, 3000)]
    table = live_command.async_table(AsyncOutcome(AsyncSetting(schemes=("asp",), contention="none"), turns))
    assert list(table.columns[2].cells) == ["100-6,000"]
