"""Timeouts of functions that leave no time to settle a message whose handler hangs."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedFunction
from tarry.tools.check.finding import Finding, SafeChange

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
