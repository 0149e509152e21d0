"""Measure handlers that wait, several at once: the time of a batch against the ideal.

python -m benchmarks.io_bound [--quick]

The ideal is the sum of the waits divided by the concurrency.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.contenders import BARE, POWERTOOLS, TARRY, Handler, event_of
from benchmarks.results import progress, report
from benchmarks.settling import LongContext
from tarry import consumer
from tarry.settings import MAX_CONCURRENCY

MESSAGES, QUICK_MESSAGES = 1_000, 200
WAIT_SECONDS = 0.1
CONCURRENCIES = (10, 50, 100)
ROUNDS = 2
"""The best round counts: other load only makes one slower."""


def wait() -> None:
    time.sleep(WAIT_SECONDS)


async def wait_async(_: Any) -> None:
    await asyncio.sleep(WAIT_SECONDS)


def pool(concurrency: int) -> Handler:
    """Return a loop over the messages with a pool of threads, by hand."""

    def handler(event: Any, _: Any) -> Any:
        with ThreadPoolExecutor(concurrency) as executor:
            list(executor.map(lambda _: wait(), event["Records"]))
        return {"batchItemFailures": []}

    return handler


def semaphore(concurrency: int) -> Handler:
    """Return a loop over the messages with a limited number of tasks, by hand."""

    async def handle(record: Any, limit: asyncio.Semaphore) -> None:
        async with limit:
            await wait_async(record)

    async def all_of(records: list[Any]) -> Any:
        limit = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(handle(record, limit) for record in records))
        return {"batchItemFailures": []}

    return lambda event, _: asyncio.run(all_of(event["Records"]))


def powertools() -> Handler:
    """Return Powertools' async handler, which has no limit of the concurrency."""
    from aws_lambda_powertools.utilities.batch import AsyncBatchProcessor, EventType, async_process_partial_response

    processor = AsyncBatchProcessor(event_type=EventType.SQS)

    async def handle(record: Any) -> None:
        await wait_async(record)

    return lambda event, context: async_process_partial_response(
        event=event, record_handler=handle, processor=processor, context=context
    )


def seconds_of(handler: Handler, messages: int) -> dict[str, float]:
    """Return the seconds of a batch, and those on a CPU."""
    event, context = event_of(messages), LongContext()
    cpu, began = time.process_time(), time.perf_counter()
    answer = handler(event, context)
    seconds = time.perf_counter() - began
    assert answer == {"batchItemFailures": []}
    return {"seconds": seconds, "cpu": time.process_time() - cpu}


def best_of(handlers: dict[str, Handler], messages: int, rounds: int) -> dict[str, dict[str, float]]:
    measured = [{name: seconds_of(handler, messages) for name, handler in handlers.items()} for _ in range(rounds)]
    return {name: min((each[name] for each in measured), key=lambda times: times["seconds"]) for name in handlers}


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the times of each kind of handler at each concurrency."""
    messages, rounds = (QUICK_MESSAGES, 1) if quick else (MESSAGES, ROUNDS)
    for concurrency in CONCURRENCIES:
        kinds: dict[str, dict[str, Handler]] = {
            "threads": {BARE: pool(concurrency), TARRY: consumer(concurrency=concurrency)(lambda _: wait())},
            "tasks": {BARE: semaphore(concurrency), TARRY: consumer(concurrency=concurrency)(wait_async)},
        }
        for kind, handlers in kinds.items():
            progress(f"I/O-bound handlers: {messages:,} messages, {concurrency} {kind}")
            for handler in handlers.values():
                handler(event_of(1), LongContext())
            yield {
                "kind": kind,
                "concurrency": concurrency,
                "messages": messages,
                "ideal": messages * WAIT_SECONDS / concurrency,
                "times": best_of(handlers, messages, rounds),
            }
    progress("I/O-bound handlers: Powertools, all at once")
    times = best_of(
        {POWERTOOLS: powertools(), TARRY: consumer(concurrency=MAX_CONCURRENCY)(wait_async)}, messages, rounds
    )
    yield {"kind": "tasks", "concurrency": messages, "messages": messages, "ideal": WAIT_SECONDS, "times": times}


if __name__ == "__main__":
    report(rows)
