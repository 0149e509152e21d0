"""Situations that a campaign must meet: without a crash between send and delete, it proves nothing about such a crash.

Each situation has a function that counts how often it occurs in the history of one seed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from tarry.sqs.refusals import MAX_ATTRIBUTES
from tarry.tools.testing.deliveries import DONE, MessageCopy, ObservedDelivery
from tarry.tools.testing.recorded_history import RecordedHistory

Count = Callable[[RecordedHistory], int]


def count(history: RecordedHistory) -> Counter[str]:
    """Return how often each situation occurs."""
    return Counter({name: count_of(history) for name, count_of in SITUATIONS.items()})


def missing(met: Counter[str]) -> list[str]:
    """Return the situations that never occurred."""
    return [name for name in SITUATIONS if not met[name]]


def _deliveries(condition: Callable[[ObservedDelivery], object]) -> Count:
    return lambda history: sum(1 for delivery in history.deliveries() if condition(delivery))


def _copies(condition: Callable[[MessageCopy], object]) -> Count:
    return lambda history: sum(1 for copy in history.copies.values() if condition(copy))


def _lines(condition: Callable[[dict[str, Any]], object]) -> Count:
    return lambda history: sum(
        1
        for copy in history.copies.values()
        for lines in copy.log_lines.values()
        for line in lines
        if condition(dict(line.fields))
    )


def _faults(kind: str) -> Count:
    return lambda history: sum(event.fields["kind"] == kind for event in history.faults)


def _events(what: str) -> Count:
    return lambda history: sum(event.what == what for event in history.events)


def _problems(event: str) -> Count:
    return lambda history: sum(each.fields["event"] == event for each in history.problems)


def _answers(kind: str) -> Count:
    return lambda history: sum(
        each.answered is not None and each.answered.fields["kind"] == kind for each in history.invocations.values()
    )


def _crashed_before_its_delete(delivery: ObservedDelivery) -> bool:
    is_left = delivery.copy.end is None or delivery.following is not None
    return bool(delivery.sends) and not delivery.ended_well and is_left


def _redelivered_while_it_runs(history: RecordedHistory) -> int:
    found = 0
    for copy in history.copies.values():
        for first, second in pairwise(copy.deliveries):
            if first.invocation and first.invocation.answered and second.at < first.invocation.answered.at:
                found += bool(first.runs)
    return found


def _partial_failures(history: RecordedHistory) -> int:
    return sum(0 < len(each.failed) < len(each.batch) and each.ended_well for each in history.invocations.values())


def _overlapping_runs(history: RecordedHistory) -> int:
    """Count runs that begin while another run of the same invocation has not ended."""
    found = 0
    for invocation in history.invocations.values():
        for first, second in pairwise(invocation.runs):
            found += first.ended is None or second.began.at < first.ended.at
    return found


def _was_extended(delivery: ObservedDelivery) -> bool:
    """Whether the lease was extended while the handler ran."""
    consumed = None if delivery.invocation is None else delivery.invocation.consumed
    return (
        consumed is not None
        and consumed.fields["keepalive"] is not None
        and any(
            run.began.at < change.at and (run.ended is None or change.at < run.ended.at)
            for run in delivery.runs
            for change in delivery.visibility_changes
        )
    )


def _deleted_early(history: RecordedHistory) -> Iterator[ObservedDelivery]:
    """Yield the deliveries whose message was settled for good and deleted before the invocation ended."""
    for copy in history.copies.values():
        end = copy.end
        delivery = copy.delivery(end.fields["receive_count"]) if end is not None and end.what == "deleted" else None
        if end is None or delivery is None or delivery.invocation is None or delivery.sends:
            continue
        if delivery.verdict in DONE and end.fields.get("by") == delivery.invocation.request_id:
            yield delivery


def _acks_whose_process_crashed(history: RecordedHistory) -> int:
    return sum(not each.ended_well for each in _deleted_early(history))


def _settled_for(reason: str) -> Count:
    return _lines(lambda line: line["state"] == "DEAD_LETTERED" and line.get("reason") == reason)


def _was_moved_after_crashes(copy: MessageCopy) -> bool:
    return any(copy.all("moved")) and bool(copy.deliveries) and not any(each.verdict for each in copy.deliveries)


def _went_to_another_queue(copy: MessageCopy) -> bool:
    return copy.came_from is not None and not copy.is_dead_letter and copy.sent_to != copy.came_from.copy.queue


def _changes_with_an_old_handle(history: RecordedHistory) -> int:
    found = 0
    for copy in history.copies.values():
        for first, second in pairwise(copy.deliveries):
            found += any(event.at > second.at for event in first.visibility_changes)
    return found


SITUATIONS: dict[str, Count] = {
    "a crash between send and delete": _deliveries(_crashed_before_its_delete),
    "a delay cut to 12 hours": _lines(lambda line: "asked_for" in line),
    "a partial failure": _partial_failures,
    # released because an earlier message of its group failed
    "a blocked group": _lines(lambda line: line["event"] == "released" and line["queue"].endswith(".fifo")),
    "a lost answer": _faults("lost_answer"),
    "a request that hangs": _faults("hang"),
    "an answer with the digest of another body": _events("garbled"),
    "entries refused in a batch request": _faults("partial_failure"),
    "a timeout": _answers("timeout"),
    "a crash": _answers("crash"),
    "a duplicate delivery": _deliveries(lambda each: each.is_duplicate),
    "a message twice in one batch": lambda history: sum(
        len(set(each.batch)) < len(each.batch) for each in history.invocations.values()
    ),
    "a redelivery while the first still runs": _redelivered_while_it_runs,
    "a message handled twice": _copies(lambda copy: sum(each.verdict in DONE for each in copy.deliveries) > 1),
    "an exhausted message": _settled_for("exhausted"),
    "a rejected message": _deliveries(lambda each: each.verdict == "reject" and each.sends),
    "a fatal failure": _settled_for("fatal"),
    "an undecodable message": _settled_for("undecodable"),
    "an expiring message": _settled_for("expiring"),
    "an expired message": _events("expired"),
    "a discarded message": _lines(lambda line: line["state"] == "DISCARDED"),
    "a copy that was sent again": _lines(lambda line: line["state"] == "RESENT"),
    "a copy sent to another queue": _copies(_went_to_another_queue),
    "a copy that waits instead of its message": _lines(
        lambda line: line["state"] in ("DEFERRED", "WAITING_RETRY") and "sent_to" in line
    ),
    "a copy that SQS deduplicated": _events("deduplicated"),
    "a deferral": _deliveries(lambda each: each.verdict == "defer"),
    "a message that was not due yet": _lines(lambda line: line.get("reason") == "not_due"),
    "a retry within the delivery": _deliveries(lambda each: len(each.runs) > 1),
    "a failure that no step handled": _lines(lambda line: line["event"] == "unhandled"),
    "a dead letter that could not be sent": _lines(lambda line: "not_sent" in line),
    "a wait that could not be set": _lines(lambda line: "not_settled" in line),
    "a dead letter without room for a record": _copies(lambda copy: copy.is_dead_letter and copy.record is None),
    "a dead letter with ten attributes": _copies(
        lambda copy: copy.is_dead_letter and len(copy.attributes) >= MAX_ATTRIBUTES
    ),
    "a lost lease": _problems("lease_lost"),
    "a lease that was extended": _deliveries(_was_extended),
    "handlers that run concurrently": _overlapping_runs,
    "an early delete": lambda history: sum(1 for _ in _deleted_early(history)),
    "an ack whose process crashed": _acks_whose_process_crashed,
    "a redelivered message that runs in isolation": _problems("isolated_start"),
    "a handler that timed out": _lines(lambda line: "TimeoutError" in str(line.get("error"))),
    "a handler that was abandoned": lambda history: sum(run.was_abandoned for run in history.runs),
    "a process that ended itself": _problems("process_ends"),
    "a batch for which there was too little time": _problems("out_of_time"),
    "a message that SQS moved after crashes": _copies(_was_moved_after_crashes),
    "a batch dropped since it was throttled": _events("dropped"),
    "a batch that was delivered late": _faults("held"),
    "a slow CPU": _faults("slow_cpu"),
    "a message delivered again after its deletion": _events("reappeared"),
    "an old handle that changed a newer delivery": _changes_with_an_old_handle,
    "a visibility change that came too late": _events("visibility_change_ignored"),
    "12 hours in the queue": _deliveries(lambda each: each.at - each.copy.sent.at > 43_000),
}


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of the counts of all seeds."""
    met: Counter[str] = Counter()
    for each in counts:
        met.update(each)
    return met
