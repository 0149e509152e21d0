"""Reports: the timeline of a message, as steps and as text."""

import re
from typing import Any

import pytest

from tarry import Consumer, Fixed, Message, RetryInPlace, SendAgain, consumer
from tarry.failed.text import MAX_LINE_CHARACTERS, brief, clock, duration, one_line
from tarry.testing import Sandbox, Transition
from tarry.tools.testing.checkers import Violation
from tarry.tools.testing.report import RuleBroken
from tests.sandboxes import work


class Declined(Exception): ...


def path(steps: list[Transition]) -> list[str]:
    return [f"{step.state} {step.queue}" for step in steps]


def failing(**settings: Any) -> Consumer[Any]:
    @consumer(**settings)
    def handler(message: Message) -> None:
        raise Declined("no")

    made: Consumer[Any] = handler
    return made


def crashes(event: Any, context: Any) -> None:
    raise SystemExit(3)


def test_a_message_without_a_consumer_is_ready(sandbox: Sandbox) -> None:
    sandbox.queue("orders")
    order = sandbox.send("orders", "1", delay=60)
    [step] = sandbox.run().story(order)
    assert step == Transition(sandbox.now, step.state, order, "orders", delay=60)
    assert step.state == "READY"


def test_a_copy_continues_the_timeline_of_its_message(sandbox: Sandbox) -> None:  # SPEC L1
    @consumer(on_failure=[SendAgain("slow", delay=60, queue="slow-orders")])
    def handler(message: Message) -> None:
        if message.queue == "orders":
            raise Declined("no")

    work(sandbox, handler, queue="slow-orders", dead_letter=None)
    [order] = work(sandbox, handler, "1")
    report = sandbox.run()
    assert len(report.timelines) == 1
    assert path(report.story(order)) == [
        "READY orders", "IN_FLIGHT orders", "READY slow-orders", "RESENT orders", "IN_FLIGHT slow-orders",
        "COMMITTED slow-orders",
    ]  # fmt: skip
    [first, *_, last] = report.story(order)
    assert first.delivery_id == order != last.delivery_id
    assert report.story(last.delivery_id) == report.story(order) == report.story(order[:8])
    with pytest.raises(KeyError, match="no message '' was sent"):
        report.story("")


def test_a_deferral_is_shown_as_a_copy(sandbox: Sandbox) -> None:  # SPEC J5
    @consumer
    def handler(message: Message) -> None:
        if message.receive_count == 1 and message.id == message.delivery_id:
            message.defer(90)

    [order] = work(sandbox, handler, "1")
    report = sandbox.run()
    assert "DEFERRED       for 1 min 30 s, as a copy" in report.timeline(order)
    assert report.timeline(order).count("READY") == 1  # the copy is not visible yet
    assert report.state(order) == "COMMITTED"


def test_discarded_filtered_and_expired_messages_are_discarded(sandbox: Sandbox) -> None:
    discards = consumer(lambda message: message.discard("too old"))
    order, other = work(sandbox, discards, {"kind": "order"}, {"kind": "test"}, filters=[{"body": {"kind": ["order"]}}])
    sandbox.queue("unread", retention=3600)
    unread = sandbox.send("unread", "1")
    report = sandbox.advance(4000)
    assert [step.why for step in report.story(order) if step.state == "DISCARDED"] == ["too old"]
    assert report.story(other)[-1].why == "no filter of the mapping matches it"
    step = report.story(unread)[-1]
    assert (step.state, step.why, step.at - sandbox.now) == ("DISCARDED", "expired", -400)
    assert report.count("DISCARDED") == 3


def test_a_message_that_sqs_moves_is_dead_lettered_and_redriven_it_continues_its_timeline(sandbox: Sandbox) -> None:
    crashes_left = [1, 2]

    def handler(event: Any, context: Any) -> None:
        if crashes_left and crashes_left.pop():
            raise SystemExit(3)

    [order] = work(sandbox, handler, "1", max_receive_count=2)
    *_, crashed, moved = sandbox.run(check=False).story(order)
    assert crashed.why == "Runtime exited with error: exit status 3"
    assert (moved.state, moved.queue, moved.why) == ("DEAD_LETTERED", "orders-dlq", "by SQS itself, after 2 receives")
    sandbox.redrive("orders-dlq")
    report = sandbox.run(check=False)
    assert path(report.story(order))[-3:] == ["READY orders", "IN_FLIGHT orders", "COMMITTED orders"]
    assert list(report.timelines) == [order]


def test_dead_letters_without_a_record_continue_the_timelines_of_their_messages(sandbox: Sandbox) -> None:  # SPEC F3
    """Also if the messages have equal bodies."""
    attributes = {f"a{number}": "x" for number in range(10)}
    orders = work(sandbox, consumer(lambda message: message.reject("no")), "1", "1", send={"attributes": attributes})
    report = sandbox.run()
    assert list(report.timelines) == orders
    for order in orders:
        assert path(report.story(order)) == ["READY orders", "IN_FLIGHT orders", "DEAD_LETTERED orders-dlq"]


def test_a_message_behind_a_failed_one_of_its_group_is_released(sandbox: Sandbox) -> None:  # SPEC H1
    @consumer(backoff=Fixed(30))
    def handler(message: Message) -> None:
        if message.body == "1" and message.attempt == 1:
            raise Declined

    _, behind = work(sandbox, handler, "1", "2", queue="ledger.fifo")
    states = [step.state for step in sandbox.run().story(behind)]
    assert states == ["READY", "IN_FLIGHT", "READY", "IN_FLIGHT", "COMMITTED"]


def test_an_unknown_message_is_an_error(sandbox: Sandbox) -> None:
    report = sandbox.report()
    for call in (report.story, report.timeline):
        with pytest.raises(KeyError, match="no message 'unknown' was sent"):
            call("unknown")
    assert str(report) == "no messages, after 0 s, seed 0"


# as text


def test_a_timeline_is_shown_as_a_line_for_each_step(sandbox: Sandbox) -> None:
    @consumer(max_attempts=2, backoff=Fixed(5400), on_failure=None)
    def handler(message: Message) -> None:
        raise Declined("no\x1b[31m money")

    [order] = work(sandbox, handler, {"id": 7, "text": "x" * 100})
    assert (
        sandbox.run().timeline(order)
        == f"""\
message {order} {{"id":7,"text":"{"x" * 41}...
  0:00:00.0  READY          in orders
  0:00:00.3  IN_FLIGHT      attempt 1
  0:00:00.3  WAITING_RETRY  for 1 h 30 min: Declined: no\\x1b[31m money
  1:30:00.6  IN_FLIGHT      attempt 2
  1:30:00.7  DEAD_LETTERED  in orders-dlq, exhausted: Declined: no\\x1b[31m money"""
    )


def test_a_timeline_shows_the_faults_of_its_invocations(sandbox: Sandbox) -> None:
    [order] = work(sandbox, failing(max_attempts=2, backoff=Fixed(60)), "1")
    sandbox.faults.add("throttle", operation="SendMessageBatch")
    assert "! throttle of SendMessageBatch\n" in sandbox.run().timeline(order)


def test_a_report_prints_the_counts_and_the_uncommitted_messages_first(sandbox: Sandbox) -> None:
    @consumer(on_failure=[RetryInPlace()])
    def handler(message: Message) -> None:
        if message.body == "11":
            message.reject("no")

    sent = work(sandbox, handler, *map(str, range(12)))
    text = str(sandbox.run())
    assert text.startswith(f"11 COMMITTED, 1 DEAD_LETTERED, after 0.4 s, seed 0\n\nmessage {sent[11]} 11\n")
    assert text.endswith("and 2 more: report.timeline(message_id)")
    assert text.count("message ") == 10
    assert repr(sandbox.report()) == "<Report: 11 COMMITTED, 1 DEAD_LETTERED, after 0.4 s, seed 0>"


def test_a_report_of_an_unsettled_run_says_so(sandbox: Sandbox) -> None:
    work(sandbox, failing(backoff=Fixed(60)), "1")
    assert str(sandbox.advance(30)).startswith("1 WAITING_RETRY, after 30 s, seed 0, more is to happen\n")


def test_a_duration_is_shown_with_units() -> None:
    shown = {0: "0 s", 0.4: "0.4 s", 1: "1 s", 59.6: "1 min", 90: "1 min 30 s", 43_200: "12 h"}
    shown |= {90_061: "1 d 1 h 1 min 1 s"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_time_is_shown_as_hours_minutes_and_seconds() -> None:
    assert [clock(seconds) for seconds in (0, 0.26, 59.96, 3600, 100 * 3600 + 61.5)] == [
        "0:00:00.0", "0:00:00.3", "0:01:00.0", "1:00:00.0", "100:01:01.5",
    ]  # fmt: skip


# broken rules


def test_each_broken_rule_is_shown_by_its_shortest_history(sandbox: Sandbox) -> None:
    """Of a long timeline, the beginning and the steps around the moment of the violation are shown."""
    handler = failing(max_attempts=30, backoff=Fixed(1))

    def loses_an_attempt(event: Any, context: Any) -> Any:
        [record] = event["Records"]
        is_lost = record["attributes"]["ApproximateReceiveCount"] == record["body"]
        response = handler(event, context)
        return {"batchItemFailures": []} if is_lost else response

    _, shortest, _ = work(sandbox, loses_an_attempt, "14", "11", "12", max_receive_count=40, batch_size=1)
    with pytest.raises(RuleBroken) as raised:
        sandbox.run()
    lines = str(raised.value).splitlines()
    assert lines[0] == "6 violations, seed 0"
    assert [line for line in lines if line.startswith("message ")] == [f"message {shortest} 11"]
    begin = lines.index(f"message {shortest} 11")
    assert [line[13:] for line in lines[begin + 1 : begin + 3]] == [
        "READY          in orders",
        "IN_FLIGHT      attempt 1",
    ]
    assert lines[begin + 3] == "  ... 10 lines left out: report.timeline(message_id)"
    assert lines[begin + 13].endswith("IN_FLIGHT      attempt 11")
    assert lines[begin + 15].endswith("COMMITTED      deleted, though it was WAITING_RETRY")
    assert lines[begin + 16] == "and 2 more violations of it: sandbox.report().violations"
    assert re.fullmatch(r"requests keep their budget: .* \(invocation [0-9a-f-]+\)", lines[begin + 18])


def test_a_violation_shows_all_messages_that_it_names_until_the_rule_was_broken(sandbox: Sandbox) -> None:
    first, second, _ = work(sandbox, failing(max_attempts=4, backoff=Fixed(60)), "first", "second", "third")
    report = sandbox.run()
    text = report.explain([Violation("a rule", second, f"runs before {first}, which is first", report.began + 60)])
    assert [line.split()[2] for line in text.splitlines() if line.startswith("message ")] == ["second", "first"]
    assert text.count("\n  0:01:00.3  IN_FLIGHT      attempt 2\n  and 5 later lines: report.timeline(message_id)") == 2


def test_a_report_shows_the_begin_and_the_end_of_a_long_timeline(sandbox: Sandbox) -> None:
    [order] = work(sandbox, crashes, "1", dead_letter=None)
    report = sandbox.run(for_=7_200, check=False)
    assert len(report.timeline(order).splitlines()) > 200
    assert len(str(report).splitlines()) < 50
    assert re.search(r"\n  \.\.\. \d+ lines left out: ", str(report))


# short reasons of states, for a terminal


@pytest.mark.parametrize(
    ("why", "shortened"),
    [
        ("fatal: shop.errors.UnknownCarrier: parcel p-504", "fatal: UnknownCarrier: parcel p-504"),
        ("rejected: tarry.errors.Reject: no stock", "rejected: no stock"),
        (
            "undecodable: tarry.errors.Undecodable: the body of message 7353abf2 does not fit Scan: no parcel",
            "undecodable: the body does not fit Scan: no parcel",
        ),
    ],
)
def test_a_reason_is_shortened_by_modules_and_prefixes(why: str, shortened: str) -> None:
    assert brief(why) == shortened


PYDANTIC = """2 validation errors for Order
id
  Input should be a valid integer [type=int_parsing]
    For further information visit https://errors.pydantic.dev/2.13/v/int_parsing
name
  Field required [type=missing]
    For further information visit https://errors.pydantic.dev/2.13/v/missing"""
POWERTOOLS = """BatchProcessingError: All records failed processing. 2 individual errors logged separately below.

Traceback (most recent call last):
  File "base.py", line 564, in _process_record
    result = self.handler(record=data)
             ^^^^^^^^^^^^^^^^^^^^^^^^^
app.CardDeclined: order 1

Traceback (most recent call last):
  File "app.py", line 8, in charge
app.CardDeclined: order 2
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x" * 1_000, "x" * (MAX_LINE_CHARACTERS - 3) + "..."),
        ("\x1b[31m", "\\x1b[31m"),
        (
            PYDANTIC,
            "2 validation errors for Order; id: Input should be a valid integer [type=int_parsing]; "
            "name: Field required [type=missing]",
        ),
        (
            POWERTOOLS,
            "BatchProcessingError: All records failed processing. 2 individual errors logged separately below. "
            "app.CardDeclined: order 1; app.CardDeclined: order 2",
        ),
    ],
)
def test_an_error_is_one_line_without_the_frames_of_its_text(text: str, line: str) -> None:
    assert one_line(text) == line
