"""However many messages fail, and however large their errors are, the answer comes before the deadline (SPEC I2).

On an eighth of a core, by the CPU time of this process: `tests.cpuclock`.
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

MANY = 10_000
SECONDS = 12
TRIES = 5
JITTER_SECONDS = 0.5
"""A sixteenth of a second of CPU. A core that others begin to share gets slower in the middle of a run; a runtime that
settles as if there were no deadline is late by seconds, at each try."""
ATTRIBUTES = {
    "VisibilityTimeout": "600",
    "MessageRetentionPeriod": "345600",
    "MaximumMessageSize": "1048576",
    "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn("orders-dlq"), "maxReceiveCount": 15}),
}


@contextmanager
def logging_to(stream: io.StringIO) -> Iterator[None]:
    """What tarry logs is written there alone, as a Lambda function writes it: pytest's own capture costs as much."""
    logger = logging.getLogger("tarry")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [logging.StreamHandler(stream)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before


@contextmanager
def as_in_lambda() -> Iterator[None]:
    """Nothing that the tests before have left, and no callback that hypothesis has for the garbage collector.

    An interruption that strikes in such a callback is not raised in the handler, but comes again a moment later.
    """
    gc.collect()
    gc.freeze()
    before, gc.callbacks[:] = gc.callbacks[:], []
    try:
        yield
    finally:
        gc.callbacks[:] = before


def each() -> Consumer[Any]:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        raise ValueError("the gateway does not answer")

    return handler


def several_at_once() -> Consumer[Any]:
    return each().replace(concurrency=8)


def one_by_one_in_a_batch_handler() -> Consumer[Any]:
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        for message in batch:
            message.fail(ValueError("the gateway does not answer"))

    return handler


def all_at_the_end() -> Consumer[Any]:
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        raise ValueError("the gateway does not answer")

    return handler


HANDLERS = [each, several_at_once, one_by_one_in_a_batch_handler, all_at_the_end]


def answer_to(handler: Consumer[Any], attempt: int) -> tuple[LightClient, list[str], float]:
    """The client, the messages that are reported as failed, and how many seconds are left."""
    client = LightClient(ATTRIBUTES)
    world, context_with = cpu_world(client)
    event = batch_of(MANY, receives=attempt)
    with as_in_lambda(), use(world), logging_to(io.StringIO()):
        context = context_with(SECONDS)
        answer = handler(event, context)
        return client, failed(answer), context.seconds_left()


@pytest.mark.parametrize("make", HANDLERS)
@pytest.mark.parametrize("attempt", [1, 5])
def test_ten_thousand_failing_messages_are_answered_for_before_the_deadline(make: Any, attempt: int) -> None:
    """At attempt 1 they wait for the next one; attempt 5 is the last one, and they become dead letters.

    What can't be settled any more is only reported, so most of what ran at its last attempt has its letter.
    """
    for _ in range(TRIES):
        client, reported, left = answer_to(make(), attempt)
        if left > -JITTER_SECONDS:
            break
    assert left > -JITTER_SECONDS, f"it answered {-left:.1f} s after its deadline"
    deleted = client.entries["delete_message_batch"]
    assert len(reported) >= MANY - deleted
    assert not {f"m{number}" for number in range(MANY)} - set(reported) or deleted
    if attempt == 5 and make in (each, several_at_once):
        assert len(client.records) > 100
        assert MANY - len(reported) >= 0.9 * len(client.records)


def raises_much(text: str, attempt: int, log: io.StringIO) -> tuple[LightClient, float, list[str]]:
    @consumer
    def handler(message: Message) -> None:
        raise ValueError(text)

    client = LightClient(ATTRIBUTES)
    world, context_with = cpu_world(client)
    event = batch_of(10, receives=attempt)
    with as_in_lambda(), use(world), logging_to(log):
        context = context_with(SECONDS)
        answer = handler(event, context)
        return client, SECONDS - context.seconds_left(), failed(answer)


@pytest.mark.parametrize("attempt", [1, 5])
@pytest.mark.parametrize("text", ["x" * 5_000_000, "line\n" * 1_000_000, "\U0001f4a5" * 1_250_000], ids="xlb")
def test_errors_with_texts_of_5_mb_are_settled_soon_and_write_little(text: str, attempt: int) -> None:
    log = io.StringIO()
    client, took, left = raises_much(text, attempt, log)
    size = len(log.getvalue().encode())
    assert size < (100_000 if attempt == 1 else 10 * 82_000)  # a record that was cut is logged, up to 64 KiB (F3)
    assert took < 6  # it is about 0.5; that it does not take the 12 s says that no text is searched again and again
    assert len(left) == (10 if attempt == 1 else 0)
    assert len(client.records) == (0 if attempt == 1 else 10)
