"""Mappings and their functions: what Lambda refuses, ignores, throttles or ends."""

from collections.abc import Iterator

from tarry.failed.queue_names import queue_name
from tarry.settle.planner import MANY_HOPS, RECURSIVE_LOOP_VARIABLE
from tarry.tools.check.facts import Facts
from tarry.tools.check.finding import Finding, SafeChange, setting
from tarry.tools.check.rules.queues import changes_for_window
from tarry.tools.simulator.mapping_settings import (
    MAX_BATCH,
    MAX_FIFO_BATCH,
    MAX_UNWINDOWED_BATCH,
    MAX_WINDOW_SECONDS,
    MIN_CONCURRENCY,
)
from tarry.tools.template import TemplateFunction, TemplateMapping, TemplateQueue


def refused_batches(
    mapping: TemplateMapping, queue: TemplateQueue | None, function: TemplateFunction | None, facts: Facts
) -> Iterator[Finding]:
    """Compare the batch size and the window of a mapping with Lambda's limits."""
    size, window = facts.known(mapping, "BatchSize", mapping.batch_size), facts.window(mapping)
    functions = (function.logical_id,) if function else ()
    name = facts.name_of(mapping)
    start = f"{name[:1].upper()}{name[1:]}"
    large, waits = (facts.at_mapping(mapping, each) for each in ("BatchSize", "MaximumBatchingWindowInSeconds"))
    if mapping.is_fifo:
        if size is not None and size > MAX_FIFO_BATCH:
            text = f"{start} has a BatchSize of {size}; on a FIFO queue Lambda accepts at most 10. Set:"
            yield setting("E9024", functions, text, large, 10)
        if window:
            text = (
                f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts none on a FIFO "
                "queue. Remove it."
            )
            yield Finding("E9024", functions, text, at=waits)
        return
    if size is not None and size > MAX_BATCH:
        text = f"{start} has a BatchSize of {size}; Lambda accepts at most 10000. Set:"
        yield setting("E9025", functions, text, large, MAX_BATCH, is_safe=False)
    elif size is not None and size > MAX_UNWINDOWED_BATCH and window == 0:
        text = (
            f"{start} has a BatchSize of {size}; Lambda accepts more than 10 only with a batching window of at "
            "least 1 s. Set:"
        )
        changes = (SafeChange(waits, "1"), *changes_for_window(queue, function, 1, facts))
        snippet = "MaximumBatchingWindowInSeconds: 1"
        yield Finding("E9025", functions, text, snippet, at=large, changes=changes)
    if window is not None and window > MAX_WINDOW_SECONDS:
        text = f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts at most 300. Set:"
        yield setting("E9025", functions, text, waits, MAX_WINDOW_SECONDS, is_safe=False)


def low_reserved_concurrency(function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Compare the reserved concurrency of a function with the invocations that all its mappings make at once."""
    mappings = [each for each in facts.mappings if each.function == function.name]
    reserved = facts.known(function, "ReservedConcurrentExecutions", function.reserved_concurrency)
    known = [most for each in mappings if (most := facts.most_invocations(each)) is not None]
    if not reserved or len(known) < len(mappings) or sum(known) <= reserved:
        return  # 0 switches a function off
    share = reserved // len(mappings)
    text = (
        f"{function.logical_id} reserves a concurrency of {reserved}, and its queues make up to {sum(known):,} "
        "invocations at once: Lambda throttles the others, and each uses up a receive of its messages. "
    )
    if share >= MIN_CONCURRENCY:
        text, snippet = f"{text}Set for each queue:", f"ScalingConfig: {{MaximumConcurrency: {share}}}"
    else:
        needed = MIN_CONCURRENCY * len(mappings)
        snippet = f"ReservedConcurrentExecutions: {needed}"
        text = f"{text}Limit each queue to a MaximumConcurrency of 2, and set:"
    at = facts.at(function, "ReservedConcurrentExecutions")
    yield Finding("W9031", (function.logical_id,), text, snippet, at=at)


def ignored_response(mapping: TemplateMapping, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find a mapping without partial responses to a function that lists the messages that failed."""
    reports = facts.known(mapping, "FunctionResponseTypes", mapping.reports_failures)
    if reports is not False or not facts.lists_failures(function):
        return
    text = (
        f"Lambda ignores which messages {function.logical_id} reports as failed, and deletes the whole batch: failed "
        f"messages are lost. Set in {facts.name_of(mapping)}:"
    )
    snippet = "FunctionResponseTypes: [ReportBatchItemFailures]"
    at = facts.at_mapping(mapping, "FunctionResponseTypes")
    changes = (SafeChange(at, '["ReportBatchItemFailures"]'),)
    yield Finding("E9010", (function.logical_id,), text, snippet, at=at, changes=changes)


SMALLEST_SECONDS = 2
QUARTER_MB, SMALLEST_BELOW_A_QUARTER_SECONDS = 442, 3
"""A function with less memory than this has less than a quarter of a core (docs/guides/timeouts.md)."""


def smallest_timeout(memory_mb: int) -> int:
    """Return the shortest ``Timeout`` with which a message whose handler hangs is settled, in seconds."""
    return SMALLEST_SECONDS if memory_mb >= QUARTER_MB else SMALLEST_BELOW_A_QUARTER_SECONDS


def short_timeout(function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Compare the timeout of a function with the time that its memory gives it to settle a message."""
    timeout, memory = facts.timeout(function), facts.known(function, "MemorySize", function.memory_mb)
    if facts.consumer(function) is None or timeout is None or memory is None:
        return
    if timeout < (smallest := smallest_timeout(memory)):
        text = (
            f"{function.logical_id} has a Timeout of {timeout} s and {memory} MB: if its handler hangs, there is no "
            "time to settle the message, and SQS moves it to the dead-letter queue without a failure record. Set:"
        )
        yield setting("W9034", (function.logical_id,), text, facts.at(function, "Timeout"), smallest)


def ended_loop(queue: TemplateQueue, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find a consumer that sends a message to its own queue so often that Lambda stops it."""
    allows_loops = facts.known(function, "RecursiveLoop", function.recursive_loop == "Allow")
    steps = [each for each in facts.steps(function, queue.name) if each.leads_to == "resend"]
    copies = sum(each.times or 0 for each in steps if each.queue is None or queue_name(each.queue) == queue.name)
    if copies < MANY_HOPS or allows_loops is None:
        return
    at, variable = facts.at(function), RECURSIVE_LOOP_VARIABLE
    if not allows_loops:
        text = (
            f"{function.logical_id} sends a message up to {copies} times to its own queue {queue.title}, and Lambda "
            "stops it at about 16: SQS then moves the message without a failure record. Lower times, or set, with the "
            f"environment variable {variable}: Allow:"
        )
        yield Finding("W9029", (function.logical_id,), text, "RecursiveLoop: Allow", at=at)
    elif variable not in function.unresolved and function.environment.get(variable) != "Allow":
        text = (
            f"{function.logical_id} has RecursiveLoop: Allow, and tarry does not know of it: deferred messages wait in "
            "place from their twelfth copy on. Add to its environment variables:"
        )
        yield Finding("W9029", (function.logical_id,), text, f"{variable}: Allow", at=at)
