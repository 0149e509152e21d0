"""The runs of handlers in a history: the contents of their events, and the facts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.simulator.history import HistoryEvent


class RunTerms(NamedTuple):
    """The settings of a consumer for the messages of a queue."""

    limit: int | None
    """The policy's ``max_attempts``; None where nothing is retried in place."""
    retries_errors: bool
    """Whether `RetryInPlace` is a failure step. If not, ``limit`` holds only for retries that are asked for."""
    has_own_steps: bool
    """Whether one of the failure steps is not tarry's: its outcome cannot be predicted."""
    longest: float
    """The longest delay of the policy, in seconds."""
    is_fifo: bool
    local_retries: int = 0
    """How often `LocalRetry` runs a message again within a delivery."""


class RunMessage(NamedTuple):
    """A message of a run, in the event ``run_started``."""

    id: str
    """The stable id."""
    receive_count: int
    attempt: int
    is_exact: bool
    """Whether the attempt was counted by an attempt store."""
    terms: RunTerms


class RunVerdict(NamedTuple):
    """The verdict of a run on a message, in the event ``run_ended``."""

    kind: str
    """``ack``, ``discard``, ``retry``, ``reject``, ``defer``, ``fail``, ``release`` or ``left``."""
    error: str | None = None
    """The name of the type of error with which the message failed."""
    wait: tuple[float, float] | None = None
    """The shortest and longest time after which the message is to be tried again; None where that is open."""
    due: float | None = None
    """The moment that was requested instead of a delay, in epoch seconds."""
    is_of_batch: bool = False
    """Whether it was given on the batch as a whole."""


class HandlerRun:
    """One call of a handler."""

    __slots__ = ("began", "ended", "first_verdicts", "messages", "request_id", "verdicts", "was_abandoned")

    def __init__(self, began: HistoryEvent) -> None:
        self.began = began
        self.request_id: str = began.fields["request_id"]
        self.messages: Mapping[str, RunMessage] = began.fields["messages"]
        """Its messages, by delivery id."""
        self.ended: HistoryEvent | None = None
        """None if its process died first."""
        self.verdicts: Mapping[str, RunVerdict] = {}
        """Its verdicts, by delivery id; none if its process died first."""
        self.first_verdicts: dict[str, HistoryEvent] = {}
        """The first verdict that it gave on each message while it ran, by delivery id."""
        self.was_abandoned = False
        """Whether its thread was abandoned: it ended after its message was decided, or its invocation had answered."""

    def end(self, ended: HistoryEvent, *, was_abandoned: bool) -> None:
        """Note its end."""
        self.ended, self.verdicts, self.was_abandoned = ended, ended.fields["verdicts"], was_abandoned

    @property
    def is_batch(self) -> bool:
        """Whether it is a run of a batch handler."""
        return bool(self.began.fields["is_batch"])

    def attempt(self, delivery_id: str) -> int:
        return self.messages[delivery_id].attempt

    def is_exact(self, delivery_id: str) -> bool:
        return self.messages[delivery_id].is_exact

    def terms(self, delivery_id: str) -> RunTerms:
        return self.messages[delivery_id].terms

    def verdict(self, delivery_id: str) -> str | None:
        """The kind of its verdict on a message; None if the process died."""
        given = self.verdicts.get(delivery_id)
        return None if given is None else given.kind

    def promised(self, delivery_id: str) -> tuple[float, float] | None:
        """The moments between which a message is to come back (SPEC C11), in epoch seconds; None where that is open.

        A delay counts from the moment of the verdict: the handler's end, or when the message's own verdict was given.
        A verdict on the batch counts from the handler's end.
        """
        given = self.verdicts.get(delivery_id)
        if given is None or given.wait is None or self.ended is None:
            return None
        if given.due is not None:
            return given.due, given.due
        own = self.first_verdicts.get(delivery_id) if self.is_batch else None
        first = self.ended.at if own is None else float(own.fields["fell_at"])
        last = self.ended.at if own is None or given.is_of_batch else own.at
        return first + given.wait[0], last + math.ceil(given.wait[1])

    @property
    def how(self) -> str:
        """``returned``, ``raised ValueError: ...``, ``died``."""
        return "died" if self.ended is None else str(self.ended.fields["how"])
