"""The attempt store in one invocation: it is read before handlers run, and written before messages are shown again.

The store is an aid. All its answers together may take a second; without an answer, the receive count serves.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from tarry.message.failure_record import trace_record
from tarry.message.outcomes import State
from tarry.record.attempt_store import MAX_CHANGES, MAX_READS, AttemptChange
from tarry.record.attribute import FailureRecord, history_of
from tarry.settle.copies import redacted
from tarry.settle.table_answers import ALWAYS_REFUSED, MAX_ERROR_CHARACTERS, TableSilent, answer_of, answers_of
from tarry.sqs.refusals import error_code, is_denied
from tarry.support.guards import generation, text_of, type_name
from tarry.support.values import WARNING, Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from tarry.decide.steps import DeadLetter
    from tarry.message.delivery import Delivery, Failure
    from tarry.message.invocation import Invocation
    from tarry.observe.logs import Log
    from tarry.record.attempt_store import AttemptStore
    from tarry.settle.planner import Planner, SettlementPlan
    from tarry.sqs.client import Lookups

SECONDS = 1.0  # how long an invocation waits for the store in all
READ_SECONDS = 0.5  # how long of that handlers wait, so that there is time to write what became of their messages
SHARE = 0.25  # the share of the time left to wait at most
LOADING_SECONDS = 4.0  # in addition, for a store that must be loaded first: boto3 takes this long on a small function
MARGIN_SECONDS = 86_400  # how long a record lives after SQS has deleted its message
LONGEST_RETENTION_SECONDS = 1_209_600
NOT_ATTEMPTS = frozenset({"defer", "wait", "release"})  # outcomes of deliveries that are not attempts


class Tracking:
    """The records of one invocation's messages."""

    def __init__(self, store: AttemptStore, invocation: Invocation, log: Log) -> None:
        self._store: Any = store
        self._invocation = invocation
        self._log = log
        self._waited = 0.0
        self._is_refused = False  # whether the store refuses all requests, such as for a permission
        self._written = set[str]()  # the delivery ids whose changes the store has confirmed
        self._unconfirmed: dict[str, AttemptChange] = {}  # not confirmed, by delivery id: written once more at the end
        self._started: dict[str, Delivery] = {}  # those whose starts were written, and whose ends were not
        self._writes_starts = True  # no more in this invocation once the store has failed to
        self._reported = set[str]()  # the delivery ids of messages that `start` has reported
        self._closed = set[str]()  # the delivery ids of messages whose records were closed while others ran

    def read(self, deliveries: Sequence[Delivery]) -> None:
        """Read the records of redelivered messages. Blocks, for `READ_SECONDS` at most."""
        by_id = {key_of(delivery): delivery for delivery in deliveries}
        works = [partial(self._read, chunk) for chunk in _chunks(list(by_id), MAX_READS)]
        for found in self._answers(works, READ_SECONDS):
            for key, record in (found or {}).items():
                if isinstance(record, dict):
                    by_id[key].stored = record
                else:  # the others are exact all the same
                    self._log_once(record)

    def _read(self, ids: Sequence[str]) -> dict[str, dict[str, Any] | BaseException]:
        """Return the records with these ids, empty if there is none; the error of one that is not a record."""
        found = self._store.read(ids)
        # Only plain values: the store may be the user's, whose code runs in this thread alone.
        return {key: _checked(found[key]) if key in found else {} for key in ids}

    def start(self, delivery: Delivery, change: AttemptChange, pending: Container[str]) -> bool:
        """Write that a message is about to run, and what became of those that started before. Blocks, like `read`."""
        ended = self._ends_of_started(pending)
        if self._writes_starts:
            self._started[delivery.delivery_id] = delivery
            confirmed = self._put_starts({**ended, delivery.delivery_id: change}, READ_SECONDS - self._waited)
            self._writes_starts = len(confirmed) == len(ended) + 1
            ended = {key: end for key, end in ended.items() if key not in confirmed}
        # If the process dies, the store then has which message was running. Another would be taken for it if its start
        # was written, and its end was not confirmed.
        unknown = ended.keys() - self._reported
        self._reported |= unknown
        return not unknown

    def close_started(self, pending: Container[str]) -> None:
        """Close the records of messages that were written before they ran and are done; requests to SQS follow."""
        done = {key: end for key, end in self._ends_of_started(pending).items() if end.kind == "end"}
        if done:
            self._put_starts(done, SECONDS)

    def _ends_of_started(self, pending: Container[str]) -> dict[str, AttemptChange]:
        ends = {delivery_id: self._end_of(each, pending) for delivery_id, each in tuple(self._started.items())}
        return {delivery_id: end for delivery_id, end in ends.items() if end is not None}

    def _write(self, changes: Sequence[AttemptChange]) -> bool:
        self._store.write(changes)
        return True

    def _put_starts(self, changes: dict[str, AttemptChange], seconds: float) -> list[str]:
        confirmed = self._put(changes, seconds, are_starts=True)
        for delivery_id in confirmed:
            if changes[delivery_id].kind != "start":
                self._started.pop(delivery_id, None)
            if changes[delivery_id].kind == "end":
                self._closed.add(delivery_id)
        return confirmed

    def has(self, delivery: Delivery) -> bool:
        """Return whether the change of a message was written, or is to be written once more at the end."""
        return delivery.delivery_id in self._written or delivery.delivery_id in self._unconfirmed

    def write(self, changes: Mapping[str, AttemptChange], *, in_background: bool) -> None:
        """Write changes, by delivery id. Block as long as is left of the second; no handler waits ``in_background``."""
        self._unconfirmed.update(changes)
        for delivery_id in self._put(changes, SECONDS, in_background=in_background):
            self._written.add(delivery_id)
            self._unconfirmed.pop(delivery_id, None)

    def is_written(self, delivery: Delivery) -> bool:
        return delivery.delivery_id in self._written

    def _put(self, changes: Mapping[str, AttemptChange], seconds: float, **how: bool) -> list[str]:
        """Write changes, by delivery id; return the delivery ids of those that the store has confirmed."""
        chunks = _chunks(list(changes), MAX_CHANGES)
        works = [partial(self._write, [changes[each] for each in chunk]) for chunk in chunks]
        answers = self._answers(works, seconds, **how)
        return [each for chunk, is_written in zip(chunks, answers, strict=True) if is_written for each in chunk]

    def finish(self, pending: Container[str]) -> None:
        """Close the records of messages that are not ``pending``; write those that are only reported as failed."""
        changes = self._unconfirmed.copy()
        for delivery in tuple(self._invocation.deliveries.values()):
            delivery_id, end = delivery.delivery_id, self._end_of(delivery, pending)
            if end is not None and end.kind == "end":
                changes.pop(delivery_id, None)
                has_record = delivery.stored or self.has(delivery) or delivery_id in self._started
                if has_record and delivery_id not in self._closed:
                    changes[delivery_id] = end
            elif end is not None and not self.has(delivery):  # its lease is lost
                changes[delivery_id] = end
        if changes:
            self._put(changes, SECONDS)

    def _end_of(self, delivery: Delivery, pending: Container[str]) -> AttemptChange | None:
        """Return the change for the end of a delivery, without its failure; None if it has not ended."""
        outcome, now = delivery.outcome, self._invocation.now()
        if delivery.is_done or delivery.delivery_id not in pending:
            state = State.COMMITTED if outcome is None else outcome.state
            return change_of(delivery, "end", now, state=str(state))
        if outcome is None:
            return None
        is_run = outcome.kind not in NOT_ATTEMPTS and not delivery.is_of_crash
        return change_of(delivery, "run" if is_run else "seen", now, state=str(outcome.state))

    # the store's answers

    def _answers(
        self,
        works: Sequence[Callable[[], Any]],
        seconds: float,
        *,
        in_background: bool = False,
        are_starts: bool = False,
    ) -> list[Any]:
        """Return the answers to requests; None for a failed one. ``are_starts``: attempts are exact without them."""
        invocation = self._invocation
        if self._is_refused or generation() != invocation.began_in:
            return [None] * len(works)
        self._load()
        clock = invocation.world.clock
        began, share = clock.monotonic(), max(0.0, invocation.time_left() * SHARE)
        until = began + min(seconds, SECONDS - self._waited, share)
        if until <= began:
            if works and self._waited >= SECONDS:
                self._note(TableSilent(f"its requests have taken longer than {SECONDS:g} second"))
            return [None] * len(works)
        answers = answers_of(works, invocation, lambda _: max(0.0, until - clock.monotonic()))
        if not in_background or clock.monotonic() >= until:
            self._waited += clock.monotonic() - began
        for answer in answers:
            if isinstance(answer, Exception):
                self._note(answer, is_exact=are_starts)
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    def _load(self) -> None:
        """Load a store that needs it, such as `DynamoDBAttempts` without a client, before its first request."""
        if answer_of(lambda: self._store._is_loaded) is not False:
            return
        # Not counted as the time of its answers, so it is waited for only once per cold start.
        invocation = self._invocation
        if invocation.world.first_time("attempt_store_loaded"):
            seconds = min(LOADING_SECONDS, max(0.0, invocation.time_left() * SHARE))
            answers_of([partial(methodcaller("_load"), self._store)], invocation, lambda _: seconds)

    def _note(self, error: BaseException, *, is_exact: bool = False) -> None:
        """Note that the store fails; log why, once per cold start. ``is_exact``: whether the attempts still are."""
        self._invocation.attempt_store_fails |= not is_exact
        code = error_code(error)
        self._is_refused |= code in ALWAYS_REFUSED or is_denied(code)
        self._log_once(error)

    def _log_once(self, error: BaseException) -> None:
        if self._invocation.world.first_time("attempt_store_failed"):
            table = answer_of(lambda: self._store.table)
            name = f"The attempts table {table}" if type(table) is str else "The attempt store"
            text = (
                f"{name} {_what_to_do(error)} For now, attempts are counted by receives: their number may be too high. "
                "No message is lost."
            )
            self._log.problem("attempts_not_exact", text, level=WARNING)


def tracking_of(invocation: Invocation, log: Log) -> Tracking:
    """Return the tracking of an invocation whose consumer has an attempt store; it is made at its first use."""
    if invocation.tracking is None:
        assert invocation.attempt_store is not None
        invocation.tracking = Tracking(invocation.attempt_store, invocation, log)
    tracking: Tracking = invocation.tracking  # type: ignore[assignment]  # only this function sets it
    return tracking


def key_of(delivery: Delivery) -> str:
    """Return the id of a delivery's record: a dead-letter queue's consumer counts for itself."""
    return f"{delivery.queue}#{delivery.delivery_id}"


def change_of(
    delivery: Delivery, kind: Any, now: float, *, retention: float | None = None, **fields: Any
) -> AttemptChange:
    """Return the change of a delivery's record; ``retention``: for how many seconds the queue keeps it, if known."""
    kept = LONGEST_RETENTION_SECONDS if retention is None else retention
    base = {
        "queue": delivery.queue,
        "message": delivery.id,
        "attempt": delivery.attempt,
        "expires": int((delivery.sent_to_queue_at or now) + kept + MARGIN_SECONDS),
    }
    return AttemptChange(key_of(delivery), delivery.receive_count, kind, {**base, **fields}, delivery.crashed)


def _checked(record: Mapping[str, Any]) -> dict[str, Any] | BaseException:
    """Return the parts of a record that decide; the error of one that another program wrote."""
    try:
        names = ("runs", "deliveries", "started")
        runs, deliveries, started = (frozenset(map(int, record.get(name) or ())) for name in names)
        crashed = started - runs - deliveries
        if (failure := record.get("failure")) is not None:
            FailureRecord(failure)
        return {
            "runs": runs | crashed,  # those that crashed included
            "deliveries": runs | deliveries | started,  # those that left a trace
            "crashed": crashed,
            "failure": failure,
            "history": history_of(record.get("history")),
        }
    except BaseException as error:  # noqa: BLE001 a store of the user's may return an object whose methods raise
        return error


def _what_to_do(error: BaseException) -> str:
    """Return what is wrong with the store, and the line that corrects it."""
    why, code = text_of(error, MAX_ERROR_CHARACTERS), error_code(error)
    key = "AttributeDefinitions: [{AttributeName: id, AttributeType: S}]"
    key += " and KeySchema: [{AttributeName: id, KeyType: HASH}]"
    if code == "ResourceNotFoundException":
        return (
            f"does not exist ({why}). Correct the name in DynamoDBAttempts(...), or create the table in the function's "
            f"region and account, with {key}."
        )
    if code == "ValidationException":
        return f"refuses its records ({why}). If it has another key, make a table with {key}."
    if is_denied(code):
        return (
            f"may not be used ({why}). Add to the function's role: "
            "Action: [dynamodb:BatchGetItem, dynamodb:UpdateItem], with the ARN of the table as Resource."
        )
    return f"failed ({why or type_name(error)})."


def _chunks(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def trace_of(plan: SettlementPlan, planner: Planner, lookups: Lookups, now: float) -> AttemptChange:
    """Return the change of the record of a message that stays in its queue; log if the hook ``redact`` failed."""
    delivery, decision = plan.delivery, plan.decided
    failure, outcome = decision.failure, decision.outcome
    known, next_try = lookups.known(delivery.source), planner.waits_until(plan, now)
    is_run = failure is not None and outcome.kind not in NOT_ATTEMPTS and not failure.was_deferral
    is_run = is_run and not delivery.is_of_crash
    fields: dict[str, Any] = {"state": str(outcome.state), "next_try": round(max(now, next_try), 3)}
    if failure is not None:
        delay = max(0, round(next_try - decision.decided_at))
        record = trace_record(failure, decision.decided_at, delay)
        record = _redacted(record, delivery, planner.options_of(delivery), lookups.log)
        fields["failure"] = record["failure"]
        if delivery.counts_runs:  # else the earlier history is not known, and must not be overwritten
            fields["history"] = record.get("history")
    elif delivery.crashed and delivery.stored:  # it was not claimed, so its start, with the crash, was not written
        fields["failure"] = delivery.stored["failure"]
        fields["history"] = [*delivery.stored["history"]]
    retention = None if known is None else known.retention
    return change_of(delivery, "run" if is_run else "seen", now, retention=retention, **fields)


def start_of(delivery: Delivery, crash: Failure | None, options: DeadLetter, log: Log) -> AttemptChange:
    """Return the change for a message that is about to run; ``crash``: the failure of its last run, if that crashed."""
    now = delivery.invocation.now()
    back_at = delivery.visible_at or now + delivery.invocation.time_left()
    fields: dict[str, Any] = {"state": str(State.IN_FLIGHT), "next_try": round(back_at, 3)}
    if crash is not None:
        record = _redacted(trace_record(crash, crash.failed_at, delay=0), delivery, options, log)
        fields |= {"failure": record["failure"], "history": record.get("history")}
        earlier = delivery.stored or {}
        delivery.stored = {**earlier, "failure": record["failure"], "history": history_of(record.get("history"))}
    return change_of(delivery, "start", now, **fields)


def _redacted(record: dict[str, Any], delivery: Delivery, options: DeadLetter, log: Log) -> dict[str, Any]:
    notices: list[Notice] = []
    record = redacted(record, delivery, options, notices)
    log.notices(delivery, notices)
    return record
