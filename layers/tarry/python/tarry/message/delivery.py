"""One delivery of a message: its record, and its state in this invocation; and the failure of one.

`Message` is the public interface of a delivery. Most messages succeed without one: it is made at the first use.

A `Failure` is what failure steps see, and `FailureStep` their protocol. The default list is ``[RetryInPlace(),
DeadLetter()]``. A step of your own is a class with one method:

    class Page:
        def handle(self, failure, next_step):
            if failure.reason == "fatal":
                page_somebody(failure.error)
            return next_step(failure)

A function with these parameters is a step too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tarry.errors import DelayNotSupported
from tarry.message.message import delivery_of
from tarry.message.outcomes import ACK, Defer, Retry, Verdict, delay_of, name_of_verdict
from tarry.record.attribute import ATTRIBUTE, attempt_number, crashes, is_ours
from tarry.support.values import (
    MAX_VISIBILITY_SECONDS,
    PAGES,
    UNKNOWN_RECEIVE_SECONDS,
    Value,
    epoch_seconds,
    longest_wait,
    queue_arn,
    receive_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from random import Random

    from tarry.message.diagnosis import Diagnosis
    from tarry.message.invocation import Invocation
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.record.attribute import Envelope, FailureRecord
    from tarry.support.values import Notice, QueueArn

    class EndsWithOutcome(Protocol):  # a record in progress: tarry.run.idempotency
        seconds_elsewhere: int | None
        is_held: bool
        is_abandoned: bool
        back_at: float | None

        def end(self, outcome: Outcome, /) -> None: ...


class Delivery:
    """One receive of a message by Lambda. An invocation has one object per delivery id."""

    # Defaults of the class, and no __slots__: most deliveries never set any of these.
    envelope: Envelope | None = None  # the `Tarry` attribute; None if the message has none
    stored: Mapping[str, Any] | None = None  # the attempt store's record of it, empty if it has none; None if not asked
    crashed: tuple[int, ...] = ()  # its earlier deliveries that crashed, once the failure steps were asked
    is_of_crash = False  # whether the failure steps decide on its last run, which crashed: it does not run now
    is_untraced = False  # whether the attempt store did not take it: deliveries unknown to the store count as attempts
    verdict: Verdict | None = None
    verdict_at: float | None = None  # when a batch handler gave its verdict, in epoch seconds (SPEC C11)
    is_closed = False  # whether its handler has ended: a later verdict is ignored
    outcome: Outcome | None = None  # the outcome that tarry decided on
    claim: EndsWithOutcome | None = None  # its idempotency record, until its outcome is known
    failed_now: FailureRecord | None = None  # the record of its failure, while ``on_outcome`` runs
    is_settled = False  # whether no request is left to make for the message
    is_done = False  # whether the message is sent on or deleted, so that it must not be reported as failed
    visible_at: float | None = None  # when the lease ends, in epoch seconds, as SQS last confirmed in this invocation
    is_being_extended = False  # whether its handler extends the lease at this moment: `keepalive` does not
    is_lost = False  # whether the lease is lost: another consumer may have the message
    is_given_up = False
    """Whether the lease is given up, because the message is being deleted, sent on, or returned to its queue: the lease
    is not extended any more, and a refused receipt handle does not count as lost."""

    def __init__(self, record: dict[str, Any], delivery_id: str, invocation: Invocation) -> None:
        self.record = record
        self.delivery_id = delivery_id  # SQS's own ``messageId``
        self.invocation = invocation
        self.source: QueueArn = queue_arn(record.get("eventSourceARN"))  # the queue of the message
        self.receive_count = receive_count(self.system_attribute("ApproximateReceiveCount"))
        self.message: Message[Any]  # the message of the handler, failure steps and hooks; set if one was made

    def __repr__(self) -> str:
        return f"<Delivery of {self.id!r} from {self.queue}>"

    def system_attribute(self, name: str) -> Any:
        """Return an attribute that SQS sets, such as ``SentTimestamp``; None if the record does not have it."""
        attributes = self.record.get("attributes")
        return attributes.get(name) if isinstance(attributes, (dict, Mapping)) else None  # Mapping alone is slow

    @property
    def id(self) -> str:
        return self.envelope.id if self.envelope else self.delivery_id

    @property
    def body(self) -> str:
        body = self.record.get("body")
        return body if isinstance(body, str) else ""

    @property
    def user_attributes(self) -> dict[str, Any]:
        """The message attributes as the event has them, without tarry's own."""
        attributes = self.record.get("messageAttributes")
        if not (isinstance(attributes, (dict, Mapping)) and attributes):
            return {}
        ours = ATTRIBUTE in attributes and is_ours(attributes[ATTRIBUTE])
        return {name: value for name, value in attributes.items() if not (ours and name == ATTRIBUTE)}

    @property
    def queue(self) -> str:
        return self.source.name

    @property
    def group_id(self) -> str | None:
        group = self.system_attribute("MessageGroupId")
        return group if isinstance(group, str) else None

    @property
    def group(self) -> tuple[str, str | None]:
        """The FIFO group; the messages of a queue without a group id form one group."""
        return self.source.text, self.group_id

    @property
    def receipt_handle(self) -> str | None:
        handle = self.record.get("receiptHandle")
        return handle if handle and isinstance(handle, str) else None

    @property
    def first_received_at(self) -> float | None:
        """When SQS first delivered the message, in epoch seconds."""
        return epoch_seconds(self.system_attribute("ApproximateFirstReceiveTimestamp"))

    @property
    def received_at(self) -> float | None:
        """When SQS delivered the message this time, in epoch seconds; known only for a first receive, else None."""
        return self.first_received_at if self.receive_count == 1 else None

    @property
    def sent_to_queue_at(self) -> float | None:
        """When this copy was sent to the queue, in epoch seconds: its retention counts from then."""
        return epoch_seconds(self.system_attribute("SentTimestamp"))

    @property
    def sent_at(self) -> datetime | None:
        from datetime import UTC, datetime

        if self.envelope and self.envelope.sent:
            return datetime.fromisoformat(self.envelope.sent)
        sent = self.sent_to_queue_at
        return None if sent is None else datetime.fromtimestamp(sent, UTC)

    @property
    def attempt(self) -> int:
        return self._attempt_number[0] - self.is_of_crash

    @property
    def attempts_at_most(self) -> bool:
        """Whether `attempt` may be higher than the number of runs."""
        return self._attempt_number[1]

    @property
    def _attempt_number(self) -> tuple[int, bool]:
        envelope, is_fifo = self.envelope, self.source.is_fifo
        return attempt_number(
            self.receive_count,
            envelope,
            self.stored,
            due=None if envelope is None else self.due,
            first_received_at=None if envelope is None else self.first_received_at,
            behind=is_fifo and self.delivery_id in self.invocation.behind,
            untraced=self.is_untraced,
        )

    @property
    def crashes(self) -> int | None:
        """See `Failure.crashes`."""
        if self.stored is not None:
            return crashes(self.receive_count, self.stored)
        return 0 if self.counts_runs else None

    @property
    def waits_in_place(self) -> int:
        """How often the message may have waited in its queue without an attempt: on FIFO, and with an attempt store."""
        if self.stored is not None:
            return len(self.stored.get("deliveries", ())) - len(self.stored.get("runs", ()))
        return self.receive_count - 1 if self.source.is_fifo else 0

    @property
    def counts_runs(self) -> bool:
        """Whether an attempt store counts the runs of this message, so that other deliveries cost no attempt."""
        invocation = self.invocation
        has_answer = self.stored is not None or self.receive_count == 1
        return has_answer and invocation.attempt_store is not None and not invocation.attempt_store_fails

    @property
    def max_attempts(self) -> int | None:
        return self.invocation.max_attempts_of(self.queue)

    @property
    def failure(self) -> FailureRecord | None:
        return self.envelope.failure if self.envelope else None

    @property
    def due(self) -> float | None:
        """When the message may run, in epoch seconds; None on FIFO, where waiting would block its group."""
        return None if self.envelope is None or self.source.is_fifo else self.envelope.due

    def seconds_until_due(self) -> int | None:
        """Return for how many whole seconds to keep the message invisible before it runs; None if it may run."""
        if (due := self.due) is None:
            return None
        if (now := self.invocation.world.clock.time()) < due:
            return math.ceil(due - now)
        # `attempt_number` does not count a first receive before ``due``, so that one never runs the message, even if
        # ``due`` passed before the invocation began (a batching window): it is made visible at once.
        is_first = str(self.system_attribute("ApproximateReceiveCount")).strip() == "1"  # a missing one is not a first
        first_received_at = self.first_received_at
        return 0 if is_first and first_received_at is not None and first_received_at < due else None

    def longest_wait(self, now: float | None = None) -> int:
        """Return for how many whole seconds from ``now`` SQS can keep the message invisible (12 hours in all)."""
        invocation = self.invocation
        now = invocation.now() if now is None else now
        return longest_wait(received_at=self.received_at, invoked_at=invocation.started_at, now=now)

    def check_delay(self, signal: Retry | Defer, now: float | None = None) -> None:
        """Raise `DelayNotSupported` for a delay that SQS cannot keep (SPEC J4)."""
        seconds = delay_of(signal)
        if seconds is not None and seconds > (longest := self.longest_delay(now)):
            here = " here" if self.source.is_fifo else ""
            why = "SQS keeps a message invisible for at most 43200 seconds from its receive"
            raise DelayNotSupported(
                f"delay must be between 0 and {longest} seconds{here}, got {seconds}: {why}; "
                f"{PAGES}/guides/long-delays.md has a recipe with EventBridge Scheduler"
            )

    def longest_delay(self, now: float | None = None) -> int:
        """Return the longest delay in seconds that SQS can keep: in place on FIFO, else also by a copy that waits."""
        return self.longest_wait(now) if self.source.is_fifo else MAX_VISIBILITY_SECONDS

    def take_verdict(self, verdict: Verdict) -> None:
        """Take a verdict from the handler. The first one counts, and only before the handler has ended."""
        if self.is_closed or self.verdict is not None:
            self.ignore(verdict, None if self.is_closed else self.verdict)
            return
        self.verdict = verdict
        if verdict is ACK:
            self.ack_eagerly()
        elif self.invocation.batch is not None:
            self.verdict_at = self.invocation.now()
            if (on_verdict := self.invocation.on_verdict) is not None:
                on_verdict(self)

    def ack_eagerly(self) -> None:
        """Delete the message while its handler runs, with ``ack="eager"``; not on FIFO, where the next would come."""
        if self.can_be_deleted_now and (acks := self.invocation.acks) is not None:
            self.verdict = ACK
            acks.add(self)

    @property
    def can_be_deleted_now(self) -> bool:
        is_free = not self.is_closed and (self.verdict is None or self.verdict is ACK)
        return is_free and not self.source.is_fifo and self.invocation.acks is not None

    def ignore(self, verdict: Verdict, earlier: Verdict | None) -> None:
        """Log a verdict that comes too late: after an earlier one, or after the handler has ended (None)."""
        why = "its handler had ended" if earlier is None else f"{name_of_verdict(earlier)} was given before"
        self.invocation.log.ignored(self, name_of_verdict(verdict), why)


# SQS's defaults, used if the queue's attributes cannot be read
ASSUMED_VISIBILITY_TIMEOUT_SECONDS = 30
ASSUMED_RETENTION_SECONDS = 4 * 86_400

MARGIN_SECONDS = 3_600  # A wait is too long if it ends less than an hour before the message expires (SPEC C10)
MARGIN_SHARE = 1 / 12  # of a retention below 12 hours, where an hour would be too large a part


class QueueFacts(Value):
    """The attributes of a source queue that decisions depend on; None for one that is unset or unknown."""

    dead_letter: QueueArn | None = None  # the dead-letter queue of its redrive policy
    max_receive_count: int | None = None
    visibility_timeout: int | None = None  # in seconds, like ``retention``
    retention: int | None = None
    error: Exception | None = None  # the error of the look-up, if the attributes are unknown

    def is_last_delivery(self, delivery: Delivery) -> bool:
        """Return whether SQS moves a message to the dead-letter queue, with no failure record, at its next receive."""
        return self.max_receive_count is not None and delivery.receive_count >= self.max_receive_count

    def seconds_left_if_short(self, delivery: Delivery, delay: float, now: float) -> float | None:
        """Return the seconds until the message expires, if it does before or soon after a wait of ``delay`` seconds."""
        sent_at, started_at = delivery.sent_to_queue_at, delivery.invocation.started_at
        if sent_at is None:
            return None
        retention = ASSUMED_RETENTION_SECONDS if self.retention is None else self.retention
        expires_at = sent_at + retention
        if expires_at <= started_at - UNKNOWN_RECEIVE_SECONDS:
            return None  # older than any message can be: a sample event, run by hand
        return expires_at - now if expires_at < now + delay + min(MARGIN_SECONDS, retention * MARGIN_SHARE) else None

    def would_expire(self, delivery: Delivery, delay: float, now: float) -> bool:
        """Return whether the message expires before, or soon after, it has waited ``delay`` seconds in its queue."""
        return self.seconds_left_if_short(delivery, delay, now) is not None


NextStep: TypeAlias = "Callable[[Failure], Outcome]"


class Failure(Value):
    """One failed attempt, as failure steps see it."""

    message: Message[Any]
    error: BaseException | None
    """The exception; None if the handler called `Message.retry` without one."""
    attempt: int
    """The attempt that failed, from 1."""
    queue: str
    """The name of the queue that the message came from."""
    reason: str
    """``error``, ``exhausted``, ``fatal``, ``rejected``, ``undecodable`` or ``expiring``."""
    failed_at: float
    """When the handler failed, in epoch seconds."""
    diagnosis: Diagnosis | None
    """The error as text. The exception's frames are freed when the steps have decided."""
    delay: int | None = None
    """The delay in seconds that the handler, or ``retry_when``, asked for."""
    until: float | None = None
    """The moment that the handler asked for with a ``datetime``, in epoch seconds; else None."""
    said: str | None = None
    """The text of ``raise Reject("text") from error``; else None."""
    tries: int = 1
    """The number of the run within this delivery, from 1 (`LocalRetry`)."""
    was_requested: bool = False
    """Whether the handler asked for this by a verdict or a signal, and not by an error."""
    does_not_fit: bool = False
    """Whether there is no space for a record beside the message, so that no copy can be sent."""
    context: StepContext | None = None
    """Set while the steps are asked."""

    def __init__(
        self,
        message: Message[Any],
        error: BaseException | None,
        reason: str,
        delay: int | None = None,
        *,
        failed_at: float | None = None,
        diagnosis: Diagnosis | None = None,
        **more: Any,
    ) -> None:
        delivery = delivery_of(message)
        if diagnosis is None and error is not None:  # made by hand, to test a step
            from tarry.message.diagnosis import diagnose

            diagnosis = diagnose(error)
        failed_at = delivery.invocation.now() if failed_at is None else failed_at
        super().__init__(message, error, delivery.attempt, delivery.queue, reason, failed_at, diagnosis, delay, **more)

    changed = Value._changed

    @cached_property
    def delivery(self) -> Delivery:
        return delivery_of(self.message)

    @property
    def was_deferral(self) -> bool:
        """Whether the handler deferred the message, which would expire while it waits."""
        return self.reason == "expiring" and self.diagnosis is None and not self.was_requested

    @property
    def policy_delay(self) -> float | None:
        """The delay in seconds that the policy sets after this attempt; None for a failure made by hand."""
        return None if self.context is None else self.context.policy_delay(self)

    @property
    def asks_for_retry(self) -> bool:
        """Whether the handler, or ``retry_when``, asked for another attempt."""
        return self.reason == "error" and (self.was_requested or self.delay is not None)

    def note(self, id: str) -> int | str:
        """Return the note that a step wrote under ``id`` on an earlier copy (`Outcome.resend`); 0 if there is none.

        A note is a whole number from 0 to 1,000, or a text of at most 256 characters. `SendAgain` counts its copies
        under its id.
        """
        envelope = self.delivery.envelope
        if envelope is None:
            return 0
        return envelope.notes[id] if id in envelope.notes else envelope.steps.get(id, 0)

    @property
    def crashes(self) -> int | None:
        """How many earlier deliveries left no trace: the process died, or Lambda did not run the function.

        None without an attempt store (``attempts=``).
        """
        return self.delivery.crashes


class StepContext:
    """Further arguments of tarry's own steps, made anew each time the steps are asked."""

    __slots__ = ("_drawn", "is_expiring", "notices", "policy", "rng", "time_left")

    def __init__(self, rng: Random, time_left: Callable[[], float]) -> None:
        self.policy: Any = None  # the consumer's `RetryPolicy`; None for a failure made by hand
        self._drawn: tuple[int, float] | None = None  # the attempt whose delay was drawn, and the delay
        self.rng = rng
        self.time_left = time_left  # the seconds until Lambda kills the process; an earlier step may have taken some
        self.notices: list[Notice] = []  # log lines that the steps ask for
        self.is_expiring = False  # whether they were asked again: the message would expire during its wait

    def policy_delay(self, failure: Failure) -> float | None:
        """Return the seconds that the policy waits after an attempt, drawn once; None without a policy."""
        if self.policy is None:
            return None
        if self._drawn is None or self._drawn[0] != failure.attempt:
            seconds, why = self.policy.delay_after(failure.attempt, fifo=failure.delivery.source.is_fifo, rng=self.rng)
            self._drawn = failure.attempt, seconds
            if why is not None:
                self.notice("backoff_failed", f"{why}. The default backoff sets this delay.")
        return self._drawn[1]

    def is_policy_delay(self, outcome: Outcome) -> bool:
        """Return whether the delay of a retry is the policy's, as drawn for this failure."""
        return self._drawn is not None and outcome.kind == "retry" and outcome.delay == math.ceil(self._drawn[1])

    def notice(self, event: str, text: str, error: BaseException | None = None) -> None:
        """Ask for a log line, once."""
        from tarry.support.values import Notice

        if (notice := Notice(event, text, error)) not in self.notices:
            self.notices.append(notice)


class FailureStep(Protocol):
    """A failure step: an object with this method."""

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        """Return an outcome, or ``next_step(failure)``. If it raises, the message stays in its queue."""


Step: TypeAlias = "FailureStep | Callable[[Failure, NextStep], Outcome]"
"""An element of ``on_failure``: a failure step, or a function with the parameters of `FailureStep.handle`."""
