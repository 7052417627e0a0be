"""Hand a registry's model to others: a folder in Hugging Face's style, or a run in MLflow."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from paceline._address import hiding
from paceline._require import require
from paceline.training.model_files import describe_model
from paceline.training.model_registry import Registry

TAGS = ("time-series-forecasting", "load-balancing", "paceline")


def to_folder(registry: Registry, name: str, target: str | Path) -> Path:
    """Write a model as a folder that can be pushed to the Hugging Face Hub as it is: README.md, config and weights.

    Raises
    ------
    FileExistsError
        If the target exists: a folder of others is never mixed with this one.

    Examples
    --------
    >>> import tempfile
    >>> from paceline.predictors import EWMA
    >>> with tempfile.TemporaryDirectory() as place:
    ...     registry = Registry(Path(place, "models"))
    ...     _ = registry.add("quick", EWMA(smoothing=0.5), command="by hand")
    ...     sorted(file.name for file in to_folder(registry, "quick", Path(place, "out")).iterdir())
    ['README.md', 'config.json', 'evaluation.json', 'model.safetensors']
    """
    target, entry = Path(target), registry.entry(name)
    if target.exists():
        raise FileExistsError(f"{target} exists already, and is never written into: name a new folder")
    target.mkdir(parents=True)
    shutil.copyfile(registry.path(name), target / "model.safetensors")
    about = describe_model(registry.path(name))
    config = {"library_name": "paceline", "kind": about["kind"], "configuration": about["configuration"]}
    (target / "config.json").write_text(json.dumps(config, indent=1))
    (target / "evaluation.json").write_text(json.dumps(asdict(entry)["evaluation"], indent=1))
    head = ["---", "library_name: paceline", "pipeline_tag: time-series-forecasting", "tags:"]
    card = "\n".join([*head, *(f"- {tag}" for tag in TAGS), "---", "", registry.card(name)])
    (target / "README.md").write_text(card)
    return target


def to_mlflow(registry: Registry, name: str, store: str | Path, *, experiment: str = "paceline") -> str:
    """Log a model, its card and its scores as a run of MLflow, and return the run's id.

    Parameters
    ----------
    store
        The address of a tracking server or a database (``sqlite:///runs.db``).

    Raises
    ------
    ImportError
        If MLflow is not installed.
    ValueError, OSError
        If there is no such model, or the server refuses.
    """
    require("mlflow", needed_by="exporting to MLflow", extra="mlflow")
    with hiding(str(store)):
        return _logged(registry, name, str(store), experiment)


def _logged(registry: Registry, name: str, store: str, experiment: str) -> str:
    from mlflow.tracking import MlflowClient

    entry, client = registry.entry(name), MlflowClient(store)
    found = client.get_experiment_by_name(experiment)
    owner = client.create_experiment(experiment) if found is None else found.experiment_id
    run = str(client.create_run(owner, run_name=name).info.run_id)
    for key, value in (("kind", entry.kind), ("command", entry.command[:500]), ("traces", len(entry.data))):
        client.log_param(run, key, value)
    if entry.evaluation is not None:
        scores = {key: value for key, value in asdict(entry.evaluation.model).items() if key != "predictor"}
        for key, value in {**scores, "regret": entry.evaluation.regret}.items():
            client.log_metric(run, key, value)
    for file in (registry.path(name), registry.folder / name / "CARD.md"):
        client.log_artifact(run, str(file))
    client.set_terminated(run)
    return run
