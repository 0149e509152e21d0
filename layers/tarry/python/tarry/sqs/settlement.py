"""Carrying out what was decided: sends with their deletes, then delayed retries, then what is given back.

A message that waits does so in place. Where that would count an attempt that was none (a deferral), is longer than SQS
hides a message, or than its queue keeps it, a copy is sent to its queue and waits in its stead.

A settlement that fails changes no other message's fate: whatever is not done for certain stays reported as failed,
and SQS delivers it again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.causes import is_a, text_of
from tarry.decision import Decision, ask_steps
from tarry.delay import MAX_VISIBILITY_SECONDS, whole_seconds
from tarry.failure import Failure
from tarry.outcome import Outcome
from tarry.sqs.client import Requests
from tarry.sqs.copies import CannotSendAgain, CopyWriter
from tarry.sqs.deletes import delete
from tarry.sqs.expiry import seconds_left_if_short
from tarry.sqs.leases import Hidden, Hide, change_visibility
from tarry.sqs.limits import tens
from tarry.sqs.lookups import Lookups
from tarry.sqs.permissions import SEND_TO_ITSELF
from tarry.sqs.refusals import Refused, is_refused_for_good, is_stale_handle, may_be_applied
from tarry.sqs.sending import Copy, Sent, send_on
from tarry.telemetry.logs import MAX_FIELD_BYTES, WARNING, Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tarry.arn import QueueArn
    from tarry.failure import FailureSteps
    from tarry.invocation import Invocation
    from tarry.message import Message
    from tarry.policy import RetryPolicy


SENT_AWAY = frozenset({"dead_letter", "resend"})
WAITS = frozenset({"retry", "defer", "wait"})

SHORTEST_CUT_SECONDS = 60  # no wait is cut below, for the sake of an expiry that may be a guess

REPEAT_ON_FIFO_SECONDS = 240
"""SQS swallows the second copy of a message for five minutes: when it is not known whether there was a first."""


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
        self._not_sent: dict[str, str] = {}
        self._perhaps_sent: set[str] = set()
        """On FIFO, what SQS may have, or not."""
        self._refused: set[str] = set()
        """What was not sent for certain, nor will be the next time: it is in no queue but its own."""
        self._longest: dict[bool, int] = {}

    def is_last_delivery(self, message: Message[Any]) -> bool:
        """Whether SQS would move it to the dead-letter queue, bare, at its next receive (SPEC C8)."""
        limit = self._lookups.source(message._source)[0].max_receive_count
        return limit is not None and message.receive_count >= limit

    def would_expire(self, message: Message[Any], delay: float) -> bool:
        """Whether its queue has dropped it, or is about to, when it has waited so many seconds in place (SPEC C10)."""
        return seconds_left_if_short(message, delay, self._lookups) is not None

    def send_away(self, decisions: Sequence[Decision]) -> set[str]:
        """Sends on what was decided so; the delivery ids of those that are done with for certain."""
        lost = self._invocation.leases.lost
        self._send(self._copy_of(decision) for decision in decisions if decision.message.delivery_id not in lost)
        return {decision.message.delivery_id for decision in decisions} & self.away

    def finish(self, decisions: Sequence[Decision]) -> None:
        """Carries out what is left to do."""
        undecided = [decision for decision in decisions if decision.message.delivery_id not in self._decided]
        leaving = [each for each in undecided if each.outcome.kind in SENT_AWAY or self._waits_as_copy(each)]
        self.send_away(leaving)
        self._send(self._last_way(each.message) for each in leaving if each.message.delivery_id in self._refused)
        lost = self._invocation.leases.lost
        self._leave([each for each in decisions if each.message.delivery_id in lost - self.away])
        gone = self.away | lost
        staying = [
            self._decided.get(decision.message.delivery_id, decision)
            for decision in decisions
            if decision.message.delivery_id not in gone
        ]
        self._hide([decision for decision in staying if decision.outcome.kind != "release"])
        self._hide([decision for decision in staying if decision.outcome.kind == "release"])

    def delete(self, messages: Sequence[Message[Any]]) -> None:
        """Deletes what is acknowledged: there will be no answer after which Lambda does."""
        by_queue: dict[QueueArn, list[Message[Any]]] = {}
        for message in messages:
            by_queue.setdefault(message._source, []).append(message)
        chunks = [chunk for of_queue in by_queue.values() for chunk in tens(of_queue)]
        answers = self._lookups.requests.all([partial(delete, chunk, self._lookups) for chunk in chunks])
        for chunk, answer in zip(chunks, answers, strict=True):
            errors = (
                dict.fromkeys((each.delivery_id for each in chunk), answer) if isinstance(answer, Exception) else answer
            )
            for message in chunk:
                if (error := errors.get(message.delivery_id)) is not None:
                    self._lookups.warn(error, "delete_message_batch", message._source)
                    text = "it is acknowledged, and could not be deleted: it is delivered again"
                    self._log.problem("delete_failed", text, message, error=error, level=WARNING)

    # sending

    def _send(self, made: Iterable[Copy | None]) -> None:
        copies = [copy for copy in made if copy is not None]
        self._find_lost_leases(copies)
        leases = self._invocation.leases
        leases.given_up.update(copy.message.delivery_id for copy in copies)
        for sent in send_on([copy for copy in copies if copy.message.delivery_id not in leases.lost], self._lookups):
            self._note_sent(sent, self._decided[sent.copy.message.delivery_id])

    def _waits_as_copy(self, decision: Decision) -> bool:
        """Whether it waits as a copy of its own, rather than in place."""
        message, outcome = decision.message, decision.outcome
        if message._source.is_fifo or outcome.kind == "release":
            return False
        longest, seconds = message._longest_wait(), self._seconds_to_wait(decision)
        was_asked_for = outcome.kind == "retry" and not decision.by_backoff
        is_too_long = was_asked_for and longest < seconds <= MAX_VISIBILITY_SECONDS
        return outcome.kind == "defer" or is_too_long or self._would_expire_here(decision)

    def _would_expire_here(self, decision: Decision) -> bool:
        longest = decision.message._longest_wait()
        return self.would_expire(decision.message, min(longest, self._seconds_to_wait(decision)))

    def _copy_of(self, decision: Decision) -> Copy | None:
        """The copy to send; None if there is none, and the message stays."""
        message, failure, kind = decision.message, decision.failure, decision.outcome.kind
        self._decided[message.delivery_id] = decision
        now = decision.failed_at or self._now()
        try:
            if kind not in SENT_AWAY:
                return self._writer.waiting(decision, self._seconds_as_copy(decision), now)
            if failure is None:
                return None
            if kind == "dead_letter":
                return self._writer.dead_letter(failure, decision, now)
            return self._writer.again(failure, decision, now)
        except BaseException as error:  # noqa: BLE001 whatever it is, the message is still in its queue
            if is_a(error, CannotSendAgain) and failure is not None and kind in SENT_AWAY:
                self._log.problem("step_passed_on", f"{error}: the next failure step is asked", message)
                return self._ask_further(failure, now)
            self._not_sent[message.delivery_id] = text_of(error, MAX_FIELD_BYTES)
            self._refused.add(message.delivery_id)
            return None

    def _last_way(self, message: Message[Any]) -> Copy | None:
        """For what cannot go as it should, and would expire where it is: a copy in place of a letter, or the reverse.

        A message that was not due is left where it is: its handler has not run (SPEC C9).
        """
        decision = self._decided[message.delivery_id]
        kind, failed_at = decision.outcome.kind, decision.failed_at or self._now()
        if kind == "wait" or decision.trouble is not None or not self._would_expire_here(decision):
            return None
        if kind in SENT_AWAY:
            return self._copy_of(Decision(message, Outcome.unhandled(), decision.failure, failed_at))
        failure = decision.failure or Failure(message, None, "expiring")
        return self._ask_further(failure.changed(reason="expiring"), failed_at)

    def _ask_further(self, failure: Failure, failed_at: float) -> Copy | None:
        """What the failure steps say of a message that cannot be sent again."""
        message = failure.message
        steps = self._steps.of(failure.queue)
        passed = failure.changed(does_not_fit=True)
        decision = ask_steps(passed, failed_at, self._policy, steps, self)
        if decision.outcome.kind in ("resend", "again"):
            decision = Decision(message, Outcome.unhandled(), passed, failed_at)
        self._decided[message.delivery_id] = decision
        if decision.outcome.kind in ("ack", "discard"):
            self.away.add(message.delivery_id)
            self._transition(decision, decision.outcome, None)
        leaves = decision.outcome.kind == "dead_letter" or self._waits_as_copy(decision)
        return self._copy_of(decision) if leaves else None

    def _leave(self, decisions: Sequence[Decision]) -> None:
        """Tells of those whose lease is lost: whatever was decided, they are only reported as failed."""
        for decision in decisions:
            outcome = Outcome.unhandled() if decision.outcome.kind in SENT_AWAY else decision.outcome
            self._transition(decision, outcome, None, not_settled="its lease is lost: it is only reported as failed")

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
                self._invocation.leases.lose(message)

    def _note_sent(self, sent: Sent, decision: Decision) -> None:
        message = sent.copy.message
        if sent.error is not None:
            self._not_sent[message.delivery_id] = f"{sent.copy.target.name}: {sent.error}"
            if sent.copy.target.is_fifo and may_be_applied(sent.error):
                self._perhaps_sent.add(message.delivery_id)
            if is_refused_for_good(sent.error):
                self._refused.add(message.delivery_id)
            operation = SEND_TO_ITSELF if sent.copy.target == message._source else "send_message_batch"
            self._lookups.warn(sent.error, operation, sent.copy.target)
            return
        self.away.add(message.delivery_id)
        where = "dead_letter_queue" if decision.outcome.kind == "dead_letter" else "sent_to"
        more: dict[str, Any] = {where: sent.copy.target.name, **self._why_not_sent(message)}
        delay = None if decision.outcome.delay is None else int(decision.outcome.delay)
        if decision.outcome.kind not in SENT_AWAY:
            delay, wanted = self._seconds_as_copy(decision), self._seconds_to_wait(decision)
            more |= {"asked_for": wanted} if delay < wanted else {}
        self._transition(decision, decision.outcome, delay, **more)
        if sent.not_deleted is not None:
            self._lookups.warn(sent.not_deleted, "delete_message_batch", message._source)
            text = "the message that was sent on is left to Lambda to delete"
            self._log.problem("delete_failed", text, message, error=sent.not_deleted, level=WARNING)

    # waiting

    def _seconds_to_wait(self, decision: Decision) -> int:
        """As long as was decided; what is stuck here waits for the policy's longest delay (SPEC E4)."""
        if decision.outcome.kind in WAITS:
            return int(decision.outcome.delay or 0)
        if decision.outcome.kind == "release":
            return 0
        is_fifo = decision.message._source.is_fifo
        if is_fifo not in self._longest:
            self._longest[is_fifo] = whole_seconds(self._policy.longest_delay(fifo=is_fifo))
        is_perhaps_sent = decision.message.delivery_id in self._perhaps_sent
        return min(self._longest[is_fifo], REPEAT_ON_FIFO_SECONDS) if is_perhaps_sent else self._longest[is_fifo]

    def _seconds_as_copy(self, decision: Decision) -> int:
        return min(MAX_VISIBILITY_SECONDS, self._seconds_to_wait(decision))

    def _hide(self, decisions: Sequence[Decision]) -> None:
        hides: dict[QueueArn, list[Hide]] = {}
        by_id: dict[str, tuple[Decision, int]] = {}
        for decision in decisions:
            message, wanted = decision.message, self._seconds_to_wait(decision)
            by_id[message.delivery_id] = decision, wanted
            hides.setdefault(message._source, []).append(Hide(message, self._seconds_in_place(message, wanted)))
        for hidden in self._change(hides):
            self._note_hidden(hidden, *by_id[hidden.hide.message.delivery_id])

    def _seconds_in_place(self, message: Message[Any], wanted: int) -> int:
        """As long as SQS can hide it. What would expire and could not be sent comes back in time to try that again."""
        seconds = min(wanted, message._longest_wait()) if wanted else 0
        left = seconds_left_if_short(message, seconds, self._lookups) if seconds else None
        return seconds if left is None else min(seconds, max(SHORTEST_CUT_SECONDS, int(left / 2)))

    def _change(self, hides: dict[QueueArn, list[Hide]]) -> Iterable[Hidden]:
        for queue, of_queue in hides.items():
            for hidden in change_visibility(of_queue, queue, self._lookups):
                if hidden.error is not None:
                    self._lookups.warn(hidden.error, "change_message_visibility_batch", queue)
                yield hidden

    def _note_hidden(self, hidden: Hidden, decision: Decision, wanted: int) -> None:
        outcome = decision.outcome
        more: dict[str, Any] = self._why_not_sent(decision.message)
        if outcome.kind in SENT_AWAY:
            more.setdefault("not_sent", "no failure to tell of")
            outcome = Outcome.unhandled()
        if hidden.error is not None:
            more["not_settled"] = f"{hidden.error}; it comes back when the queue's visibility timeout ends"
        elif hidden.hide.seconds < wanted:
            more["asked_for"] = wanted
        self._transition(decision, outcome, None if hidden.error else hidden.hide.seconds, **more)

    # what is said and looked up

    def _now(self) -> float:
        return self._invocation.world.clock.time()

    def _why_not_sent(self, message: Message[Any]) -> dict[str, str]:
        why = self._not_sent.get(message.delivery_id)
        return {} if why is None else {"not_sent": why}

    def _transition(self, decision: Decision, outcome: Outcome, delay: int | None, **more: Any) -> None:
        failure = decision.failure
        if decision.trouble is not None:
            text = "what was raised while it was decided what to do leaves the message in its queue"
            self._log.problem("step_failed", text, decision.message, error=decision.trouble)
        reason = outcome.reason or (failure.reason if failure is not None else None)
        error = failure.error if failure is not None else None
        failed = failure is not None and outcome.kind in ("ack", "discard")
        self._log.transition(decision.message, outcome, error=error, delay=delay, reason=reason, failed=failed, **more)
