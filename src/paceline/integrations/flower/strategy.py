"""The server's side of balanced federated rounds in Flower: a strategy, and a grid that measures when replies come."""

from __future__ import annotations

import logging
import math
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._files import atomic_write
from paceline._require import require
from paceline._text import count, join_names
from paceline.coordinator.federated.federated_balancer import FederatedBalancer
from paceline.coordinator.federated.rounds import RoundPlan, RoundReport
from paceline.integrations.flower.client import (
    BATCH_KEY,
    RECORD_NAME,
    STEPS_KEY,
    ClientMeasurement,
    parse_measurement,
    parse_positive_int,
)
from paceline.recording.records import Iteration, iteration_from_round

logger = logging.getLogger("paceline.federated")

CLOCK = time.monotonic


class TimedGrid:
    """A Flower grid that measures after how long each client replied, and waits for none longer than the deadline."""

    def __init__(self, grid: Any, deadline: float | None = None) -> None:
        self._grid, self._deadline = grid, deadline
        self.elapsed: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send messages and return the replies that come within the timeout, as Flower's grid does."""
        sent = list(messages)
        training = bool(sent) and str(sent[0].metadata.message_type).startswith("train")
        limits = (timeout, self._deadline if training else None)
        limit = min(math.inf if each is None else each for each in limits)
        begin = CLOCK()
        waiting = {each for each in self._grid.push_messages(sent) if each is not None}
        elapsed: dict[int, float] = {}
        replies: list[Any] = []
        while waiting:
            came = list(self._grid.pull_messages(waiting))
            now = CLOCK() - begin
            replies += came
            for reply in came:
                elapsed[reply.metadata.src_node_id] = now
                waiting.discard(reply.metadata.reply_to_message_id)
            if not waiting or now >= limit:
                break
            # Flower's own grid polls every 3 s, which would be most of a short round
            time.sleep(min(0.2, limit - now))
        if training:
            self.elapsed = elapsed
        return replies


def first_replies(plan: RoundPlan, messages: Sequence[Any]) -> dict[str, Any]:
    """Return the first reply of each client that was asked, by its name; other replies are logged and left out."""
    found: dict[str, Any] = {}
    strangers = []
    for message in messages:
        client = str(message.metadata.src_node_id)
        place = plan.index_by_client.get(client)
        if place is None or not plan.participating[place] or client in found:
            strangers.append(client)
        else:
            found[client] = message
    if strangers:
        logger.warning(
            "replies of %s are left out of the forecasts: they were not asked in this round, or replied twice",
            join_names(strangers),
        )
    return found


def correct_weights(messages: Sequence[Any], key: str) -> list[str]:
    """Correct the weights of replies that count samples processed instead of samples held; return their clients.

    By the former, the average would lean towards the data of fast clients. Any other weight is the user's own affair.
    """
    corrected = []
    for message in messages:
        if message.has_error():
            continue
        measured = parse_measurement(message.content.get(RECORD_NAME))
        for record in message.content.metric_records.values():
            weight = record.get(key)
            if weight == measured.samples and measured.data >= 1 and weight != measured.data:
                record[key] = measured.data
                corrected.append(str(message.metadata.src_node_id))
    return corrected


class BalancedStrategy:
    """Any strategy of Flower's Message API, with batches by which the clients of a round reply together.

    ``"batch-size"`` in the user's ``train_config`` is the mean of a local step, ``"local-steps"`` the steps of a round.
    Every training message gets a configuration of its own, in which the batch size is the client's; steps and learning
    rate stay the same for all.

    Parameters
    ----------
    strategy
        ``FedAvg``, or any strategy that makes its messages in ``configure_train``.
    state
        A file to keep what was learned in, ``.npz``: written after each round, read when a server starts again.
    options
        Of `FederatedBalancer`: ``deadline``, ``min_batch``, ``largest_multiple`` and so on.

    Attributes
    ----------
    balancer
        The decision core, from the first round on.
    plan
        The latest plan: ``plan.why(node_id)`` says why a client computes with its batch.
    on_iteration
        Called with the record of each round; ``extend(sinks("run.jsonl"))`` writes what ``paceline watch`` shows.

    Raises
    ------
    ImportError
        If flwr is missing.

    Notes
    -----
    Clients report through `stopwatch`. In deployments, the time between sending a message and having its reply, less
    the training, is learned as the time to communicate; in simulations clients wait for the machine's cores.
    """

    def __init__(self, strategy: Any, *, state: str | Path | None = None, **options: Any) -> None:
        require("flwr", needed_by="BalancedStrategy", extra="flower")
        from flwr.serverapp.strategy import Strategy  # pyright: ignore[reportMissingImports]

        Strategy.register(type(self))  # so that it counts as one, though flwr is imported only here
        if type(strategy).start is not Strategy.start:
            raise ValueError(
                f"{type(strategy).__name__} overrides start(), so its batches cannot be balanced: wrap a "
                "strategy that inherits start from flwr.serverapp.strategy.Strategy"
            )
        self.strategy, self.options = strategy, options
        self.state = None if state is None else Path(state)
        self.balancer: FederatedBalancer | None = None
        self.plan: RoundPlan | None = None
        self.on_iteration: list[Callable[[Iteration], None]] = []
        self._grid: TimedGrid | None = None
        self._is_deployed = False
        self._round_began = 0.0
        self._warned_clients: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        """Return what only the wrapped strategy has, such as ``fraction_train`` and its steps of an evaluation."""
        if name == "strategy":  # not set yet, as when it is copied
            raise AttributeError(name)
        return getattr(self.strategy, name)

    # -- Flower's contract ----------------------------------------------------------------------------------------

    def start(self, grid: Any, initial_arrays: Any, num_rounds: int = 3, timeout: float = 3600, **options: Any) -> Any:
        """Run the rounds, as the wrapped strategy would; see Flower's ``Strategy.start``."""
        from flwr.serverapp.strategy import Strategy  # pyright: ignore[reportMissingImports]

        self._grid = TimedGrid(grid, self.options.get("deadline"))
        self._is_deployed = "InMemory" not in type(grid).__name__
        return Strategy.start(self, self._grid, initial_arrays, num_rounds, timeout, **options)

    def summary(self) -> None:
        """Log the wrapped strategy, and that its batches are balanced."""
        logger.info("paceline balances the batches of %s", type(self.strategy).__name__)
        self.strategy.summary()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        """Return the wrapped strategy's messages to those asked, each with a batch size of its own."""
        balancer = self.balancer or self._make_balancer(config)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self.plan = None  # there is nothing to learn from a round without messages
        if not messages:
            return []
        self.plan = balancer.plan([message.metadata.dst_node_id for message in messages])
        logger.info("round %d: %s", server_round, self.plan.summary)
        self._round_began = time.monotonic()
        return [
            self._message_with_size(message, int(size))
            for message, size in zip(messages, self.plan.sizes, strict=True)
            if size > 0
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Learn from the replies, and return what the wrapped strategy makes of them."""
        messages = list(replies)
        if self.balancer is not None and self.plan is not None:
            self._update_balancer(self.balancer, self.plan, messages)
        key = getattr(self.strategy, "weighted_by_key", None)
        if key is not None and (corrected := correct_weights(messages, key)):
            self._warn_once(
                "weights",
                f"{key!r} of client {join_names(corrected)} was the number of samples processed, by which fast "
                "clients' data would count for more; it is replaced by the number of samples that the client holds. "
                f"Reply with {key!r} as the size of its data",
            )
        return tuple(self.strategy.aggregate_train(server_round, messages))

    def _make_balancer(self, config: Any) -> FederatedBalancer:
        """Create the balancer from the user's configuration, and load its state if there is one."""
        batch, steps = (parse_positive_int(config, key) for key in (BATCH_KEY, STEPS_KEY))
        for key, value in ((BATCH_KEY, batch), (STEPS_KEY, steps)):
            if not value:
                raise ValueError(f"there is no integer {key!r}: set it in the train_config of strategy.start")
        self.balancer = FederatedBalancer(batch=batch, local_steps=steps, **self.options)
        if self.state is not None and self.state.is_file():
            self.balancer.load_state_dict(_load_state(self.state))
            logger.info("resumed after %s from %s", count(self.balancer.rounds, "round"), self.state)
        return self.balancer

    def _message_with_size(self, message: Any, size: int) -> Any:
        """Return a copy of a message with this batch size: Flower shares one content among all messages."""
        from flwr.app import ConfigRecord, Message, RecordDict  # pyright: ignore[reportMissingImports]

        assert self.balancer is not None
        settings = {BATCH_KEY: size, STEPS_KEY: self.balancer.local_steps}
        content = RecordDict(
            {
                name: ConfigRecord({**record, **settings}) if name in message.content.config_records else record
                for name, record in message.content.items()
            }
        )
        content[RECORD_NAME] = ConfigRecord(settings)
        about = message.metadata
        return Message(content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id)

    def _update_balancer(self, balancer: FederatedBalancer, plan: RoundPlan, messages: list[Any]) -> None:
        measured, errors = {}, {}  # by client
        for client, reply in first_replies(plan, messages).items():
            errors[client] = f"error: {reply.error.reason}".lower() if reply.has_error() else ""
            measured[client] = parse_measurement(None if errors[client] else reply.content.get(RECORD_NAME))
        self._join_clients(balancer, measured)
        silent = [client for client, each in measured.items() if math.isnan(each.seconds) and not errors[client]]
        if silent:
            self._warn_once(
                "silent",
                f"client {join_names(silent)} replied without a time: put watch.stop() of stopwatch(message) into its "
                'reply\'s content["paceline"]; until then it is treated as one that was never seen',
            )
        elapsed = self._grid.elapsed if self._grid is not None and self._is_deployed else None
        waited = time.monotonic() - self._round_began
        report = RoundReport(
            clients=list(measured),
            samples=[each.samples for each in measured.values()],
            seconds=[each.seconds for each in measured.values()],
            elapsed=None if elapsed is None else [elapsed.get(int(client), math.nan) for client in measured],
            failed=[bool(error) for error in errors.values()],
            # as torch and others word it; Flower passes on the text of a client's exception
            out_of_memory=["out of memory" in error for error in errors.values()],
            waited=waited,
        )
        balancer.observe(plan, report)
        if self.on_iteration and plan.participating.any():
            iteration = iteration_from_round(plan, report, time=time.time(), wall_seconds=waited)
            for observer in self.on_iteration:
                observer(iteration)
        if self.state is None:
            return
        try:  # a disk that is full must not end a training that goes well
            with atomic_write(self.state) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **balancer.state_dict())
        except OSError as error:
            self._warn_once("state", f"{self.state} could not be written ({error}); each round tries again")

    def _join_clients(self, balancer: FederatedBalancer, measured: dict[str, ClientMeasurement]) -> None:
        for name in ("data", "memory"):
            known = {client: getattr(each, name) for client, each in measured.items()}
            known = {client: value for client, value in known.items() if not math.isnan(value)}
            balancer.join(list(known), **{name: list(known.values())})
        devices = {client: each.device for client, each in measured.items() if each.device}
        balancer.join(list(devices), devices=list(devices.values()))

    def _warn_once(self, topic: str, sentence: str) -> None:
        if topic not in self._warned_clients:
            self._warned_clients.add(topic)
            logger.warning("%s.", sentence)


def _load_state(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            return dict(saved)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} is not a complete state of a balancer ({error}): remove it to start without one"
        ) from error
