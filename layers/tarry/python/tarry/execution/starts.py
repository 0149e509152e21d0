"""On FIFO with an attempt store: which message crashed is known, because its start is written before it runs (SPEC C9).

SQS delivers a message that kills its process together with the messages behind it, and counts the same receives for all
of them. So if the last delivery of a message left no trace, the redelivered messages of its batch run one at a time,
and each is written to the store before it runs. If the run does not end either, it is an attempt that failed: the
failure steps decide on it when the message comes back. At the latest at the queue's last delivery it is dead-lettered
with its record, and the messages behind it run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.attempts.tracking import tracking_of
from tarry.settlement.traces import start_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tarry.delivery import Delivery
    from tarry.execution.run import Run


class RunStarts:
    """The starts of one batch's redelivered FIFO messages.

    Args:
        run: The run of the batch.
        deliveries: Its redelivered messages, and on FIFO those behind them.
    """

    def __init__(self, run: Run, deliveries: Iterable[Delivery]) -> None:
        self._run = run
        self.are_written = False
        """Whether each message is written before it runs."""
        for delivery in deliveries:
            self.are_written = self.are_written or _left_no_trace(delivery)
            if _crashed(delivery):  # looked up while no handler runs that would wait for it
                run.verdicts.outcomes.settlement.facts(delivery)

    def may_run(self, delivery: Delivery) -> bool:
        """Write that a message is about to run. Return False if it must not, because of a run that crashed."""
        if not delivery.source.is_fifo:
            return True
        crash = None
        if crashed := _crashed(delivery):
            crash = self._run.verdicts.on_crash(delivery, crashed)
            if crash is None:
                return False
        if self.are_written:
            invocation, handling = self._run.invocation, self._run.handling
            options = handling.steps.of(delivery.queue).dead_letter
            change, notice = start_of(delivery, crash, options, invocation.now())
            if notice is not None:
                handling.log.notices(delivery, [notice])
            tracking, acks = tracking_of(invocation, handling.log), invocation.acks
            if not tracking.start(delivery, change, self._run.pending) and acks is not None:
                acks.delete_now(())  # those that are done must not come back, and be taken for a message that crashed
        return True


def _crashed(delivery: Delivery) -> tuple[int, ...]:
    """Return the receive counts of earlier runs that crashed, and on which no failure step has decided."""
    found = delivery.stored["crashed"] if delivery.stored else ()
    return tuple(sorted(count for count in found if count < delivery.receive_count))


def _left_no_trace(delivery: Delivery) -> bool:
    """Return whether it is not known how the message's last delivery ended."""
    stored, last = delivery.stored, delivery.receive_count - 1
    if stored is None or last < 1 or not delivery.source.is_fifo:
        return False
    return last not in stored.get("deliveries", ()) or last in stored["crashed"]
