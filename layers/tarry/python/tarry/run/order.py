"""The order in which the messages of a batch run, and isolation: redelivered messages run last (SPEC G4).

On FIFO with an attempt store, which message crashed is known, because its start is written before it runs (SPEC C9).
SQS delivers a message that kills its process together with the messages behind it, and counts the same receives for all
of them. So if the last delivery of a message left no trace, the redelivered messages of its batch run one at a time,
and each is written to the store before it runs. If the run does not end either, it is an attempt that failed: the
failure steps decide on it when the message comes back. At the latest at the queue's last delivery it is dead-lettered
with its record, and the messages behind it run.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tarry.message.invocation import group_of, receives
from tarry.sqs.refusals import MAX_ENTRIES, error_code, is_denied
from tarry.support.values import INFO, WARNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tarry.message.delivery import Delivery
    from tarry.message.invocation import Records
    from tarry.record.attempt_store import AttemptChange
    from tarry.run.run import Run

Item = tuple[str, dict[str, Any]]  # A message id and its record


def fresh_first(records: Records) -> tuple[Iterator[Item], list[list[Item]]]:
    """Return the fresh messages, in the order of the batch, and the redelivered ones, which run later, in groups."""
    groups: dict[object, list[Item]] = {}
    for item in records.items():
        groups.setdefault(group_of(item[1]) or item[0], []).append(item)
    # On a standard queue each is a group. A FIFO group is redelivered if its first message here is; it keeps its order.
    redelivered = [items for items in groups.values() if receives(items[0][1]) > 1]
    if len(redelivered) > 1:
        redelivered.sort(key=_rank)
    ids = {message_id for items in redelivered for message_id, _ in items}
    return iter([item for item in records.items() if item[0] not in ids]), redelivered


def _rank(items: list[Item]) -> tuple[int, bytes]:
    """Return a sort key: fewest deliveries first; equal counts in an order that changes with each delivery."""
    from hashlib import sha256

    message_id, record = items[0]
    count = receives(record)
    return count, sha256(f"{message_id} {count}".encode("utf-8", "surrogatepass")).digest()


NOT_ISOLATED = "Redelivered messages could not be isolated. If the process dies, they come back together."


class Isolation:
    """The redelivered messages of one batch. ``groups`` run in order; after a crash, each comes back on its own."""

    def __init__(self, groups: Sequence[Sequence[Item]], run: Run) -> None:
        self._run = run
        self._left = {message_id: record for items in groups for message_id, record in items}
        self._deliveries = {message_id: receives(items[0][1]) for items in groups for message_id, _ in items}
        """The receive count of each message; on FIFO, that of the first message of its group in the batch."""
        self._left_with = Counter(self._deliveries.values())  # the number of messages not started, by receive count
        self._deletes = MAX_ENTRIES, MAX_ENTRIES  # messages between deletes: before the first, and from then on
        self._started = 0
        self._starts: RunStarts | None = None  # what an attempt store is told; None without one, or on standard queues
        if run.is_fifo and run.invocation.attempt_store is not None:
            self._starts = run.starts = RunStarts(run, [run.invocation.delivery(*item) for item in self._left.items()])
        self.is_done = len(run.records) == 1 or run.invocation.deadline == math.inf
        """Whether `isolate` was called, or is not needed."""
        self.has_whole_batch = len(self._left) == len(run.records)  # whether all messages of the batch are redelivered

    def __contains__(self, message_id: str) -> bool:
        """Return whether a message is redelivered and has not started."""
        return message_id in self._left

    def waiting_behind(self, message_id: str) -> int:
        """Return how many messages with more deliveries wait behind one, which gives way to them if time is short."""
        # Else those messages, last in the order, would be released each time until they reach maxReceiveCount.
        own = self._deliveries.get(message_id, 0)
        return sum(left for count, left in self._left_with.items() if count > own)

    def remove(self, message_id: str) -> None:
        del self._left[message_id]
        self._left_with[self._deliveries[message_id]] -= 1

    def isolate(self) -> None:
        """Delete acknowledged messages, and have the redelivered ones come back one by one, after the deadline."""
        self.is_done = True
        run, invocation = self._run, self._run.invocation
        beyond = invocation.time_left() + run.deadline.margin
        acks = invocation.acks
        if acks is None:
            from tarry.settle.eager_acks import Acks

            acks = invocation.acks = Acks(invocation, run.handling.log, waits=not run.handling.is_async)
        done = [invocation.delivery(*item) for item in run.records.items() if item[0] not in run.pending]
        left = [invocation.delivery(*item) for item in self._left.items()]
        on_standard = [delivery for delivery in left if not delivery.source.is_fifo]
        if len(on_standard) < len(left):
            self._deletes = deletes_on_fifo(len(done), len(left), left[0].receive_count)
        sqs_answers = acks.delete_now(done)
        if sqs_answers and len(on_standard) > 1:
            self._spread(on_standard, beyond)

    @property
    def is_one_by_one(self) -> bool:
        """Whether no message may run beside a redelivered one, so that the one that crashes is known."""
        return self._starts is not None and self._starts.are_written

    def start(self, delivery: Delivery) -> bool:
        """Return whether a redelivered message runs; if so, log it first: a process that it kills writes no more."""
        self.remove(delivery.delivery_id)
        first, others = self._deletes
        if (acks := self._run.invocation.acks) is not None:  # after the last message, Lambda deletes them as early
            acks.together = MAX_ENTRIES if not self._left else first if self._started < first else others
        self._started += 1
        if self._starts is not None:
            if not self._starts.may_run(delivery):
                return False
            if self._run.claims is None:
                self._starts.write(delivery)
        count = delivery.receive_count
        text = (
            f"The message was delivered before and runs in isolation (delivery {count}). "
            "If the process crashes, the last line of this kind names the message that was running."
        )
        self._run.handling.log.problem("isolated_start", text, delivery, level=INFO, receive_count=count)
        return True

    def _spread(self, deliveries: Sequence[Delivery], beyond: float) -> None:
        from tarry.settle.extending import IF_LOST, extend_before_run
        from tarry.settle.requests import spread

        log, changes = self._run.handling.log, spread([[delivery] for delivery in deliveries], beyond)
        results = extend_before_run(changes, self._run.invocation, log, IF_LOST)
        errors = {str(each.error): each.error for each in results if each.error is not None and not each.is_lost}
        for error in errors.values():
            if not is_denied(error_code(error)):
                log.problem("not_set_apart", NOT_ISOLATED, error=error, level=WARNING)


def deletes_on_fifo(done: int, left: int, receive_count: int) -> tuple[int, int]:
    """Return after how many redelivered FIFO messages to delete acknowledged ones: first, and from then on."""
    # If a later message of its group crashes the process, an acknowledged one comes back with the group, and would run
    # each time until it reaches maxReceiveCount. So they are deleted in between, with as many requests as isolating the
    # messages would take, and at other points at each delivery.
    requests = _tens(done + left) + _tens(left) - _tens(done)
    every = math.ceil(left / requests)
    return 1 + receive_count % every, every


def _tens(count: int) -> int:
    return -(-count // MAX_ENTRIES)


class RunStarts:
    """The starts of one batch's redelivered FIFO messages, and of those behind them."""

    def __init__(self, run: Run, deliveries: Iterable[Delivery]) -> None:
        self._run = run
        self.are_written = False  # whether each message is written before it runs
        self._changes: dict[str, AttemptChange] = {}  # the starts that `write` is to write, by delivery id
        for delivery in deliveries:
            self.are_written = self.are_written or _left_no_trace(delivery)
            if _crashed(delivery):  # looked up while no handler runs that would wait for it
                run.verdicts.outcomes.settlement.lookups.source(delivery.source)

    def may_run(self, delivery: Delivery) -> bool:
        """Return whether a message may run and be written; False if it must not, because of a run that crashed."""
        if not delivery.source.is_fifo:
            return True
        crash = None
        if crashed := _crashed(delivery):
            crash = self._run.verdicts.on_crash(delivery, crashed)
            if crash is None:
                return False
        if self.are_written:
            handling = self._run.handling
            from tarry.settle.attempts import start_of

            options = handling.steps.of(delivery.queue).dead_letter
            self._changes[delivery.delivery_id] = start_of(delivery, crash, options, handling.log)
        return True

    def write(self, delivery: Delivery) -> None:
        """Write that a message is about to run, once in an invocation; nothing may keep its handler from it then."""
        # With ``idempotency``, the message is claimed before: one that is not claimed in time has not started.
        if (change := self._changes.pop(delivery.delivery_id, None)) is None:
            return
        from tarry.settle.attempts import tracking_of

        invocation = self._run.invocation
        tracking, acks = tracking_of(invocation, self._run.handling.log), invocation.acks
        if not tracking.start(delivery, change, self._run.pending) and acks is not None:
            acks.delete_now(())  # those that are done must not come back, and be taken for a message that crashed


def _crashed(delivery: Delivery) -> tuple[int, ...]:
    """Return the receive counts of earlier runs that crashed, and on which no failure step has decided."""
    found = delivery.stored["crashed"] if delivery.stored else ()
    return tuple(sorted(count for count in found if count < delivery.receive_count))


def _left_no_trace(delivery: Delivery) -> bool:
    """Return whether it is not known how the message's last delivery ended."""
    stored, last = delivery.stored, delivery.receive_count - 1
    if stored is None or not delivery.source.is_fifo:
        return False
    return last not in stored.get("deliveries", ()) or last in stored["crashed"]
