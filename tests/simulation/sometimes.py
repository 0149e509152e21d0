"""What a campaign must have met: one that never saw a crash between send and delete has proven nothing about it.

Each of these counts how often its situation was met in one seed's past.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from tarry.sqs.limits import MAX_ATTRIBUTES
from tarry.testing.deliveries import DONE, Delivery
from tarry.testing.history import RecordedHistory

Met = Callable[[RecordedHistory], int]


def count(past: RecordedHistory) -> Counter[str]:
    """How often each situation was met."""
    return Counter({name: met(past) for name, met in SITUATIONS.items()})


def missing(met: Counter[str]) -> list[str]:
    """The situations that were never met."""
    return [name for name in SITUATIONS if not met[name]]


def _deliveries(past: RecordedHistory, holds: Callable[[Delivery], object]) -> int:
    return sum(1 for delivery in past.deliveries() if holds(delivery))


def _said(past: RecordedHistory, holds: Callable[[dict[str, object]], object]) -> int:
    return sum(
        1
        for copy in past.copies.values()
        for lines in copy.log_lines.values()
        for line in lines
        if holds(dict(line.fields))
    )


def _faults(kind: str) -> Met:
    return lambda past: sum(event.fields["kind"] == kind for event in past.faults)


def _events(what: str) -> Met:
    return lambda past: sum(event.what == what for event in past.events)


def _problems(event: str) -> Met:
    return lambda past: sum(each.fields["event"] == event for each in past.problems)


def _answers(kind: str) -> Met:
    return lambda past: sum(
        each.answered is not None and each.answered.fields["kind"] == kind for each in past.invocations.values()
    )


def _crash_between_send_and_delete(past: RecordedHistory) -> int:
    return _deliveries(past, lambda each: each.sends and not each.ended_well and each.copy.end is None) + _deliveries(
        past, lambda each: each.sends and not each.ended_well and _came_again(each)
    )


def _came_again(delivery: Delivery) -> bool:
    return delivery.following is not None


def _redelivered_while_it_runs(past: RecordedHistory) -> int:
    found = 0
    for copy in past.copies.values():
        for first, second in pairwise(copy.deliveries):
            if first.invocation and first.invocation.answered and second.at < first.invocation.answered.at:
                found += bool(first.runs)
    return found


def _partial_failures(past: RecordedHistory) -> int:
    return sum(0 < len(each.failed) < len(each.batch) and each.ended_well for each in past.invocations.values())


def _blocked_groups(past: RecordedHistory) -> int:
    """Messages given back behind their head."""
    return _said(past, lambda told: told["event"] == "released" and str(told["queue"]).endswith(".fifo"))


def _overlapping_runs(past: RecordedHistory) -> int:
    """Runs that begin while another of the same invocation has not ended."""
    found = 0
    for invocation in past.invocations.values():
        for first, second in pairwise(invocation.runs):
            found += first.ended is None or second.began.at < first.ended.at
    return found


def _kept_alive(past: RecordedHistory) -> int:
    """Leases extended while a handler runs."""
    return _deliveries(
        past,
        lambda each: (
            each.invocation is not None
            and each.invocation.consumed is not None
            and each.invocation.consumed.fields["keepalive"] is not None
            and any(
                run.began.at < hidden.at and (run.ended is None or hidden.at < run.ended.at)
                for run in each.runs
                for hidden in each.hidden
            )
        ),
    )


def _deleted_early(past: RecordedHistory) -> Iterator[Delivery]:
    """What was done with, and deleted before the answer."""
    for copy in past.copies.values():
        end = copy.end
        delivery = copy.delivery(end.fields["receive_count"]) if end is not None and end.what == "deleted" else None
        if end is None or delivery is None or delivery.invocation is None or delivery.sends:
            continue
        if delivery.verdict in DONE and end.fields.get("by") == delivery.invocation.request_id:
            yield delivery


def _acks_that_outlived_their_process(past: RecordedHistory) -> int:
    return sum(not each.ended_well for each in _deleted_early(past))


def _settled_for(reason: str) -> Met:
    return lambda past: _said(past, lambda told: told["state"] == "DEAD_LETTERED" and told.get("reason") == reason)


def _bare_after_crashes(past: RecordedHistory) -> int:
    return sum(
        1
        for copy in past.copies.values()
        if any(copy.all("moved")) and copy.deliveries and not any(each.verdict for each in copy.deliveries)
    )


def _old_handles(past: RecordedHistory) -> int:
    found = 0
    for copy in past.copies.values():
        for first, second in pairwise(copy.deliveries):
            found += any(event.at > second.at for event in first.hidden)
    return found


SITUATIONS: dict[str, Met] = {
    "a crash between send and delete": _crash_between_send_and_delete,
    "a wait cut to the 12 hours": lambda past: _said(past, lambda told: "asked_for" in told),
    "a partial failure": _partial_failures,
    "a blocked group": _blocked_groups,
    "a lost answer": _faults("lost_answer"),
    "a request that hangs": _faults("hang"),
    "an answer that tells of another body": _events("garbled"),
    "entries refused in a batch request": _faults("partial_failure"),
    "a timeout": _answers("timeout"),
    "a crash": _answers("crash"),
    "a duplicate delivery": lambda past: _deliveries(past, lambda each: each.received.fields.get("duplicate")),
    "a message twice in one batch": lambda past: sum(
        len(set(each.batch)) < len(each.batch) for each in past.invocations.values()
    ),
    "a redelivery while the first still runs": _redelivered_while_it_runs,
    "a message handled twice": lambda past: sum(
        sum(each.verdict in DONE for each in copy.deliveries) > 1 for copy in past.copies.values()
    ),
    "an exhausted message": _settled_for("exhausted"),
    "a rejected message": lambda past: _deliveries(past, lambda each: each.verdict == "reject" and each.sends),
    "a fatal failure": _settled_for("fatal"),
    "an undecodable message": _settled_for("undecodable"),
    "an expiring message": _settled_for("expiring"),
    "an expired message": _events("expired"),
    "a discarded message": lambda past: _said(past, lambda told: told["state"] == "DISCARDED"),
    "a copy that was sent again": lambda past: _said(past, lambda told: told["state"] == "RESENT"),
    "a copy sent to another queue": lambda past: sum(
        copy.came_from is not None and not copy.is_dead_letter and copy.sent_to != copy.came_from.copy.queue
        for copy in past.copies.values()
    ),
    "a copy that waits in a message's stead": lambda past: _said(
        past, lambda told: told["state"] in ("DEFERRED", "WAITING_RETRY") and "sent_to" in told
    ),
    "a transfer that SQS dropped as a duplicate": _events("deduplicated"),
    "a deferral": lambda past: _deliveries(past, lambda each: each.verdict == "defer"),
    "a message that was not due yet": lambda past: _said(past, lambda told: told.get("reason") == "not_due"),
    "a retry within the delivery": lambda past: _deliveries(past, lambda each: len(each.runs) > 1),
    "a failure that nothing wanted": lambda past: _said(past, lambda told: told["event"] == "unhandled"),
    "a dead letter that could not be sent": lambda past: _said(past, lambda told: "not_sent" in told),
    "a wait that could not be set": lambda past: _said(past, lambda told: "not_settled" in told),
    "a letter without room for a record": lambda past: sum(
        copy.is_dead_letter and copy.record is None for copy in past.copies.values()
    ),
    "ten attributes on a letter": lambda past: sum(
        copy.is_dead_letter and len(copy.attributes) >= MAX_ATTRIBUTES for copy in past.copies.values()
    ),
    "a lost lease": _problems("lease_lost"),
    "a lease that was extended": _kept_alive,
    "handlers side by side": _overlapping_runs,
    "an early delete": lambda past: sum(1 for _ in _deleted_early(past)),
    "an ack that outlived its process": _acks_that_outlived_their_process,
    "a message that is run with suspicion": _problems("suspect_started"),
    "a handler that was told to end": lambda past: _said(past, lambda told: "TimeoutError" in str(told.get("error"))),
    "a handler that was left behind": lambda past: sum(run.was_abandoned for run in past.runs),
    "a process that ended itself": _problems("process_ends"),
    "a batch for which the time was too short": _problems("out_of_time"),
    "a bare move after crashes": _bare_after_crashes,
    "a batch dropped since it was throttled": _events("dropped"),
    "a batch that was held": _faults("held"),
    "a slow CPU": _faults("slow_cpu"),
    "a message delivered again after its deletion": _events("reappeared"),
    "an old handle that changed a newer delivery": _old_handles,
    "a visibility change that came too late": _events("visibility_change_ignored"),
    "12 hours in the queue": lambda past: _deliveries(past, lambda each: each.at - each.copy.sent.at > 43_000),
}


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """All seeds together."""
    met: Counter[str] = Counter()
    for each in counts:
        met.update(each)
    return met
