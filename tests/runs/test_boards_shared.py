"""What boards of one process share, open and close, and what they need."""

import pytest
from recorded_runs import iterations

from paceline.runs import Prometheus, TensorBoard
from paceline.runs import prometheus as prometheus_module


class Served:
    """A server and its thread, in one."""

    def __init__(self, log):
        self.log = log

    def __getattr__(self, name):
        return lambda: self.log.append(name)


def test_a_server_is_started_where_it_is_told_once_and_ended_in_order(monkeypatch):
    client = pytest.importorskip("prometheus_client")
    log, registry = [], client.CollectorRegistry()

    def start(port, addr, registry):
        log.append((port, addr, registry))
        return Served(log), Served(log)

    monkeypatch.setattr(client, "start_http_server", start)
    monkeypatch.setattr(client, "REGISTRY", registry)
    sink = Prometheus(0, address="box")
    sink.close()
    for record in iterations(2):
        sink(record)
    assert log == [(0, "box", registry)]
    sink.close()
    sink.close()
    assert log[1:] == ["shutdown", "server_close", "join"]
    silent = Prometheus()
    silent(next(iterations(1)))
    silent.close()
    assert len(log) == 4
    assert registry.get_sample_value("paceline_iterations_total") == 3
    assert (Prometheus(65535).port, Prometheus().address) == (65535, "127.0.0.1")
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"`prometheus_client` is needed by Prometheus; .*paceline.metrics."):
        Prometheus()


def test_a_fleet_that_stays_forgets_no_other_that_shares_its_registry():
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    one, other = Prometheus(registry=registry), Prometheus(registry=registry)

    def known():
        names = ("gpu0", "gpu1", "a", "b")
        return [name for name in names if registry.get_sample_value("paceline_worker_samples", {"worker": name})]

    first, second = next(iterations(1)), next(iterations(1, workers=("a", "b")))
    one(first)
    assert known() == ["gpu0", "gpu1"]
    other(second)
    assert known() == ["a", "b"]
    one(first)
    other(second)
    assert known() == ["gpu0", "gpu1", "a", "b"]
    one(second)
    assert known() == ["a", "b"]
    assert prometheus_module._OF_REGISTRY[registry].keys() == {"paceline"}


@pytest.mark.parametrize("missing", ["torch", "tensorboard"])
def test_a_board_without_its_libraries_says_what_to_install(tmp_path, monkeypatch, missing):
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None if name == missing else name)
    extra = {"torch": "torch", "tensorboard": "metrics"}[missing]
    with pytest.raises(ImportError, match=f"`{missing}` is needed by TensorBoard; .*paceline.{extra}."):
        TensorBoard(tmp_path)
