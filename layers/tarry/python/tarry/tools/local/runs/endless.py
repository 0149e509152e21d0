"""Messages that fail again and again in a queue without a redrive policy, so that only their retention ends them."""

from collections.abc import Callable, Mapping
from typing import Any

from tarry.failed.queue_names import redrive_of
from tarry.failed.text import coarse
from tarry.tools.simulator.history import HistoryEvent

MOST_FAILURES = 10
"""The deliveries in a row that a message must fail before it counts as failing without end."""
DEFAULT_RETENTION_SECONDS = 4 * 86_400


class _Message:
    """A message in a queue that feeds a function, and the number of deliveries in a row that failed."""

    def __init__(self, queue: str, group: str | None) -> None:
        self.queue = queue
        self.group = group if queue.endswith(".fifo") else None
        self.failures = 0
        self.is_refused = False
        """Whether Lambda refuses to invoke its function, which sends to its own queue: see `RecursiveLoops`."""

    @property
    def is_failing(self) -> bool:
        return self.failures >= MOST_FAILURES or self.is_refused


class EndlessFailures:
    """A listener to a history that tells when only the retention of messages can end them.

    A failure of a consumer of tarry counts once the consumer has nothing left to do with the message (``unhandled``);
    until then its own retries may help.
    """

    def __init__(self) -> None:
        self._consumed: set[str] = set()
        self._attributes: dict[str, Mapping[str, str]] = {}
        self._left: dict[str, _Message] = {}
        self._failing = 0
        """The number of messages left that fail without end."""
        self._running: dict[str, bool] = {}
        """The invocations under way by request id, and whether a consumer of tarry runs in them."""
        self._unhandled: set[str] = set()
        self._take: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "queue_configured": lambda fields: self._attributes.update({fields["queue"]: fields["attributes"]}),
            "connected": lambda fields: self._consumed.add(fields["queue"]),
            "sent": self._sent,
            "invoked": lambda fields: self._running.update({fields["request_id"]: False}),
            "consumed": lambda fields: self._running.update({fields["request_id"]: True}),
            "transition_logged": self._logged,
            "answered": self._answered,
            **dict.fromkeys(("deleted", "expired", "purged", "moved"), self._ended),
        }

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        if (take := self._take.get(event.what)) is not None:
            take(event.fields)

    @property
    def is_over(self) -> bool:
        """Whether every message that is left fails without end, or waits behind one in its FIFO group."""
        if not self._failing or self._running:
            return False
        failing = [message for message in self._left.values() if message.is_failing]
        if any(self._has_redrive(message.queue) for message in failing):
            return False
        groups = {(message.queue, message.group) for message in failing if message.group is not None}
        return all(message.is_failing or (message.queue, message.group) in groups for message in self._left.values())

    @property
    def text(self) -> str:
        """A sentence about the messages, with the remedy; empty if the run is not over, or recursive loops ended it."""
        messages = [message for message in self._left.values() if not message.is_refused]
        count, behind = len(messages), sum(not message.is_failing for message in messages)
        if not self.is_over or behind == count:
            return ""
        queues = list(dict.fromkeys(message.queue for message in messages))
        retentions = dict.fromkeys(coarse(self._retention(queue)) for queue in queues)
        left = "the message that is left" if count == 1 else f"the {count} messages that are left"
        failed = f"failed {MOST_FAILURES} deliveries in a row"
        if behind:
            failed += f" or wait behind one that did ({behind})"
        has, these = ("has", queues[0]) if len(queues) == 1 else ("have", "each")
        return (
            f"Stopped: {left} {failed}, and {', '.join(queues)} {has} no redrive policy. On AWS, Lambda would retry "
            f"until SQS deletes {'it' if count == 1 else 'them'} at the end of the retention "
            f"({', '.join(retentions)}). Give {these} a RedrivePolicy with a dead-letter queue."
        )

    def _sent(self, fields: Mapping[str, Any]) -> None:
        if fields["queue"] in self._consumed:
            self._left[fields["delivery_id"]] = _Message(fields["queue"], fields.get("group"))

    def _logged(self, fields: Mapping[str, Any]) -> None:
        if fields["event"] == "unhandled":
            self._unhandled.add(fields["delivery_id"])

    def _answered(self, fields: Mapping[str, Any]) -> None:
        is_tarry = self._running.pop(fields["request_id"], False)
        for delivery_id in fields["failed"]:
            if (message := self._left.get(delivery_id)) is not None:
                counts = delivery_id in self._unhandled or not is_tarry
                self._failing -= message.is_failing
                message.is_refused = fields.get("kind") == "recursive"
                message.failures = message.failures + 1 if counts else 0
                self._failing += message.is_failing
        self._unhandled.difference_update(fields["failed"])

    def _ended(self, fields: Mapping[str, Any]) -> None:
        message = self._left.pop(fields["delivery_id"], None)
        self._failing -= message is not None and message.is_failing

    def _has_redrive(self, queue: str) -> bool:
        return redrive_of(self._attributes.get(queue, {})) is not None

    def _retention(self, queue: str) -> float:
        return float(self._attributes.get(queue, {}).get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))
