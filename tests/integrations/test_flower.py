"""The strategy and the stopwatch on Flower's own types, with a grid in this process. Needs flwr (make test-flower)."""

import logging
from itertools import count

import numpy as np
import pytest

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Strategy  # noqa: E402

from paceline.integrations.flower import BalancedStrategy, stopwatch  # noqa: E402
from paceline.integrations.flower import client as client_side  # noqa: E402
from paceline.integrations.flower import strategy as grid_side  # noqa: E402
from paceline.integrations.flower.strategy import TimedGrid  # noqa: E402
from paceline.recording import read_run, sinks  # noqa: E402

CONFIG = {"batch-size": 30, "local-steps": 5, "rate": 0.5}


class Client:
    """A client of a given speed: its model becomes its own number, and its clock is simulated."""

    def __init__(self, speed, *, value=1.0, data=200, says=None, fails=None, silent=False, helper=True, weight=None):
        self.speed = speed
        self.value = value
        self.data = data
        self.says = says
        self.fails = fails
        self.silent = silent
        self.helper = helper
        self.weight = weight
        self.messages = []

    def reply(self, message, monkeypatch):
        self.messages.append(message)
        if self.silent:
            return None
        if self.fails:
            return answered(Message(Error(code=0, reason=self.fails), reply_to=message), message)
        config = message.content["config"]
        samples = config["batch-size"] * config["local-steps"]
        weight = samples if self.weight == "samples" else self.data
        content = RecordDict(
            {
                "arrays": ArrayRecord([np.full(3, self.value)]),
                "metrics": MetricRecord({"num-examples": weight, "loss": 1.0}),
            }
        )
        if self.helper:
            clock = iter([0.0, samples / self.speed])
            monkeypatch.setattr(client_side, "CLOCK", lambda: next(clock))
            content["paceline"] = stopwatch(message, data=self.data, device="phone").stop()
        if self.says is not None:
            content["paceline"] = ConfigRecord(self.says)
        return answered(Message(content, reply_to=message), message)


def answered(reply, message):
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


class InMemoryGridOfTests:
    """A grid whose clients answer at once: named like Flower's, so that waiting is not taken for communication."""

    def __init__(self, clients, monkeypatch):
        self.clients = clients
        self.monkeypatch = monkeypatch
        self.serial = count(1)
        self.waiting = {}

    def get_node_ids(self):
        return list(self.clients)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = f"m{next(self.serial)}"
            if message.metadata.message_type == "evaluate":
                content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.5})})
                reply = answered(Message(content, reply_to=message), message)
            else:
                reply = self.clients[message.metadata.dst_node_id].reply(message, self.monkeypatch)
            self.waiting[name] = reply
            ids.append(name)
        return ids

    def pull_messages(self, ids):
        return [self.waiting.pop(name) for name in list(ids) if self.waiting.get(name) is not None]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def sizes(self, node):
        return [message.content["config"]["batch-size"] for message in self.clients[node].messages]


@pytest.fixture(autouse=True)
def server_process():
    """Let this process make messages, as Flower does for that of a ServerApp."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def grid_of(monkeypatch):
    return lambda clients: InMemoryGridOfTests(dict(enumerate(clients, start=11)), monkeypatch)


def run(strategy, grid, rounds=3, timeout=0.3, config=CONFIG):
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(3)]),
        num_rounds=rounds,
        timeout=timeout,
        train_config=ConfigRecord(dict(config)),
    )


def fedavg(kind=FedAvg, **options):
    return kind(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1, **options)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedAdam])
def test_batches_follow_speeds(kind, grid_of):
    grid = grid_of([Client(100.0), Client(50.0), Client(150.0)])
    options = {"proximal_mu": 0.1} if kind is FedProx else {}
    run(BalancedStrategy(fedavg(kind, **options)), grid)
    assert grid.sizes(11) == [30, 30, 30]
    assert grid.sizes(12) == [30, 15, 15]
    assert grid.sizes(13) == [30, 45, 45]
    if kind is FedProx:
        assert grid.clients[12].messages[-1].content["config"]["proximal-mu"] == 0.1


@pytest.mark.parametrize("kind", [FedAvg, FedAdam])
def test_average_is_that_of_strategy(kind, grid_of):
    ends = []
    for wrap in (BalancedStrategy, lambda strategy: strategy):
        grid = grid_of([Client(100.0, value=1.0, data=100), Client(25.0, value=2.0, data=300)])
        ends.append(run(wrap(fedavg(kind)), grid).arrays.to_numpy_ndarrays()[0])
    assert np.array_equal(ends[0], ends[1])


def test_each_client_has_own_configuration(grid_of):
    grid = grid_of([Client(100.0), Client(50.0)])
    config = ConfigRecord(dict(CONFIG))
    BalancedStrategy(fedavg()).start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2, timeout=0.3, train_config=config
    )
    first, second = (grid.clients[node].messages[-1].content for node in (11, 12))
    assert first["config"] is not second["config"]
    assert (first["config"]["batch-size"], second["config"]["batch-size"]) == (40, 20)
    assert first["config"]["rate"] == 0.5
    assert first["config"]["server-round"] == 2
    assert config["batch-size"] == 30
    assert first["arrays"] is second["arrays"]  # the model is not copied for each client


def test_unknown_batch_says_what_to_write(grid_of):
    with pytest.raises(ValueError, match="there is no integer 'local-steps': set it in the train_config"):
        run(BalancedStrategy(fedavg()), grid_of([Client(1.0)]), config={"batch-size": 8})


def test_reply_errors_are_no_reports(grid_of):
    grid = grid_of([Client(100.0), Client(50.0), Client(10.0, fails="ValueError: no data")])
    strategy = BalancedStrategy(fedavg())
    result = run(strategy, grid)
    assert len(result.train_metrics_clientapp) == 3
    assert grid.sizes(11)[-1] > grid.sizes(12)[-1]


def test_a_client_that_ran_out_of_memory_gets_less(grid_of):
    grid = grid_of([Client(100.0), Client(100.0, fails="OutOfMemoryError: CUDA out of memory. Tried to allocate")])
    run(BalancedStrategy(fedavg()), grid)
    assert grid.sizes(12)[:3] == [30, 24, 19]


def test_silent_client_taken_to_be_slow(grid_of):
    grid = grid_of([Client(100.0), Client(100.0, silent=True)])
    strategy = BalancedStrategy(fedavg())
    run(strategy, grid, rounds=3)
    assert strategy.plan.why(12).endswith("It has not replied for 2 rounds.")
    assert strategy.balancer.rounds == 3


def test_rounds_go_on_when_the_deadline_leaves_nobody(grid_of):
    grid = grid_of([Client(10.0), Client(10.0)])
    strategy = BalancedStrategy(fedavg(), deadline=0.5, try_again=2)
    result = run(strategy, grid, rounds=6)
    assert [len(grid.sizes(node)) for node in (11, 12)] == [2, 2]  # the first round, and one tried again
    assert sorted(result.train_metrics_clientapp) == [1, 4]
    assert strategy.balancer.rounds == 6


def test_a_strategy_that_trains_nobody_is_left_alone(grid_of):
    strategy = BalancedStrategy(fedavg(fraction_train=0.0))
    run(strategy, grid_of([Client(10.0)]))
    assert strategy.balancer.rounds == 0


@pytest.mark.parametrize(("kind", "expected"), [("train", 0.4), ("evaluate", 60.0)])
def test_deadline_ends_training_wait_only(kind, expected, monkeypatch):
    class Silent:
        def push_messages(self, messages):
            return ["m1", None]  # the second could not be sent, so nobody waits for it

        def pull_messages(self, ids):
            return []

    now = [0.0]
    monkeypatch.setattr(grid_side, "CLOCK", lambda: now[0])
    monkeypatch.setattr(grid_side.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    message = Message(RecordDict({}), 11, kind)
    assert TimedGrid(Silent(), deadline=0.4).send_and_receive([message], timeout=60.0) == []
    assert now[0] == pytest.approx(expected)


def test_round_trips_are_timed_by_when_replies_come(grid_of, monkeypatch):
    grid = grid_of([Client(100.0, helper=False), Client(100.0, helper=False)])
    now, asked = [0.0], []
    monkeypatch.setattr(grid_side, "CLOCK", lambda: now[0])
    monkeypatch.setattr(grid_side.time, "sleep", lambda seconds: now.append(now.pop() + seconds))

    def one_at_a_time(ids):
        asked.append(set(ids))
        return InMemoryGridOfTests.pull_messages(grid, sorted(ids)[:1]) if len(asked) in (2, 4) else []

    grid.pull_messages = one_at_a_time
    timed = TimedGrid(grid)
    messages = [Message(RecordDict({"config": ConfigRecord(dict(CONFIG))}), node, "train") for node in (11, 12)]
    assert len(timed.send_and_receive(messages)) == 2
    assert timed.elapsed == {11: pytest.approx(0.2), 12: pytest.approx(0.6)}


@pytest.mark.parametrize(
    "says",
    [
        {"samples": float("nan"), "seconds": float("nan")},
        {"samples": 1e9, "seconds": 1.0},
        {"samples": 150.0, "seconds": 1.5e-7},
        {"samples": "many", "seconds": [1.0, 2.0]},
        {"samples": -5.0, "seconds": 0.0, "data": -1.0, "memory": float("nan"), "device": 7},
        {},
    ],
)
def test_a_client_that_lies_bends_nobody_elses_batch(says, grid_of):
    grid = grid_of([Client(100.0), Client(100.0), Client(100.0), Client(100.0, says=says)])
    run(BalancedStrategy(fedavg()), grid, rounds=4)
    for node in (11, 12, 13, 14):
        assert all(abs(size - 30) <= 1 for size in grid.sizes(node))  # one more or less tests what follows it


def test_client_without_stopwatch_warned_once(grid_of, caplog):
    grid = grid_of([Client(100.0, value=1.0), Client(100.0, value=3.0, helper=False)])
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        result = run(BalancedStrategy(fedavg()), grid)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [2.0, 2.0, 2.0]
    assert caplog.text.count("replied without a time") == 1


def test_weights_by_processed_samples_replaced(grid_of, caplog):
    grid = grid_of(
        [Client(90.0, value=0.0, data=100, weight="samples"), Client(30.0, value=4.0, data=300, weight="samples")]
    )
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        result = run(BalancedStrategy(fedavg()), grid)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [3.0, 3.0, 3.0]  # by batch it would be near 1
    assert caplog.text.count("fast clients' data would count for more") == 1


def test_a_weight_of_the_users_own_is_left_alone(grid_of):
    grid = grid_of([Client(100.0, value=0.0), Client(100.0, value=4.0)])
    for client in grid.clients.values():
        client.data = 200
    strategy = BalancedStrategy(fedavg(weighted_by_key="loss"))
    assert run(strategy, grid).arrays.to_numpy_ndarrays()[0].tolist() == [2.0, 2.0, 2.0]


def test_clients_come_and_go_between_rounds(grid_of):
    grid = grid_of([Client(100.0), Client(50.0)])
    strategy = BalancedStrategy(fedavg())
    run(strategy, grid)
    grid.clients[99] = Client(100.0)
    del grid.clients[11]
    run(strategy, grid)
    assert set(strategy.plan.clients) == {"12", "99"}
    assert grid.sizes(99)[0] == 35  # at first like the mean of those known: sqrt(100 * 50) against 50
    assert grid.sizes(99)[-1] == 40


def test_reported_data_and_device_bound_batches(grid_of):
    grid = grid_of([Client(100.0, data=20), Client(100.0)])
    run(BalancedStrategy(fedavg()), grid)
    assert grid.sizes(11) == [30, 20, 20]
    assert grid.sizes(12) == [30, 40, 40]


def test_restarted_server_continues(grid_of, tmp_path):
    path = tmp_path / "balancer.npz"
    run(BalancedStrategy(fedavg(), state=path), grid_of([Client(100.0), Client(50.0)]), rounds=2)
    grid = grid_of([Client(100.0), Client(50.0)])
    again = BalancedStrategy(fedavg(), state=path)
    run(again, grid, rounds=1)
    assert (grid.sizes(11), grid.sizes(12)) == ([40], [20])
    assert again.balancer.rounds == 3


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"something else"])
def test_truncated_state_refused(content, grid_of, tmp_path):
    path = tmp_path / "balancer.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a complete state of a balancer"):
        run(BalancedStrategy(fedavg(), state=path), grid_of([Client(100.0)]))


def test_late_reply_averaged_not_learned(grid_of, caplog):
    grid = grid_of([Client(100.0), Client(50.0)])
    strategy = BalancedStrategy(fedavg())
    run(strategy, grid, rounds=1)
    stray = Client(1.0, helper=False)
    message = Message(RecordDict({"config": ConfigRecord(dict(CONFIG))}), 77, "train")
    message.metadata.__dict__["_message_id"] = "x"
    reply = stray.reply(message, grid.monkeypatch)
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        strategy.aggregate_train(2, [reply])
    assert "replies of 77 are left out of the forecasts" in caplog.text
    assert "77" not in strategy.balancer


def test_round_trips_are_communication_if_deployed(grid_of):
    class Deployed(InMemoryGridOfTests):
        pass

    Deployed.__name__ = "HttpGrid"
    for kind, known in ((InMemoryGridOfTests, False), (Deployed, True)):
        grid, seen = grid_of([Client(100.0)]), []
        grid.__class__ = kind
        strategy = BalancedStrategy(fedavg())
        strategy.on_iteration.append(seen.append)
        run(strategy, grid, rounds=1)
        assert np.isfinite(seen[0].comm_seconds).all() == known


def test_a_round_is_written_for_watch_and_report(grid_of, tmp_path):
    strategy = BalancedStrategy(fedavg())
    (sink,) = sinks(str(tmp_path / "run.jsonl"))
    strategy.on_iteration.append(sink)
    run(strategy, grid_of([Client(100.0), Client(50.0), Client(10.0, fails="no")]))
    sink.close()
    written = read_run(tmp_path / "run.jsonl")
    assert set(written.workers) == {"11", "12", "13"}
    place = {name: i for i, name in enumerate(written.workers)}
    assert written.seconds[0, place["11"]] == pytest.approx(1.5)
    assert np.isnan(written.seconds[:, place["13"]]).all()
    assert len(written) == 3


def test_wrapper_is_a_strategy():
    strategy = BalancedStrategy(FedAvg(fraction_train=0.25))
    assert isinstance(strategy, Strategy)
    assert strategy.fraction_train == 0.25


def test_a_strategy_with_a_loop_of_its_own_is_refused():
    class Cyclic(FedAvg):
        def start(self, *args, **options):
            return None

    with pytest.raises(ValueError, match="Cyclic overrides start"):
        BalancedStrategy(Cyclic())


def test_stopwatch_harmless_without_balancing():
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    assert "samples" not in stopwatch(message).stop()
    record = stopwatch(message, device="pixel").stop(samples=40)
    assert record["samples"] == 40.0
    assert record["seconds"] > 0
    assert record["device"] == "pixel"
