"""Lambda's recursive loop detection, which stops a function that keeps sending messages to its own queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.simulator.history import History, HistoryEvent

RecursiveLoop = Literal["Allow", "Terminate"]

MAX_INVOCATIONS = 16
"""How often a function is invoked in one chain of sends; AWS documents "approximately 16 times"."""


class Lineage:
    """The chains of sends that led to each message: how often each function was invoked in them.

    Lambda traces a chain by the X-Ray header of the messages that a function sends. Here it is derived from the
    history: a message sent during an invocation descends from the message of the batch with the same body, as a copy
    does, otherwise from all messages of the batch. A retry in place sends no message, so it adds nothing to a chain.
    """

    def __init__(self, history: History) -> None:
        self._invocations: dict[str, Mapping[str, int]] = {}
        """For each message that a function sent, by delivery id: the number of invocations of each function."""
        self._batches: dict[str, tuple[str, Mapping[str, str]]] = {}
        """For each running invocation, by request id: its function, and the bodies of its batch by delivery id."""
        history.listen(self._on_event)

    def begin(self, request_id: str, function: str, event: Any) -> None:
        """Remember an invocation that begins, with the messages of its event."""
        self._batches[request_id] = function, bodies_of(event)

    def end(self, request_id: str) -> None:
        """Forget an invocation that has ended."""
        self._batches.pop(request_id, None)

    def is_recursive(self, function: str, event: Any) -> bool:
        """Return whether a message of the event results from too many invocations of the function."""
        if not self._invocations:
            return False
        chains = (self._invocations.get(each, {}) for each in bodies_of(event))
        return any(chain.get(function, 0) >= MAX_INVOCATIONS for chain in chains)

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
    """Return the bodies of the messages in an SQS event, by delivery id; empty for any other event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return {}
    found = (each for each in records if isinstance(each, dict) and "messageId" in each)
    return {each["messageId"]: each.get("body", "") for each in found}
