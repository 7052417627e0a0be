"""The options of every command: they are those that were kept, they are explained, and each reaches what it is for.

A change of ``options.txt`` belongs into CHANGELOG.
"""

import importlib
import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer
from kept import require_kept_text
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.cli import models_command

RECORD = Path(__file__).parent / "options.txt"


def commands(command, name="paceline"):
    """Yield all commands with the words by which they are called."""
    for word, one in sorted(getattr(command, "commands", {}).items()):
        yield from commands(one, f"{name} {word}")
    yield name, command


def now():
    """Return a line for each option and argument."""
    found = []
    for name, command in commands(typer.main.get_command(cli.app)):
        settings = {key: command.context_settings[key] for key in sorted(command.context_settings)}
        found.append(f"{name} {settings or ''}".strip())
        for one in command.params:
            if one.name not in ("install_completion", "show_completion"):
                words = "/".join([*one.opts, *one.secondary_opts])
                facts = ["required"] * one.required + ["several"] * bool(one.multiple or one.nargs < 0)
                facts += [f"at least {one.min}"] if one.min is not None else []
                facts += ["asked first"] if one.is_eager else []
                found.append(f"    {words}: {', '.join([*facts, f'default {one.default!r}'])}")
    return found


def test_the_options_are_those_that_were_recorded():
    require_kept_text(RECORD, "".join(f"{line}\n" for line in now()))


def test_every_command_and_option_is_explained():
    silent = [
        f"{name} {one.name if one else ''}"
        for name, command in commands(typer.main.get_command(cli.app))
        for one in [None, *command.params]
        if not (one or command).help and (one is None or one.name not in ("context", "install_completion"))
    ]
    assert not silent


# -- each option reaches what it is for ------------------------------------------------------------------------------

runner = CliRunner()


class Told(Exception):  # noqa: N818 - it ends a command once it has said what is looked at
    """What a function was called with."""


def telling(*places):
    """Return a context in which these functions, by their names, raise what they are called with."""

    def stopped(*arguments, **options):
        raise Told(arguments, options)

    @contextmanager
    def within():
        with pytest.MonkeyPatch.context() as monkey:
            for place in places:
                module, _, name = place.rpartition(".")
                monkey.setattr(importlib.import_module(module), name, stopped)  # some functions hide their modules
            yield monkey

    return within()


def told(command, *places, **more):
    """Run a command, and return what the function was called with."""
    with telling(*places) as monkey:
        for place, value in more.items():
            monkey.setattr(place.replace("__", "."), value)
        result = runner.invoke(cli.app, command.split())
    assert isinstance(result.exception, Told), result.output or result.exception
    return result.exception.args


@pytest.mark.slow
def test_the_options_of_tune():
    command = "tune ewma -f digits-lstm-bursty --trials 7 --jobs 1 --hold-out 0.4 --journal j --epochs 9"
    (kind, source), options = told(command, "paceline.eval.tune.tune")
    tell, training = options.pop("tell"), options.pop("training")
    assert (kind, training.epochs) == ("ewma", 9)
    assert options == {"trials": 7, "at_once": 1, "hold_out": 0.4, "storage": Path("j")}
    assert [one.name for one in source] == ["digits-lstm-bursty"]
    assert callable(tell)
    assert told("tune ewma", "paceline.eval.tune.tune")[1]["training"] is None


@pytest.mark.slow
def test_the_options_of_tune_in_several_processes():
    joblib = pytest.importorskip("joblib")
    asked = []

    @contextmanager
    def configured(**options):
        asked.append(options)
        yield

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(joblib, "parallel_config", configured)
        for jobs in (1, 2, 3):
            assert told(f"tune ewma --jobs {jobs}", "paceline.eval.tune.tune")[1]["at_once"] == jobs
    assert asked == [{"n_jobs": 2}, {"n_jobs": 3}]


@pytest.mark.slow
def test_the_options_of_fit():
    command = "fit ewma -f digits-lstm-bursty --out m.safetensors --hold-out 0.2 --checkpoint c --device cuda --mixed"
    arguments, options = told(command, "paceline.training.fit")
    assert repr(arguments[0]) == "EWMA(smoothing=0.2)"
    assert callable(options.pop("progress"))
    assert options == {
        "start": None, "hold_out": 0.2, "checkpoint": Path("c"), "device": "cuda", "precision": "mixed",
        "distributed": False, "warn": False,
    }  # fmt: skip
    assert told("fit ewma", "paceline.training.fit")[1]["precision"] == "single"
    started = told("fit ewma --start last-value", "paceline.training.fit")[1]["start"]
    assert repr(started) == "LastValue()"


@pytest.mark.parametrize("strict", [False, True])
def test_a_strict_fit_reads_strictly(strict):
    _, options = told(f"fit ewma {'--strict' * strict}", "paceline.cli.named_sources.source")
    assert options == {"strict": strict}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--out m.pt", "--out must name a .safetensors file"),
        ("--name m", "--name need --registry"),
        ("--name m --trace t", "--name and --trace need --registry"),
        ("--trace t", "--trace need --registry"),
    ],
)
def test_a_fit_refuses_what_would_have_no_effect(options, sentence):
    result = runner.invoke(cli.app, f"fit ewma {options}".split())
    assert sentence in str(result.exception)


def test_the_options_of_live():
    command = (
        "live ewma saps auto -c none -c hogs --model digits-mlp --global-batch 64 --rounds 2 --seconds 1.5 --seed 9"
    )
    seen = []
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.cli.live_command._watched", lambda setting: seen.append(setting) or made_rows(setting))
        result = runner.invoke(cli.app, [*command.split(), "--json"])
    assert result.exit_code == 0, result.output
    told_of = [(type(one).__name__, one.contention, one.schemes) for one in seen]
    kinds = [("AsyncSetting", ("saps",)), ("Setting", ("ewma", "auto"))]
    assert told_of == [(kind, contention, schemes) for contention in ("none", "hogs") for kind, schemes in kinds]
    for one in seen:
        plain = (one.model, one.global_batch, one.rounds, one.seconds, one.seed, one.device, one.precision)
        assert plain == ("digits-mlp", 64, 2, 1.5, 9, "cpu", "single")
    assert result.output.count('"setting"') == 4


def made_rows(setting):
    return SimpleNamespace(setting=setting, rows=[])


@pytest.mark.parametrize(("allowed", "kind"), [(True, "quota"), (False, "hogs")])
def test_live_sets_a_quota_where_it_can(allowed, kind):
    seen = []
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.cli.live_command._watched", lambda setting: seen.append(setting) or made_rows(setting))
        monkey.setattr("paceline.lab.experiment.can_set_quotas", lambda: allowed)
        assert runner.invoke(cli.app, ["live", "--json"]).exit_code == 0
    assert [(one.contention, one.schemes) for one in seen] == [(kind, ("auto",))]


@pytest.mark.slow
def test_live_draws_a_figure_for_each_contention(tmp_path):
    from paceline.lab.experiment import ExperimentOutcome

    drawn = []
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.cli.live_command._watched", lambda setting: ExperimentOutcome(setting, []))
        monkey.setattr("paceline.lab.experiment.outcome.ExperimentOutcome.rows", [])
        monkey.setattr("paceline.lab.experiment.figure.loss_figure", lambda outcome, path: drawn.append(path) or path)
        for kinds in (["none"], ["none", "hogs"]):
            where = [word for kind in kinds for word in ("-c", kind)]
            result = runner.invoke(cli.app, ["live", "ewma", *where, "--figure", str(tmp_path / "in" / "a")])
            assert result.exit_code == 0, result.output
    assert drawn == [tmp_path / "in" / "a", tmp_path / "in" / "a" / "none.png", tmp_path / "in" / "a" / "hogs.png"]


@pytest.mark.slow
def test_the_options_of_collect():
    shown = "python train.py --lr 1"
    options = "--pattern bursty --workers 3 --competitors 2 --kind disk --quota 0.2 --seed 5 -o out --name mine"
    (command, path), more = told(f"collect {options} -- {shown}", "paceline.lab.collect.command.collect_command")
    assert (command, path) == (shown.split(), Path("out/mine.parquet"))
    one = more["contention"]
    plain = (one.workers, one.pattern, one.competitors, one.kind, one.quota, one.seed, one.usage)
    assert plain == (3, "bursty", 2, "disk", 0.2, 5, None)
    for words, name in (("python a/train.py b.py", "train"), ("python -m x", "python")):
        (_, path), more = told(f"collect -- {words}", "paceline.lab.collect.command.collect_command")
        assert (path, more["contention"]) == (Path(f"traces/{name}.parquet"), None)


@pytest.mark.slow
def test_the_options_of_collected_jobs(tmp_path):
    (job, path), more = told(f"collect digits-cnn-bursty -o {tmp_path}/new --iterations 9", "paceline.lab.collect")
    assert (job.name, job.iterations, path) == ("digits-cnn-bursty", 9, tmp_path / "new" / "digits-cnn-bursty.parquet")
    assert more["usage"] is None
    usage = "--usage digits-attention-usage --covariate cpu_busy --slot 2.5"
    (job, _), more = told(f"collect digits-attention-usage -o {tmp_path} {usage}", "paceline.lab.collect")
    assert (job.iterations, more["usage"].slot_seconds) == (1500, 2.5)
    (job, _), more = told(f"collect digits-cnn-bursty -o {tmp_path} {usage}", "paceline.lab.collect")
    assert more["usage"] is None, "only a job of that pattern follows it"


def test_jobs_are_listed():
    from paceline.lab import JOBS

    result = runner.invoke(cli.app, ["collect", "--list"])
    for name, job in JOBS.items():
        (line,) = [line for line in result.output.splitlines() if f" {name} " in line]
        cells = [job.split, job.model, job.pattern, job.workers, job.batch_size, job.iterations, job.seed]
        assert line.replace("│", " ").split() == [name, *map(str, cells)]


@pytest.mark.slow
def test_the_options_of_evaluate_and_replay(tmp_path):
    traces = "-t digits-cnn-bursty -t photo-cnn-none -f digits-lstm-bursty"
    (models, scored), options = told(f"evaluate last-value {traces} --warmup 7", "paceline.eval.leaderboard")
    assert list(models) == ["last-value"]
    assert [trace.name for trace in scored] == ["digits-cnn-bursty", "photo-cnn-none"]
    assert (options["warmup"], options["fit_seconds"].keys()) == (7, {"last-value"})
    (schemes, trace), options = told(f"replay last-value {traces} --warmup 7 --global-batch 90", "paceline.eval.replay")
    assert (trace.name, options) == ("digits-cnn-bursty", {"global_batch": 90, "warmup": 7})
    assert "last-value" in schemes


def test_the_options_of_profile():
    command = "profile m:f --sizes 4,8 --device cpu --name mine --repeats 4 --warmup 2 -o p.csv"
    arguments, options = told(
        command, "paceline.training.profile.profile", **{"paceline__training__make_step__load_make_step": str}
    )
    assert arguments == ("m:f", [4, 8])
    options.pop("progress")
    assert options == {"device": "cpu", "name": "mine", "model": "m:f", "warmup": 2, "repeats": 4}


def test_the_lines_of_a_profile():
    from paceline.cli.profile_command import _described

    measured = pd.DataFrame({"batch": [10, 20, 40, 80], "seconds": [0.02, 0.03, 0.05, np.nan]})
    assert _described(measured) == [
        "      10 samples      20.000 ms       500.0 samples/s",
        "      20 samples      30.000 ms       666.7 samples/s",
        "      40 samples      50.000 ms       800.0 samples/s",
        "      80 samples  no memory",
        "t(x) = max(0 s, 0.01 s + 0.001 s x)",
        "memory limit: 40 samples",
    ]
    assert len(_described(measured[:1])) == 1
    assert len(_described(measured[:2])) == 3


@pytest.mark.slow
def test_the_options_of_simulate(tmp_path):
    arguments, options = told(
        "simulate --speeds 100,60 --global-batch 64 --noise 0.2", "paceline.eval.simulate.from_speeds"
    )
    assert (arguments, options) == (([100.0, 60.0],), {"global_batch": 64, "noise": 0.2})
    command = "simulate --profile a.csv=2 --profile b.csv --global-batch 64 --noise 0.2"
    (counts,), options = told(command, "paceline.eval.simulate.from_profiles")
    assert (counts, options) == ({"a.csv": 2, "b.csv": 1}, {"global_batch": 64, "noise": 0.2})
    command = "simulate digits-cnn-bursty --global-batch 64 --noise 0.2"
    (trace,), options = told(command, "paceline.eval.simulate.simulate")
    assert (trace.name, options) == ("digits-cnn-bursty", {"global_batch": 64, "noise": 0.2})
    (name, kind), options = told(
        "simulate x.csv --format tidy --with period=300 --with workers=a,b --with unit=ms",
        "paceline.cli.named_sources.find_traces",
    )
    assert (name, kind, options) == ("x.csv", "tidy", {"period": 300, "workers": ["a", "b"], "unit": "ms"})


@pytest.mark.parametrize("wide", [0.0, 0.019, 0.02])
def test_what_to_do_next_follows_from_what_is_gained(wide):
    from paceline.cli.simulate_command import _next

    found = SimpleNamespace(pays=True, global_batch=512, uneven_samples=wide)
    lines = _next(found)
    assert ("Samples differ in cost: give the loader costs= too (docs/howto/work.md)." in lines) == (wide == 0.02)
    assert any("global_batch=512" in line for line in lines)
    assert _next(SimpleNamespace(pays=False)) == ["Next: leave the script as it is."]


@pytest.mark.slow
def test_the_options_of_data_commands(tmp_path):
    command = "data fetch name --file f --url u --sha256 s --cache c"
    arguments, options = told(command, "paceline.datasets.remote.fetch")
    assert (arguments, options) == (("name", "f"), {"url": "u", "sha256": "s", "cache": Path("c")})
    (_,), options = told("data check digits-cnn-bursty --global-batch 90", "paceline.eval.worth")
    assert options == {"global_batch": 90}
    for word in ("info x", "check x", "load x -o y"):
        command = f"data {word} --format tidy --with period=300 unit=ms"
        (name, kind), options = told(command, "paceline.cli.named_sources.find_traces")
        assert (name, kind, options) == ("x", "tidy", {"period": 300, "unit": "ms"})


@pytest.mark.slow
@pytest.mark.parametrize("status", ["EXACT", "NOT_EXACT", "COULD_NOT_TELL"])
def test_the_options_of_audit(tmp_path, status):
    from paceline.audit import AuditStatus, AuditVerdict, Cause

    seen = []
    cause = None if status == "EXACT" else Cause.NOT_AVERAGED
    long = " ".join(map(str, range(100)))
    verdict = AuditVerdict(
        status=AuditStatus[status], cause=cause, detail=long, precision=long, notes=(long,), deviation=0.25
    )

    class Launched:
        def __init__(self, command, folder, timeout, tell):
            seen.append((command, folder, timeout))
            tell("run 1")

    def audit(launcher, *, steps):
        seen.append((type(launcher), steps))
        return SimpleNamespace(verdict=lambda: verdict)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("paceline.audit.Launcher", Launched)
        monkey.setattr("paceline.audit.Audit", audit)
        words = ["--steps", "5", "--timeout", "9", "--keep", str(tmp_path / "in" / "kept"), "--", "python", "t.py"]
        plain = runner.invoke(cli.app, ["audit", *words])
        words[5] = str(tmp_path / "other")
        as_json = runner.invoke(cli.app, ["audit", "--json", "--report", str(tmp_path / "a.html"), *words])
        again = runner.invoke(cli.app, ["audit", *words])
    assert plain.exit_code == as_json.exit_code == AuditStatus[status].value
    assert isinstance(again.exception, FileExistsError)
    (command, folder, timeout), (_, steps) = seen[:2]
    assert (Path(command[0]).name[:6], command[1:], timeout, steps) == ("python", ["t.py"], 9.0, 5)
    assert folder == tmp_path / "in" / "kept"
    assert verdict.sentence in plain.stdout
    assert long in plain.stderr, "nothing is broken, however long"
    assert verdict.remedy in plain.stdout
    assert json.loads(as_json.stdout)["sentence"] == verdict.sentence
    assert f"written to {tmp_path / 'a.html'}\n" in as_json.stderr, "in one line, however long"
    assert "paceline" in json.loads((tmp_path / "a.json").read_text())["command"]
    seen.clear()
    with telling("paceline.audit.launch.found"):
        refused = runner.invoke(cli.app, ["audit", "--report", str(tmp_path / "no" / "a.html"), "--", "python", "t.py"])
    assert not isinstance(refused.exception, Told), "before anything runs"


@pytest.mark.parametrize("mlflow", [False, True])
def test_a_model_is_exported_by_name(monkeypatch, mlflow):
    told, printed = [], []
    monkeypatch.setattr("paceline.training.export.to_mlflow", lambda *given_: told.append(given_) or "run7")
    monkeypatch.setattr("paceline.training.export.to_folder", lambda *given_: told.append(given_) or "out")
    monkeypatch.setattr(models_command.out, "print", printed.append)
    models_command.models_export("m", "https://key@host/x", "models", mlflow)
    assert told[0][1:] == ("m", "https://key@host/x")
    assert printed == ["logged as run run7 of https://***@host/x" if mlflow else "written to out"]
