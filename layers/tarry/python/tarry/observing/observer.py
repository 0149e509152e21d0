"""The observer of one invocation: what became of its messages, for metrics and ``on_outcome``.

An invocation has one only if one of these is on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.outcome import Outcome


class FinalOutcome(NamedTuple):
    """The outcome of a message as it was carried out."""

    outcome: Outcome
    delay: int | None
    """The seconds until it is visible again; None if SQS did not confirm them, or they do not apply."""
    is_copied: bool
    """Whether a copy was sent."""
    is_refused: bool
    """Whether SQS refused a request for it, or did not confirm one."""


class Observer:
    """The observations of one invocation."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._running: dict[object, tuple[str | None, float]] = {}
        self.transitions: dict[str, FinalOutcome] = {}
        """The messages that did not simply succeed, by delivery id."""
        self.requests: list[str] = []
        """The operations of the requests to SQS."""
        self._runs: list[tuple[str | None, float]] = []

    def transition(self, delivery_id: str, outcome: Outcome, delay: int | None, fields: dict[str, Any]) -> None:
        """Note what became of a message; ``fields``: those of its log line."""
        is_refused = "not_settled" in fields or "not_sent" in fields
        is_copied = "sent_to" in fields or "dead_letter_queue" in fields
        self.transitions[delivery_id] = FinalOutcome(outcome, delay, is_copied, is_refused)

    def timed(self, function: Callable[[Any], Any], is_async: bool) -> Callable[[Any], Any]:
        """Return a handler whose runs are timed."""

        def timed(subject: Any) -> Any:
            run = self._start(subject)
            try:
                result = function(subject)
            except BaseException:
                self._end(run)
                raise
            if result is not None and hasattr(type(result), "__await__"):
                return self._awaited(result, run)
            self._end(run)
            return result

        async def timed_async(subject: Any) -> Any:
            run = self._start(subject)
            try:
                return await function(subject)
            finally:
                self._end(run)

        return timed_async if is_async else timed

    async def _awaited(self, result: Any, run: object) -> Any:
        try:
            return await result
        finally:
            self._end(run)

    def _start(self, subject: Any) -> object:
        run = object()
        self._running[run] = getattr(subject, "delivery_id", None), self._monotonic()
        return run

    def _end(self, run: object) -> None:
        if (started := self._running.pop(run, None)) is not None:
            self._runs.append((started[0], self._monotonic() - started[1]))

    def runs(self) -> list[tuple[str | None, float]]:
        """Return the runs of the handler so far: the delivery id (None for a batch), and the seconds."""
        for run in list(self._running):  # of handlers that were abandoned
            self._end(run)
        return list(self._runs)
