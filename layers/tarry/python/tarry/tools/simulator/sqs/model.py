"""The model of SQS: answers requests as SQS would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError

from tarry.tools.simulator.sqs.errors import SqsError
from tarry.tools.simulator.sqs.message_requests import MessageRequests
from tarry.tools.simulator.sqs.move_tasks import MoveTasks
from tarry.tools.simulator.sqs.queue_context import IN_FLIGHT_LIMIT, QueueContext
from tarry.tools.simulator.sqs.queue_requests import QueueRequests
from tarry.tools.simulator.sqs.realism import Realism
from tarry.tools.simulator.sqs.registry import Registry
from tarry.tools.simulator.sqs.validation import check_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.sqs.message import StoredMessage
    from tarry.tools.simulator.sqs.message_store import Depth
    from tarry.tools.simulator.sqs.queue import SimulatedQueue

ORDERLY = Realism()


class Sqs:
    """The SQS of one account and region.

    The same requests at the same times (``now``, in epoch seconds) with the same ``random`` get the same answers. The
    model never waits, not even in a ReceiveMessage: for a long poll the caller receives again when `subscribe` calls
    it back, or at `next_visible_at`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        random: Random,
        history: History,
        *,
        account: str = "123456789012",
        region: str = "us-east-1",
        realism: Realism = ORDERLY,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
    ) -> None:
        self.region = region
        self.random = random
        self.history = history
        self.other_services: str | None = None
        """The endpoint URL of other AWS services that belong to this SQS, for clients that look for them."""
        self.find_story: Callable[[str], Mapping[str, Any]] | None = None
        """Answers `GET /story?id=ID` of its server, if it is set."""
        self.latest_errors: Callable[[], Mapping[str, str]] | None = None
        """Tells `GET /queues` why the latest message came to each dead-letter queue, by its name, if it is set."""
        self.event_source_mappings: Callable[..., tuple[int, dict[str, Any]]] | None = None
        """Answers Lambda's requests for event source mappings, if it is set: method, UUID, query, body."""
        self._registry = Registry(account, region)
        self._trace_header: str | None = None
        context = QueueContext(
            now,
            random,
            history,
            realism,
            in_flight_limit,
            self._registry.with_arn,
            self._note_change,
            lambda: self._trace_header,
        )
        self.now = now
        """Return the time of this SQS, in epoch seconds."""
        self._move_tasks = MoveTasks(now, self._registry.with_arn)
        self._messages = MessageRequests(self._registry)
        queue_requests = QueueRequests(self._registry, context, self._move_tasks)
        self._operations = {**self._messages.operations, **queue_requests.operations}
        self._changed: dict[str, None] = {}
        self._subscribers: dict[str, list[Callable[[], None]]] = {}

    @property
    def endpoint_url(self) -> str:
        """The endpoint in the URLs of the queues."""
        return self._registry.endpoint

    @endpoint_url.setter
    def endpoint_url(self, url: str) -> None:
        self._registry.endpoint = url

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Check a request against SQS's service model and answer it.

        Raises:
            SqsError: SQS would refuse the request.
        """
        try:
            check_request(operation, parameters)
        except ParamValidationError as error:
            raise SqsError("SerializationException", str(error)) from None
        return self.answer(operation, parameters)

    def called_by(
        self,
        source: str,
        operation: str,
        parameters: Mapping[str, Any],
        invocation: str | None = None,
        trace_header: str | None = None,
    ) -> dict[str, Any]:
        """Answer a request that comes from outside; the history records its source and its invocation.

        The messages that it sends get ``trace_header``, the ``X-Amzn-Trace-Id`` of the request, as their
        ``AWSTraceHeader`` if they have none of their own.

        Raises:
            SqsError: SQS would refuse the request.
        """
        before, self.history.by, self.history.invocation = self.history.by, source, invocation
        self._trace_header = trace_header
        try:
            return self.call(operation, parameters)
        finally:
            self.history.by, self.history.invocation, self._trace_header = before, None, None

    def answer(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request that was checked by the caller. Raises `SqsError`."""
        method = self._operations.get(operation)
        if method is None:
            text = f"The simulator does not know the operation {operation}."
            raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
        try:
            self._move_tasks.catch_up()
            return method(dict(parameters))
        finally:
            if self._changed:
                self._notify_subscribers()

    def wait_seconds(self, receive: Mapping[str, Any]) -> int:
        """Return how long this ReceiveMessage request is to wait for a message. Raises `SqsError`."""
        return self._messages.wait_seconds(receive)

    # inspection, which does not count as a receive

    def subscribe(self, queue: str, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each request that lets a message of the queue be received, now or at a new time."""
        self._subscribers.setdefault(queue, []).append(on_change)

    def next_visible_at(self, queue: str) -> float | None:
        """Return when the next message becomes visible, or arrives by a move task, if no request changes that.

        None if all messages are visible and no task runs.
        """
        self._move()
        found = self._registry.named(queue)
        visible_at, moves_at = found.next_visible_at(), self._move_tasks.next_move_to(found)
        if visible_at is None or moves_at is None:
            return moves_at if visible_at is None else visible_at
        return min(visible_at, moves_at)

    def depth(self, queue: str) -> Depth:
        self._move()
        return self._registry.named(queue).depth()

    def peek(self, queue: str) -> list[StoredMessage]:
        """Return all messages of a queue, visible or not, in the order of their arrival."""
        self._move()
        return self._registry.named(queue).messages()

    def queues(self) -> list[str]:
        """Return the names of all queues, in the order of their creation."""
        return [queue.name for queue in self._registry]

    def has_queue(self, name: str) -> bool:
        return self._registry.has(name)

    def url(self, queue: str) -> str:
        return self._registry.url(queue)

    def arn(self, queue: str) -> str:
        return self._registry.named(queue).arn

    def deliver_duplicate(self, queue: str, handle: str, seconds: float) -> None:
        """Deliver a message of a standard queue once more after ``seconds``, even if it is deleted by then."""
        self._registry.named(queue).deliver_duplicate(handle, seconds)
        self._notify_subscribers()

    def catch_up(self) -> None:
        """Record in the history what has become due in any queue since the last request, such as expiries."""
        self._move()
        for queue in self._registry:
            queue.catch_up()

    def _move(self) -> None:
        """Move the messages that are due in a move task, and notify the subscribers of their queues."""
        self._move_tasks.catch_up()
        if self._changed:
            self._notify_subscribers()

    def _note_change(self, queue: SimulatedQueue) -> None:
        self._changed[queue.name] = None

    def _notify_subscribers(self) -> None:
        changed, self._changed = self._changed, {}
        for queue in changed:
            for on_change in self._subscribers.get(queue, ()):
                on_change()
