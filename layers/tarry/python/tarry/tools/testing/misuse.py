"""Mistakes in a test, each explained in a sentence: a handler that cannot be called, a run that would never end."""

import inspect
from collections.abc import Iterable
from typing import Any

from tarry.tools.simulator.errors import SimulationError
from tarry.tools.testing.deliveries import FAILED, MessageCopy
from tarry.tools.testing.recorded_history import RecordedHistory


class Misuse(SimulationError):
    """A handler called a method of the sandbox that only a test may call."""


class Endless(SimulationError):
    """A run has so many events that it probably never ends."""


def check_handler(handler: Any, by: str = "connect") -> None:
    """Raise `TypeError` for a handler that Lambda could not call; ``by`` is the function that takes it."""
    if not callable(handler):
        raise TypeError(f"{by} takes a handler, got {handler!r}: a consumer, or a function of (event, context)")
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None, None)
    except TypeError as error:
        name = getattr(handler, "__name__", repr(handler))
        text = f"{by} takes a handler of (event, context), and {name} is not one"
        raise TypeError(f"{text}: is its @consumer missing?") from error
    except ValueError:
        return  # a function without a readable signature


def listed(names: Iterable[str]) -> str:
    """Return the names, each once, for an error that lists them."""
    return ", ".join(dict.fromkeys(names)) or "none"


def stuck(history: RecordedHistory) -> str | None:
    """Return a sentence about messages that fail again and again in a queue without a dead-letter queue; else None."""
    found: dict[str, list[MessageCopy]] = {}
    for copy in history.copies.values():
        verdicts = [each.verdict for each in copy.deliveries if each.verdict is not None]
        fails = copy.end is None and verdicts[-1:] and verdicts[-1] in FAILED
        if fails and copy.queue in history.connected and history.redrive(copy.queue) is None:
            found.setdefault(copy.queue, []).append(copy)
    if not found:
        return None
    queue, copies = next(iter(found.items()))
    many = f"{len(copies)} messages of it fail" if len(copies) > 1 else f"message {copies[0].id} fails"
    return (
        f"the queue {queue!r} has no dead-letter queue, and {many} at every delivery, so the run would go on until SQS "
        "expires what fails: give the queue a dead_letter=, let the handler succeed in the end, or run(for_=...)"
    )
