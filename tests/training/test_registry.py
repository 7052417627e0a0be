"""The registry of models: a folder, cards, an index; stored files of every released format keep loading."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fit_cases import QUICK, folder_of, learnt, networks, wavy
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.eval.evaluation import evaluation
from paceline.predictors import EWMA, NARX, Report
from paceline.training import Source, fit, load_model, save_model
from paceline.training.card import card_of
from paceline.training.entry import Entry, Evaluation, Score
from paceline.training.model_registry import Registry
from paceline.training.sources import Fact

ENVIRON = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
STORED = Path(__file__).parents[1] / "stored_models"


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "models")


ADD = """
import sys
from paceline.predictors import EWMA
from paceline.training.model_registry import Registry
folder, mine = sys.argv[1:]
sys.stdin.readline()  # all begin at once
for n in range(20):
    Registry(folder).add(f"{mine}-{n}", EWMA(), command="by hand")
"""


def test_a_folder_may_be_a_text(tmp_path):
    registry = Registry(str(tmp_path / "models"))
    save_model(EWMA(smoothing=0.3), tmp_path / "a.safetensors", fitted_on="monday, tuesday")
    registry.add_file("a", str(tmp_path / "a.safetensors"), command="by hand")
    assert registry == Registry(tmp_path / "models")
    assert Registry(str(tmp_path / "models")).load().smoothing == 0.3
    assert [fact.name for fact in registry.entry("a").data] == ["monday", "tuesday"]


def test_processes_that_add_at_once_lose_no_model(registry):
    everyone = [
        subprocess.Popen([sys.executable, "-c", ADD, registry.folder, f"p{n}"], stdin=subprocess.PIPE, env=ENVIRON)
        for n in range(3)
    ]
    for process in everyone:
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait() for process in everyone] == [0, 0, 0]
    assert len(registry.names) == 60
    assert all(registry.load(name) for name in registry.names)


@pytest.mark.slow
def test_a_folder_that_is_no_registry_is_not_an_empty_list(tmp_path):
    for command in ("list", "compare"):
        failed = CliRunner().invoke(cli.app, ["models", command, "-r", str(tmp_path / "nowhere")])
        assert "is no registry of models" in str(failed.exception)


@pytest.fixture(scope="module")
def narx():
    return fit(NARX(lags=3, hidden=4, training=QUICK), [wavy(0)])


def run(*arguments):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.slow
def test_a_model_comes_back_with_everything_that_is_known_of_it(registry, narx):
    source = Source([wavy(0)])
    fit(EWMA(), source)
    measured = evaluation(narx, [wavy(5, iterations=90)], fitted_on=source.facts)
    registry.add("a", narx, command="by hand", data=source.facts, evaluation=measured)
    assert learnt(registry.load("a")) == learnt(narx)
    entry = Registry(registry.folder).entry("a")
    assert entry.evaluation == measured
    assert entry.data == tuple(source.facts)


@pytest.mark.slow
def test_the_card_holds_data_command_baselines_worst_series_and_limits(registry, narx):
    measured = evaluation(narx, [wavy(5, iterations=90)])
    source = Source([wavy(0)])
    list(source)
    registry.add("a", narx, command="paceline fit narx -f jobs", data=source.facts, evaluation=measured)
    card = registry.card("a")
    worst, ratio = measured.worst[0]
    for expected in (
        "paceline fit narx -f jobs",
        source.facts[0].digest,
        measured.data[0].digest,
        f"| this model | {measured.model.rmse:.3f}",
        "| last-value | 1.000",
        "| auto |",
        f"- {worst}: {ratio:.3f}",
        f"{measured.regret:.1%} longer than with hindsight",
        "## Limits",
    ):
        assert expected in card


def test_a_trace_that_was_fitted_cannot_flatter_the_model(narx):
    source = Source([wavy(0)])
    list(source)
    with pytest.raises(ValueError, match=r"traces \['job0'\] were fitted"):
        evaluation(narx, [wavy(0)], fitted_on=source.facts)


def test_a_model_is_never_replaced_and_never_silently_another(registry, narx):
    registry.add("a", narx, command="")
    with pytest.raises(ValueError, match=r"a model 'a' .* already"):
        registry.add("a", EWMA(), command="")
    save_model(EWMA(), registry.path("a"))
    with pytest.raises(ValueError, match="is not the file that was added"):
        registry.load("a")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101])
def test_a_name_that_is_no_folder_is_refused(registry, name):
    with pytest.raises(ValueError, match="a model's name must be"):
        registry.add(name, EWMA(), command="")
    with pytest.raises(ValueError, match="there is no model"):
        registry.load(name or "nothing")


def test_an_index_that_names_another_folder_is_not_followed(registry):
    registry.add("a", EWMA(), command="")
    index = json.loads((registry.folder / "index.json").read_text())
    index["models"]["../../etc"] = index["models"]["a"]
    (registry.folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="there is no model"):
        registry.card("../../etc")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"index_version": 2, "models": {}}', '{"index_version": 1, "models": 1}']
)
def test_a_broken_index_is_named(registry, text):
    registry.folder.mkdir()
    (registry.folder / "index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json: is"):
        print(registry.names)


def test_the_newest_model_is_used_until_one_is_chosen(registry):
    for smoothing in (0.1, 0.2, 0.3):
        registry.add(f"m{smoothing}", EWMA(smoothing=smoothing), command="")
    assert registry.load().smoothing == 0.3
    registry.use("m0.1")
    assert Registry(registry.folder).load().smoothing == 0.1


@pytest.mark.parametrize("file", sorted(STORED.glob("*.safetensors")), ids=lambda file: file.stem)
def test_a_stored_file_of_each_released_format_forecasts_as_it_did(file):
    model = load_model(file)
    model.reset(["a", "b"])
    for k in range(12):
        covariates = np.full((2, len(model.covariate_names)), 0.5 + 0.02 * k)
        model.observe(Report(samples=[32, 64], seconds=[1.0 + 0.1 * (k % 3), 2.0 - 0.05 * k], covariates=covariates))
    expected = json.loads(file.with_suffix(".json").read_text())
    speed = model.predict(np.full((2, len(model.covariate_names)), 0.7)).speed
    np.testing.assert_allclose(speed, expected, rtol=1e-9)


def test_some_files_are_stored():
    assert {file.stem for file in STORED.glob("*.safetensors")} >= {"narx-1", "gated-narx-1", "lstm-1", "boosting-1"}


def test_the_shipped_networks_have_cards_of_their_own_files():
    import hashlib

    from paceline.training.shipped import FOLDER

    for file in FOLDER.glob("*.safetensors"):
        card = file.with_suffix(".md").read_text()
        assert hashlib.sha256(file.read_bytes()).hexdigest() in card
        assert "| last-value | 1.000" in card


# -- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_with_broken_files_is_fitted_without_them(tmp_path):
    folder = folder_of(tmp_path / "jobs", 50, iterations=12)
    (folder / "job07.parquet").write_bytes((folder / "job07.parquet").read_bytes()[:200])
    (folder / "job31.parquet").write_bytes(b"")
    model = tmp_path / "ewma.safetensors"
    said = run("fit", "ewma:smoothing=None", "-f", folder, "-o", model)
    assert "job07.parquet" in said
    assert "not a whole Parquet file" in said
    assert "job31.parquet: the file is empty" in said.replace("\n", "")
    assert "fitted to 48 traces, left out 2 files" in said
    rest = [wavy(seed, iterations=12) for seed in range(50) if seed not in (7, 31)]
    assert learnt(load_model(model)) == learnt(fit(EWMA(smoothing=None), rest))
    strict = CliRunner().invoke(cli.app, ["fit", "ewma", "-f", str(folder), "--strict"])
    assert "job31.parquet" in str(strict.exception)


@pytest.mark.slow
def test_models_are_fitted_listed_shown_chosen_and_compared(tmp_path):
    models, today = tmp_path / "models", tmp_path / "today.parquet"
    folder = folder_of(tmp_path / "jobs", 2)
    wavy(9, iterations=90).save(today)
    for name, kind in (("first", "ewma:smoothing=0.9"), ("second", "ewma:smoothing=None")):
        run("fit", kind, "-f", folder, "--registry", models, "--name", name, "-t", today)
    listed = json.loads(run("models", "list", "-r", models, "--json"))
    assert [(row["model"], row["in_use"]) for row in listed] == [("first", False), ("second", True)]
    assert "> second" in run("models", "list", "-r", models)
    run("models", "use", "first", "-r", models)
    assert "EWMA(smoothing=0.9)" in run("models", "info", "first", "-r", models)
    compared = json.loads(run("models", "compare", "-r", models, "--json"))
    assert {row["model"] for row in compared} == {"first", "second"}
    assert compared[0]["rmse"] <= compared[1]["rmse"]
    tables = json.loads(run("evaluate", models, "-t", today, "-f", folder, "--json"))
    assert {row["predictor"] for row in tables["overall"]} == {str(models), "last-value"}


@pytest.mark.slow
def test_a_file_and_a_registry_are_both_written_if_both_are_asked_for(tmp_path):
    models, today, model = tmp_path / "models", tmp_path / "today.parquet", tmp_path / "a.safetensors"
    wavy(9, iterations=90).save(today)
    run("fit", "ewma", "-f", folder_of(tmp_path / "jobs", 1), "-o", model, "--registry", models, "-t", today)
    assert learnt(load_model(model)) == learnt(Registry(models).load())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--name", "monday", "-t", "x.parquet"], "--name and --trace need --registry"),
        (["-o", "y.xyz"], "--out must name a .safetensors file"),
    ],
)
def test_an_option_without_effect_is_refused_before_the_fit(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(cli.app, ["fit", "ewma", "-f", "nowhere", *options])
    assert sentence in str(failed.exception)


@pytest.mark.slow
def test_a_fitted_trace_is_refused_wherever_a_model_of_a_registry_is_scored(tmp_path):
    models, today = tmp_path / "models", tmp_path / "today.parquet"
    folder = folder_of(tmp_path / "jobs", 2, iterations=90)
    wavy(9, iterations=90).save(today)
    run("fit", "ewma", "-f", folder, "--registry", models, "--name", "first", "-t", today)
    for model in (models, models / "first" / "model.safetensors"):
        for command in ("evaluate", "replay"):
            failed = CliRunner().invoke(cli.app, [command, str(model), "-t", str(folder / "job00.parquet")])
            assert "were fitted, and would flatter" in str(failed.exception)
            run(command, model, "-t", today)


@pytest.mark.slow
def test_a_file_alone_warns_of_a_trace_of_the_same_name(tmp_path):
    folder, model = folder_of(tmp_path / "jobs", 2, iterations=90), tmp_path / "a.safetensors"
    wavy(9, iterations=90).save(tmp_path / "today.parquet")
    run("fit", "ewma", "-f", folder, "-o", model)
    fitted = " ".join(run("evaluate", model, "-t", folder / "job00.parquet").split())
    assert "was fitted to traces called ['job0']" in fitted
    assert "was fitted to" not in run("evaluate", model, "-t", tmp_path / "today.parquet")


@pytest.mark.slow
def test_yesterdays_model_is_the_start_of_todays(tmp_path):
    folder, model, again = folder_of(tmp_path / "jobs", 2), tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    narx = "narx:lags=3,hidden=4,covariate_lags=1"
    run("fit", narx, "-f", folder, "-o", model, "--checkpoint", tmp_path / "fit", "--hold-out", "0.4")
    run("fit", narx, "-f", folder, "-o", again, "--start", model)
    assert learnt(load_model(model)) != learnt(load_model(again))
    assert networks()[0].lags == load_model(again).lags


# -- exports -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_for_the_hub_loads_as_the_model_and_says_what_it_is(tmp_path, registry, narx):
    from huggingface_hub import ModelCard

    from paceline.training.export import to_folder

    registry.add("a", narx, command="by hand", evaluation=evaluation(narx, [wavy(5, iterations=90)]))
    folder = to_folder(registry, "a", tmp_path / "hub")
    assert learnt(load_model(folder / "model.safetensors")) == learnt(narx)
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "paceline"
    assert "## Limits" in card.text
    with pytest.raises(FileExistsError, match=r"hub exists already, .*: name a new folder"):
        to_folder(registry, "a", tmp_path / "hub")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_run_of_mlflow_holds_the_model_and_its_scores(tmp_path, registry, narx):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    from paceline.training.export import to_mlflow

    measured = evaluation(narx, [wavy(5, iterations=90)])
    registry.add("a", narx, command="by hand", evaluation=measured)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    client = MlflowClient(store)
    client.create_experiment("paceline", artifact_location=str(tmp_path / "artifacts"))
    run = client.get_run(to_mlflow(registry, "a", store))
    assert run.data.metrics["rmse"] == pytest.approx(measured.model.rmse)
    assert run.info.status == "FINISHED"
    stored = client.download_artifacts(run.info.run_id, "model.safetensors", str(tmp_path))
    assert learnt(load_model(stored)) == learnt(narx)


# -- what others made --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["index.json", "INDEX.JSON"])
def test_a_model_never_takes_the_place_of_the_index(registry, name):
    registry.add("first", EWMA(), command="by hand")
    with pytest.raises(ValueError, match="the list of models is kept in a file of that name"):
        registry.add(name, EWMA(), command="by hand")
    assert registry.names == ("first",)


def test_a_name_that_differs_in_capitals_alone_is_taken(registry):
    registry.add("first", EWMA(), command="by hand")
    with pytest.raises(ValueError, match=r"there is a model 'first' in .* already"):
        registry.add("First", EWMA(), command="by hand")


def test_nothing_is_written_out_of_the_registry_or_into_a_file_of_it(registry, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    registry.folder.mkdir()
    (registry.folder / "link").symlink_to(elsewhere)
    (registry.folder / "dangling").symlink_to(tmp_path / "nowhere")
    (registry.folder / "README.md").write_text("mine")
    for name in ("link", "dangling", "README.md"):
        with pytest.raises(ValueError, match="is a file or leads elsewhere, and is never written into"):
            registry.add(name, EWMA(), command="by hand")
    assert not list(elsewhere.iterdir())
    assert not (tmp_path / "nowhere").exists()
    assert (registry.folder / "README.md").read_text() == "mine"
    (registry.folder / ".lock").unlink()
    (registry.folder / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        registry.add("first", EWMA(), command="by hand")
    assert not (tmp_path / "made").exists()


TEXTS = st.text(st.sampled_from("a1 #`[]()<>|!*\\_-=\n\r\x0b\x85\u2028\x1b"), max_size=20)


@given(TEXTS, TEXTS)
@example("paceline fit\n# Limits\n\n- none", "job\n# Limits")
def test_a_card_has_the_headings_and_tables_of_a_card_whatever_a_command_and_names_hold(command, name):
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).enable("table")
    score = Score("last value", 1.0, 1.0, 0.9, 0.1)
    card = card_of(
        Entry(
            name="first",
            kind="EWMA",
            configuration=f"EWMA({name})",
            digest="0" * 64,
            made="2026",
            command=f"paceline{command}",
            start=f"monday{name}",
            data=(Fact(f"job{name}", "", 1, 1, "00"),),
            evaluation=Evaluation((), score, (score,), ((f"job{name}", 1.0),), 1.0, 0.0),
        )
    )
    tokens = markdown.parse(card)
    inside = [child.type for token in tokens for child in token.children or ()]
    assert sum(token.type == "heading_open" for token in tokens) == 5
    assert sum(token.type == "tr_open" for token in tokens) == 2 + 3
    assert sum(token.type == "td_open" for token in tokens) == 4 + 2 * 5
    assert not {"link_open", "image", "html_inline"} & set(inside)
    assert not [token for token in tokens if token.type in ("html_block", "hr")]
    (code,) = [token.content for token in tokens if token.type == "code_block"]
    assert code.startswith("paceline")


def test_a_model_that_is_not_there_has_no_path(tmp_path):
    with pytest.raises(ValueError, match="there is no model 'gone'"):
        Registry(tmp_path).path("gone")
