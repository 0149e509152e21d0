"""The observer of one invocation: what became of its messages, for metrics and ``on_outcome``.

An invocation has one only if one of these is on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.message.failure import Failure
    from tarry.message.outcomes import Outcome
    from tarry.record.attribute import FailureRecord


class FinalOutcome(NamedTuple):
    """The outcome of a message as it was carried out."""

    outcome: Outcome
    """With the reason of its failure, unless it has its own."""
    delay: int | None
    """The seconds until it is visible again; None if SQS did not confirm them, or they do not apply."""
    is_copied: bool
    """Whether a copy was sent."""
    is_refused: bool
    """Whether SQS refused a request for it, or did not confirm one."""
    failure: FailureRecord | None = None
    """The record of its failure in this delivery, for ``on_outcome``; None if it did not fail."""


class Observer:
    """The observations of one invocation."""

    def __init__(self, monotonic: Callable[[], float], *, keeps_failures: bool = False) -> None:
        self._monotonic = monotonic
        self._keeps_failures = keeps_failures
        self.transitions: dict[str, FinalOutcome] = {}
        """The messages that did not simply succeed, by delivery id."""
        self.requests: list[str] = []
        """The operations of the requests to SQS."""
        self._runs: list[list[Any]] = []
        """The runs of the handler: the delivery id (None for a batch), the start, and the end (None while it runs)."""

    def transition(
        self,
        delivery_id: str,
        outcome: Outcome,
        delay: int | None,
        reason: str | None,
        failure: Failure | None,
        fields: dict[str, Any],
    ) -> None:
        """Note what became of a message; ``fields``: further fields of its log line."""
        is_refused = "not_settled" in fields or "not_sent" in fields
        is_copied = "sent_to" in fields or "dead_letter_queue" in fields
        record = record_of(failure) if failure is not None and self._keeps_failures else None
        if outcome.reason is None and reason is not None:
            outcome = outcome._changed(reason=reason)
        self.transitions[delivery_id] = FinalOutcome(outcome, delay, is_copied, is_refused, record)

    def timed(self, function: Callable[[Any], Any], is_async: bool) -> Callable[[Any], Any]:
        """Return a handler whose runs are timed."""
        runs, monotonic, ended = self._runs, self._monotonic, self._handler_ended

        def timed(subject: Any) -> Any:
            run = [getattr(subject, "delivery_id", None), monotonic(), None]
            runs.append(run)
            try:
                result = function(subject)
            finally:
                ended(run)
            if result is not None and hasattr(type(result), "__await__"):
                return awaited(result, run)
            return result

        async def timed_async(subject: Any) -> Any:
            run = [getattr(subject, "delivery_id", None), monotonic(), None]
            runs.append(run)
            return await awaited(function(subject), run)

        async def awaited(result: Any, run: list[Any]) -> Any:
            try:
                return await result
            finally:
                ended(run)

        return timed_async if is_async else timed

    def _handler_ended(self, run: list[Any]) -> None:
        run[2] = self._monotonic()

    def runs(self) -> list[tuple[str | None, float]]:
        """Return the runs of the handler so far: the delivery id (None for a batch), and the seconds."""
        now = self._monotonic()  # for handlers that were abandoned
        return [(run_id, (now if ended is None else ended) - began) for run_id, began, ended in self._runs.copy()]


def record_of(failure: Failure) -> FailureRecord | None:
    """Return the record of a failure as a dead letter has it; None for a deferral, which has no failure.

    The failure itself is not kept: its exception holds the frames of the handler.
    """
    from tarry.message.failure_record import failure_part
    from tarry.record.attribute import FailureRecord

    if failure.was_deferral:
        return None
    try:
        part = failure_part(failure, failure.reason, failure.failed_at, failure.attempt, include_traceback=True)
        return FailureRecord(part["failure"], tuple(part["history"]))
    except Exception:  # noqa: BLE001 a test's context may name the function with anything
        return None
