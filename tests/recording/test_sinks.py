"""Sinks of a live run's metrics: the log, Prometheus, TensorBoard and one's own; none ends the training."""

import logging
import socket
import tempfile
import urllib.request
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_runs import iterations, written

from paceline.recording import JsonLines, Logging, Prometheus, Sink, TensorBoard, sinks


def test_unwritable_metrics_end_with_a_log_line(tmp_path, caplog):
    (tmp_path / "folder").write_text("in the way")
    with caplog.at_level(logging.ERROR, "paceline.metrics"):
        written(tmp_path / "folder" / "run.jsonl", iterations(3))
    assert len(caplog.records) == 1
    assert "no more metrics are written by JsonLines" in caplog.text


def test_log_tells_changes_and_every_nth(caplog):
    sink = Logging(every=4)
    with caplog.at_level(logging.INFO, "paceline.metrics"):
        for record in iterations(6):
            sink(record)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    assert "Moved 10 samples from gpu1" in told[1]
    assert "waiting 25%" in told[0]


def test_lasting_disagreement_logged_rarely(caplog):
    (record,) = iterations(1)
    sink = Logging()
    for index in range(1, 101):
        sink(replace(record, index=index, agreed=False))
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [text.split(":")[0] for text in told] == [f"iteration {2**n}" for n in range(7)]
    assert told[-1].endswith("(so far 64 times)")


@pytest.mark.slow
@given(st.lists(st.text(min_size=1), min_size=2, max_size=3, unique=True))
@example(["gpu\ud800", "gpu1"])
def test_any_worker_name_is_collected(workers):
    prometheus_client = pytest.importorskip("prometheus_client")
    pytest.importorskip("tensorboard")
    with tempfile.TemporaryDirectory() as folder:
        told = Prometheus(), TensorBoard(folder)
        for record in iterations(4, workers, range(500, 500 + len(workers))):
            for sink in told:
                sink(record)
        told[1].close()
    scraped = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
    assert scraped.count("paceline_worker_samples{") == len(workers)


def test_prometheus_collects_gauges_and_counters(fresh_registry):
    registry, sink = fresh_registry, Prometheus(0)
    try:
        for record in iterations(5):
            sink(record)
        assert registry.get_sample_value("paceline_iterations_total") == 5
        assert registry.get_sample_value("paceline_samples_total") == 300
        assert registry.get_sample_value("paceline_changes_total") == 1
        assert registry.get_sample_value("paceline_worker_samples", {"worker": "gpu0"}) == 40
        assert registry.get_sample_value("paceline_gain") == pytest.approx(1 / 3)
        port = sink.server[0].server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b'paceline_worker_samples{worker="gpu0"} 40.0' in answer.read()
    finally:
        sink.close()


def test_tensorboard_scalars_of_fleet_and_workers(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path)
    for record in iterations(4):
        sink(record)
    sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("paceline_samples/gpu0")] == [30, 30, 40, 40]
    assert events.Scalars("paceline/gain")[-1].value == pytest.approx(1 / 3)


@pytest.fixture
def fresh_registry(monkeypatch):
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    return registry


def test_prometheus_sinks_share_metrics(fresh_registry, caplog):
    first, second = Prometheus(), Prometheus()
    for sink in (first, second):
        for record in iterations(2):
            sink(record)
    assert fresh_registry.get_sample_value("paceline_iterations_total") == 4
    assert not caplog.records


def test_taken_port_ends_the_metrics(fresh_registry, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sink = Prometheus(taken.getsockname()[1])
        sink(next(iterations(1)))
    assert "no more metrics are written by Prometheus: OSError" in caplog.text
    assert fresh_registry.get_sample_value("paceline_iterations_total") is None


@pytest.mark.parametrize("port", [65536, 99999, -1])
def test_invalid_port_refused(port):
    with pytest.raises(ValueError, match=f"port must be between 0 and 65535, got {port}"):
        Prometheus(port)


@pytest.mark.parametrize("error", [ValueError("odd"), TypeError("odd"), RuntimeError("odd"), OverflowError("odd")])
def test_any_error_ends_metrics_only(caplog, error):
    class Broken(Sink):
        written = 0

        def write(self, iteration):
            self.written += 1
            raise error

    sink = Broken()
    for record in iterations(3):
        sink(record)
    assert sink.written == 1
    assert caplog.text.count(f"no more metrics are written by Broken: {type(error).__name__}: odd") == 1


def test_sinks_named_by_text_or_functions(tmp_path):
    seen = []
    log, board, lines, function = sinks(
        "log", f"tensorboard:{tmp_path}", tmp_path.joinpath("a.jsonl").name, seen.append
    )
    assert (type(log), type(board), type(lines)) == (Logging, TensorBoard, JsonLines)
    assert function == seen.append
    assert sinks("prometheus:9100")[0].port == 9100


@pytest.mark.parametrize("text", ["run.csv", "prometheus:", "prometheus:many", "tensorboard:", ""])
def test_a_text_that_names_no_sink_is_refused(text):
    with pytest.raises(ValueError, match="metrics must be"):
        sinks(text)
