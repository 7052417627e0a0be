"""Watching an asynchronous run: what the sinks write is read back, shown and reported."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from test_watching_a_run import run_file

from paceline.cli import main
from paceline.cli.watch_async_view import async_view
from paceline.cli.watch_command import Watched
from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, saps, scheme
from paceline.parameter_server.service import Rounds, Service
from paceline.predictors import LastValue
from paceline.recording import Logging, Prometheus, Sink, TensorBoard, read_async_run, round_sinks

WORKERS = ("fast", "slow", "worse")


def trained(sinks, *arguments, **options):
    server = trained_with(sinks, *arguments, **options)
    for sink in sinks:
        if isinstance(sink, Sink):
            sink.close()
    return server


def trained_with(sinks, rules=None, samples=240, bad=0):
    """Train with a worker that pushes once for eight steps of two others, and return the server."""
    server = Server(
        np.zeros(2),
        SGD(0.1),
        rules or scheme("asp", 3),
        EpochSampler(samples, epochs=1),
        batch=8,
        workers=WORKERS,
        predictor=LastValue(),
    )
    service = Service(server, patience=0.05)  # the slow one holds the last samples
    Rounds(service, sinks, min_seconds=0.0)
    held = service.pull("worse")
    for turn in range(10**6):
        for worker in ("fast", "slow"):
            work = service.pull(worker)
            if work.ended:
                return server
            gradient = np.full(2, np.nan if turn < bad else 1.0)
            service.push(worker, work.stamp, gradient, seconds=len(work.assigned) / 100)
        if turn % 8 == 7 or server.sampler.empty:
            if not held.ended:
                service.push("worse", held.stamp, np.ones(2), seconds=len(held.assigned) / 10)
            held = service.pull("worse")
    return server


def test_sink_round_trip_with_ledger(tmp_path):
    path, seen = tmp_path / "run.jsonl", []
    server = trained([*round_sinks(str(path)), seen.append])
    run = read_async_run(path)
    assert (run.scheme, run.bound, run.batch, run.workers) == ("ASP", None, 8, WORKERS)
    assert len(run) == len(seen)
    np.testing.assert_array_equal(run.of_workers["staleness"], [one.staleness for one in seen])
    assert run.of_fleet["applied"][-1] == server.sampler.applied == 240
    assert run.of_workers["done"][-1].sum() == 240
    assert run.of_workers["pushes"].sum() == server.version
    assert run.of_fleet["largest"][-1] == server.ledger.largest_staleness
    assert run.of_fleet["actual"][-1] == pytest.approx(server.calibration.actual)
    assert run.stragglers[-1] == ("worse",)
    assert "worse is a straggler: its" in " ".join(run.why)


def test_wasted_samples_by_kind_and_reason(tmp_path):
    path = tmp_path / "run.jsonl"
    server = trained(round_sinks(str(path)), saps(3, bound=2), bad=1)
    run = read_async_run(path)
    accounts = server.ledger.accounts.values()
    assert run.of_workers["wasted"][-1].sum() == sum(account.wasted for account in accounts)
    assert run.of_fleet["refused"][-1] > 0
    assert run.of_fleet["abandoned"][-1] > 0
    assert run.wasted_share[-1] == pytest.approx(server.ledger.wasted_share, rel=1e-5)  # six digits are written
    told = " ".join(run.why)
    assert "Refused the push of fast: 2 of its 2 numbers are NaN" in told
    assert "Steps given up at the bound: worse" in told


def watched(workers="abc", name="asp", applied=0):
    """Return a service that has applied so many samples before it was resumed, and the rounds that it will see."""
    server = Server(np.zeros(1), SGD(0.1), scheme(name, 3), EpochSampler(400, epochs=1), batch=8, workers=workers)
    if applied:
        earlier = Server(
            np.zeros(1), SGD(0.1), scheme(name, 3), EpochSampler(400, epochs=1), batch=applied, workers="a"
        )
        earlier.push("a", earlier.pull("a").stamp, np.ones(1))
        server.load_state_dict(earlier.state_dict())
    service, rounds = Service(server), []
    Rounds(service, [rounds.append], min_seconds=0.0)
    return service, rounds


def push(service, *workers, value=1.0):
    for worker in workers:
        service.push(worker, service.pull(worker).stamp, np.full(1, value))


def test_round_names_joins_and_leaves():
    service, rounds = watched()
    push(service, *"abc")
    assert not rounds[-1].acted
    service.pull("c")
    service.leave("c")
    push(service, *"ab")
    assert rounds[-1].acted
    assert rounds[-1].why == "Left: c. 8 samples of steps that were given up went back."
    service.join("d")
    push(service, *"abd")
    assert rounds[-1].why == "Joined: d."
    service.pull("a")
    service.pull("a")  # it has lost its first step
    push(service, *"abd")
    assert rounds[-1].why == "16 samples of steps that were given up went back."


def test_resumed_run_counts_waste_since():
    service, rounds = watched(applied=300)
    push(service, "a", value=np.nan)
    push(service, *"bc")
    assert rounds[-1].applied == 316
    assert rounds[-1].wasted_share == service.server.ledger.wasted_share == pytest.approx(1 / 3)


def test_restart_loss_keeps_throughput(tmp_path):
    path = tmp_path / "run.jsonl"
    service, rounds = watched()
    push(service, *"abc" * 4)
    sink = round_sinks(str(path))[0]
    for record, applied, seconds in zip(rounds, (100, 200, 50, 150), (0.0, 1.0, 60.0, 61.0), strict=True):
        sink(replace(record, applied=applied, time=seconds))
    sink.close()
    assert read_async_run(path).samples_per_second == pytest.approx(100.0)


@pytest.mark.slow
def test_watch_shows_staleness_in_80_columns(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    trained(round_sinks(str(path)), saps(3, bound=2))
    run = read_async_run(path)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(async_view(run, done=len(run)))
    shown = console.export_text()
    assert "SaPS, version" in shown
    assert "bound 2" in shown
    assert re.search(r"│ fast +8 +\d+\.\d +\d+\.\d +1\d\d", shown), shown
    assert "…" not in shown, "no number is cut"
    monkeypatch.setattr("sys.argv", ["paceline", "watch", "--once", str(path)])
    with pytest.raises(SystemExit):
        main.main()
    assert "staleness forecast" in capsys.readouterr().out


@pytest.mark.slow
def test_async_report_is_self_contained(tmp_path, monkeypatch, capsys):
    path, page = tmp_path / "run.jsonl", tmp_path / "report.html"
    trained(round_sinks(str(path)))
    monkeypatch.setattr("sys.argv", ["paceline", "report", str(tmp_path), "--out", str(page)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code, capsys.readouterr()
    text = page.read_text("utf-8")
    assert "pushes within the limit of the forecast" in text
    assert "worse is a straggler" in text
    assert page.with_suffix(".json").is_file()


def test_unreadable_lines_counted(tmp_path):
    path = tmp_path / "run.jsonl"
    trained(round_sinks(str(path)))
    *lines, _ = path.read_text("utf-8").splitlines()  # the last says that the run has ended
    spoilt = json.loads(lines[2]) | {"staleness": [1.0]}
    path.write_text("\n".join([*lines[:2], json.dumps(spoilt), "nonsense", *lines[3:]]) + "\n")
    run = read_async_run(path)
    assert run.skipped == 2
    assert len(run) == len(lines) - 2


@pytest.mark.parametrize("before", ["", '{"paceline_as', "a synchronous run"])
def test_run_kind_known_from_first_line(tmp_path, before):
    path, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    trained(round_sinks(str(other)))
    path.write_text(run_file(tmp_path / "long.jsonl", count=200).read_text("utf-8") if "run" in before else before)
    watched = Watched(path)
    watched.picture()
    path.write_bytes(other.read_bytes())
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(watched.picture())
    assert "ASP, version" in console.export_text()


@pytest.mark.slow
def test_metric_sinks_take_rounds(tmp_path, caplog):
    prometheus_client = pytest.importorskip("prometheus_client")
    pytest.importorskip("tensorboard")
    caplog.set_level("INFO", logger="paceline.metrics")
    registry = prometheus_client.CollectorRegistry()
    board = TensorBoard(tmp_path)
    server = trained([Prometheus(registry=registry), board, Logging()])
    value = registry.get_sample_value
    assert value("paceline_async_applied_samples") == 240
    assert (
        value("paceline_async_worker_applied_samples", {"worker": "worse"}) == server.ledger.accounts["worse"].applied
    )
    assert any(tmp_path.iterdir())
    assert "stragglers ['worse']" in caplog.text


def test_sink_without_rounds_says_so(caplog):
    class Synchronous(Sink):
        def write(self, iteration):
            raise AssertionError

    assert trained([Synchronous()]).finished
    assert "must define write_round to watch asynchronous training" in caplog.text
