"""Lambda's recursive loop detection, which stops a function that keeps sending messages to its own queue."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from tarry.support.values import queue_arn
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.invocations import messages_in

RecursiveLoop = Literal["Allow", "Terminate"]

MAX_INVOCATIONS = 16
"""How often a function is invoked in one chain of sends; AWS documents "approximately 16 times"."""
LONG_LOOP = 1_000
"""The number of invocations of a function in one chain at which a loop that is allowed seems to be endless."""
LINEAGE = re.compile(r"(?:^|;)Lineage=([\w-]+)")
"""The request id of an invocation in a trace header."""


class Lineage:
    """The chains of sends that led to each message: how often each function was invoked in them.

    Lambda traces a chain by the X-Ray header of the messages that a function sends. Here the header, or the history in
    virtual time, tells the invocation that sent a message. The message descends from the message of the batch with the
    same body, as a copy does, otherwise from all messages of the batch. A retry in place sends no message, so it adds
    nothing to a chain.

    It records the events

    - ``recursion_stopped``, for an invocation that Lambda refuses: ``function``, ``queue``, ``delivery_ids``;
    - ``recursion_allowed``, for one that makes a loop that is allowed as long as `LONG_LOOP`: ``function``, ``queue``.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._invocations: dict[str, Mapping[str, int]] = {}
        """For each message that a function sent, by delivery id: the number of invocations of each function."""
        self._batches: dict[str, tuple[str, Mapping[str, str]]] = {}
        """For each running invocation, by request id: its function, and the bodies of its batch by delivery id."""
        history.listen(self._on_sent, "sent")
        history.listen(self._on_gone, "deleted", "expired", "purged", "moved")

    def begin(self, request_id: str, function: str, event: Any) -> None:
        """Remember an invocation that begins, with the messages of its event."""
        self._batches[request_id] = function, bodies_of(event)

    def end(self, request_id: str) -> None:
        """Forget an invocation that has ended."""
        self._batches.pop(request_id, None)

    def stops(self, function: str, event: Any, recursive_loop: RecursiveLoop) -> bool:
        """Return whether Lambda refuses an invocation, since a message results from too many invocations."""
        if not self._invocations:
            return False
        messages = bodies_of(event)
        longest = max((self._invocations.get(each, {}).get(function, 0) for each in messages), default=0)
        if recursive_loop == "Allow":
            if longest == LONG_LOOP:
                self._history.record("recursion_allowed", function=function, queue=_queue_of(event))
            return False
        if longest < MAX_INVOCATIONS:
            return False
        self._history.record(
            "recursion_stopped", function=function, queue=_queue_of(event), delivery_ids=list(messages)
        )
        return True

    def _on_sent(self, event: HistoryEvent) -> None:
        if self._batches and (batch := self._sender(event.fields)) is not None:
            function, bodies = batch
            parents = [each for each, body in bodies.items() if body == event.fields["body"]] or bodies
            chains = [self._invocations.get(each, {}) for each in parents]
            chain = {name: max(each.get(name, 0) for each in chains) for each in chains for name in each}
            self._invocations[event.fields["delivery_id"]] = {**chain, function: chain.get(function, 0) + 1}

    def _on_gone(self, event: HistoryEvent) -> None:
        if self._invocations:  # else this costs every delete
            self._invocations.pop(event.fields["delivery_id"], None)

    def _sender(self, sent: Mapping[str, Any]) -> tuple[str, Mapping[str, str]] | None:
        """Return the function and the batch of the invocation that sent a message; None for any other sender."""
        names: Iterable[str] = (sent.get("invocation", ""), sent.get("by", ""))
        return next((self._batches[each] for each in names if each in self._batches), None)


def lineage_in(trace: str | None) -> str | None:
    """Return the request id of the invocation in the trace header of a request; None if it has none."""
    found = LINEAGE.search(trace or "")
    return found[1] if found else None


def _queue_of(event: Any) -> str:
    """Return the queue of an SQS event with messages."""
    return queue_arn(str(event["Records"][0].get("eventSourceARN", ""))).name


def bodies_of(event: Any) -> dict[str, str]:
    """Return the bodies of the messages in an SQS event, by delivery id; empty for any other event."""
    return {each["messageId"]: each.get("body", "") for each in messages_in(event)}
