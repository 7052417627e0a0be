"""How a process records itself where nobody edits its script, with all that it would touch replaced."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from paceline.recording import automatic  # noqa: E402
from paceline.recording.place import Place  # noqa: E402
from paceline.recording.recorder import Recorder  # noqa: E402
from paceline.recording.torch.marks import CUDAMarks  # noqa: E402
from paceline.recording.torch.watch import watch  # noqa: E402


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    """Everything that a process touches of its surroundings; what it calls is noted."""
    calls = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("PACELINE_PLACES", json.dumps([{"cores": [0]}, {"cores": [7]}]))
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.setattr(Place, "enter", lambda place: calls.append(("enter", list(place.cores))))
    monkeypatch.setattr(automatic, "all_covariates", lambda device: calls.append("covariates") or [])
    monkeypatch.setattr(automatic, "offset_from_rank_zero", lambda: calls.append("offset") or "clock")
    monkeypatch.setattr(automatic.atexit, "register", lambda call: calls.append(("exit", call)))
    monkeypatch.setattr(automatic.socket, "gethostname", lambda: "here")
    return calls


class Watching:
    """A watch that was begun with these arguments."""

    def __init__(self, *given):
        self.given, self.stopwatch = given, SimpleNamespace(model=given[0], times_exchanges=False)

    def timed(self, hook):
        self.stopwatch.times_exchanges = True
        return ("timed", hook)

    def close(self):
        """Do nothing."""


def test_without_places_no_place_is_entered(tmp_path, monkeypatch, surroundings):
    monkeypatch.setattr(automatic, "watch", Watching)
    for places in ("[]", None):
        monkeypatch.setenv("PACELINE_PLACES", places) if places else monkeypatch.delenv("PACELINE_PLACES")
        automatic._enter_place()
    assert surroundings == []


def test_a_training_goes_on_where_recording_fails(tmp_path, monkeypatch, surroundings, capsys):
    def fails(*given):
        raise RuntimeError("no hooks")

    monkeypatch.setattr(automatic, "watch", fails)
    assert automatic._watched(torch.nn.Linear(1, 1), tmp_path) == []
    assert capsys.readouterr().err == "paceline: rank 3 is not recorded: RuntimeError('no hooks')\n"
    (close,) = (call[1] for call in surroundings if call[0] == "exit")
    close()
    assert close.__self__.path == tmp_path / "rank3.jsonl"


def test_the_first_model_is_watched_and_only_its_first_hook_is_timed(tmp_path, monkeypatch):
    registered = []

    class Parallel:
        def __init__(self, *given, **named):
            self.made = (given, named)

        def register_comm_hook(self, state, hook):
            registered.append((self, state, hook))

    watched = []
    monkeypatch.setattr(
        automatic, "_watched", lambda model, folder: watched.append((model, folder)) or [Watching(model)]
    )
    automatic.watch_every(Parallel, str(tmp_path))
    first, second = Parallel(1, a=2), Parallel(3)
    assert (first.made, second.made) == (((1,), {"a": 2}), ((3,), {}))
    assert watched == [(first, tmp_path)]
    for model, hook in ((second, "a"), (first, "b"), (first, "c")):
        model.register_comm_hook("state", hook)
    assert registered == [(second, "state", "a"), (first, "state", ("timed", "b")), (first, "state", "c")]


def test_a_watch_ends_an_iteration_at_its_optimisers_step_alone(tmp_path):
    """One that is given, or any that holds a parameter of the model."""
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    ours = torch.optim.SGD([{"params": list(other.parameters())}, {"params": [model.bias]}], lr=0.1)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    for name, optimizer, expected in (("any", None, [4, 5]), ("given", theirs, [3, 6])):
        with Recorder(tmp_path / name, "0") as recorder, watch(model, optimizer, recorder):
            for rows, stepping in ((3, theirs), (1, ours), (5, ours), (0, theirs)):
                with torch.set_grad_enabled(rows != 0):
                    model.train(rows != 0)
                    loss = model(torch.ones(rows or 9, 2)).sum()
                if rows:
                    loss.backward()
                stepping.step()
        found = [json.loads(line)[1] for line in (tmp_path / name).read_text().splitlines()[1:]]
        assert found == expected, name
        assert not model._forward_pre_hooks
        assert not model._forward_hooks


def test_marks_of_a_device_are_events_of_its_stream_told_in_seconds(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            self.calls = [enable_timing]

        def record(self, stream):
            self.calls.append(stream)

        def query(self):
            return 1

        def synchronize(self):
            self.calls.append("synchronize")

        def elapsed_time(self, other):
            return 2500.0 if other is not self else 0.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    marks = CUDAMarks("cuda:3")
    first, second = marks.mark(), marks.mark()
    assert first.calls == [True, ("stream of", "cuda:3")]
    assert marks.passed(first) is True
    marks.wait(second)
    assert second.calls[-1] == "synchronize"
    assert (marks.seconds(first, second), marks.seconds(first, first)) == (2.5, 0.0)
