"""Failure steps that leave a message without an outcome."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding

NO_LAST_STEP = "W9030"


def no_last_step(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Find a list of failure steps whose last one passes failures on."""
    function = mapping.function
    steps = function.code.steps_for(queue.name) if function and function.code else ()
    if function is None or not steps or not steps[-1].passes_on:
        return
    text = (
        f"The last failure step of {function.name} for {queue.title}, {steps[-1].kind}, does not take every failure: "
        "an exhausted message stays in its queue until SQS moves it without a failure record. Add as the last step of "
        "on_failure:"
    )
    yield Finding(NO_LAST_STEP, (function.name,), text, "DeadLetter()", at=function.at)
