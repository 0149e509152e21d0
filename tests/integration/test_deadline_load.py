"""The response comes before the deadline, however many messages fail and however large their errors are (SPEC I2).

Time is the CPU time of this process, as on an eighth of a core: `tests.cpuclock`.
"""

import gc
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tarry import Batch, Consumer, Fixed, Message, batch_consumer, consumer
from tarry.world import use
from tests.cpuclock import LightClient, cpu_world
from tests.records import batch_of, failed
from tests.wire import arn

pytestmark = pytest.mark.usefixtures("without_tracers")
MANY = 6_000
SECONDS = 4
TRIES = 5
JITTER_SECONDS = 0.5
"""A sixteenth of a second of CPU. A core shared with other processes can slow down in the middle of a run; a runtime
that ignores the deadline exceeds it by seconds, on each try."""
ATTRIBUTES = {
    "VisibilityTimeout": "600",
    "MessageRetentionPeriod": "345600",
    "MaximumMessageSize": "1048576",
    "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15}),
}


@contextmanager
def logging_to(stream: io.StringIO) -> Iterator[None]:
    """Write the log lines of tarry only to the stream, as in a Lambda function: pytest's capture takes as much time."""
    logger = logging.getLogger("tarry")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [logging.StreamHandler(stream)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


@contextmanager
def as_in_lambda() -> Iterator[None]:
    """Take garbage of earlier tests and hypothesis's callbacks out of the garbage collector.

    An interruption that arrives in such a callback is not raised in the handler, but repeated a moment later.
    """
    gc.collect()
    gc.freeze()
    before, gc.callbacks[:] = gc.callbacks[:], []
    try:
        yield
    finally:
        gc.callbacks[:] = before


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


def answer_to(handler: Consumer[Any], attempt: int, count: int = MANY) -> tuple[LightClient, list[str], float]:
    """Return the client, the ids reported as failed, and the seconds that are left."""
    client = LightClient(ATTRIBUTES)
    world, context_with = cpu_world(client)
    event = batch_of(count, receives=attempt)
    with as_in_lambda(), use(world), logging_to(io.StringIO()):
        context = context_with(SECONDS)
        answer = handler(event, context)
        return client, failed(answer), context.seconds_left()


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
    deleted = client.entries["delete_message_batch"]
    assert len(reported) >= MANY - deleted
    assert not {f"m{number}" for number in range(MANY)} - set(reported) or deleted
    if attempt == 5 and "handler" not in name:
        assert len(client.records) >= 10  # how many there are depends on the machine; without time there is none
        assert MANY - len(reported) >= 0.9 * len(client.records)


def run_with_large_errors(text: str, attempt: int, log: io.StringIO) -> tuple[LightClient, float, list[str]]:
    @consumer
    def handler(message: Message) -> None:
        raise ValueError(text)

    client = LightClient(ATTRIBUTES)
    world, context_with = cpu_world(client)
    event = batch_of(10, receives=attempt)
    with as_in_lambda(), use(world), logging_to(log):
        context = context_with(10 * SECONDS)
        answer = handler(event, context)
        return client, 10 * SECONDS - context.seconds_left(), failed(answer)


MOST_READINGS = 15
"""About 3 are needed. A text that were searched again for each of its lines would take hundreds."""


def seconds_of_a_reading(text: str) -> float:
    """Return the seconds that it takes on this machine, now, to read the texts of ten errors once, as JSON."""
    world, _ = cpu_world(None)
    began = world.clock.monotonic()
    for _ in range(10):
        json.dumps(text)
    return world.clock.monotonic() - began


@pytest.mark.parametrize("attempt", [1, 5])
@pytest.mark.parametrize("text", ["x" * 5_000_000, "line\n" * 1_000_000, "\U0001f4a5" * 1_250_000], ids="xlb")
def test_messages_with_errors_of_5_mb_are_settled_quickly_with_short_log_lines(text: str, attempt: int) -> None:
    for _ in range(TRIES):
        log = io.StringIO()
        client, took, reported = run_with_large_errors(text, attempt, log)
        if took < (most := MOST_READINGS * seconds_of_a_reading(text)):
            break
    size = len(log.getvalue().encode())
    assert size < (100_000 if attempt == 1 else 10 * 82_000)  # a trimmed failure record is logged, up to 64 KiB (F3)
    assert took < most, f"took {took:.1f} s, as long as {took * MOST_READINGS / most:.0f} readings of the ten texts"
    assert len(reported) == (10 if attempt == 1 else 0)
    assert len(client.records) == (0 if attempt == 1 else 10)
