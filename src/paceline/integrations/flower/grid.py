"""A Flower grid that notes when each reply came."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

CLOCK = time.monotonic


class TimedGrid:
    """A Flower grid that also measures how long each client took to reply to the latest training messages.

    Parameters
    ----------
    grid
        Flower's own.
    deadline
        Seconds after which training replies are not waited for any longer; ``None`` waits as long as the strategy says.
    """

    def __init__(self, grid: Any, deadline: float | None = None) -> None:
        self._grid = grid
        self._deadline = deadline
        self.elapsed: dict[int, float] = {}
        self.waited = float("nan")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send messages and return the replies that come within the timeout, as Flower's grid does."""
        sent = list(messages)
        training = bool(sent) and str(sent[0].metadata.message_type).startswith("train")
        limits = [limit for limit in (timeout, self._deadline if training else None) if limit is not None]
        elapsed, replies, waited = self._exchange(sent, min(limits, default=None))
        if training:
            self.elapsed, self.waited = elapsed, waited
        return replies

    def _exchange(self, sent: list[Any], limit: float | None) -> tuple[dict[int, float], list[Any], float]:
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
            if not waiting or (limit is not None and now >= limit):
                break
            # Flower's own grid polls every 3 s, which would be most of a short round
            time.sleep(0.2 if limit is None else min(0.2, limit - now))
        return elapsed, replies, CLOCK() - begin
