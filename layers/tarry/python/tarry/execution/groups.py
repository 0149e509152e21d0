"""The order of FIFO groups: no message runs behind an earlier one of its group that stays in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.outcome import STOPS_ITS_GROUP, Outcome

if TYPE_CHECKING:
    from tarry.delivery import Delivery

Group = tuple[str, str | None]


class Groups:
    """The FIFO groups of one batch. Messages of a FIFO queue without a group id form one group."""

    def __init__(self) -> None:
        self._seen: set[Group] = set()
        self._stopped: set[Group] = set()

    def enter(self, delivery: Delivery) -> None:
        """Note a message, in the order of the batch; all but the first of a group are behind another message."""
        if not delivery.source.is_fifo:
            return
        group = delivery.group
        delivery.is_behind = group in self._seen
        self._seen.add(group)

    def is_stopped(self, delivery: Delivery) -> bool:
        """Return whether an earlier message of its group stays in the queue, so that a message must not run."""
        return bool(self._stopped) and delivery.group in self._stopped  # making the group takes longest

    def go_on(self) -> None:
        """Forget the stops so far: the batch handler got no message behind one that was stopped before it ran."""
        self._stopped.clear()

    def note(self, delivery: Delivery, outcome: Outcome) -> None:
        """Note the outcome of a message, which may stop its group."""
        if delivery.source.is_fifo and outcome.kind in STOPS_ITS_GROUP:
            self._stopped.add(delivery.group)
