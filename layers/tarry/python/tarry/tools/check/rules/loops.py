"""Consumers that send copies to their own queue more often than Lambda allows."""

from collections.abc import Iterator

from tarry.failed.queue_names import queue_name
from tarry.settle.plans import MANY_HOPS, RECURSIVE_LOOP_VARIABLE
from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding

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
