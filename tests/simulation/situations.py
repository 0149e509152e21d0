"""Situations that a campaign must meet: without a crash between send and delete, it proves nothing about such a crash.

Each situation has a function that counts how often it occurs in the history of one seed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from tarry.sqs.refusals import MAX_ATTRIBUTES
from tarry.tools.testing.deliveries import DONE, ObservedDelivery
from tarry.tools.testing.recorded_history import RecordedHistory

Count = Callable[[RecordedHistory], int]


def count(history: RecordedHistory) -> Counter[str]:
    """Return how often each situation occurs."""
    return Counter({name: count_of(history) for name, count_of in SITUATIONS.items()})


def missing(met: Counter[str]) -> list[str]:
    """Return the situations that never occurred."""
    return [name for name in SITUATIONS if not met[name]]


def _deliveries(history: RecordedHistory, condition: Callable[[ObservedDelivery], object]) -> int:
    return sum(1 for delivery in history.deliveries() if condition(delivery))


def _log_lines(history: RecordedHistory, condition: Callable[[dict[str, object]], object]) -> int:
    return sum(
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


def _crash_between_send_and_delete(history: RecordedHistory) -> int:
    return _deliveries(
        history, lambda each: each.sends and not each.ended_well and each.copy.end is None
    ) + _deliveries(history, lambda each: each.sends and not each.ended_well and _was_redelivered(each))


def _was_redelivered(delivery: ObservedDelivery) -> bool:
    return delivery.following is not None


def _redelivered_while_it_runs(history: RecordedHistory) -> int:
    found = 0
    for copy in history.copies.values():
        for first, second in pairwise(copy.deliveries):
            if first.invocation and first.invocation.answered and second.at < first.invocation.answered.at:
                found += bool(first.runs)
    return found


def _partial_failures(history: RecordedHistory) -> int:
    return sum(0 < len(each.failed) < len(each.batch) and each.ended_well for each in history.invocations.values())


def _blocked_groups(history: RecordedHistory) -> int:
    """Count messages released because an earlier message of their group failed."""
    return _log_lines(history, lambda line: line["event"] == "released" and str(line["queue"]).endswith(".fifo"))


def _overlapping_runs(history: RecordedHistory) -> int:
    """Count runs that begin while another run of the same invocation has not ended."""
    found = 0
    for invocation in history.invocations.values():
        for first, second in pairwise(invocation.runs):
            found += first.ended is None or second.began.at < first.ended.at
    return found


def _extended_leases(history: RecordedHistory) -> int:
    """Count deliveries whose lease was extended while the handler ran."""
    return _deliveries(
        history,
        lambda each: (
            each.invocation is not None
            and each.invocation.consumed is not None
            and each.invocation.consumed.fields["keepalive"] is not None
            and any(
                run.began.at < change.at and (run.ended is None or change.at < run.ended.at)
                for run in each.runs
                for change in each.visibility_changes
            )
        ),
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
    return lambda history: _log_lines(
        history, lambda line: line["state"] == "DEAD_LETTERED" and line.get("reason") == reason
    )


def _moved_without_a_record_after_crashes(history: RecordedHistory) -> int:
    return sum(
        1
        for copy in history.copies.values()
        if any(copy.all("moved")) and copy.deliveries and not any(each.verdict for each in copy.deliveries)
    )


def _changes_with_an_old_handle(history: RecordedHistory) -> int:
    found = 0
    for copy in history.copies.values():
        for first, second in pairwise(copy.deliveries):
            found += any(event.at > second.at for event in first.visibility_changes)
    return found


SITUATIONS: dict[str, Count] = {
    "a crash between send and delete": _crash_between_send_and_delete,
    "a delay cut to 12 hours": lambda history: _log_lines(history, lambda line: "asked_for" in line),
    "a partial failure": _partial_failures,
    "a blocked group": _blocked_groups,
    "a lost answer": _faults("lost_answer"),
    "a request that hangs": _faults("hang"),
    "an answer with the digest of another body": _events("garbled"),
    "entries refused in a batch request": _faults("partial_failure"),
    "a timeout": _answers("timeout"),
    "a crash": _answers("crash"),
    "a duplicate delivery": lambda history: _deliveries(history, lambda each: each.received.fields.get("duplicate")),
    "a message twice in one batch": lambda history: sum(
        len(set(each.batch)) < len(each.batch) for each in history.invocations.values()
    ),
    "a redelivery while the first still runs": _redelivered_while_it_runs,
    "a message handled twice": lambda history: sum(
        sum(each.verdict in DONE for each in copy.deliveries) > 1 for copy in history.copies.values()
    ),
    "an exhausted message": _settled_for("exhausted"),
    "a rejected message": lambda history: _deliveries(history, lambda each: each.verdict == "reject" and each.sends),
    "a fatal failure": _settled_for("fatal"),
    "an undecodable message": _settled_for("undecodable"),
    "an expiring message": _settled_for("expiring"),
    "an expired message": _events("expired"),
    "a discarded message": lambda history: _log_lines(history, lambda line: line["state"] == "DISCARDED"),
    "a copy that was sent again": lambda history: _log_lines(history, lambda line: line["state"] == "RESENT"),
    "a copy sent to another queue": lambda history: sum(
        copy.came_from is not None and not copy.is_dead_letter and copy.sent_to != copy.came_from.copy.queue
        for copy in history.copies.values()
    ),
    "a copy that waits instead of its message": lambda history: _log_lines(
        history, lambda line: line["state"] in ("DEFERRED", "WAITING_RETRY") and "sent_to" in line
    ),
    "a copy that SQS deduplicated": _events("deduplicated"),
    "a deferral": lambda history: _deliveries(history, lambda each: each.verdict == "defer"),
    "a message that was not due yet": lambda history: _log_lines(history, lambda line: line.get("reason") == "not_due"),
    "a retry within the delivery": lambda history: _deliveries(history, lambda each: len(each.runs) > 1),
    "a failure that no step handled": lambda history: _log_lines(history, lambda line: line["event"] == "unhandled"),
    "a dead letter that could not be sent": lambda history: _log_lines(history, lambda line: "not_sent" in line),
    "a wait that could not be set": lambda history: _log_lines(history, lambda line: "not_settled" in line),
    "a dead letter without room for a record": lambda history: sum(
        copy.is_dead_letter and copy.record is None for copy in history.copies.values()
    ),
    "a dead letter with ten attributes": lambda history: sum(
        copy.is_dead_letter and len(copy.attributes) >= MAX_ATTRIBUTES for copy in history.copies.values()
    ),
    "a lost lease": _problems("lease_lost"),
    "a lease that was extended": _extended_leases,
    "handlers that run concurrently": _overlapping_runs,
    "an early delete": lambda history: sum(1 for _ in _deleted_early(history)),
    "an ack whose process crashed": _acks_whose_process_crashed,
    "a redelivered message that runs in isolation": _problems("isolated_start"),
    "a handler that timed out": lambda history: _log_lines(
        history, lambda line: "TimeoutError" in str(line.get("error"))
    ),
    "a handler that was abandoned": lambda history: sum(run.was_abandoned for run in history.runs),
    "a process that ended itself": _problems("process_ends"),
    "a batch for which there was too little time": _problems("out_of_time"),
    "a message that SQS moved after crashes": _moved_without_a_record_after_crashes,
    "a batch dropped since it was throttled": _events("dropped"),
    "a batch that was delivered late": _faults("held"),
    "a slow CPU": _faults("slow_cpu"),
    "a message delivered again after its deletion": _events("reappeared"),
    "an old handle that changed a newer delivery": _changes_with_an_old_handle,
    "a visibility change that came too late": _events("visibility_change_ignored"),
    "12 hours in the queue": lambda history: _deliveries(history, lambda each: each.at - each.copy.sent.at > 43_000),
}


def total(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of the counts of all seeds."""
    met: Counter[str] = Counter()
    for each in counts:
        met.update(each)
    return met
