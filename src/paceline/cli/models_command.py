"""The commands ``paceline models``: list, describe, choose, compare, check and export the models of a registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown
from rich.markup import escape

from paceline._address import shown
from paceline._printable import printable
from paceline.cli.show import err, out, print_rows

if TYPE_CHECKING:
    from paceline.training.model_registry import Registry

models_app = typer.Typer(help="List, describe, choose, compare, check and export models.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
In = Annotated[Path, typer.Option("--registry", "-r", help="The folder of models.")]
Name = Annotated[str, typer.Argument(help="A model's name.")]
HERE = Path("models")


@models_app.command("list")
def models_list(registry: In = HERE, as_json: AsJson = False) -> None:
    """List the models; ``>`` marks the one in use."""
    from paceline.training.model_registry import Registry

    models = _existing(Registry(registry))
    _print([_row(models, name) for name in models.names], as_json)


@models_app.command("info")
def models_info(
    name: Name,
    registry: In = HERE,
    raw: Annotated[bool, typer.Option("--markdown", help="Print the card as Markdown.")] = False,
) -> None:
    """Show a model's card."""
    from paceline.training.model_registry import Registry

    card = Registry(registry).card(name)
    if raw or not out.on_terminal:
        out.print(card, markup=False, highlight=False)
    else:
        out.print(Markdown(card))


@models_app.command("use")
def models_use(name: Name, registry: In = HERE) -> None:
    """Choose the model that the registry stands for: ``paceline evaluate models/`` evaluates it."""
    from paceline.training.model_registry import Registry

    Registry(registry).use(name)
    out.print(f"{registry} now stands for {escape(name)}")


@models_app.command("compare")
def models_compare(
    names: Annotated[list[str] | None, typer.Argument(help="Models. [default: all]")] = None,
    registry: In = HERE,
    as_json: AsJson = False,
) -> None:
    """Compare models by the evaluations on their cards; those on other traces are not comparable, and say so."""
    from paceline.training.model_registry import Registry

    models = _existing(Registry(registry))
    rows = [_row(models, name) for name in names or models.names]
    entries = [models.entry(name) for name in names or models.names]
    measured = {tuple(f.digest for f in e.evaluation.data) for e in entries if e.evaluation is not None}
    _print(sorted(rows, key=lambda row: row["rmse"]), as_json)
    if len(measured) > 1:
        out.print("These models were measured on different traces: compare them with paceline evaluate instead.")


def _existing(models: Registry) -> Registry:
    """Refuse a folder that is no registry: an empty table would hide a mistake in its name."""
    from paceline.training.model_registry import is_registry

    if not is_registry(models.folder):
        raise ValueError(
            f"{models.folder} is no registry of models; paceline fit ... --registry {models.folder} makes one"
        )
    return models


def _row(models: Any, name: str) -> dict[str, Any]:
    entry, nan = models.entry(name), float("nan")
    measured = entry.evaluation
    return {
        "model": name,
        "in_use": name == models.used,
        "kind": entry.kind,
        "made": entry.made,
        "traces": len(entry.data),
        "rmse": measured.model.rmse if measured else nan,
        "coverage": measured.model.coverage if measured else nan,
        "speed-up": measured.speed_up if measured else nan,
        "regret": measured.regret if measured else nan,
    }


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print models; in a table ``>`` marks the one in use."""
    if not as_json:
        rows = [{**row, "model": ("> " if row["in_use"] else "  ") + row["model"]} for row in rows]
        rows = [{key: value for key, value in row.items() if key != "in_use"} for row in rows]
    print_rows("models", rows, as_json)


@models_app.command("export")
def models_export(
    name: Name,
    target: Annotated[str, typer.Argument(help="A new folder, or with --mlflow a tracking address.")],
    registry: In = HERE,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Log a run in MLflow, such as in sqlite:///runs.db.")
    ] = False,
) -> None:
    """Export a model as a folder in Hugging Face's style, or to MLflow."""
    from paceline.training.export import to_folder, to_mlflow
    from paceline.training.model_registry import Registry

    models = Registry(registry)
    if mlflow:
        out.print(f"logged as run {to_mlflow(models, name, target)} of {escape(shown(target))}")
    else:
        out.print(f"written to {escape(str(to_folder(models, name, target)))}")


@models_app.command("check")
def models_check(
    model: Annotated[str, typer.Argument(help="A model file, a registry, or a kind.")],
    traces: Annotated[list[str], typer.Argument(help="Traces, oldest first: names, files or folders.")],
    as_json: AsJson = False,
) -> None:
    """Say whether speeds have left what the model was fitted on, and whether a refit would help.

    The refit is tried: on the first part of each trace, measured on the rest.
    """
    from dataclasses import asdict

    from paceline.cli import named_sources as sources
    from paceline.eval.model_drift import check_drift

    found = []
    for trace in (trace for name in traces for trace in sources.find_traces(name)):
        try:
            found.append(check_drift(sources.predictor(model), trace))
        except ValueError as error:  # too short, or without any change: the others are still measured
            err.print(f"left out: {escape(printable(str(error)))}", soft_wrap=True, highlight=False)
    if not found:
        raise ValueError("none of the traces could be measured")
    print_rows("drift", [{k: v for k, v in asdict(one).items() if k != "sentence"} for one in found], as_json)
    if not as_json:
        for one in found:
            out.print(f"{escape(one.trace)}: {one.sentence}")
