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
from tarry.message.message import delivery_of
from tarry.message.outcomes import DONE
from tarry.run.idempotency_layer import LONGEST_RETENTION_SECONDS, Found, longest_request
from tarry.settle.table_answers import (
    ALWAYS_REFUSED,
    MAX_ERROR_CHARACTERS,
    MAX_REQUESTS,
    PATIENCE_SECONDS,
    TableNotAsked,
    answer_to_task,
    answers_of,
    patience,
)
from tarry.sqs.client import Lookups, Requests
from tarry.sqs.refusals import error_code, is_denied
from tarry.support.guards import text_of
from tarry.support.values import INFO, PAGES, WARNING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Invocation
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.observe.logs import Log
    from tarry.run.deadline import Deadline
    from tarry.run.idempotency_layer import Idempotency
    from tarry.world import World

LONGEST_FUNCTION_SECONDS = 900  # how long a function runs at most, if its context does not tell
UNKNOWN_WAIT_SECONDS = 60  # how long to wait for a record in progress that does not say how long it counts
SHORTEST_WAIT_BEHIND_SECONDS = 5  # how long a message waits at first for another one of its batch that has the same key
ENDING_SHARE = 0.5  # the share of an invocation's time that settling and the ends of claims may take at most
BATCH_SHARE = 0.5  # the share of the time left that a batch handler has at least, if its messages take long to claim
MOST_BATCH_SHARE = 0.9  # of the time left, at most kept for a batch handler, however long it has been taking
BATCH_SLACK = 1.25  # how much longer than the last one a batch handler may take: no time to spare is kept for it
SETTLING_SHARE = 0.75  # the share of the time for settling that the ends of claims leave at least
CONNECTED_SECONDS = 10  # for how long after an answer the client is expected to have a connection to the table
REQUESTS_OF_END = 2  # the requests that end a claim: one if the message is done, otherwise two


class MessageClaim:
    """A message's claim: its handler runs, or another delivery's does."""

    is_held = False  # whether the handler may run
    is_certain = False  # whether the record is certainly this delivery's own
    is_open = False  # whether there may be a record that is to be ended
    is_abandoned = False  # whether the handler may still run although its message was decided
    back_at: float | None = None  # when the message runs again, in epoch seconds; None if it does not
    seconds_elsewhere: int | None = None  # for how long another delivery may still run the message, if one does

    def __init__(self, claims: Claims, delivery: Delivery, key: str, in_progress_until: int, expires_at: int) -> None:
        self._claims = claims
        self.delivery = delivery
        self.key = key
        self.in_progress_until = in_progress_until  # when an open record stops to count, in epoch milliseconds
        self.expires_at = expires_at  # in epoch seconds; partly random, to recognize the record

    def end(self, outcome: Outcome) -> None:
        """Complete the record of a message that is done; remove that of any other. Makes requests, and blocks."""
        self._claims.end_all([(self, outcome)])


def batch_times(_: World) -> dict[Idempotency, tuple[float, int]]:
    """Return how long batch handlers have been taking in this process: the seconds, and for how many messages."""
    return {}


def answer_times(_: World) -> dict[Idempotency, float]:
    """Return when each table answered last in this process, by the monotonic clock."""
    return {}


class Claims:
    """The claims of one invocation."""

    # No message is claimed unless, by what requests and handlers took so far, it can run and its claim end (SPEC K4).
    def __init__(self, idempotency: Idempotency, invocation: Invocation, log: Log, deadline: Deadline) -> None:
        self._idempotency = idempotency
        self._records = idempotency.records
        self._invocation = invocation
        self._log = log
        self._deadline = deadline
        if invocation.began_with != math.inf:
            deadline.most_ending = invocation.began_with * ENDING_SHARE - deadline.margin
        self._monotonic = invocation.world.clock.monotonic
        self._answered_at = invocation.world.keep(answer_times)
        self._longest_request = longest_request(idempotency.layer)
        self._keys: set[str] = set()
        self._open: set[str] = set()  # the keys of the claims whose records were requested, and are not ended
        self._request_seconds = 0.0  # how long a request takes, as measured; 0 if none was answered yet
        self._at_once = MAX_REQUESTS
        self._batch_seconds: Callable[[int], float] | None = None
        """Returns how much time to leave a batch handler for a number of messages; None for one of single messages."""
        self._has_first = self._has_warned = self._has_logged_late = False

    # before the handler runs

    def claim(self, message: Message[Any]) -> bool:
        """Claim a message; return whether its handler may run. Blocks.

        If not, it was already processed (it has no claim), another delivery runs it (`MessageClaim.seconds_elsewhere`),
        or there is no time for it.

        Raises:
            ConfigurationError: The table is missing, or has another key.
            IdempotencyKeyError: The expression finds no key.
        """
        delivery, is_first = delivery_of(message), self._is_first()
        if (work := self._start(delivery)) is not None:
            has_time = is_first or self._has_time()
            answer = answers_of([work], self._invocation, longest=self._longest)[0] if has_time else TableNotAsked()
            self._take(delivery, answer)
            if self._is_late(delivery, is_first):
                self._take_late(delivery, self._is_last_delivery(delivery))
        return delivery.claim is not None and delivery.claim.is_held

    async def claim_async(self, message: Message[Any]) -> bool:
        """Claim a message as `claim` does, without blocking the event loop."""
        delivery, is_first = delivery_of(message), self._is_first()
        if (work := self._start(delivery)) is not None:
            has_time = is_first or self._has_time()
            self._take(delivery, await answer_to_task(work, self._invocation) if has_time else TableNotAsked())
            if self._is_late(delivery, is_first):
                answer = await answer_to_task(partial(self._is_last_delivery, delivery), self._invocation)
                self._take_late(delivery, answer is True)
        return delivery.claim is not None and delivery.claim.is_held

    def begin_batch(self, *, in_order: bool) -> None:
        """Keep time for a batch handler whose messages are claimed next; ``in_order``: one by one, on FIFO."""
        left, deadline = self._invocation.time_left(), self._deadline
        most, half = left * MOST_BATCH_SHARE - deadline.margin, left * BATCH_SHARE
        timeout = 0.0 if deadline.timeout is None or deadline.is_timeout_cut else deadline.timeout
        last = self._invocation.world.keep(batch_times).get(self._idempotency)

        def batch_seconds(messages: int) -> float:
            if last is None:
                return min(most, max(half, timeout))
            seconds, of_messages = last  # more messages may take longer
            return min(most, max(timeout, seconds, min(half, seconds * messages / of_messages)))

        self._batch_seconds = batch_seconds
        self._at_once = 1 if in_order else MAX_REQUESTS

    def ran(self, seconds: float, messages: int) -> None:
        """Note how long the batch handler has run; one that was interrupted at the deadline needs longer."""
        needed = seconds * (2 if self._monotonic() >= self._deadline.interrupt_at else BATCH_SLACK)
        self._invocation.world.keep(batch_times)[self._idempotency] = needed, messages

    def claim_all(self, messages: Sequence[Message[Any]]) -> list[BaseException | None]:
        """Claim messages, the most delivered first; return for each the error that `claim` would raise. Blocks."""
        errors: list[BaseException | None] = [None] * len(messages)
        asked: list[tuple[int, Callable[[], Any]]] = []
        for index in sorted(range(len(messages)), key=lambda each: -delivery_of(messages[each]).receive_count):
            try:
                if (work := self._start(delivery_of(messages[index]))) is not None:
                    asked.append((index, work))
            except Exception as error:  # noqa: BLE001 this message fails
                errors[index] = error
        works = [work for _, work in asked]
        answers = answers_of(works, self._invocation, may_begin=lambda: self._is_first() or self._has_time())
        for (index, _), answer in zip(asked, answers, strict=True):
            delivery = delivery_of(messages[index])
            try:
                self._take(delivery, answer)
                if self._is_late(delivery, False):
                    self._take_late(delivery, self._is_last_delivery(delivery))
            except Exception as error:  # noqa: BLE001 as above
                errors[index] = error
        return errors

    def _start(self, delivery: Delivery) -> Callable[[], Found | None] | None:
        """Make the claim of a message, and return the request for it; None if none is to be made."""
        if delivery.claim is not None:
            return None  # it runs again within this delivery
        invocation, key = self._invocation, self._idempotency.key_of(delivery)
        now, left = invocation.now(), invocation.time_left()
        left = LONGEST_FUNCTION_SECONDS if left == math.inf else left
        until = int((now + left) * 1000)
        expires_at = int(now + max(left, self._idempotency.seconds)) + int.from_bytes(os.urandom(2), "big")
        delivery.claim = claim = MessageClaim(self, delivery, key, until, expires_at)
        if key in self._keys:  # another message of this batch with the same key runs, or is not decided yet
            claim.seconds_elsewhere = _seconds_behind(delivery, left)
            return None
        self._keys.add(key)
        return partial(self._begin, claim)

    def _begin(self, claim: MessageClaim) -> Found | None:
        """Make the request of a claim, as a rule in another thread; measure how long it takes."""
        claim.is_open = True
        self._open.add(claim.key)
        began, answered_at = self._monotonic(), -math.inf  # after a failure, the client may have to connect again
        try:
            found = self._records.begin(claim.key, claim.in_progress_until, claim.expires_at)
            answered_at = self._monotonic()
            return found
        finally:
            self._answered_at[self._idempotency] = answered_at
            seconds, before = self._monotonic() - began, self._request_seconds
            if seconds <= PATIENCE_SECONDS:  # else the answer was given up
                self._request_seconds = (before * 3 + seconds) / 4 if before else seconds

    @property
    def _longest(self) -> float:
        """How long a request takes at most; infinite if it may have to connect: no timeout limits looking a name up."""
        is_connected = self._monotonic() - self._answered_at.get(self._idempotency, -math.inf) < CONNECTED_SECONDS
        return self._longest_request if is_connected else math.inf

    def _take(self, delivery: Delivery, answer: Found | Exception | None) -> None:
        claim: Any = delivery.claim
        self._keep_time()
        if isinstance(answer, TableNotAsked):
            return
        if isinstance(answer, Exception):
            if error_code(answer) in ALWAYS_REFUSED:
                self._drop(claim)
                raise ConfigurationError(self._refused(answer)) from answer
            self._log_denied(answer)
            self._warn_unprotected(delivery, answer)
            claim.is_held = True
        elif answer is None:
            claim.is_held = claim.is_certain = True
        elif answer.is_completed:
            self._drop(claim)
            text = (
                "The message was already processed, as its idempotency record shows. "
                "It is acknowledged without running the handler."
            )
            self._log.problem("done_before", text, delivery, level=INFO, key=claim.key)
        else:
            self._close(claim)
            claim.seconds_elsewhere = _seconds_until(answer.in_progress_until, self._invocation.now())

    def _drop(self, claim: MessageClaim) -> None:
        self._close(claim)
        claim.delivery.claim = None

    def _close(self, claim: MessageClaim) -> None:
        """Note that there is no record to end."""
        claim.is_open = False
        self._open.discard(claim.key)
        self._keys.discard(claim.key)

    # time

    def _is_first(self) -> bool:
        """Return whether no message was claimed before: the first one always is."""
        is_first, self._has_first = not self._has_first, True
        return is_first

    def _has_time(self) -> bool:
        """Return whether there is time to claim another message, run its handler, and end the claims."""
        return self._fits(self._request_seconds + self._ends_cost(1) - self._deadline.ending)

    def _fits(self, seconds: float) -> bool:
        """Return whether there is time for a handler beside ``seconds`` of requests, and the ends of open claims."""
        deadline, now = self._deadline, self._monotonic()
        if self._batch_seconds is None:
            return deadline.may_start(now + seconds)
        handler_seconds = self._batch_seconds(len(self._open) + 1)
        return deadline.interrupt_at - now - seconds >= deadline.owed + handler_seconds

    def _ends_cost(self, more: int = 0) -> float:
        rounds = math.ceil((len(self._open) + more) / self._at_once)
        return rounds * REQUESTS_OF_END * self._request_seconds

    def _keep_time(self) -> None:
        """Have handlers leave time to end the claims on their messages."""
        deadline = self._deadline
        left = deadline.ends_at - deadline.margin - deadline.owed - self._monotonic()
        # What slow claims have taken is the ends' time: the handler of a message that is claimed all the same must run.
        spare = left / 2 if self._batch_seconds is None else left - self._batch_seconds(len(self._open))
        deadline.ending = max(0.0, min(self._ends_cost(), deadline.most_ending, spare))

    def _is_late(self, delivery: Delivery, is_first: bool) -> bool:
        """Return whether no time was left to claim a message, or too little is left for its handler."""
        claim: Any = delivery.claim
        if claim is None or claim.seconds_elsewhere is not None:
            return False
        if claim.is_held and self._batch_seconds is None:
            claim.is_held = self._monotonic() < self._deadline.interrupt_at if is_first else self._fits(0)
        return not claim.is_held

    def _is_last_delivery(self, delivery: Delivery) -> bool:
        """Return whether SQS would dead-letter a message if it were released. This may look its queue up."""
        lookups, queue = Lookups(Requests(self._invocation), self._log), delivery.source
        if not lookups.knows(queue) and delivery.receive_count > 1:
            lookups.prepare(queue, lambda: None)  # one request, also for messages that run at once
            return lookups.source(queue).is_last_delivery(delivery)
        return (facts := lookups.known(queue)) is not None and facts.is_last_delivery(delivery)

    def _take_late(self, delivery: Delivery, is_last: bool) -> None:
        """Run a message without time at its last delivery only; the others are released."""
        claim: Any = delivery.claim
        if is_last:
            claim.is_held = True
            if not claim.is_open:  # there is no time to write a record afterwards either
                self._warn_unprotected(delivery, None)
            return
        if not claim.is_open:
            self._close(claim)
        if not self._has_logged_late:
            self._has_logged_late = True
            text = (
                "There was no time left to claim all messages, so the others return to the queue. A request to "
                f"{self._name} takes {self._request_seconds:.2g} seconds. Set a smaller BatchSize, give the function a "
                "longer Timeout, or correct the table's capacity."
            )
            self._log.problem("out_of_time", text, level=WARNING)

    # after the handler has returned

    def end_all(self, ends: Sequence[tuple[MessageClaim, Outcome]]) -> None:
        """Complete or remove the records of claims, several at once, while time to settle is left. Blocks."""
        works = [(*end, work) for end in ends if (work := self._ending(*end)) is not None]
        until = self._deadline.ends_at - self._deadline.margin * SETTLING_SHARE

        def left() -> float:
            return max(0.0, until - self._monotonic())

        def seconds(invocation: Invocation) -> float:
            return min(left(), max(patience(invocation), 1.5 * REQUESTS_OF_END * self._request_seconds))

        requests = [work for _, _, work in works]
        answers = answers_of(requests, self._invocation, seconds, lambda: left() > 0, self._longest)
        for (claim, outcome, _), answer in zip(works, answers, strict=True):
            if isinstance(answer, Exception):
                self._log_denied(answer)
                self._log_not_ended(claim, outcome, answer)
            elif outcome.kind in DONE:
                self._warn_of_short_expiry(claim.delivery)
        for claim, _ in ends:  # only now: before, a message with the same key would meet the record
            self._close(claim)
        self._keep_time()

    def _ending(self, claim: MessageClaim, outcome: Outcome) -> Callable[[], object] | None:
        """Return the request that ends a claim; None if none is to be made."""
        if not claim.is_open:
            return None
        own = claim.key, claim.in_progress_until, claim.expires_at
        if claim.is_abandoned:  # its handler may still run: the record counts until the deadline, or the next run
            if claim.back_at is None or (until := int(claim.back_at * 1000) - 1) >= claim.in_progress_until:
                return None
            return partial(self._records.shorten, *own, until)
        if outcome.kind in DONE:
            expires_at = int(self._invocation.now() + self._idempotency.seconds)
            return partial(self._records.complete, claim.key, expires_at)
        return partial(self._records.remove, *own)

    def _log_not_ended(self, claim: MessageClaim, outcome: Outcome, error: Exception) -> None:
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
        if is_denied(error_code(error)):
            actions = "dynamodb:GetItem, PutItem, UpdateItem and DeleteItem"
            text = (
                f"{self._table} may not be used: {text_of(error, MAX_ERROR_CHARACTERS)}. Handlers run, but a message "
                f"that is delivered twice may run twice. Grant {actions} on the table; see "
                f"{PAGES}/guides/idempotency.md."
            )
            self._log.once(self._invocation.world, "idempotency_denied", text)

    def _warn_unprotected(self, delivery: Delivery, error: Exception | None) -> None:
        """Log that a message runs without a record: the first one of the invocation as a WARNING."""
        text = (
            f"{self._table} could not be asked{_because(error)}, so the handler runs without a record: if the message "
            "is delivered twice, it may run twice."
        )
        if self._has_warned:
            return self._log.problem("unprotected", text, delivery, level=INFO)
        self._has_warned = True
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
        return f"T{self._name[1:]}"

    @property
    def _name(self) -> str:
        name = getattr(self._idempotency.layer, "table_name", None)
        return f"the idempotency table {name}" if isinstance(name, str) else "the idempotency store"


def _because(error: Exception | None) -> str:
    """Return the error for a log line, in parentheses; None if there was no time to ask the table."""
    return f" ({'no time was left' if error is None else text_of(error, MAX_ERROR_CHARACTERS)})"


def _seconds_behind(delivery: Delivery, left: float) -> int:
    """Return for how many seconds a message waits for another one of its batch that has the same key."""
    # Usually the other one has ended when this invocation has; if not, its record then says how long it may still run.
    # Each further wait is twice as long, since each uses up a receive; none is longer than the invocation may last.
    return max(1, math.ceil(min(left, SHORTEST_WAIT_BEHIND_SECONDS << min(delivery.receive_count - 1, 10))))


def _seconds_until(milliseconds: int | None, now: float) -> int:
    if milliseconds is None:
        return UNKNOWN_WAIT_SECONDS
    return max(1, math.ceil(milliseconds / 1000 - now))
