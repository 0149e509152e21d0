"""Batch sizes and batching windows that Lambda refuses."""

from collections.abc import Iterator, Sequence

from tarry.failed.queue_names import queue_name
from tarry.settle.planner import MANY_HOPS, RECURSIVE_LOOP_VARIABLE
from tarry.tools.check.facts import CheckedFunction, CheckedMapping, CheckedQueue, Facts
from tarry.tools.check.finding import Finding, SafeChange
from tarry.tools.check.rules.queues import changes_for_window

NO_ROOM = "W9033"


def no_room(facts: Facts) -> Iterator[Finding]:
    """Find sends with ten attributes, in the code of the functions, if a function is a consumer of tarry."""
    if not any(each.function and each.function.code for each in facts.mappings):
        return
    for each in facts.wide_sends:
        text = (
            f"{each.function} sends messages with {each.attributes} attributes, and SQS allows 10: a copy of such a "
            "message has no place for the Tarry attribute, so its dead letter has no failure record. Send at most 9; "
            "put the others into the body."
        )
        yield Finding(NO_ROOM, (each.function,), text, file=each.file, line=each.line)


FIFO_BATCH = "E9024"
BATCH_WITHOUT_WINDOW = "E9025"
MOST_WITHOUT_WINDOW = 10
MOST = 10_000
LONGEST_WINDOW = 300


def refused_batches(mapping: CheckedMapping, queue: CheckedQueue | None) -> Iterator[Finding]:
    """Compare the batch size and the window of a mapping with Lambda's limits."""
    size, window = mapping.batch_size, mapping.window_seconds
    functions = (mapping.function.name,) if mapping.function else ()
    start = f"{mapping.name[:1].upper()}{mapping.name[1:]}"
    large, waits = mapping.at.below("BatchSize"), mapping.at.below("MaximumBatchingWindowInSeconds")
    if mapping.is_fifo:
        if size is not None and size > MOST_WITHOUT_WINDOW:
            text = f"{start} has a BatchSize of {size}; on a FIFO queue Lambda accepts at most 10. Set:"
            yield Finding(FIFO_BATCH, functions, text, "BatchSize: 10", at=large, changes=(SafeChange(large, "10"),))
        if window:
            text = (
                f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts none on a FIFO "
                "queue. Remove it."
            )
            yield Finding(FIFO_BATCH, functions, text, at=waits)
        return
    if size is not None and size > MOST:
        text = f"{start} has a BatchSize of {size}; Lambda accepts at most 10000. Set:"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, "BatchSize: 10000", at=large)
    elif size is not None and size > MOST_WITHOUT_WINDOW and window == 0:
        text = (
            f"{start} has a BatchSize of {size}; Lambda accepts more than 10 only with a batching window of at "
            "least 1 s. Set:"
        )
        changes = (SafeChange(waits, "1"), *changes_for_window(mapping, queue, 1))
        snippet = "MaximumBatchingWindowInSeconds: 1"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, snippet, at=large, changes=changes)
    if window is not None and window > LONGEST_WINDOW:
        text = f"{start} has a MaximumBatchingWindowInSeconds of {window}; Lambda accepts at most 300. Set:"
        snippet = "MaximumBatchingWindowInSeconds: 300"
        yield Finding(BATCH_WITHOUT_WINDOW, functions, text, snippet, at=waits)


LOW_RESERVED = "W9031"
FEWEST_LIMIT = 2
"""The lowest ``MaximumConcurrency`` that Lambda accepts."""


def low_reserved_concurrency(function: CheckedFunction, mappings: Sequence[CheckedMapping]) -> Iterator[Finding]:
    """Compare the reserved concurrency of a function with the invocations that all its mappings make at once."""
    reserved = function.reserved_concurrency
    known = [each.most_invocations for each in mappings if each.most_invocations is not None]
    if not reserved or len(known) < len(mappings) or sum(known) <= reserved:
        return  # 0 switches a function off
    share = reserved // len(mappings)
    text = (
        f"{function.name} reserves a concurrency of {reserved}, and its queues make up to {sum(known):,} invocations "
        "at once: Lambda throttles the others, and each uses up a receive of its messages. "
    )
    if share >= FEWEST_LIMIT:
        text, snippet = f"{text}Set for each queue:", f"ScalingConfig: {{MaximumConcurrency: {share}}}"
    else:
        needed = FEWEST_LIMIT * len(mappings)
        snippet = f"ReservedConcurrentExecutions: {needed}"
        text = f"{text}Limit each queue to a MaximumConcurrency of 2, and set:"
    yield Finding(LOW_RESERVED, (function.name,), text, snippet, at=function.at.below("ReservedConcurrentExecutions"))


IGNORED_RESPONSE = "E9010"


def ignored_response(mapping: CheckedMapping) -> Iterator[Finding]:
    """Find a mapping without partial responses to a function that lists the messages that failed."""
    function = mapping.function
    if function is None or mapping.reports_failures is not False or not function.lists_failures:
        return
    text = (
        f"Lambda ignores which messages {function.name} reports as failed, and deletes the whole batch: failed "
        f"messages are lost. Set in {mapping.name}:"
    )
    value = "[ReportBatchItemFailures]"
    at = mapping.at.below("FunctionResponseTypes")
    yield Finding(
        IGNORED_RESPONSE,
        (function.name,),
        text,
        f"FunctionResponseTypes: {value}",
        at=at,
        changes=(SafeChange(at, '["ReportBatchItemFailures"]'),),
    )


SHORT_TIMEOUT = "W9034"
SMALLEST_SECONDS = 2
QUARTER_MB, SMALLEST_BELOW_A_QUARTER_SECONDS = 442, 3
"""A function with less memory than this has less than a quarter of a core (docs/guides/timeouts.md)."""


def smallest_timeout(memory_mb: int) -> int:
    """Return the shortest ``Timeout`` with which a message whose handler hangs is settled, in seconds."""
    return SMALLEST_SECONDS if memory_mb >= QUARTER_MB else SMALLEST_BELOW_A_QUARTER_SECONDS


def short_timeout(function: CheckedFunction) -> Iterator[Finding]:
    """Compare the timeout of a function with the time that its memory gives it to settle a message."""
    timeout, memory = function.timeout_seconds, function.memory_mb
    if function.code is None or timeout is None or memory is None:
        return
    if timeout < (smallest := smallest_timeout(memory)):
        text = (
            f"{function.name} has a Timeout of {timeout} s and {memory} MB: if its handler hangs, there is no time to "
            "settle the message, and SQS moves it to the dead-letter queue without a failure record. Set:"
        )
        at = function.at.below("Timeout")
        changes = (SafeChange(at, str(smallest)),)
        yield Finding(SHORT_TIMEOUT, (function.name,), text, f"Timeout: {smallest}", at=at, changes=changes)


ENDED_LOOP = "W9029"


def ended_loop(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Find a consumer that sends a message to its own queue so often that Lambda stops it."""
    function = mapping.function
    if function is None or function.code is None or function.allows_loops is None:
        return
    steps = [each for each in function.code.steps_for(queue.name) if each.leads_to == "resend"]
    copies = sum(each.times or 0 for each in steps if each.queue is None or queue_name(each.queue) == queue.name)
    if copies < MANY_HOPS:
        return
    at = function.at
    if not function.allows_loops:
        text = (
            f"{function.name} sends a message up to {copies} times to its own queue {queue.title}, and Lambda stops it "
            "at about 16: SQS then moves the message without a failure record. Lower times, or set, with the "
            f"environment variable {RECURSIVE_LOOP_VARIABLE}: Allow:"
        )
        yield Finding(ENDED_LOOP, (function.name,), text, "RecursiveLoop: Allow", at=at)
    elif function.tells_of_loops is False:
        text = (
            f"{function.name} has RecursiveLoop: Allow, and tarry does not know of it: deferred messages wait in place "
            "from their twelfth copy on. Add to its environment variables:"
        )
        yield Finding(ENDED_LOOP, (function.name,), text, f"{RECURSIVE_LOOP_VARIABLE}: Allow", at=at)
