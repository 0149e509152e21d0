"""The model of SQS: requests in, answers out, as SQS itself would give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError

from tarry.simulator.sqs.errors import SqsError
from tarry.simulator.sqs.message_requests import MessageRequests
from tarry.simulator.sqs.queue_requests import QueueRequests
from tarry.simulator.sqs.realism import Realism
from tarry.simulator.sqs.registry import Registry
from tarry.simulator.sqs.surroundings import IN_FLIGHT_LIMIT, Surroundings
from tarry.simulator.sqs.validation import check_answer, check_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tarry.simulator.history import History
    from tarry.simulator.sqs.message import StoredMessage
    from tarry.simulator.sqs.queue import SimulatedQueue
    from tarry.simulator.sqs.stock import Depth

ORDERLY = Realism()


class Sqs:
    """The SQS of one account and region.

    Time is what ``now`` says (epoch seconds), chance what ``random`` draws: the same seed and the same requests at the
    same times give the same answers. It never waits, not even in a ReceiveMessage: whoever has time to wait asks
    again when `subscribe` calls, or at `next_visible_at`.
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
        self._registry = Registry(account, region)
        around = Surroundings(
            now, random, history, realism, in_flight_limit, self._registry.with_arn, self._note_change
        )
        self._messages = MessageRequests(self._registry)
        self._operations = {**self._messages.operations, **QueueRequests(self._registry, around).operations}
        self._changed: dict[str, None] = {}
        self._subscribers: dict[str, list[Callable[[], None]]] = {}

    @property
    def endpoint_url(self) -> str:
        """Where its queues' URLs say that it is."""
        return self._registry.endpoint

    @endpoint_url.setter
    def endpoint_url(self, url: str) -> None:
        self._registry.endpoint = url

    def call(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request, both checked against SQS's model. Raises `SqsError`."""
        try:
            check_request(operation, parameters)
        except ParamValidationError as error:
            raise SqsError("SerializationException", str(error)) from None
        return self.answer(operation, parameters)

    def answer(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that has been checked. Raises `SqsError`."""
        method = self._operations.get(operation)
        if method is None:
            text = f"The simulator does not know the operation {operation}."
            raise SqsError("AWS.SimpleQueueService.UnsupportedOperation", text)
        try:
            answer = method(dict(parameters))
        finally:
            if self._changed:
                self._tell_subscribers()
        check_answer(operation, answer)
        return answer

    def wait_seconds(self, receive: Mapping[str, Any]) -> int:
        """How long the caller of this ReceiveMessage is to wait for a message. Raises `SqsError`."""
        return self._messages.wait_seconds(receive)

    # what is seen from outside, at no cost in receives

    def subscribe(self, queue: str, on_change: Callable[[], None]) -> None:
        """Calls ``on_change`` after each request that changed what can be received from the queue, or when."""
        self._subscribers.setdefault(queue, []).append(on_change)

    def next_visible_at(self, queue: str) -> float | None:
        """When the next hidden or delayed message is shown, if nothing happens before."""
        return self._registry.named(queue).next_visible_at()

    def depth(self, queue: str) -> Depth:
        return self._registry.named(queue).depth()

    def peek(self, queue: str) -> list[StoredMessage]:
        """All messages of a queue in the order in which they came, whatever hides them."""
        return self._registry.named(queue).messages()

    def queues(self) -> list[str]:
        """The names of all queues, in the order in which they were made."""
        return [queue.name for queue in self._registry]

    def url(self, queue: str) -> str:
        return self._registry.url(queue)

    def arn(self, queue: str) -> str:
        return self._registry.named(queue).arn

    def deliver_again(self, queue: str, handle: str, seconds: float) -> None:
        """Deliver a message of a standard queue once more after so many seconds, even if it was deleted by then."""
        self._registry.named(queue).deliver_again(handle, seconds)
        self._tell_subscribers()

    def settle_time(self) -> None:
        """Does in all queues what time has done, so that the history has it."""
        for queue in self._registry:
            queue.settle()

    def _note_change(self, queue: SimulatedQueue) -> None:
        self._changed[queue.name] = None

    def _tell_subscribers(self) -> None:
        changed, self._changed = self._changed, {}
        for queue in changed:
            for on_change in self._subscribers.get(queue, ()):
                on_change()
