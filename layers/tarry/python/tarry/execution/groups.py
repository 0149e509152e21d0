"""The order of FIFO groups: no message runs behind an earlier one of its group that stays in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.outcome import STOPS_ITS_GROUP, Outcome

if TYPE_CHECKING:
    from tarry.delivery import Delivery
    from tarry.support.fifo import Group


class Groups:
    """The FIFO groups of one batch."""

    def __init__(self) -> None:
        self._stopped: set[Group] = set()

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
