"""The order of FIFO groups: one message of a group at a time, and none behind one that stays in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.outcome import STOPS_ITS_GROUP, Outcome

if TYPE_CHECKING:
    from tarry.delivery import Delivery

Group = tuple[str, str | None]


class Groups:
    """The groups of one batch. A message without a group id on a FIFO queue is of the one group of all such."""

    def __init__(self) -> None:
        self._seen: set[Group] = set()
        self._stopped: set[Group] = set()

    def enter(self, delivery: Delivery) -> None:
        """Takes note of a message, in the order of the batch: all but the first of a group stand behind it."""
        if not delivery.source.is_fifo:
            return
        group = delivery.group
        delivery.is_behind = group in self._seen
        self._seen.add(group)

    def is_stopped(self, delivery: Delivery) -> bool:
        """Whether one before it in its group stays in the queue, so that this one may not run."""
        return delivery.group in self._stopped

    def go_on(self) -> None:
        """Forgets the stops so far: what stood behind them is not in the batch that runs, only what stood before."""
        self._stopped.clear()

    def note(self, delivery: Delivery, outcome: Outcome) -> None:
        """What became of a message; it may stop its group."""
        if delivery.source.is_fifo and outcome.kind in STOPS_ITS_GROUP:
            self._stopped.add(delivery.group)
