"""The messages of a batch that have not started: which ones are next, and releasing them if they cannot start."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from tarry.message.invocation import message_of
from tarry.message.message import delivery_of
from tarry.message.notices import WARNING
from tarry.run.deadline import out_of_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.message.message import Message
    from tarry.run.groups import MessageQueue
    from tarry.run.order import Isolation, Item
    from tarry.run.run import Run


class NotStarted:
    """The messages of a run that have not started, in the order in which they will."""

    # Defaults of the class: most batches have no redelivered messages.
    redelivered: Iterator[Item] = iter(())
    """The messages that start after all of `current`."""
    isolation: Isolation | None = None
    """The isolation of the redelivered messages; None if there are none."""
    queue: MessageQueue | None = None
    """The queue for messages from `current` if several may run at once."""
    out_of_time = 0
    """The number of messages released for lack of time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.current: Iterator[Item] = iter(run.records.items())

    def prepare(self, *, runs_batch: bool = False) -> None:
        """Put redelivered messages last (SPEC G4), fetch what settling them needs (C8), and on FIFO renew leases.

        ``runs_batch``: whether all messages run at once, in a batch handler.
        """
        run = self._run
        if run.invocation.are_plain:
            return run.renew_leases()
        from tarry.run.order import fresh_first

        fresh, groups = fresh_first(run.records)
        if not groups:
            return run.renew_leases()
        run.fetch_facts(groups)
        if runs_batch or not run.handling.isolate:
            run.renew_leases()
            comes_first = runs_batch or next(iter(run.records)) in {group[0][0] for group in groups}
        else:
            from tarry.run.order import Isolation

            self.current, self.redelivered = fresh, chain.from_iterable(groups)
            self.isolation = Isolation(groups, run)
            run.renew_leases(groups)
            comes_first = self.isolation.has_whole_batch
        if comes_first:
            run.wait_for_facts()

    def turn_to_redelivered(self) -> None:
        """Make the redelivered messages the current ones: all others have run."""
        self.current, self.redelivered = self.redelivered, iter(())

    def release_out_of_time(self, message: Message[Any]) -> bool:
        """Release a message for lack of time; return whether the other current messages were released too.

        They are not if the message gave way to messages with more deliveries, for which there is still time.
        """
        isolation, message_id = self.isolation, message.delivery_id
        self._run.verdicts.release(delivery_of(message))
        self.out_of_time += 1
        is_redelivered = isolation is not None and message_id in isolation
        if isolation is not None and is_redelivered:
            isolation.remove(message_id)
        if isolation is None or not isolation.waiting_behind(message_id):
            self.out_of_time += self.release_all()
        elif is_redelivered:
            return False
        else:
            self.out_of_time += self._release_current()
        return True

    def log_out_of_time(self) -> None:
        """Log how many messages were released for lack of time."""
        text = out_of_time(len(self._run.records), self.out_of_time)
        self._run.handling.log.problem("out_of_time", text, level=WARNING)

    def release_all(self) -> int:
        """Release all messages that have not started; return how many there were."""
        return self._release_current() + self._release(self.redelivered)

    def _release_current(self) -> int:
        released = 0
        if self.queue is not None:
            for message in self.queue.remove_all():
                self._run.verdicts.release(delivery_of(message))
                released += 1
        return released + self._release(self.current)

    def _release(self, items: Iterator[Item]) -> int:
        """Release messages as far as there is time; report the others only as failed. Return the number of both."""
        run, released = self._run, 0
        until = run.deadline.release_until(run.monotonic())
        for message_id, record in items:
            if run.monotonic() >= until:
                unreleased = 1 + sum(1 for _ in items)
                run.verdicts.outcomes.settlement.report_only(unreleased)
                return released + unreleased
            message = message_of(record, message_id, run.invocation, run.handling.log)
            if not run.waits(message):
                run.verdicts.release(delivery_of(message))
                released += 1
        return released
