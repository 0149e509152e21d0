"""The response comes before the deadline, however many messages fail and however large their errors are (SPEC I2).

Time is the CPU time of this process, eight times as fast, as on an eighth of a core: a computation takes as long as in
a function with 256 MB, however busy this machine is. Waiting for something outside (a request) costs no time.
"""

import asyncio
import gc
import hashlib
import io
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, Message, batch_consumer, consumer
from tarry.world import INTERRUPT_AGAIN_SECONDS, RealThreads, World, use
from tests.records import RECEIVED_AT, batch_of, failed
from tests.wire import Queue

pytestmark = pytest.mark.usefixtures("without_tracers")
MANY = 4_500
SECONDS = 3
TRIES = 5
JITTER_SECONDS = 0.5
"""A sixteenth of a second of CPU. A core shared with other processes can slow down in the middle of a run; a runtime
that ignores the deadline exceeds it by seconds, on each try."""
SPEED = 8


class CpuClock:
    """A clock on which a second is an eighth of a second of the process's CPU time."""

    def __init__(self) -> None:
        self._began = time.process_time()
        self._slept = 0.0

    def time(self) -> float:
        return RECEIVED_AT + self.monotonic()

    def monotonic(self) -> float:
        return (time.process_time() - self._began) * SPEED + self._slept

    def sleep(self, seconds: float) -> None:
        """Skip the time in the main thread; in other threads, wait for about as long as the main thread computes."""
        if threading.current_thread() is threading.main_thread():
            self._slept += seconds
        else:
            time.sleep(seconds / SPEED)

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)


class CpuEvent(threading.Event):
    """An event whose timeouts are seconds of the clock, approximately."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / SPEED)


class CpuThreads(RealThreads):
    """Real threads whose waits are seconds of the clock, approximately."""

    def event(self) -> Any:
        return CpuEvent()

    def interrupt(self, seconds: float, fire: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return CpuAlarm(seconds, fire) if is_main else None


class CpuAlarm:
    """An interruption of the main thread by the process's CPU time: a timer on the wall would ring too late where
    threads compute on two cores, and too early on a busy machine. `tarry.world.Interruption`."""

    def __init__(self, seconds: float, fire: Any) -> None:
        self._fire = fire
        self._is_cancelled = False
        self._before = signal.signal(signal.SIGPROF, self._ring)
        self._set(seconds)

    def renew(self) -> None:
        """Do nothing: no other code uses the signal."""

    def cancel(self) -> None:
        self._is_cancelled = True  # a signal on its way would set the timer again, for a handler that is restored
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _set(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, max(seconds / SPEED, 0.001))

    def _ring(self, _: int, frame: Any) -> None:
        if self._is_cancelled:
            return
        answer = self._fire(frame)
        if isinstance(answer, BaseException):
            self._set(INTERRUPT_AGAIN_SECONDS)
            raise answer
        self._set(answer)


class CpuContext:
    def __init__(self, clock: CpuClock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the seconds left, negative after the deadline."""
        return self._deadline - self._clock.monotonic()

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int(self.seconds_left() * 1000))


class LightClient:
    """An SQS client that accepts everything and costs next to no CPU, unlike botocore's serializers."""

    def __init__(self) -> None:
        self.deletes: list[int] = []
        """The number of messages of each delete; a sum would lose some, since several threads delete at once."""
        self.records: list[dict[str, Any]] = []
        """The `Tarry` records of all copies sent."""
        names = ("register", "register_first", "register_last")
        ignore = SimpleNamespace(**dict.fromkeys(names, lambda *_, **__: None))
        self.meta = SimpleNamespace(endpoint_url="https://sqs", region_name="us-east-1", events=ignore)

    @property
    def deleted(self) -> int:
        """The number of messages that were deleted."""
        return sum(self.deletes)

    def get_queue_attributes(self, *, AttributeNames: list[str], **_: Any) -> dict[str, Any]:
        return {"Attributes": Queue("orders-dlq", visibility_timeout=600).attributes(AttributeNames)}

    def send_message_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        successful = []
        for entry in Entries:
            self.records.append(json.loads(entry["MessageAttributes"]["Tarry"]["StringValue"]))
            digest = hashlib.md5(entry["MessageBody"].encode(), usedforsecurity=False).hexdigest()
            successful.append({"Id": entry["Id"], "MessageId": f"copy-{entry['Id']}", "MD5OfMessageBody": digest})
        return {"Successful": successful}

    def delete_message_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        self.deletes.append(len(Entries))
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    def change_message_visibility_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}


@contextmanager
def as_in_lambda(log: io.StringIO) -> Iterator[None]:
    """Take garbage of earlier tests and hypothesis's callbacks out of the garbage collector, and log to a stream.

    An interruption that arrives in such a callback is not raised in the handler, but repeated a moment later. Pytest's
    capture of log lines takes as much time as all else.
    """
    logger = logging.getLogger("tarry")
    before = gc.callbacks[:], logger.handlers, logger.propagate
    gc.collect()
    gc.freeze()
    gc.callbacks[:], logger.handlers, logger.propagate = [], [logging.StreamHandler(log)], False
    try:
        yield
    finally:
        gc.callbacks[:], logger.handlers, logger.propagate = before


def answer_to(
    handler: Consumer[Any], attempt: int, count: int = MANY, seconds: float = SECONDS, log: io.StringIO | None = None
) -> tuple[LightClient, list[str], float]:
    client, clock, event = LightClient(), CpuClock(), batch_of(count, receives=attempt)
    world = World(clock=clock, client_factory=lambda: client, threads=CpuThreads())
    with as_in_lambda(log or io.StringIO()), use(world):
        context = CpuContext(clock, seconds)
        answer = handler(event, context)
        return client, failed(answer), context.seconds_left()


def fail(message: Message) -> None:
    raise ValueError("the gateway does not answer")


def fail_all(batch: Batch) -> None:
    for message in batch:
        message.fail(ValueError("the gateway does not answer"))


def fail_together(batch: Batch) -> None:
    raise ValueError("the gateway does not answer")


HANDLERS: dict[str, Consumer[Any]] = {
    "one at a time": consumer(backoff=Fixed(60))(fail),
    "several at once": consumer(backoff=Fixed(60), concurrency=8)(fail),
    "a batch handler fails each": batch_consumer(backoff=Fixed(60))(fail_all),
    "a batch handler raises": batch_consumer(backoff=Fixed(60))(fail_together),
}


@pytest.fixture(scope="module", autouse=True)
def _modules_are_loaded() -> None:
    """Load what a first failure loads, which takes half of the time; otherwise it depends on the tests before."""
    for handler in HANDLERS.values():
        for attempt in (1, 5):
            answer_to(handler, attempt, count=10)


@pytest.mark.parametrize(
    ("name", "attempt"), [("one at a time", 1), *((name, 5) for name in HANDLERS), ("a batch handler raises", 1)]
)
def test_a_batch_of_thousands_of_failing_messages_ends_before_the_deadline(name: str, attempt: int) -> None:
    """At attempt 1, the messages are retried. Attempt 5 is the last, so they are dead-lettered.

    Messages without time for their settlement are only reported as failed; most others have a dead letter.
    """
    for _ in range(TRIES):
        client, reported, left = answer_to(HANDLERS[name], attempt)
        if left > -JITTER_SECONDS:
            break
    assert left > -JITTER_SECONDS, f"the response came {-left:.1f} s after the deadline"
    assert len(reported) >= MANY - client.deleted
    assert not {f"m{number}" for number in range(MANY)} - set(reported) or client.deleted
    if attempt == 5 and "handler" not in name:
        assert len(client.records) >= 10  # how many there are depends on the machine; without time there is none
        assert MANY - len(reported) >= 0.9 * len(client.records)


MOST_READINGS = 15
"""About 3 are needed. A text that were searched again for each of its lines would take hundreds."""


def seconds_of_a_reading(text: str) -> float:
    """Return the seconds that it takes on this machine, now, to read the texts of ten errors once, as JSON."""
    clock = CpuClock()
    for _ in range(10):
        json.dumps(text)
    return clock.monotonic()


@pytest.mark.parametrize("attempt", [1, 5])
@pytest.mark.parametrize("text", ["x" * 5_000_000, "line\n" * 1_000_000, "\U0001f4a5" * 1_250_000], ids="xlb")
def test_messages_with_errors_of_5_mb_are_settled_quickly_with_short_log_lines(text: str, attempt: int) -> None:
    @consumer
    def handler(message: Message) -> None:
        raise ValueError(text)

    for _ in range(TRIES):
        log = io.StringIO()
        client, reported, left = answer_to(handler, attempt, 10, 10 * SECONDS, log)
        took = 10 * SECONDS - left
        if took < (most := MOST_READINGS * seconds_of_a_reading(text)):
            break
    size = len(log.getvalue().encode())
    assert size < (100_000 if attempt == 1 else 10 * 82_000)  # a trimmed failure record is logged, up to 64 KiB (F3)
    assert took < most, f"took {took:.1f} s, as long as {took * MOST_READINGS / most:.0f} readings of the ten texts"
    assert len(reported) == (10 if attempt == 1 else 0)
    assert len(client.records) == (0 if attempt == 1 else 10)
