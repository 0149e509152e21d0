"""Carrying out what was decided: sends with their deletes, then delayed retries, then what is given back.

A settlement that fails changes no other message's fate: whatever is not done for certain stays reported as failed,
and SQS delivers it again.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tarry.decision import Decision, ask_steps
from tarry.delay import whole_seconds
from tarry.outcome import Outcome
from tarry.sqs.client import Requests
from tarry.sqs.copies import CannotSendAgain, CopyWriter
from tarry.sqs.leases import Hidden, Hide, change_visibility
from tarry.sqs.lookups import Lookups
from tarry.sqs.refusals import Refused, is_stale_handle
from tarry.sqs.sending import Copy, Sent, send_on
from tarry.telemetry.logs import WARNING, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tarry.arn import QueueArn
    from tarry.failure import Failure, FailureSteps
    from tarry.invocation import Invocation
    from tarry.message import Message
    from tarry.policy import RetryPolicy


SENT_AWAY = frozenset({"dead_letter", "resend"})


class Settlement:
    """The settlement of one invocation."""

    def __init__(self, invocation: Invocation, policy: RetryPolicy, steps: FailureSteps, log: Log) -> None:
        self._invocation = invocation
        self._policy = policy
        self._steps = steps
        self._log = log
        self._lookups = Lookups(Requests(invocation), log)
        self._writer = CopyWriter(steps, self._lookups, log)
        self.away: set[str] = set()
        """The delivery ids of what is done with here, and must not be reported as failed."""
        self._decided: dict[str, Decision] = {}
        """What was tried to send away, with what was decided of it in the end."""
        self._lost: set[str] = set()
        self._not_sent: dict[str, str] = {}

    def is_last_delivery(self, message: Message[Any]) -> bool:
        """Whether SQS would move it to the dead-letter queue, bare, at its next receive (SPEC C8)."""
        limit = self._lookups.source(message._source)[0].max_receive_count
        return limit is not None and message.receive_count >= limit

    def send_away(self, decisions: Sequence[Decision]) -> set[str]:
        """Sends on what was decided so; the delivery ids of those that are done with for certain."""
        copies = [copy for decision in decisions if (copy := self._copy_of(decision)) is not None]
        self._find_lost_leases(copies)
        for sent in send_on([copy for copy in copies if copy.message.delivery_id not in self._lost], self._lookups):
            self._note_sent(sent, self._decided[sent.copy.message.delivery_id])
        return {decision.message.delivery_id for decision in decisions} & self.away

    def finish(self, decisions: Sequence[Decision]) -> None:
        """Carries out what is left to do."""
        leaving = [decision for decision in decisions if decision.outcome.kind in SENT_AWAY]
        self.send_away([decision for decision in leaving if decision.message.delivery_id not in self._decided])
        gone = self.away | self._lost
        staying = [
            self._decided.get(decision.message.delivery_id, decision)
            for decision in decisions
            if decision.message.delivery_id not in gone
        ]
        self._hide([decision for decision in staying if decision.outcome.kind != "release"], self._seconds_to_wait())
        self._hide([decision for decision in staying if decision.outcome.kind == "release"], lambda _: 0)

    # sending

    def _copy_of(self, decision: Decision) -> Copy | None:
        """The copy to send; None if there is none, and the message stays."""
        message, failure = decision.message, decision.failure
        self._decided[message.delivery_id] = decision
        if failure is None:
            return None
        now = decision.failed_at or self._invocation.world.clock.time()
        try:
            if decision.outcome.kind == "dead_letter":
                return self._writer.dead_letter(failure, decision, now)
            return self._writer.again(failure, decision, now)
        except CannotSendAgain as error:
            self._log.problem("step_passed_on", f"{error}: the next failure step is asked", message)
            return self._ask_further(failure, now)
        except Exception as error:  # noqa: BLE001 whatever it is, the message is still in its queue
            self._not_sent[message.delivery_id] = str(error)
            return None

    def _ask_further(self, failure: Failure, failed_at: float) -> Copy | None:
        """What the failure steps say of a message that cannot be sent again."""
        message = failure.message
        steps = self._steps.of(failure.queue)
        passed = failure.changed(does_not_fit=True)
        decision = ask_steps(passed, failed_at, self._policy, steps, self.is_last_delivery)
        if decision.outcome.kind in ("resend", "again"):
            decision = Decision(message, Outcome.unhandled(), passed, failed_at)
        self._decided[message.delivery_id] = decision
        if decision.outcome.kind in ("ack", "discard"):
            self.away.add(message.delivery_id)
            self._transition(decision, decision.outcome, None)
        return self._copy_of(decision) if decision.outcome.kind == "dead_letter" else None

    def _find_lost_leases(self, copies: Sequence[Copy]) -> None:
        """Finds those whose lease is gone. They may be with somebody else by now, and are not sent (SPEC E6).

        Asked only when half of the visibility timeout has passed: before that the lease holds.
        """
        hides: dict[QueueArn, list[Hide]] = {}
        for copy in copies:
            message = copy.message
            timeout = self._lookups.visibility_timeout(message._source)
            if self._invocation.elapsed() >= timeout / 2:
                seconds = min(timeout, message._longest_wait())
                hides.setdefault(message._source, []).append(Hide(message, seconds))
        for hidden in self._change(hides):
            if hidden.error is not None and (isinstance(hidden.error, Refused) or is_stale_handle(hidden.error)):
                message = hidden.hide.message
                text = "SQS refuses its receipt handle: it is not sent on here, only reported as failed"
                self._log.problem("lease_lost", text, message, error=hidden.error, level=WARNING)
                self._lost.add(message.delivery_id)

    def _note_sent(self, sent: Sent, decision: Decision) -> None:
        message = sent.copy.message
        if sent.error is not None:
            self._not_sent[message.delivery_id] = f"{sent.copy.target.name}: {sent.error}"
            self._lookups.warn(sent.error, "send_message_batch", sent.copy.target)
            return
        self.away.add(message.delivery_id)
        where = "dead_letter_queue" if decision.outcome.kind == "dead_letter" else "sent_to"
        delay = None if decision.outcome.delay is None else int(decision.outcome.delay)
        self._transition(decision, decision.outcome, delay, **{where: sent.copy.target.name})
        if sent.not_deleted is not None:
            self._lookups.warn(sent.not_deleted, "delete_message_batch", message._source)
            text = "the message that was sent on is left to Lambda to delete"
            self._log.problem("delete_failed", text, message, error=sent.not_deleted, level=WARNING)

    # waiting

    def _seconds_to_wait(self) -> Callable[[Decision], int]:
        @cache
        def longest(fifo: bool) -> int:
            return whole_seconds(self._policy.longest_delay(fifo=fifo))

        def seconds(decision: Decision) -> int:
            if decision.outcome.kind in ("retry", "defer"):
                return int(decision.outcome.delay or 0)
            return longest(decision.message._source.is_fifo)

        return seconds

    def _hide(self, decisions: Sequence[Decision], seconds_of: Callable[[Decision], int]) -> None:
        hides: dict[QueueArn, list[Hide]] = {}
        by_id: dict[str, tuple[Decision, int]] = {}
        for decision in decisions:
            message, wanted = decision.message, seconds_of(decision)
            by_id[message.delivery_id] = decision, wanted
            seconds = min(wanted, message._longest_wait()) if wanted else 0
            hides.setdefault(message._source, []).append(Hide(message, seconds))
        for hidden in self._change(hides):
            self._note_hidden(hidden, *by_id[hidden.hide.message.delivery_id])

    def _change(self, hides: dict[QueueArn, list[Hide]]) -> Iterable[Hidden]:
        for queue, of_queue in hides.items():
            for hidden in change_visibility(of_queue, queue, self._lookups):
                if hidden.error is not None:
                    self._lookups.warn(hidden.error, "change_message_visibility_batch", queue)
                yield hidden

    def _note_hidden(self, hidden: Hidden, decision: Decision, wanted: int) -> None:
        outcome = decision.outcome
        more: dict[str, Any] = {}
        if outcome.kind in SENT_AWAY:
            more["not_sent"] = self._not_sent.get(decision.message.delivery_id, "no failure to tell of")
            outcome = Outcome.unhandled()
        if hidden.error is not None:
            more["not_settled"] = f"{hidden.error}; it comes back when the queue's visibility timeout ends"
        elif hidden.hide.seconds < wanted:
            more["asked_for"] = wanted
        self._transition(decision, outcome, None if hidden.error else hidden.hide.seconds, **more)

    # what is said and looked up

    def _transition(self, decision: Decision, outcome: Outcome, delay: int | None, **more: Any) -> None:
        failure = decision.failure
        if decision.trouble is not None:
            text = "what was raised while it was decided what to do leaves the message in its queue"
            self._log.problem("step_failed", text, decision.message, error=decision.trouble)
        reason = outcome.reason or (failure.reason if failure is not None else None)
        error = failure.error if failure is not None else None
        self._log.transition(decision.message, outcome, error=error, delay=delay, reason=reason, **more)
