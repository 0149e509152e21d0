"""Short delays, set while the batch still runs, so that a message comes back when its delay is over (SPEC C11)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.delivery import Delivery
    from tarry.invocation import Invocation
    from tarry.telemetry.logs import Log
    from tarry.world import Event

EARLY_SECONDS = 1.0
"""The time for which a short delay waits for others to share its request."""
PATIENCE_SECONDS = 2.0
"""How long the end of a batch waits for a request in progress."""
SHARE = 0.1
"""The share of the time left for the same wait."""
LAST_SECONDS = 0.1
"""Kept of the time left when the end waits for a request as long as possible."""


class EarlyWaits:
    """The short delays of one batch. A thread calls ``request`` with them, a second after the first was added."""

    def __init__(self, invocation: Invocation, request: Callable[[Sequence[Delivery]], None], log: Log) -> None:
        self._invocation = invocation
        self._request = request
        self._log = log
        self._lock = threading.Lock()
        self._waiting: list[Delivery] = []
        self._under_way: list[Delivery] = []
        self._is_over = False
        self._has_thread = False
        self._some: Event
        """Set while messages wait. The events are made with the thread."""
        self._over: Event
        """Set when the batch has run."""
        self._idle: Event
        """Set while no request is in progress."""

    def add(self, delivery: Delivery) -> None:
        """Have a delay requested within a second."""
        with self._lock:
            is_first, starts = not self._waiting, not self._has_thread
            self._waiting.append(delivery)
            if starts:
                make = self._invocation.world.threads.event
                self._some, self._over, self._idle = make(), make(), make()
                self._has_thread = True
        if is_first:
            self._some.set()
        if starts:
            try:
                self._invocation.world.threads.start_unless(self._over, EARLY_SECONDS, self._work)
            except RuntimeError:  # the process may have no more threads: the delays are set after the batch
                self._is_over = True

    def take(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return the deliveries without a request in progress, and request nothing more for them."""
        with self._lock:
            under_way = {delivery.delivery_id for delivery in self._under_way}
            free = [delivery for delivery in deliveries if delivery.delivery_id not in under_way]
            taken = {delivery.delivery_id for delivery in free}
            self._waiting = [delivery for delivery in self._waiting if delivery.delivery_id not in taken]
        return free

    def stop(self) -> None:
        """Start no further request, and wait for the one in progress."""
        with self._lock:
            self._is_over = True
        if not self._has_thread:
            return
        self._over.set()
        self._some.set()
        if self._under_way:
            self._idle.wait(min(PATIENCE_SECONDS, max(0.0, self._invocation.time_left() * SHARE)))

    def end(self) -> None:
        """Wait for the request in progress as long as possible: repeating it could send a second copy."""
        if self._under_way:
            self._idle.wait(min(max(0.0, self._invocation.time_left() - LAST_SECONDS), threading.TIMEOUT_MAX))

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._is_over:
                    return
                self._under_way, self._waiting = self._waiting, []
                self._some.clear()
                self._idle.clear()
            try:
                self._request(self._under_way)
            except Exception as error:  # noqa: BLE001 a defect of tarry: the delays are set after the batch
                self._log.problem(
                    "runtime_failed",
                    "tarry itself failed to set short delays early. They are set after the batch.",
                    error=error,
                )
            finally:
                self._under_way = []
                self._idle.set()
            self._some.wait()
            if self._over.wait(EARLY_SECONDS):
                return
