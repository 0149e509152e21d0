"""Settlements, requests and leases without a consumer, and threads that a test runs itself."""

from typing import Any

from tarry import Exponential, Failure, Outcome, RetryPolicy, consumer
from tarry.decide.decision import Decision
from tarry.decide.steps import FailureSteps
from tarry.message.delivery import Delivery
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.settle.settlement import Settlement
from tarry.sqs.client import Lookups, Requests
from tarry.world import World
from tests.records import RECEIVED_AT, Context, record
from tests.wire import NoThreads, TestClock, Wire

NOW, LOG = RECEIVED_AT, consumer(print).log
IDS = ("m1", "m2", "m3")
CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"
STALE, DENIED = ("ReceiptHandleIsInvalid", "gone"), ("AccessDenied", "not you")


def invocation_in(world: World, remaining: float = 30) -> Invocation:
    return Invocation(world, Context(remaining), lambda _: None, LOG)


def delivery_of_age(seconds: float = 0, remaining: float = 30, **fields: Any) -> Delivery:
    """Return the delivery of a message that was received ``seconds`` before its invocation, which begins at `NOW`."""
    invocation = invocation_in(World(TestClock(NOW)), remaining)
    return delivery_of(Message(record(received_at=NOW - seconds, **fields), "m1", invocation))


def settlement_in(wire: Wire, *steps: Any) -> Settlement:
    invocation = invocation_in(wire.world)
    return Settlement(invocation, RetryPolicy(3, Exponential(10)), FailureSteps([*steps]), LOG)


class EventByHand:
    """An event that never blocks: it notes each timeout, and whether it was set then."""

    def __init__(self, threads: "ThreadsByHand") -> None:
        self.is_set, self._threads = False, threads

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._threads.waits.append((timeout, self.is_set))
        self._threads.meanwhile(timeout)
        return self.is_set


class ThreadsByHand:
    """Threads that the test runs itself."""

    def __init__(self, *, can_start: bool = False) -> None:
        self.started: list[tuple[float, Any]] = []
        self._can_start = can_start
        self.events: list[EventByHand] = []
        self.waits: list[tuple[float | None, bool]] = []
        self.meanwhile: Any = lambda timeout: None
        """Called by each wait."""

    def event(self) -> EventByHand:
        self.events.append(EventByHand(self))
        return self.events[-1]

    def start(self, work: Any) -> None:
        if not self._can_start:
            raise RuntimeError("can't start new thread")
        self.started.append((0, work))

    def start_unless(self, _: Any, seconds: float, work: Any) -> None:
        self.started.append((seconds, work))


def in_this_thread() -> Invocation:
    """Return an invocation that makes requests to a store in this thread: no busy machine makes them late."""
    return invocation_in(World(TestClock(NOW), threads=NoThreads()))


def lookups_in(wire: Wire, remaining: float = 30) -> Lookups:
    invocation = invocation_in(wire.world, remaining)
    return Lookups(Requests(invocation), LOG)


def delivery_in(lookups: Lookups, name: str = "m1", **fields: Any) -> Delivery:
    return lookups.requests.invocation.delivery(name, record(message_id=name, **fields))


def failing(invocation: Invocation, outcome: Outcome, name: str = "m1", **fields: Any) -> Decision:
    """Return the decision on a message that has failed now."""
    delivery = delivery_of(Message(record(message_id=name, **fields), name, invocation))
    invocation.deliveries[name] = delivery
    failure = Failure(delivery.message, ValueError("bad"), "fatal", failed_at=invocation.now())
    return Decision(delivery, outcome, invocation.now(), failure)
