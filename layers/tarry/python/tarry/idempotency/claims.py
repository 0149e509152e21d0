"""The idempotency of one invocation: it claims each message before its handler runs, and ends the claim afterwards.

A claim is a record in progress. It ends with the outcome: for an acknowledged or discarded message the record says that
it is done; for any other outcome it is removed, so that the message may run again. If the process dies, the record
counts until the function's deadline.

The table never decides about a message alone: if it cannot be asked, the handler runs, and the log says that it may run
twice. Only a table that is missing or has another key fails the message.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.errors import ConfigurationError
from tarry.idempotency.records import Found, Records
from tarry.idempotency.setting import LONGEST_RETENTION_SECONDS
from tarry.message import delivery_of
from tarry.sqs.client import Requests
from tarry.sqs.lookups import Lookups
from tarry.sqs.refusals import error_code, is_denied
from tarry.support.answers import TableAnswer, TableSilent, answer_to_task, answers_of
from tarry.support.causes import is_a, text_of
from tarry.telemetry.logs import INFO, WARNING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.delivery import Delivery
    from tarry.idempotency.setting import Idempotency
    from tarry.invocation import Invocation
    from tarry.message import Message
    from tarry.outcome import Outcome
    from tarry.telemetry.logs import Log

LONGEST_FUNCTION_SECONDS = 900
"""How long a function runs at most, if its context does not tell."""
UNKNOWN_WAIT_SECONDS = 60
"""How long to wait for a record in progress that does not say how long it counts."""
SHORTEST_WAIT_BEHIND_SECONDS = 5
"""How long a message waits at first for another one of its batch that has the same key."""
DONE = frozenset({"ack", "discard"})
"""The outcomes of a message that must not run again."""
MAX_ERROR_CHARACTERS = 500
ALWAYS_REFUSED = frozenset({"ResourceNotFoundException", "ValidationException"})
"""The errors of a table that is missing, or has another key."""


class MessageClaim:
    """A message's claim: its handler runs, or another delivery's does."""

    __slots__ = (
        "_claims",
        "delivery",
        "expires_at",
        "in_progress_until",
        "is_certain",
        "is_held",
        "key",
        "seconds_elsewhere",
    )

    def __init__(self, claims: Claims, delivery: Delivery, key: str, in_progress_until: int, expires_at: int) -> None:
        self._claims = claims
        self.delivery = delivery
        self.key = key
        self.in_progress_until = in_progress_until
        """When the record stops to count if it is neither completed nor removed, in epoch milliseconds."""
        self.expires_at = expires_at
        """When the record expires, in epoch seconds: partly random, to recognize the record."""
        self.is_held = False
        """Whether the handler may run."""
        self.is_certain = False
        """Whether the record is certainly this delivery's own."""
        self.seconds_elsewhere: int | None = None
        """For how many seconds another delivery may still run the message; None if none does."""

    def end(self, outcome: Outcome) -> None:
        """Complete the record of a message that is done; remove that of any other. Makes requests, and blocks."""
        self._claims.end_all([(self, outcome)])


class Claims:
    """The claims of one invocation."""

    def __init__(self, idempotency: Idempotency, invocation: Invocation, log: Log) -> None:
        self._idempotency = idempotency
        self._records = Records(idempotency.layer)
        self._invocation = invocation
        self._log = log
        self._keys: set[str] = set()
        """The keys of this invocation's claims."""
        self._has_silent_claim = self._has_silent_end = False
        """Whether the table did not answer to a claim, or to the end of one: it is then not asked for another one."""

    # before the handler runs

    def claim(self, message: Message[Any]) -> bool:
        """Claim a message; return whether its handler may run. Blocks.

        If not, it was already processed (it has no claim), or another delivery runs it (`Claim.seconds_elsewhere`).

        Raises:
            ConfigurationError: The table is missing, or has another key.
            IdempotencyKeyError: The expression finds no key.
        """
        return self._claimed(delivery_of(message), lambda work: answers_of([work], self._invocation)[0])

    async def claim_async(self, message: Message[Any]) -> bool:
        """Claim a message as `claim` does, without blocking the event loop."""
        delivery = delivery_of(message)
        if (work := self._start(delivery)) is None:
            return self._may_run(delivery)
        return self._take(delivery, await answer_to_task(work, self._invocation))

    def claim_all(self, messages: Sequence[Message[Any]]) -> list[BaseException | None]:
        """Claim several messages at once; return for each the error that `claim` would raise. Blocks."""
        errors: list[BaseException | None] = [None] * len(messages)
        asked: list[tuple[int, Callable[[], Any]]] = []
        for index, message in enumerate(messages):
            try:
                if (work := self._start(delivery_of(message))) is not None:
                    asked.append((index, work))
            except Exception as error:  # noqa: BLE001 this message fails
                errors[index] = error
        answers = answers_of([work for _, work in asked], self._invocation)
        for (index, _), answer in zip(asked, answers, strict=True):
            try:
                self._take(delivery_of(messages[index]), answer)
            except Exception as error:  # noqa: BLE001 as above
                errors[index] = error
        return errors

    def _claimed(self, delivery: Delivery, ask: Callable[[Callable[[], Any]], TableAnswer]) -> bool:
        work = self._start(delivery)
        return self._may_run(delivery) if work is None else self._take(delivery, ask(work))

    def _start(self, delivery: Delivery) -> Callable[[], Found | None] | None:
        """Make the claim of a message, and return the request for it; None if none is to be made."""
        if delivery.claim is not None:
            return None  # it runs again within this delivery
        invocation, key = self._invocation, self._idempotency.key_of(delivery)
        now, left = invocation.now(), invocation.time_left()
        left = LONGEST_FUNCTION_SECONDS if left == math.inf else left
        until = int((now + left) * 1000)
        expires_at = int(now + max(left, self._idempotency.seconds)) + int.from_bytes(os.urandom(2), "big")
        claim = MessageClaim(self, delivery, key, until, expires_at)
        if key in self._keys:  # another message of this batch with the same key runs, or is not decided yet
            claim.seconds_elsewhere = _seconds_behind(delivery, left)
        elif self._has_silent_claim:
            claim.is_held = True
            self._warn_unprotected(delivery, None)
        delivery.claim = claim
        if claim.is_held or claim.seconds_elsewhere is not None:
            return None
        self._keys.add(key)
        return partial(self._records.begin, key, until, expires_at)

    @staticmethod
    def _may_run(delivery: Delivery) -> bool:
        return delivery.claim is not None and delivery.claim.seconds_elsewhere is None

    def _take(self, delivery: Delivery, answer: TableAnswer) -> bool:
        """Take the answer to a claim; return whether the handler may run."""
        claim: Any = delivery.claim
        try:
            found: Found | None = answer.result()
        except Exception as error:
            if error_code(error) in ALWAYS_REFUSED:
                self._drop(claim)
                raise ConfigurationError(self._refused(error)) from error
            self._has_silent_claim |= is_a(error, TableSilent)
            self._log_denied(error)
            self._warn_unprotected(delivery, error)
            claim.is_held = True
            return True
        if found is None:
            claim.is_held = claim.is_certain = True
            return True
        if found.is_completed:
            self._drop(claim)
            text = (
                "The message was already processed, as its idempotency record shows. "
                "It is acknowledged without running the handler."
            )
            self._log.problem("done_before", text, delivery, level=INFO, key=claim.key)
            return False
        self._keys.discard(claim.key)
        claim.seconds_elsewhere = _seconds_until(found.in_progress_until, self._invocation.now())
        return False

    def _drop(self, claim: MessageClaim) -> None:
        self._keys.discard(claim.key)
        claim.delivery.claim = None

    # after the handler has returned

    def end_all(self, ends: Sequence[tuple[MessageClaim, Outcome]]) -> None:
        """Complete or remove the records of claims, several at once. Blocks.

        After a request without an answer, no more are made. A silent claim does not count for the others: those that
        were certain are ended.
        """
        asked: list[tuple[MessageClaim, Outcome]] = []
        for claim, outcome in ends:
            if self._has_silent_end or (self._has_silent_claim and not claim.is_certain):
                self._log_not_ended(claim, outcome, None)
            else:
                asked.append((claim, outcome))
        answers = answers_of([self._ending(*each) for each in asked], self._invocation)
        for (claim, outcome), answer in zip(asked, answers, strict=True):
            try:
                answer.result()
            except Exception as error:  # noqa: BLE001 logged: the message is decided already
                self._has_silent_end |= is_a(error, TableSilent)
                self._log_denied(error)
                self._log_not_ended(claim, outcome, error)
            else:
                if outcome.kind in DONE:
                    self._warn_of_short_expiry(claim.delivery)
        for claim, _ in ends:  # only now: before, a message with the same key would meet the record
            self._keys.discard(claim.key)

    def _ending(self, claim: MessageClaim, outcome: Outcome) -> Callable[[], None]:
        """Return the request that ends a claim."""
        if outcome.kind in DONE:
            expires_at = int(self._invocation.now() + self._idempotency.seconds)
            return partial(self._records.complete, claim.key, expires_at)
        return partial(self._records.remove, claim.key, claim.in_progress_until, claim.expires_at)

    def _log_not_ended(self, claim: MessageClaim, outcome: Outcome, error: Exception | None) -> None:
        if outcome.kind in DONE:
            text = (
                f"The message is done, but its idempotency record could not be completed{_because(error)}. If it is "
                "delivered again, its handler runs a second time."
            )
            self._log.problem("completion_not_stored", text, claim.delivery, level=WARNING, key=claim.key)
        elif claim.is_certain:
            seconds = _seconds_until(claim.in_progress_until, self._invocation.now())
            text = (
                f"The idempotency record could not be removed{_because(error)}. It counts for another {seconds} "
                "seconds, the time left of this invocation: until then the message is deferred when it comes back."
            )
            self._log.problem("claim_not_removed", text, claim.delivery, level=WARNING, key=claim.key)

    def _warn_of_short_expiry(self, delivery: Delivery) -> None:
        """Warn once per cold start and queue of records that live shorter than the queue's messages."""
        seconds, world = self._idempotency.seconds, self._invocation.world
        if seconds >= LONGEST_RETENTION_SECONDS or not world.first_time(f"life of records of {delivery.queue}"):
            return
        retention = Lookups(Requests(self._invocation), self._log).source(delivery.source).retention
        if retention is not None and seconds < retention:
            text = (
                f"Idempotency records live {seconds} seconds, and {delivery.queue} keeps messages for {retention}. A "
                "message that is delivered again after its record has expired runs a second time. Set "
                f"expires_after_seconds of the layer's IdempotencyConfig to {retention} or more."
            )
            self._log.problem("records_too_short", text, level=WARNING)

    # faults of the table

    def _log_denied(self, error: Exception) -> None:
        """Log a missing permission, once per cold start."""
        if is_denied(error_code(error)):
            actions = "dynamodb:GetItem, PutItem, UpdateItem and DeleteItem"
            text = (
                f"{self._table} may not be used: {text_of(error, MAX_ERROR_CHARACTERS)}. Handlers run, but a message "
                f"that is delivered twice may run twice. Grant {actions} on the table; see docs/guides/idempotency.md."
            )
            self._log.once(self._invocation.world, "idempotency_denied", text)

    def _warn_unprotected(self, delivery: Delivery, error: Exception | None) -> None:
        text = (
            f"{self._table} could not be asked{_because(error)}, so the handler runs without a record: if the message "
            "is delivered twice, it may run twice."
        )
        self._log.problem("unprotected", text, delivery, level=WARNING)

    def _refused(self, error: Exception) -> str:
        why = text_of(error, MAX_ERROR_CHARACTERS)
        if error_code(error) == "ResourceNotFoundException":
            return (
                f"{self._table} does not exist: {why}. Correct the table_name of the persistence layer, or create the "
                "table in the function's region and account. The handler has not run"
            )
        return (
            f"{self._table} refuses its records, perhaps since it has another key: {why}. Give the layer the table's "
            "key_attr (and sort_key_attr), or make a table with the key id. The handler has not run"
        )

    @property
    def _table(self) -> str:
        name = getattr(self._idempotency.layer, "table_name", None)
        return f"The idempotency table {name}" if isinstance(name, str) else "The idempotency store"


def _because(error: Exception | None) -> str:
    """Return the error for a log line, in parentheses; None if the table was not asked again."""
    return f" ({'no answer before' if error is None else text_of(error, MAX_ERROR_CHARACTERS)})"


def _seconds_behind(delivery: Delivery, left: float) -> int:
    """Return for how many seconds a message waits for another one of its batch that has the same key.

    Usually, the other one has ended when this invocation has. If it has not, its record says how long it may still run
    once this message comes back. Each further wait is twice as long, since each uses up a receive; none is longer than
    ``left``, the time left of the invocation.
    """
    return max(1, math.ceil(min(left, SHORTEST_WAIT_BEHIND_SECONDS << min(delivery.receive_count - 1, 10))))


def _seconds_until(milliseconds: int | None, now: float) -> int:
    """Return the whole seconds until a time in epoch milliseconds, at least 1."""
    if milliseconds is None:
        return UNKNOWN_WAIT_SECONDS
    return max(1, math.ceil(milliseconds / 1000 - now))
