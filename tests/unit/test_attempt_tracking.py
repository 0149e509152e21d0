"""The attempt store in one invocation, and waiting for the answers of a table."""

import asyncio
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import AttemptChange, DeadLetter, Exponential, Failure, MemoryAttempts, Outcome, RetryPolicy
from tarry.decide.decision import Decision
from tarry.decide.steps import FailureSteps
from tarry.errors import ProcessCrashed
from tarry.message.delivery import Delivery, QueueFacts
from tarry.message.invocation import Invocation
from tarry.message.message import Message, delivery_of
from tarry.settle.attempts import Tracking, _what_to_do, change_of, start_of, trace_of, tracking_of
from tarry.settle.planner import IN_PLACE, Planner, SettlementPlan
from tarry.settle.table_answers import TableFailed, TableNotAsked, answer_of, answer_to_task, answers_of, patience
from tarry.world import Interrupted, World
from tests.loglines import Caplog, field, lines
from tests.records import record
from tests.settlement import NOW, ThreadsByHand, delivery_of_age, in_this_thread, invocation_in
from tests.wire import TestClock, client_error


@pytest.mark.parametrize(("time_left", "seconds"), [(-1, 0), (8, 2), (20, 5), (28, 5)])
def test_a_table_is_waited_for_a_quarter_of_the_time_left_and_at_most_five_seconds_or_four_to_load_it(
    time_left: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert patience(SimpleNamespace(time_left=lambda: time_left)) == seconds
    invocation, waits = invocation_in(World(TestClock(NOW)), time_left), list[float]()
    monkeypatch.setattr("tarry.settle.attempts.answers_of", lambda _, of, most: waits.append(most(of)))
    Tracking(SimpleNamespace(_is_loaded=False), invocation, invocation.log)._load()
    assert waits == [min(4, seconds)]


def test_any_error_of_a_table_is_an_answer_but_an_interruption_ends_the_handler() -> None:  # SPEC K4, I3
    assert answer_of(lambda: 1) == 1
    assert type(answer_of(lambda: {}["no"])) is KeyError
    failed = answer_of(sys.exit)
    assert (type(failed), str(failed)) == (TableFailed, "the persistence layer raised SystemExit")

    def interrupt() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        answer_of(interrupt)


@pytest.mark.parametrize("longest", [5, 5.1])
@pytest.mark.parametrize(("may_begin", "answers"), [(None, [1]), (lambda: True, [1]), (lambda: False, None)])
def test_a_request_that_ends_in_time_is_made_in_the_threads_of_the_handler(
    longest: float, may_begin: Any, answers: Any
) -> None:  # SPEC K4
    invocation, starts = invocation_in(World(TestClock(NOW))), list[Any]()
    pool = SimpleNamespace(threads=ThreadsByHand(), start=starts.append)
    pool.threads.meanwhile = lambda _: starts[0]()
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment, return-value]
    found = answers_of([lambda: 1], invocation, may_begin=may_begin, longest=longest)
    assert [type(answer) for answer in found] == [TableNotAsked] if answers is None else found == answers
    assert len(starts) == (longest > 5)


@pytest.mark.parametrize(("count", "started"), [(0, 0), (2, 2), (10, 10), (11, 10)])
def test_at_most_ten_requests_to_a_table_are_made_at_once_and_after_a_silence_no_more(count: int, started: int) -> None:
    invocation, starts = invocation_in(World(TestClock(NOW))), list[Any]()  # SPEC O4
    pool = SimpleNamespace(threads=ThreadsByHand(), start=starts.append)
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment, return-value]
    works = [lambda n=n: n for n in range(count)]
    pool.threads.meanwhile = lambda _: starts[0]()
    assert answers_of(works, invocation) == [*range(count)]
    assert (len(starts), pool.threads.waits) == (started, [(5, False)] * (count > 0))

    def hang() -> None:
        raise Interrupted  # out of the pool's thread, so that no answer comes

    def hang_at_the_second(_: float) -> None:
        """The first answer comes, or just after the wait has ended; the second request hangs."""
        pool.threads.meanwhile = lambda _: None
        with suppress(Interrupted):
            starts[-1]()
        if count > 2:
            pool.threads.events[-1].clear()

    pool.threads.meanwhile = hang_at_the_second
    works[1:2] = [hang] * (count > 0)  # type: ignore[list-item]
    first, *others = answers_of(works, invocation) if count else [0]
    assert (first, {*pool.threads.waits}) == (0, {(5, False)} if count else set())
    assert [str(each) for each in others] == [
        "no answer within 5.0 seconds", *["no time left to ask"] * (len(others) - 1)
    ][: len(others)]  # fmt: skip


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_task_waits_for_the_answer_of_a_table_no_longer_than_it_may(is_silent: bool) -> None:  # SPEC K4
    invocation, timers = invocation_in(World(TestClock(NOW)), -1 if is_silent else 30), list[Any]()
    pool: Any = SimpleNamespace(start=(lambda _: None) if is_silent else (lambda work: work()))
    invocation.world.keep = lambda _: pool  # type: ignore[method-assign, assignment]

    async def ask() -> Any:
        loop: Any = asyncio.get_running_loop()
        call_later = loop.call_later
        loop.call_later = lambda *given: timers.append((given[0], call_later(*given))) or timers[-1][1]
        return await answer_to_task(lambda: 1, invocation)

    assert str(asyncio.run(ask())) == ("no answer within 0.0 seconds" if is_silent else "1")
    assert [(seconds, timer.cancelled()) for seconds, timer in timers] == [(0 if is_silent else 5, True)]


def test_the_crash_of_a_message_that_runs_again_is_in_its_history_with_no_delay() -> None:
    delivery = delivery_of_age()
    assert delivery.crashes is None
    delivery.invocation.attempt_store = MemoryAttempts()
    assert delivery.crashes == 0  # a first delivery has none that is known
    delivery = delivery_of_age(receives=2)
    delivery.stored = {"runs": (1,), "deliveries": (1,), "history": ()}
    first = start_of(delivery, None, DeadLetter(), delivery.invocation.log)
    expires = int(NOW) + 15 * 86_400
    base = {"queue": "orders", "message": "m1", "attempt": 2, "expires": expires, "state": "IN_FLIGHT"}
    assert first == AttemptChange("orders#m1", 2, "start", {**base, "next_try": NOW + 30})
    delivery.visible_at = NOW + 7.12345
    assert start_of(delivery, None, DeadLetter(), delivery.invocation.log).fields["next_try"] == NOW + 7.123
    crash = Failure(delivery.message, ProcessCrashed("no"), "error", failed_at=NOW)
    change = start_of(delivery, crash, DeadLetter(), delivery.invocation.log)
    assert [entry["delay"] for entry in change.fields["history"]] == [0]
    assert change.fields["failure"] == delivery.stored["failure"]
    assert (*change.fields["history"],) == delivery.stored["history"]
    assert delivery.stored["runs"] == (1,)


@pytest.mark.parametrize(
    ("outcome", "is_of_crash", "kind"),
    [
        *((outcome, False, "run") for outcome in (Outcome.retry(60), Outcome.unhandled())),
        *((outcome, False, "seen") for outcome in (Outcome.defer(60), Outcome.wait(60), Outcome.release())),
        *((Outcome.retry(60), True, "seen"), (None, False, None)),
    ],
    ids=repr,
)
def test_a_delivery_that_is_only_reported_is_recorded_as_what_it_was(
    outcome: Outcome | None, is_of_crash: bool, kind: str | None
) -> None:
    written, invocation = list[AttemptChange](), in_this_thread()
    delivery = invocation.delivery("m1", record())
    delivery.outcome, delivery.is_of_crash = outcome, is_of_crash
    Tracking(SimpleNamespace(write=written.extend), invocation, invocation.log).finish({"m1"})
    assert [change.kind for change in written] == ([] if kind is None else [kind])


KEY = (
    "AttributeDefinitions: [{AttributeName: id, AttributeType: S}] and KeySchema: [{AttributeName: id, KeyType: HASH}]"
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("x" * 600), f"failed ({'x' * 500})."),
        (OSError(), "failed (OSError)."),
        (
            client_error("ResourceNotFoundException", "no"),
            "does not exist (An error occurred (ResourceNotFoundException) when calling the AnyOperation operation: "
            "no). Correct the name in DynamoDBAttempts(...), or create the table in the function's region and account, "
            f"with {KEY}.",
        ),
        (
            client_error("ValidationException", "no"),
            "refuses its records (An error occurred (ValidationException) when calling the AnyOperation operation: "
            f"no). If it has another key, make a table with {KEY}.",
        ),
    ],
    ids=repr,
)
def test_the_log_says_what_to_do_about_a_store_that_fails(error: Exception, text: str) -> None:
    assert _what_to_do(error) == text


def test_a_record_of_the_store_is_checked_and_starts_without_an_end_are_crashes() -> None:  # SPEC O2
    failure, entry = {"reason": "error"}, {"attempt": 1}
    read: Any = {
        "m1": {}, "m2": {"runs": [1, 3], "deliveries": [1, 2, 3], "started": [3, 4, "5"], "failure": failure},
        "m3": {"started": [2], "deliveries": [2], "history": [entry]}, "m4": {"runs": 7}, "m5": {"failure": 7},
    }  # fmt: skip
    tracking: Any = Tracking(SimpleNamespace(read=lambda ids: read), (of := in_this_thread()), of.log)
    found = tracking._read([*read, "m6"])
    empty: dict[str, Any] = {"runs": set(), "deliveries": set(), "crashed": set(), "failure": None, "history": ()}
    assert found["m1"] == empty
    runs = {"runs": {1, 3, 4, 5}, "deliveries": {1, 2, 3, 4, 5}, "crashed": {4, 5}}
    assert found["m2"] == {**empty, **runs, "failure": failure}
    assert found["m3"] == {**empty, "deliveries": {2}, "history": (entry,)}
    assert [type(found[key]) for key in ("m4", "m5", "m6")] == [TypeError, AttributeError, dict]
    assert found["m6"] == {}


FIELDS = {"queue": "orders", "message": "m1", "attempt": 1}


@pytest.mark.parametrize(
    ("outcome", "more", "kind", "next_try"),
    [
        (Outcome.retry(60), {}, "run", 60),
        (Outcome.retry(60), {"is_of_crash": True}, "seen", 60),
        (Outcome.defer(60), {}, "seen", 60),
        (Outcome.retry(2), {}, "run", 5),  # it is due already
    ],
    ids=repr,
)
def test_the_store_has_when_and_why_a_failed_message_comes_back(
    outcome: Outcome, more: dict[str, Any], kind: str, next_try: float
) -> None:  # SPEC O3
    invocation = in_this_thread()
    invocation.attempt_store = MemoryAttempts()
    delivery, at = delivery_of(Message(record(), "m1", invocation)), NOW + 0.12345
    vars(delivery).update(more)
    failure = Failure(delivery.message, ValueError("no"), "error", failed_at=at)
    decision = Decision(delivery, outcome, at, failure)
    planner: Any = Planner(RetryPolicy(3, Exponential(10)), FailureSteps([]))
    lookups: Any = SimpleNamespace(known=lambda _: QueueFacts(retention=3_600), log=invocation.log)
    plan = SettlementPlan(decision, decision, (IN_PLACE,))
    change = trace_of(plan, planner, lookups, at + 5)
    failed, history = change.fields["failure"], change.fields["history"]
    base = {**FIELDS, "attempt": delivery.attempt, "expires": int(NOW) + 3_600 + 86_400}
    state = {"state": str(outcome.state), "next_try": round(NOW + 0.123 + next_try, 3)}
    expected = {**base, **state, "failure": failed, "history": history}
    assert change == AttemptChange("orders#m1", 1, kind, expected)  # type: ignore[arg-type]
    assert (failed["message"], [entry["delay"] for entry in history]) == ("no", [next_try if next_try > 5 else 2])
    invocation.attempt_store_fails = True
    assert "history" not in trace_of(plan, planner, lookups, at).fields  # that in the store has more
    lookups.known = lambda _: None
    assert trace_of(plan, planner, lookups, at).fields["expires"] == int(NOW) + 14 * 86_400 + 86_400
    del delivery.record["attributes"]["SentTimestamp"]
    assert trace_of(plan, planner, lookups, at).fields["expires"] == int(NOW) + 14 * 86_400 + 86_400


def test_the_store_has_the_crash_of_a_message_that_did_not_run() -> None:  # SPEC O2
    delivery, lookups = delivery_of_age(receives=3), SimpleNamespace(known=lambda _: None)
    stored: Any
    delivery.crashed, entry = (2,), {"attempt": 1}
    planner: Any = Planner(RetryPolicy(), FailureSteps([]))
    plan = SettlementPlan(*[Decision(delivery, Outcome.release(), NOW)] * 2, (IN_PLACE,))
    known = {"failure": {"reason": "error"}, "history": (entry,)}
    for stored, more in ((None, {}), ({}, {}), (known, {"history": [entry]})):
        delivery.stored = stored and {**stored, "runs": (), "deliveries": (2,)}
        change = trace_of(plan, planner, lookups, NOW)  # type: ignore[arg-type]
        got = change.fields
        assert (change.kind, change.crashed, got["next_try"], got["state"]) == ("seen", (2,), NOW, "READY")
        assert {name: got[name] for name in ("history",) if name in got} == more
        assert got.get("failure") == (stored or {}).get("failure")


def test_a_start_is_written_with_the_ends_of_those_before_and_a_message_is_closed_once() -> None:  # SPEC O2
    written, invocation = list[list[str]](), in_this_thread()
    faults, pending = list[Exception](), {"m1", "m2", "m3", "m4"}

    def write(changes: list[AttemptChange]) -> None:
        written.append([f"{change.kind} of {change.id[-2:]}" for change in changes])
        for fault in faults:
            raise fault

    tracking = Tracking(SimpleNamespace(write=write), invocation, invocation.log)
    deliveries = [invocation.delivery(name, record(message_id=name)) for name in sorted(pending)]
    first, second, third, fourth = deliveries

    def start(delivery: Delivery) -> bool:
        return tracking.start(delivery, change_of(delivery, "start", NOW), pending)

    assert start(first)
    tracking.close_started(pending)
    pending.remove("m1")
    assert start(second)
    second.outcome = Outcome.retry(60)
    faults.append(OSError())
    assert (start(third), start(fourth)) == (False, True)  # it is said once that the end of `second` is not written
    assert not invocation.attempt_store_fails
    faults.clear()
    pending.remove("m3")
    tracking.close_started(pending)
    tracking.close_started(pending)
    pending.remove("m4")
    tracking.finish(pending)
    starts = [["start of m1"], ["end of m1", "start of m2"], ["run of m2", "start of m3"]]
    assert written == [*starts, ["end of m3"], ["run of m2"]]


@pytest.mark.parametrize(("waited", "seconds"), [(0.0, 0.5), (0.375, 0.125), (0.75, -0.25)])
def test_handlers_wait_for_half_a_second_in_all_for_the_starts_of_their_messages(waited: float, seconds: float) -> None:
    asked, invocation = list[float](), invocation_in(World())  # SPEC O4
    tracking = Tracking(MemoryAttempts(), invocation, invocation.log)
    tracking._waited = waited
    tracking._answers = lambda works, most, **_: asked.append(most) or [None for _ in works]
    delivery = invocation.delivery("m1", record())
    assert tracking.start(delivery, change_of(delivery, "start", NOW), {"m1"})
    assert asked == [seconds]


@pytest.mark.parametrize(
    ("waited", "time_left", "seconds"), [(0, 30, 1), (0.75, 30, 0.25), (0, 2, 0.5), (0.75, 2, 0.25), (0, 0.5, 0.125)]
)
def test_a_store_is_waited_for_a_second_in_all_and_a_quarter_of_the_time_left(
    waited: float, time_left: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC O4
    waits, invocation = list[float](), invocation_in(World(clock := TestClock(NOW)), time_left)

    def answer(_: Any, of: Invocation, most: Any) -> list[Any]:
        for each in (0, seconds / 2, 1):
            clock.sleep(each)
            waits.append(most(of))
        return [None]

    monkeypatch.setattr("tarry.settle.attempts.answers_of", answer)
    tracking = Tracking(MemoryAttempts(), invocation, invocation.log)
    tracking._waited = waited
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=False)
    assert waits == [pytest.approx(seconds), pytest.approx(seconds / 2), 0]
    assert tracking._waited == pytest.approx(waited + seconds / 2 + 1)


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("AccessDeniedException", 1), ("ResourceNotFoundException", 1), ("ValidationException", 1),
        ("ThrottlingException", 2), ("of a fork", 0),
    ],
)  # fmt: skip
def test_a_store_that_refuses_all_requests_is_not_asked_again(code: str, asked: int, caplog: Caplog) -> None:
    calls, invocation = list[Any](), in_this_thread()  # SPEC O4

    def write(changes: Any) -> None:
        calls.append(changes)
        raise client_error(code, "no")

    invocation.attempt_store = SimpleNamespace(write=write, table="attempts")  # type: ignore[assignment]
    tracking = tracking_of(invocation, invocation.log)
    assert tracking_of(invocation, invocation.log) is tracking
    invocation.began_in -= asked == 0
    for name in ("m1", "m2"):
        change = change_of(invocation.delivery(name, record(message_id=name)), "seen", NOW)
        tracking.write({name: change}, in_background=False)
    assert (len(calls), invocation.attempt_store_fails) == (asked, asked > 0)
    text = "For now, attempts are counted by receives: their number may be too high. No message is lost."
    found = [field(line, "text") for line in lines(caplog, "attempts_not_exact")]
    assert [each[:26] + each[-len(text) :] for each in found] == ["The attempts table attempt" + text] * (asked > 0)


@pytest.mark.parametrize(("takes", "waited"), [(0.75, 0), (1.0, 1.0)])
def test_writing_in_the_background_keeps_no_handler_waiting_unless_no_answer_comes(takes: float, waited: float) -> None:
    invocation = in_this_thread()  # SPEC O4
    store = SimpleNamespace(write=lambda _: invocation.world.clock.sleep(takes))
    tracking = Tracking(store, invocation, invocation.log)
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=True)
    assert tracking._waited == waited


@pytest.mark.parametrize(("waited", "is_asked"), [(0.9, True), (1.0, False), (1.1, False)])
def test_a_store_that_has_taken_its_second_is_not_asked_again(waited: float, is_asked: bool) -> None:  # SPEC O4
    written, invocation = list[AttemptChange](), in_this_thread()
    tracking = Tracking(SimpleNamespace(write=written.extend), invocation, invocation.log)
    tracking._waited = waited
    tracking.write({}, in_background=False)
    assert not invocation.attempt_store_fails
    tracking.write({"m1": change_of(invocation.delivery("m1", record()), "seen", NOW)}, in_background=False)
    assert (len(written), invocation.attempt_store_fails) == (is_asked, not is_asked)
