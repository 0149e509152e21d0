"""Deferring a message while a circuit of Powertools' circuit breaker is open (SPEC K5).

An open circuit is no failure of the message: its handler has not reached the service behind the circuit.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tarry.message.outcomes import Outcome
from tarry.support.causes import is_a, leaves_of, traceback_of

if TYPE_CHECKING:
    from tarry.message.delivery import Delivery

MAX_SECONDS = 900
DEFAULT_RECOVERY_SECONDS = 30
"""Powertools' default ``recovery_timeout``."""
COUNTER = "tarry.circuit"
"""The counter in the `Tarry` attribute: how often the message was deferred for a circuit."""
_MODULE = "aws_lambda_powertools.utilities.circuit_breaker"


def deferral(error: BaseException, delivery: Delivery, now: float) -> Outcome | None:
    """Return the deferral of a message whose handler met an open circuit; None for any other error.

    The first deferral ends when the circuit may be tried. Each further one of the same message is twice as long, at
    most 900 seconds.
    """
    exceptions = sys.modules.get(f"{_MODULE}.exceptions")  # an error of its class exists only if it is loaded
    kind = getattr(exceptions, "CircuitBreakerOpenError", None)
    if kind is None or not (errors := _all_of(kind, error)):
        return None
    before = delivery.envelope.steps.get(COUNTER, 0) if delivery.envelope else 0
    waits = before + delivery.waits_in_place  # in place, no copy keeps the count
    seconds = max(_seconds_closed(each, now) for each in errors)
    delay = min(MAX_SECONDS, seconds * 2 ** min(waits, 10))
    return Outcome("defer", delay, "circuit_open", note={COUNTER: min(before + 1, 1_000)})


def _all_of(kind: type[BaseException], error: BaseException) -> list[BaseException]:
    """Return the error, or the errors of its group, if all are of this kind; else an empty list."""
    if is_a(error, kind):
        return [error]
    if not is_a(error, BaseExceptionGroup):
        return []
    leaves = leaves_of(error)
    return list(leaves) if all(is_a(leaf, kind) for leaf in leaves) else []


def _seconds_closed(error: BaseException, now: float) -> float:
    """Return for how many seconds the circuit lets no call through."""
    recovery = _recovery_seconds(error)
    opened_at = getattr(getattr(error, "circuit", None), "opened_at", None)
    left = opened_at + recovery - now if isinstance(opened_at, (int, float)) else recovery
    return max(1.0, min(left, recovery))


def _recovery_seconds(error: BaseException) -> float:
    """Return the ``recovery_timeout`` of the circuit, which only the frames of Powertools know; else its default."""
    trace = traceback_of(error)
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") == f"{_MODULE}.base":
            handler: Any = frame.f_locals.get("self")
            seconds = getattr(getattr(handler, "config", None), "recovery_timeout", None)
            if isinstance(seconds, (int, float)) and seconds > 0:
                return seconds
        trace = trace.tb_next
    return DEFAULT_RECOVERY_SECONDS
