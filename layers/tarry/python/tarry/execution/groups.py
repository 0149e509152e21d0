"""The order of FIFO groups: one message of a group at a time, and none behind one that stays in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.outcome import STOPS_ITS_GROUP, Outcome

if TYPE_CHECKING:
    from tarry.message import Message

Group = tuple[str, str | None]


class Groups:
    """The groups of one batch. A message without a group id on a FIFO queue is of the one group of all such."""

    def __init__(self) -> None:
        self._seen: set[Group] = set()
        self._stopped: set[Group] = set()

    def enter(self, message: Message[Any]) -> None:
        """Takes note of a message, in the order of the batch: all but the first of a group stand behind it."""
        if not message._source.is_fifo:
            return
        group = group_of(message)
        message._behind = group in self._seen
        self._seen.add(group)

    def is_stopped(self, message: Message[Any]) -> bool:
        """Whether one before it in its group stays in the queue, so that this one may not run."""
        return group_of(message) in self._stopped

    def go_on(self) -> None:
        """Forgets the stops so far: what stood behind them is not in the batch that runs, only what stood before."""
        self._stopped.clear()

    def note(self, message: Message[Any], outcome: Outcome) -> None:
        """What became of a message; it may stop its group."""
        if message._source.is_fifo and outcome.kind in STOPS_ITS_GROUP:
            self._stopped.add(group_of(message))


def group_of(message: Message[Any]) -> Group:
    """The group of a message of a FIFO queue."""
    return message._source.text, message.group_id
