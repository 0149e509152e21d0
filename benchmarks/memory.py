"""Measure memory: of a message in a large batch, and the growth of a process over many invocations.

python -m benchmarks.memory [--quick]
"""

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

from benchmarks import contenders as of
from benchmarks.contenders import (
    BARE,
    BY_HAND,
    POWERTOOLS,
    TARRY,
    BenchmarkContext,
    ClientThatAnswers,
    Handler,
    Work,
    event_of,
)
from benchmarks.message_time import output_discarded
from benchmarks.results import progress, report
from tarry.world import World, use

MESSAGES = 10_000
QUICK_MESSAGES = 1_000
INVOCATIONS, QUICK_INVOCATIONS = 10_000, 500
WARM = 200
FAILING_SHARE = 0.1


def handlers(work: Work, client: ClientThatAnswers) -> dict[str, Handler]:
    return {
        BARE: of.bare_loop(work),
        POWERTOOLS: of.powertools(work),
        BY_HAND: of.by_hand(work, client.sqs),
        TARRY: of.tarry(work),
    }


def peak_of(handler: Handler, messages: int) -> float:
    """Return the bytes per message at the peak of an invocation, above those of the event."""
    event, context = event_of(messages), BenchmarkContext()
    handler(event_of(10), context)
    gc.collect()
    tracemalloc.start()
    try:
        handler(event, context)
        return tracemalloc.get_traced_memory()[1] / messages
    finally:
        tracemalloc.stop()


def growth_of(handler: Handler, invocations: int) -> float:
    """Return the memory blocks of Python per invocation that are not freed after it; a leak is at least one."""
    context = BenchmarkContext()
    event = event_of(10)
    for _ in range(WARM):
        handler(event, context)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(invocations):
        handler(event, context)
    gc.collect()
    return (sys.getallocatedblocks() - before) / invocations


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the bytes per message and the growth of each contender."""
    client = ClientThatAnswers()
    messages, invocations = (QUICK_MESSAGES, QUICK_INVOCATIONS) if quick else (MESSAGES, INVOCATIONS)
    with use(World(client_factory=client.sqs)), output_discarded():
        for name, share in (("all succeed", 0.0), ("10 % fail", FAILING_SHARE), ("all fail", 1.0)):
            contenders = handlers(of.fails_at(share), client)
            progress(f"memory: {messages:,} messages, {name}")
            row = {"load": name, "messages": messages, "invocations": invocations}
            row["bytes"] = {contender: peak_of(handler, messages) for contender, handler in contenders.items()}
            if share < 1:
                progress(f"memory: {invocations:,} invocations, {name}")
                growing = {**contenders}
                del growing[BY_HAND]
                row["growth"] = {contender: growth_of(handler, invocations) for contender, handler in growing.items()}
            yield row


if __name__ == "__main__":
    report(rows)
