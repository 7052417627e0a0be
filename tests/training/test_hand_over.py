"""A run of MLflow holds all that is known of a model; the steps of the profile's example are steps of training."""

import json
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest
from fit_cases import wavy

from paceline.eval.evaluation import evaluation
from paceline.predictors import EWMA
from paceline.training import profile
from paceline.training.entry import Evaluation, Score
from paceline.training.export import to_folder, to_mlflow
from paceline.training.model_registry import Registry


class Client:
    """Notes what is asked of a tracking server."""

    def __init__(self, store):
        self.store, self.params, self.metrics, self.files, self.ended = store, {}, {}, [], []

    def get_experiment_by_name(self, name):
        return None if name == "new" else SimpleNamespace(experiment_id=f"known {name}")

    def create_experiment(self, name):
        return f"made {name}"

    def create_run(self, owner, run_name):
        self.owner, self.run_name = owner, run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="run 7"))

    def log_param(self, run, key, value):
        self.params[run, key] = value

    def log_metric(self, run, key, value):
        self.metrics[run, key] = value

    def log_artifact(self, run, file):
        self.files.append((run, file))

    def set_terminated(self, run):
        self.ended.append(run)


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "owner"), [("new", "made new"), ("old", "known old")])
@pytest.mark.parametrize("measured", [True, False])
def test_a_run_of_mlflow_is_given_all_that_is_known_of_a_model(monkeypatch, tmp_path, experiment, owner, measured):
    clients = []
    tracking = ModuleType("mlflow.tracking")
    tracking.MlflowClient = lambda store: clients.append(Client(store)) or clients[-1]
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.setattr("paceline.training.export.require", lambda *names, **more: None)
    registry = Registry(tmp_path / "models")
    scores = evaluation(EWMA(), [wavy(5, iterations=90)]) if measured else None
    registry.add("a", EWMA(), command="x" * 501, evaluation=scores)
    assert to_mlflow(registry, "a", tmp_path / "runs", experiment=experiment) == "run 7"
    (client,) = clients
    assert (client.store, client.owner, client.run_name, client.ended) == (
        str(tmp_path / "runs"),
        owner,
        "a",
        ["run 7"],
    )
    facts = {"kind": "EWMA", "command": "x" * 500, "traces": 0}
    assert client.params == {("run 7", key): value for key, value in facts.items()}
    told = {**asdict(scores.model), "regret": scores.regret} if measured else {}
    assert client.metrics == {("run 7", key): value for key, value in told.items() if key != "predictor"}
    folder = registry.folder / "a"
    assert client.files == [("run 7", str(folder / name)) for name in ("model.safetensors", "CARD.md")]
    assert all((folder / name).is_file() for name in ("model.safetensors", "CARD.md"))


@pytest.mark.parametrize("measured", [True, False])
def test_a_folder_for_others_holds_the_model_its_card_its_arguments_and_its_scores(tmp_path, measured):
    score = Score("this model", 0.5, 0.25, 0.9, 0.125)
    scores = Evaluation((), score, (score,), (("a/w", 1.5),), 1.25, 0.5) if measured else None
    registry = Registry(tmp_path / "models")
    registry.add("a", EWMA(smoothing=0.5), command="by hand", evaluation=scores)
    folder = to_folder(registry, "a", str(tmp_path / "in" / "new"))
    assert folder == tmp_path / "in" / "new"
    assert (folder / "model.safetensors").read_bytes() == registry.path("a").read_bytes()
    config = {"library_name": "paceline", "kind": "EWMA", "configuration": {"smoothing": 0.5}}
    assert (folder / "config.json").read_text() == json.dumps(config, indent=1)
    told = asdict(scores) if measured else None
    assert (folder / "evaluation.json").read_text() == json.dumps(told, indent=1)
    head = ["---", "library_name: paceline", "pipeline_tag: time-series-forecasting", "tags:"]
    tags = ["- time-series-forecasting", "- load-balancing", "- paceline", "---", ""]
    assert (folder / "README.md").read_text() == "\n".join([*head, *tags, registry.card("a")])
    with pytest.raises(
        FileExistsError, match=rf"^{folder} exists already, and is never written into: name a new folder$"
    ):
        to_folder(registry, "a", folder)


def test_the_example_of_a_step_moves_a_network_along_its_gradient(monkeypatch):
    torch = pytest.importorskip("torch")
    seen, entropy = [], torch.nn.functional.cross_entropy

    def noting(scores, labels):
        seen.append((scores, labels))
        return entropy(scores, labels)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", noting)
    networks = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda one, given: networks.append((one, given[0])))
    try:
        step = profile.example(5, "cpu")
        networks.clear()
        for _ in range(3):
            del networks[:]
            step()
            network, images = networks[0]
            moved = [value.detach().clone() for value in network.parameters()]
            gradients = [value.grad.clone() for value in network.parameters()]
            with torch.no_grad():
                for value, gradient in zip(network.parameters(), gradients, strict=True):
                    value += 0.01 * gradient  # back to where the step began
            own = torch.autograd.grad(entropy(network(images), seen[-1][1]), list(network.parameters()))
            for mine, gradient in zip(own, gradients, strict=True):
                torch.testing.assert_close(mine, gradient, rtol=1e-3, atol=1e-6)
            with torch.no_grad():
                for value, after in zip(network.parameters(), moved, strict=True):
                    value.copy_(after)
    finally:
        hook.remove()
    assert images.shape == (5, 3, 32, 32)
    assert seen[0][0].shape == (5, 10)
    assert network[0](images).shape == (5, 16, 32, 32)
    assert network[2](network[0](images)).shape == (5, 32, 15, 15)
