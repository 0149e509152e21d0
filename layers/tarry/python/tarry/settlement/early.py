"""Short waits, asked for while the batch still runs, so that a message comes back when its delay is over (SPEC C11)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.delivery import Delivery
    from tarry.invocation import Invocation
    from tarry.telemetry.logs import Log

EARLY_SECONDS = 1.0
"""A short wait is asked for after this time: others that fail meanwhile go into the same request."""
PATIENCE_SECONDS = 2.0
"""How long the end of a batch waits for a request that is under way."""
SHARE = 0.1
"""Of the time left, for the same."""
LAST_SECONDS = 0.1
"""Kept of the time left where the end waits for a request as long as it can."""


class EarlyWaits:
    """The short waits of one batch. A thread of its own has ``ask`` make the requests, a second after the first."""

    def __init__(self, invocation: Invocation, ask: Callable[[Sequence[Delivery]], None], log: Log) -> None:
        self._invocation = invocation
        self._ask = ask
        self._log = log
        self._lock = threading.Lock()
        self._waiting: list[Delivery] = []
        self._under_way: list[Delivery] = []
        self._has_thread = False
        threads = invocation.world.threads
        self._some, self._over, self._idle = threads.event(), threads.event(), threads.event()
        self._is_over = False

    def add(self, delivery: Delivery) -> None:
        """Have a wait asked for, within a second."""
        with self._lock:
            self._waiting.append(delivery)
            starts, self._has_thread = not self._has_thread, True
        self._some.set()
        if starts:
            try:
                self._invocation.world.threads.start(self._work)
            except RuntimeError:  # the process may have no more threads: they are asked for at the end
                self._is_over = True

    def take(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Those of ``deliveries`` for which no request is under way; none is made here any more."""
        with self._lock:
            under_way = {delivery.delivery_id for delivery in self._under_way}
            free = [delivery for delivery in deliveries if delivery.delivery_id not in under_way]
            taken = {delivery.delivery_id for delivery in free}
            self._waiting = [delivery for delivery in self._waiting if delivery.delivery_id not in taken]
        return free

    def stop(self) -> None:
        """Begin no further request, and wait for the one that is under way."""
        with self._lock:
            self._is_over = True
        self._over.set()
        self._some.set()
        if self._under_way:
            self._idle.wait(min(PATIENCE_SECONDS, max(0.0, self._invocation.time_left() * SHARE)))

    def end(self) -> None:
        """Wait for the request that is under way as long as there is time: made a second time it may double a copy."""
        if self._under_way:
            self._idle.wait(min(max(0.0, self._invocation.time_left() - LAST_SECONDS), threading.TIMEOUT_MAX))

    def _work(self) -> None:
        while True:
            self._some.wait()
            if self._over.wait(EARLY_SECONDS):
                return
            with self._lock:
                if self._is_over:
                    return
                self._under_way, self._waiting = self._waiting, []
                self._some.clear()
                self._idle.clear()
            try:
                self._ask(self._under_way)
            except Exception as error:  # noqa: BLE001 a fault of our own: they are asked for at the end
                self._log.problem(
                    "runtime_failed",
                    "tarry itself failed to set short delays early. They are set after the batch.",
                    error=error,
                )
            finally:
                self._under_way = []
                self._idle.set()
