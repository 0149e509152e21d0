"""Lambda's recursive loop detection: a function that keeps sending to a queue that feeds it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.history import History, HistoryEvent

RecursiveLoop = Literal["Allow", "Terminate"]

MOST_INVOCATIONS = 16
"""How often a function is invoked in one chain of sends; Lambda says "approximately"."""


class Lineage:
    """How often each function was invoked in the chain of sends that led to a message.

    Lambda traces that chain by the X-Ray header of what a function sends. Here it is read from the history: a message
    sent during an invocation descends from the message of the batch that has its body, as copies do, else from the
    whole batch. A retry in place sends nothing, so it adds nothing to the chain.
    """

    def __init__(self, history: History) -> None:
        self._invocations: dict[str, Mapping[str, int]] = {}
        """By delivery id, for messages that a function sent: the invocations of each function in their chain."""
        self._batches: dict[str, tuple[str, Mapping[str, str]]] = {}
        """By the request id of each running invocation: its function, and the bodies of its batch by delivery id."""
        history.listen(self._on_event)

    def begin(self, request_id: str, function: str, event: Any) -> None:
        """Note that an invocation begins, with the messages of its event."""
        self._batches[request_id] = function, bodies_of(event)

    def end(self, request_id: str) -> None:
        """Forget an invocation: it sends nothing more."""
        self._batches.pop(request_id, None)

    def is_recursive(self, function: str, event: Any) -> bool:
        """Whether a message of the event results from too many invocations of the function."""
        if not self._invocations:
            return False
        chains = (self._invocations.get(each, {}) for each in bodies_of(event))
        return any(chain.get(function, 0) >= MOST_INVOCATIONS for chain in chains)

    def _on_event(self, event: HistoryEvent) -> None:
        if event.what == "sent" and (batch := self._batches.get(event.fields.get("by", ""))) is not None:
            function, bodies = batch
            parents = [each for each, body in bodies.items() if body == event.fields["body"]] or bodies
            chains = [self._invocations.get(each, {}) for each in parents]
            chain = {name: max(each.get(name, 0) for each in chains) for each in chains for name in each}
            self._invocations[event.fields["delivery_id"]] = {**chain, function: chain.get(function, 0) + 1}
        elif event.what in ("deleted", "expired", "purged"):
            self._invocations.pop(event.fields["delivery_id"], None)


def bodies_of(event: Any) -> dict[str, str]:
    """The bodies of an SQS event's messages by SQS's id; empty for any other event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return {}
    found = (each for each in records if isinstance(each, dict) and "messageId" in each)
    return {each["messageId"]: each.get("body", "") for each in found}
