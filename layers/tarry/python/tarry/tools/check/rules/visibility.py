"""Visibility timeouts that are too short for the functions of their queues."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping, CheckedQueue
from tarry.tools.check.finding import Finding, SafeChange

BELOW_TIMEOUT = "E9011"
BELOW_RECOMMENDATION = "W9012"
TIMES = 6
"""AWS recommends a visibility timeout of six times the timeout of the function, plus the batching window."""
LONGEST = 43_200


def recommended(timeout: int, window: int) -> int:
    """Return the visibility timeout that AWS recommends for a timeout of a function and a window, in seconds."""
    return min(TIMES * timeout + window, LONGEST)


def changes_for_window(mapping: CheckedMapping, queue: CheckedQueue | None, window: int) -> tuple[SafeChange, ...]:
    """Return the change of a queue without which a window of a mapping makes its visibility timeout too short."""
    timeout = mapping.function.timeout_seconds if mapping.function else None
    if queue is None or timeout is None or queue.visibility_seconds is None:
        return ()
    wanted = recommended(timeout, window)
    at = queue.at.below("VisibilityTimeout")
    return (SafeChange(at, str(wanted)),) if queue.visibility_seconds < wanted else ()


def short_visibility(mapping: CheckedMapping, queue: CheckedQueue) -> Iterator[Finding]:
    """Compare the visibility timeout of a queue with the timeout of a function and the window of its mapping."""
    function = mapping.function
    if function is None or function.timeout_seconds is None or queue.visibility_seconds is None:
        return
    timeout, visibility, window = function.timeout_seconds, queue.visibility_seconds, mapping.window_seconds
    wanted = recommended(timeout, window or 0)
    at = queue.at.below("VisibilityTimeout")
    changes = (SafeChange(at, str(wanted)),) if window is not None else ()
    snippet = f"VisibilityTimeout: {wanted}"
    has = f"{queue.title} has a VisibilityTimeout of {visibility} s"
    if visibility < timeout:
        text = (
            f"{has}, below the Timeout of {timeout} s of {function.name}: Lambda refuses the mapping, and messages are "
            "delivered again while they are handled. Set:"
        )
        yield Finding(BELOW_TIMEOUT, (function.name,), text, snippet, at=at, changes=changes)
    elif window is not None and visibility < wanted:
        plus = f" plus the window of {window} s" if window else ""
        text = (
            f"{has}, below six times the Timeout of {timeout} s of {function.name}{plus}: a batch that is throttled or "
            "waits for its invocation is delivered again while it runs. Set:"
        )
        yield Finding(BELOW_RECOMMENDATION, (function.name,), text, snippet, at=at, changes=changes)
