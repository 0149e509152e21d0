"""One delivery of a message: its record, and its state in this invocation.

`Message` is the public interface of a delivery. Most messages succeed without one: it is made at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tarry.errors import DelayNotSupported
from tarry.message.signals import Defer, Retry, delay_of
from tarry.message.verdicts import ACK, Verdict, name_of_verdict
from tarry.record.attribute import attempt_number, crashes, is_upper_bound, receive_count, seconds_until_due
from tarry.support.delays import MAX_VISIBILITY_SECONDS, epoch_seconds, longest_wait
from tarry.support.values import queue_arn

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Protocol

    from tarry.message.invocation import Invocation
    from tarry.message.message import Message
    from tarry.message.outcomes import Outcome
    from tarry.record.attribute import Envelope, FailureRecord
    from tarry.support.values import QueueArn

    class EndsWithOutcome(Protocol):
        """A message's record in progress (`tarry.run.idempotency`)."""

        seconds_elsewhere: int | None
        is_held: bool
        is_abandoned: bool
        back_at: float | None

        def end(self, outcome: Outcome, /) -> None: ...


class Delivery:
    """One receive of a message by Lambda. An invocation has one object per delivery id."""

    # Defaults of the class, and no __slots__: most deliveries never set any of these.
    envelope: Envelope | None = None
    """The `Tarry` attribute; None if the message has none."""
    stored: Mapping[str, Any] | None = None
    """The attempt store's record of this delivery id, empty if there is none; None if the store was not asked."""
    crashed: tuple[int, ...] = ()
    """The earlier deliveries whose runs crashed, once the failure steps were asked (`tarry.run.order`)."""
    is_of_crash = False
    """Whether the failure steps decide on the last run, which crashed: the message does not run in this delivery."""
    is_untraced = False
    """Whether the attempt store did not take this delivery: those that it does not know count as attempts."""
    verdict: Verdict | None = None
    verdict_at: float | None = None
    """When a batch handler gave its verdict, in epoch seconds (SPEC C11)."""
    is_closed = False
    """Whether its handler has ended: a later verdict is ignored."""
    outcome: Outcome | None = None
    """The outcome that tarry decided on."""
    claim: EndsWithOutcome | None = None
    """Its idempotency record, from before its handler runs until its outcome is known; None without idempotency."""
    failed_now: FailureRecord | None = None
    """The record of its failure in this delivery, while ``on_outcome`` runs; else None."""
    is_settled = False
    """Whether no request is left to make for the message."""
    is_done = False
    """Whether the message is sent on or deleted, so that it must not be reported as failed."""
    visible_at: float | None = None
    """When the lease ends, in epoch seconds, as SQS last confirmed in this invocation."""
    is_being_extended = False
    """Whether its handler extends the lease at this moment: `keepalive` does not do so as well."""
    is_lost = False
    """Whether the lease is lost: another consumer may have the message."""
    is_given_up = False
    """Whether the lease is given up, because the message is being deleted, sent on, or returned to its queue: the lease
    is not extended any more, and a refused receipt handle does not count as lost."""

    def __init__(self, record: dict[str, Any], delivery_id: str, invocation: Invocation) -> None:
        self.record = record
        self.delivery_id = delivery_id
        """SQS's own ``messageId``."""
        self.invocation = invocation
        self.source: QueueArn = queue_arn(record.get("eventSourceARN"))
        """The queue of the message."""
        self.receive_count = receive_count(self.system_attribute("ApproximateReceiveCount"))
        """See `Message.receive_count`."""
        self.message: Message[Any]
        """The message of the handler, failure steps and hooks; set if one was made."""

    def __repr__(self) -> str:
        return f"<Delivery of {self.id!r} from {self.queue}>"

    # the record

    def system_attribute(self, name: str) -> Any:
        """Return an attribute that SQS sets, such as ``SentTimestamp``; None if the record does not have it."""
        attributes = self.record.get("attributes")
        return attributes.get(name) if isinstance(attributes, (dict, Mapping)) else None  # Mapping alone is slow

    @property
    def id(self) -> str:
        """See `Message.id`."""
        return self.envelope.id if self.envelope else self.delivery_id

    @property
    def body(self) -> str:
        """See `Message.body`."""
        body = self.record.get("body")
        return body if isinstance(body, str) else ""

    @property
    def user_attributes(self) -> dict[str, Any]:
        """The message attributes as the event has them, without tarry's own."""
        attributes = self.record.get("messageAttributes")
        if not (isinstance(attributes, (dict, Mapping)) and attributes):
            return {}
        from tarry.record.attribute import ATTRIBUTE, is_ours

        ours = ATTRIBUTE in attributes and is_ours(attributes[ATTRIBUTE])
        return {name: value for name, value in attributes.items() if not (ours and name == ATTRIBUTE)}

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.source.name

    @property
    def group_id(self) -> str | None:
        """See `Message.group_id`."""
        group = self.system_attribute("MessageGroupId")
        return group if isinstance(group, str) else None

    @property
    def group(self) -> tuple[str, str | None]:
        """The FIFO group; the messages of a queue without a group id form one group."""
        return self.source.text, self.group_id

    @property
    def is_behind(self) -> bool:
        """Whether an earlier message of its FIFO group is in this batch."""
        return self.source.is_fifo and self.delivery_id in self.invocation.behind

    @property
    def receipt_handle(self) -> str | None:
        """The receipt handle; None if the record has none."""
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
        """See `Message.sent_at`."""
        from datetime import UTC, datetime

        if self.envelope and self.envelope.sent:
            return datetime.fromisoformat(self.envelope.sent)
        sent = self.sent_to_queue_at
        return None if sent is None else datetime.fromtimestamp(sent, UTC)

    # attempts

    @property
    def attempt(self) -> int:
        """See `Message.attempt`."""
        return attempt_number(self.receive_count, self.envelope, self.stored, **self._counting) - self.is_of_crash

    @property
    def attempts_at_most(self) -> bool:
        """Whether `attempt` may be higher than the number of runs."""
        return is_upper_bound(self.receive_count, self.envelope, self.stored, **self._counting)

    @property
    def _counting(self) -> dict[str, Any]:
        if self.envelope is None and not self.source.is_fifo and not self.is_untraced:
            return {}
        due = self.due
        first_received_at = None if due is None else self.first_received_at
        return {
            "due": due,
            "first_received_at": first_received_at,
            "behind": self.is_behind,
            "untraced": self.is_untraced,
        }

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
        """See `Message.max_attempts`."""
        return self.invocation.max_attempts_of(self.queue)

    @property
    def failure(self) -> FailureRecord | None:
        """The failure record of earlier failures; None if there is none."""
        return self.envelope.failure if self.envelope else None

    # waiting

    @property
    def due(self) -> float | None:
        """When the message may run, in epoch seconds; None on FIFO, where waiting would block its group."""
        return None if self.envelope is None or self.source.is_fifo else self.envelope.due

    def seconds_until_due(self) -> int | None:
        """Return for how many seconds to keep the message invisible before it runs; None if it may run."""
        now = self.invocation.world.clock.time()
        receives = self.system_attribute("ApproximateReceiveCount")
        return seconds_until_due(self.due, self.first_received_at, receives, now)

    def longest_wait(self, now: float | None = None) -> int:
        """Return for how many whole seconds from ``now`` SQS can keep the message invisible (12 hours in all)."""
        invocation = self.invocation
        now = invocation.now() if now is None else now
        return longest_wait(received_at=self.received_at, invoked_at=invocation.started_at, now=now)

    def check_delay(self, signal: Retry | Defer, now: float | None = None) -> None:
        """Raise `DelayNotSupported` for a delay that SQS cannot keep (SPEC J4)."""
        seconds = delay_of(signal) or 0
        if seconds > (longest := self.longest_delay(now)):
            here = " here" if self.source.is_fifo else ""
            why = "SQS keeps a message invisible for at most 43200 seconds from its receive"
            raise DelayNotSupported(
                f"delay must be between 0 and {longest} seconds{here}, got {seconds}: {why}; "
                "docs/guides/long-delays.md has a recipe with EventBridge Scheduler"
            )

    def longest_delay(self, now: float | None = None) -> int:
        """Return the longest delay in seconds that SQS can keep: in place on FIFO, else also by a copy that waits."""
        return self.longest_wait(now) if self.source.is_fifo else MAX_VISIBILITY_SECONDS

    # the verdict

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
        """Delete the message while its handler runs, with ``ack="eager"``.

        On FIFO it is deleted after the handler has returned: the next message of its group must not come before.
        """
        if self.can_be_deleted_now and (acks := self.invocation.acks) is not None:
            self.verdict = ACK
            acks.add(self)

    @property
    def can_be_deleted_now(self) -> bool:
        """Whether an acknowledgement may delete the message while its handler still runs."""
        is_free = not self.is_closed and (self.verdict is None or self.verdict is ACK)
        return is_free and not self.source.is_fifo and self.invocation.acks is not None

    def ignore(self, verdict: Verdict, earlier: Verdict | None) -> None:
        """Log a verdict that comes too late: after an earlier one, or after the handler has ended (None)."""
        why = "its handler had ended" if earlier is None else f"{name_of_verdict(earlier)} was given before"
        self.invocation.log.ignored(self, name_of_verdict(verdict), why)
