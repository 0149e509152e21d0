"""Copies that failure steps send, and the user's steps: functions, notes, queues chosen by a function, other bodies."""

import logging
import math
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import (
    Batch,
    DeadLetter,
    Exponential,
    Failure,
    Fixed,
    Message,
    Outcome,
    Reject,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tests.loglines import Caplog, field, lines
from tests.records import batch_of, event, record
from tests.settled import fails, orders, redelivered, settle, targets
from tests.wire import Wire, arn, url

Next = Callable[[Failure], Outcome]


def run(steps: Any, delivered: dict[str, Any] | None = None) -> Wire:
    """Run the steps for a failing message; return the wire."""
    return settle(consumer(on_failure=steps, backoff=Fixed(60))(fails), event(delivered or record('{"id": 1}')))[1]


def run_with_copies(handler: Any, delivered: dict[str, Any] | None = None) -> Wire:
    """Run a message and its copies until none is sent to a consumed queue."""
    wire, current = orders(), delivered or record("{}")
    while True:
        sent = len(wire.sent_entries())
        settle(handler, event(current), wire)
        if len(wire.sent_entries()) == sent or targets(wire)[-1].endswith("-dlq"):
            return wire
        current = redelivered(wire, f"copy-{len(targets(wire))}")
        wire.clock.now += wire.sent_entries()[-1].get("DelaySeconds", 0) + 1


OF_TENANT = record('{"id": 1}', attributes={"tenant": {"dataType": "String", "stringValue": "acme"}})


# functions


def test_a_function_or_an_object_with_a_method_handle_can_be_a_failure_step() -> None:  # SPEC E3
    class CallableStep:
        def __call__(self, failure: Failure, next_step: Next) -> Outcome:
            raise AssertionError

        def handle(self, failure: Failure, next_step: Next) -> Outcome:
            return Outcome.discard()

    def drop_known(failure: Failure, next_step: Next, why: str = "known") -> Outcome:
        return Outcome.discard(why) if failure.message.json()["id"] == 1 else next_step(failure)

    for step in (CallableStep(), drop_known, lambda *arguments: Outcome.discard()):
        assert run([step, DeadLetter()]).acts == []
    wire = run([drop_known, RetryInPlace(), DeadLetter()], record('{"id": 2}'))
    assert wire.visibilities() == {"handle-m1": 60}


def test_a_failure_step_in_two_lists_has_one_counter() -> None:  # SPEC E3
    steps = [SendAgain("slow", times=2), DeadLetter()]
    envelopes = run_with_copies(consumer(on_failure={"orders": steps, "default": steps})(fails)).envelopes()
    assert [envelope.get("steps") for envelope in envelopes] == [{"slow": 1}, {"slow": 2}, None]


# a queue chosen by a function


def test_the_queue_of_a_copy_may_be_chosen_by_a_function_which_is_not_called_after_the_last_copy() -> None:
    """SPEC E3."""
    asked: list[int] = []

    def choose_queue(failure: Failure) -> str | None:
        asked.append(failure.attempt)
        return "slow" if failure.attempt == 1 else None

    handler = consumer(on_failure=[SendAgain("route", times=2, queue=choose_queue), DeadLetter(queue="orders-dlq")])
    assert targets(run_with_copies(handler(fails))) == ["slow", "slow", "orders-dlq"]
    assert asked == [1, 2]


@pytest.mark.parametrize("answer", [OSError("no table"), 5, ["slow"]], ids=repr)
def test_a_failing_queue_function_counts_as_a_failure_step_that_raises_an_exception(
    answer: Any, caplog: Caplog
) -> None:  # SPEC E3, E5
    def choose_queue(failure: Failure) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    wire = run([SendAgain("route", queue=choose_queue), DeadLetter()])
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 900})
    [line] = lines(caplog, "step_failed")
    of_a_value = f"queue of an outcome is a text or None, got a value of type {type(answer).__name__}"
    assert ("no table" if isinstance(answer, Exception) else of_a_value) in field(line, "error")


# copies


def test_two_lists_of_send_again_steps_give_the_expected_runs_and_delays(caplog: Caplog) -> None:  # SPEC E2, E3, E8
    runs: list[str] = []

    @consumer(
        on_failure={
            "orders": [SendAgain("first"), SendAgain("second", queue="failed-messages")],
            "failed-messages": [SendAgain("slow", times=30, delay=Exponential(5, 1.5, 60))],
        }
    )
    def handler(message: Message) -> None:
        runs.append(f"{message.queue} {message.attempt}")
        raise ValueError("always")

    sent = run_with_copies(handler).sent_entries()
    assert len(runs) == 33
    assert runs[:4] == ["orders 1", "orders 2", "failed-messages 3", "failed-messages 4"]
    assert [entry.get("DelaySeconds") for entry in sent[:2]] == [None, None]
    assert [entry["DelaySeconds"] for entry in sent[2:]] == [5, 8, 12, 17, 26, 38, 57] + [60] * 23
    assert [field(line, "message_id") for line in lines(caplog, "unhandled")] == ["m1"]
    warnings = lines(caplog, "many_hops")  # of the loop detection of Lambda, from the twelfth hop on
    assert (len(warnings), "RecursiveLoop" in warnings[0].getMessage()) == (21, True)


def test_a_copy_keeps_the_stable_id_attempts_failure_and_history() -> None:  # SPEC E6
    handler = consumer(on_failure=[SendAgain("slow", times=12), DeadLetter()])(fails)
    wire = run_with_copies(handler, OF_TENANT)
    copies, dead_letter = wire.envelopes()[:-1], wire.envelopes()[-1]
    assert [(copy["carried"], copy["hops"], copy["steps"]) for copy in copies] == [
        (number, number, {"slow": number}) for number in range(1, 13)
    ]
    assert {copy["id"] for copy in wire.envelopes()} == {"m1"}
    assert {copy["origin"] for copy in copies} == {arn("orders")}
    assert copies[-1]["failure"]["reason"] == "error"
    assert copies[-1]["failure"]["first_failed_at"] == copies[0]["failure"]["failed_at"]
    assert [entry["attempt"] for entry in copies[-1]["history"]] == [1, *range(4, 13)]
    assert wire.sent_entries()[-1]["MessageAttributes"]["tenant"]["StringValue"] == "acme"
    assert (dead_letter["failure"]["attempts"], "carried" in dead_letter, "steps" in dead_letter) == (13, False, False)


@pytest.mark.parametrize(
    ("delay", "seconds", "due"), [(0, 0, None), (900, 900, None), (901, 900, 901), (43_200, 900, 43_200)]
)
def test_a_long_delay_of_a_copy_is_900_seconds_at_sqs_and_a_due_time(delay: int, seconds: int, due: int | None) -> None:
    # SPEC J4, E3, E6
    reported, wire = settle(consumer(on_failure=[SendAgain("slow", delay=delay)])(fails))
    [entry], [envelope] = wire.sent_entries(), wire.envelopes()
    assert entry["DelaySeconds"] == seconds
    assert envelope.get("due") == (None if due is None else wire.clock.now + due)
    assert (reported, wire.operations[-2:]) == ([], ["SendMessageBatch", "DeleteMessageBatch"])


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({f"a{number}": {"dataType": "String", "stringValue": "x"} for number in range(10)}, "{}"),
        ({}, "x" * 990),
        ({}, "x" * 1_025),
    ],
    ids=["ten attributes", "no space", "no space for the body alone"],
)
def test_a_message_without_space_for_a_tarry_attribute_goes_to_the_next_failure_step(
    attributes: dict[str, Any], body: str, caplog: Caplog
) -> None:  # SPEC E6
    wire = orders(maximum_message_size=1024)
    handler = consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails)
    assert settle(handler, event(record(body, attributes=attributes)), wire)[0] == []
    assert targets(wire) == ["orders-dlq"]
    assert lines(caplog, "step_passed_on")


def test_no_copy_of_a_fatal_or_rejected_message_is_sent_but_one_of_a_failure_in_a_batch_handler() -> None:
    """SPEC B2, E1, E3."""
    steps = [SendAgain("slow"), DeadLetter()]
    _, wire = settle(consumer(fatal=ValueError, on_failure=steps)(fails))
    settle(consumer(on_failure=steps[:1])(lambda message: message.reject("no")), wire=wire)
    assert targets(wire) == ["orders-dlq", "orders-dlq"]

    tries: list[Any] = []

    @batch_consumer(on_failure=[lambda failure, next_step: tries.append(failure.tries) or next_step(failure), *steps])
    def handler(batch: Batch) -> None:
        batch[1].fail(ValueError("this one"))

    reported, wire = settle(handler, batch_of(3))
    assert (reported, [entry["MessageBody"] for entry in wire.sent_entries()], tries) == ([], ["1"], [1])


ON_FIFO = [record("{}", name, "orders.fifo", group="a") for name in ("m1", "m2")]


def test_on_fifo_a_copy_to_the_same_queue_needs_breaks_order_keeps_its_group_and_does_not_hold_it_up(
    caplog: Caplog,
) -> None:  # SPEC E7, H1
    """Each copy has its own deduplication id."""
    _, wire = settle(consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails), event(*ON_FIFO[:1]))
    assert targets(wire) == ["orders-dlq.fifo"]
    assert "breaks_order=True" in lines(caplog, "step_passed_on")[0].getMessage()
    handler = consumer(on_failure=[SendAgain("slow", times=2, breaks_order=True)])(
        lambda message: fails(message) if message.delivery_id != "m2" else None
    )
    reported, wire = settle(handler, event(*ON_FIFO))
    assert reported == []
    settle(handler, event(redelivered(wire)), wire)
    settle(handler, event(*ON_FIFO[:1]), wire)
    first, second, repeated = wire.sent_entries()
    assert (first["MessageGroupId"], "DelaySeconds" in first) == ("a", False)
    assert first["MessageDeduplicationId"] != second["MessageDeduplicationId"]
    assert first["MessageDeduplicationId"] == repeated["MessageDeduplicationId"]


# notes


def test_a_note_may_be_a_text_or_a_number_and_change_from_one_to_the_other() -> None:  # SPEC E3
    """A text under the id of a SendAgain step does not count as copies."""
    seen: list[Any] = []
    notes: list[dict[str, str | int]] = [
        {"route": "A" * 256, "tries": 1},
        {"route": 7},
        {"route": ""},
        {"slow": "text"},
    ]

    def step(failure: Failure, next_step: Next) -> Outcome:
        seen.append((failure.note("route"), failure.note("tries")))
        return Outcome.resend(note=notes[len(seen) - 1]) if len(seen) <= len(notes) else next_step(failure)

    envelopes = run_with_copies(consumer(on_failure=[step, SendAgain("slow"), DeadLetter()])(fails)).envelopes()
    assert seen == [(0, 0), ("A" * 256, 1), (7, 1), ("", 1), ("", 1), ("", 1)]
    assert [(envelope.get("steps"), envelope.get("notes")) for envelope in envelopes] == [
        ({"tries": 1}, {"route": "A" * 256}),
        ({"tries": 1, "route": 7}, None),
        ({"tries": 1}, {"route": ""}),
        ({"tries": 1}, {"route": "", "slow": "text"}),
        ({"tries": 1, "slow": 1}, {"route": ""}),
        (None, None),
    ]


def test_an_invalid_note_is_refused_with_the_limits_and_leaves_the_message_in_its_queue(caplog: Caplog) -> None:
    """SPEC E3, E5, E6. A copy whose note cannot be read would be sent again forever."""
    limits = "a whole number from 0 to 1000 or a text of at most 256 characters, got"
    notes: Any = [({"route": "x" * 257}, f"{limits} 'route': 'xxxx"), ({5: 1}, f"{limits} 5: 1"), ("mine", "")]
    for note, text in notes:
        with pytest.raises((ValueError, TypeError)) as caught:
            Outcome.resend(note=note)
        assert text in str(caught.value)
        wire = run([lambda failure, next_step, note=note: Outcome.resend(note=note)])
        assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 900})
    assert len(lines(caplog, "step_failed")) == len(notes)


# what SQS cannot keep


def answers(outcome: Outcome, **attributes: Any) -> Any:
    """Return a failure step that always answers with an outcome, and has these attributes."""

    def step(failure: Failure, next_step: Next) -> Outcome:
        return outcome

    step.__dict__.update(attributes)
    return step


LOSES_ITS_PLACE = "The answer of step cannot be carried out: a copy in the same FIFO queue loses its place"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        *(
            (answers(Outcome.resend(queue)), LOSES_ITS_PLACE)
            for queue in (None, "orders.fifo", arn("orders.fifo"), url("orders.fifo"))
        ),
        (SendAgain("route", queue=lambda _: "orders.fifo"), "The answer of SendAgain('route'"),
        (SimpleNamespace(handle=answers(Outcome.resend())), "The answer of types.SimpleNamespace"),
        (answers(Outcome.retry(43_200)), ""),
        (answers(Outcome.defer(43_200)), ""),
        (answers(Outcome.resend("other.fifo", 5)), "The answer of step cannot"),
        (SendAgain("slow", delay=5, breaks_order=True), "The answer of SendAgain('slow', times=1) cannot"),
    ],
)
def test_on_fifo_a_step_passes_on_with_one_error_what_would_lose_the_place_of_the_message_or_cannot_wait(
    step: Any, text: str, caplog: Caplog
) -> None:  # SPEC E7
    wire = run([step, RetryInPlace(), DeadLetter()], record("{}", queue="orders.fifo", group="g"))
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 60})
    [line] = lines(caplog, "step_passed_on")
    assert line.levelno == logging.ERROR
    assert text in field(line, "text")


class BreaksOrder:
    """A failure step that may send a message to its own FIFO queue."""

    breaks_order = True

    def handle(self, failure: Failure, next_step: Next) -> Outcome:
        return Outcome.resend()


@pytest.mark.parametrize(
    "steps",
    [
        [answers(Outcome.resend(), breaks_order=True)],
        [BreaksOrder()],
        [answers(Outcome.resend("other.fifo"))],
        [lambda failure, next_step: next_step(failure), SendAgain("slow", breaks_order=True)],
    ],
    ids=["function", "class", "another queue", "the answer of another step"],
)
def test_on_fifo_a_step_may_send_to_its_own_queue_if_it_breaks_order(steps: list[Any]) -> None:  # SPEC E7
    wire = run([*steps, RetryInPlace(), DeadLetter()], record("{}", queue="orders.fifo", group="g"))
    assert len(wire.sent_entries()) == 1


@pytest.mark.parametrize(
    "outcome", [Outcome.retry(43_201), Outcome.defer(43_201), Outcome.resend("elsewhere", 43_201)], ids=repr
)
def test_a_delay_above_12_hours_is_not_cut_and_the_step_passes_on_with_one_error(
    outcome: Outcome, caplog: Caplog
) -> None:  # SPEC E7
    wire = run([answers(outcome), RetryInPlace()])
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 60})
    [line] = lines(caplog, level=logging.ERROR)
    assert "a delay of 43201 s was asked for, and SQS keeps at most 43200 s" in field(line, "text")


@pytest.mark.parametrize("error", [ValueError("out of order"), Reject("never mind")])
def test_a_message_that_a_step_retries_at_its_last_delivery_is_dead_lettered(error: Exception, caplog: Caplog) -> None:
    """SPEC C8, E5. Otherwise, SQS would move it to the same dead-letter queue without a failure record."""

    @consumer(on_failure=[answers(Outcome.retry(60))])
    def handler(message: Message) -> None:
        raise error

    wire = orders(max_receive_count=3)
    assert settle(handler, batch_of(1, receives=2), wire)[0] == ["m0"]
    assert settle(handler, batch_of(1, receives=3), wire)[0] == []
    assert [each["failure"]["attempts"] for each in wire.envelopes()] == [3]
    assert "Raise the queue's maxReceiveCount" in field(lines(caplog, "no_delivery_left")[0], "text")


# the delay of the policy


def test_the_delay_of_the_policy_is_drawn_once_for_a_failure_and_known_to_a_step_around_retry_in_place() -> None:
    """SPEC C6, E1, E7."""
    seen: list[Any] = []

    def around(failure: Failure, next_step: Next) -> Outcome:
        outcome = next_step(failure)
        seen.extend((failure.delay, failure.policy_delay, failure.policy_delay, outcome.delay))
        return Outcome.retry(outcome.delay or 0)

    handler = consumer(on_failure=[around, RetryInPlace()], backoff=Fixed(40_000.5, jitter="full"))(fails)
    _, wire = settle(handler)
    none, first, second, of_retry_in_place = seen
    assert (none, second, of_retry_in_place) == (None, first, math.ceil(first))
    assert wire.visibilities() == {"handle-m1": of_retry_in_place}
    steps = [lambda failure, next_step: Outcome.retry(failure.policy_delay)]  # it is cut
    _, wire = settle(consumer(on_failure=steps, backoff=Fixed(43_200))(fails))
    assert wire.visibilities() == {"handle-m1": 43_199}


# another body or attributes


def resends(**changes: Any) -> list[Any]:
    """Return failure steps that send a copy once, with these changes."""

    def step(failure: Failure, next_step: Next) -> Outcome:
        return next_step(failure) if failure.note("once") else Outcome.resend(note={"once": 1}, **changes)

    step.breaks_order = True  # type: ignore[attr-defined]
    return [step, DeadLetter()]


def test_a_copy_with_another_body_keeps_its_stable_id_and_records_the_time_of_the_edit() -> None:  # SPEC E3, K4
    bodies: list[str] = []

    @consumer(on_failure=resends(body={"id": 1, "currency": "EUR"}))
    def handler(message: Message) -> None:
        bodies.append(message.body)
        raise ValueError

    wire = run_with_copies(handler, OF_TENANT)
    assert bodies == ['{"id": 1}', '{"id":1,"currency":"EUR"}']
    assert "secret" not in repr(Outcome.resend(body={"a": "secret"}, attributes={"b": "secret"}))  # SPEC L2
    copy, dead_letter = wire.envelopes()
    assert (copy["id"], copy["carried"], copy["edited"]) == ("m1", 1, "2027-01-15T08:00:00.000Z")
    assert wire.sent_entries()[0]["MessageAttributes"]["tenant"]["StringValue"] == "acme"
    assert (dead_letter["id"], dead_letter["failure"]["attempts"], dead_letter["edited"]) == ("m1", 2, copy["edited"])


@pytest.mark.parametrize(
    ("changes", "types", "is_edited"),
    [
        ({"attributes": {"priority": 7, "key": b"\x00"}}, {"priority": "Number", "key": "Binary"}, True),
        ({"attributes": {}}, {}, True),
        ({"body": '{"id": 1}', "attributes": {"tenant": "acme"}}, {"tenant": "String"}, False),
    ],
    ids=["others", "none", "the same contents"],
)
def test_the_attributes_of_a_resend_replace_those_of_the_message(
    changes: Any, types: dict[str, str], is_edited: bool
) -> None:  # SPEC E3
    wire = run(resends(**changes), OF_TENANT)
    attributes = wire.sent_entries()[0]["MessageAttributes"]
    assert {name: value["DataType"] for name, value in attributes.items()} == {**types, "Tarry": "String"}
    assert ("edited" in wire.envelopes()[0]) == is_edited


NO_TYPE = "SQS would refuse the copy (its body or an attribute has a type that SQS does not accept)"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"body": "x" * 1_100_000}, "bytes, and orders accepts 1048576"),
        ({"body": ""}, "SQS would refuse the copy (the body is empty: SQS takes 1 character or more)"),
        ({"body": "\x00"}, "SQS would refuse the copy (the body holds U+0000 at index 0"),
        ({"body": {"secret"}}, NO_TYPE),
        ({"body": {"secret": 1j}}, NO_TYPE),
        ({"attributes": {str(n): "x" for n in range(11)}}, "a message has at most 10 attributes, got 11"),
        ({"attributes": {str(n): "x" for n in range(10)}}, "there is no space for its Tarry attribute"),
        ({"attributes": {"Tarry": "x"}}, "the attribute name Tarry is reserved for tarry"),
        ({"attributes": {"a": ""}}, "attribute 'a' is empty"),
        ({"attributes": 5}, "SQS would refuse the copy"),
    ],
)
def test_a_copy_beyond_the_limits_is_passed_on_to_the_next_failure_step(
    changes: dict[str, Any], text: str, caplog: Caplog
) -> None:  # SPEC E3, F3
    assert targets(run(resends(**changes))) == ["orders-dlq"]
    [line] = lines(caplog, "step_passed_on")
    assert text in field(line, "text")
    assert "secret" not in field(line, "text")


def test_on_fifo_copies_with_different_bodies_have_the_same_deduplication_id() -> None:  # SPEC E7
    delivered = record("{}", queue="orders.fifo", group="g")
    first, second = (run(resends(body=body), delivered).sent_entries()[0] for body in ("[1]", "[2]"))
    assert (first["MessageBody"], second["MessageBody"]) == ("[1]", "[2]")
    assert first["MessageDeduplicationId"] == second["MessageDeduplicationId"]


def test_each_history_entry_contains_the_delay_that_followed_it() -> None:  # DESIGN 3, J4
    steps = [SendAgain("slow", times=3, delay=Fixed(30)), SendAgain("at once", queue="orders"), DeadLetter()]
    dead_letter = run_with_copies(consumer(on_failure=steps)(fails)).envelopes()[-1]
    assert [entry.get("delay") for entry in dead_letter["history"]] == [30, 30, 30, None, None]
    [copy] = settle(consumer(lambda message: message.retry(43_200)))[1].envelopes()
    assert ([entry["delay"] for entry in copy["history"]], copy["due"]) == ([43_200], 1_800_043_200)


def test_a_sandbox_that_allows_the_loop_has_no_line_about_many_copies(sandbox: Sandbox, caplog: Caplog) -> None:
    steps = [SendAgain("slow", times=13), DeadLetter()]  # SPEC E8, J5
    dead, _ = run_in_sandbox("orders", sandbox, 15, *steps, recursive_loop="Allow")
    assert (len(dead), lines(caplog, "many_hops")) == (1, [])


# steps that run a message again, or answer with what is not for failed messages


def test_a_step_that_asks_a_batch_handler_to_run_again_is_named_in_the_log(caplog: Caplog) -> None:
    """SPEC E5. A batch cannot run again in part; the other messages are not affected."""

    @batch_consumer(on_failure=[lambda failure, next_step: Outcome.again(0)])
    def handler(batch: Batch) -> None:
        batch[0].fail(ValueError())

    reported, wire = settle(handler, batch_of(3))
    assert (reported, wire.visibilities()) == (["m0"], {"handle-m0": 900})
    [line] = lines(caplog, "step_failed")
    assert (field(line, "message_id"), "Return Outcome.retry()" in field(line, "text")) == ("m0", True)


def run_in_sandbox(
    queue: str, sandbox: Sandbox, receives: int, *steps: Any, **settings: Any
) -> tuple[list[Any], list[str]]:
    """Run a failing message with these steps until it is dead-lettered; return its dead letters and all events."""
    sandbox.queue(queue, dead_letter=f"dead-{queue}", max_receive_count=receives)
    sandbox.connect(consumer(on_failure=steps)(fails), queue, **settings)
    sandbox.send(queue, "{}", group_id="a" if queue.endswith(".fifo") else None)
    events = [event.what for event in sandbox.run().events]
    return sandbox.messages(f"dead-{queue}"), events


QUEUES = pytest.mark.parametrize("queue", ["orders", "orders.fifo"])


@QUEUES
def test_a_step_that_always_runs_the_message_again_ends_with_the_time_of_the_invocation(
    queue: str, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC E5, I2
    dead, events = run_in_sandbox(queue, sandbox, 2, answers(Outcome.again(0.5)), timeout=10)
    assert events.count("handler_called") == events.count("handler_returned") == 2
    assert (len(dead), len(lines(caplog, "step_failed"))) == (1, 2)


def test_a_step_runs_a_message_at_most_1001_times_in_one_delivery(sandbox: Sandbox, caplog: Caplog) -> None:
    """SPEC E5. A handler that fails in no time would run until the deadline, as often as the processor can."""
    dead, events = run_in_sandbox("orders", sandbox, 1, answers(Outcome.again()))
    assert (len(dead), events.count("run_started")) == (1, 1_001)
    [line] = lines(caplog, "step_passed_on")
    assert "the message has run 1001 times in this delivery" in field(line, "text")


@pytest.mark.parametrize("outcome", [Outcome.release(), Outcome.wait(60), Outcome.wait(1e9)], ids=repr)
@QUEUES
def test_a_step_cannot_answer_that_a_failed_message_has_not_run(
    queue: str, outcome: Outcome, sandbox: Sandbox, caplog: Caplog
) -> None:
    """SPEC C8, E7. A message that is only released runs again and again, until SQS moves it without a record."""
    dead, _ = run_in_sandbox(queue, sandbox, 3, answers(outcome))
    assert [each.failure.reason for each in dead] == ["exhausted"]
    texts = [field(line, "text") for line in lines(caplog, "step_passed_on")]
    assert len(texts) == 3
    assert f"the outcome {outcome.kind} is of messages that have not run" in texts[0]


@pytest.mark.parametrize(
    "make", [lambda: Outcome.dead_letter(7), lambda: Outcome.dead_letter("bad", 7), lambda: Outcome.discard(object())]
)
def test_an_outcome_with_a_reason_or_a_queue_that_is_not_a_text_counts_as_a_step_that_raises(
    make: Any, sandbox: Sandbox, caplog: Caplog
) -> None:
    """SPEC C8, E5. Neither is found out when the dead letter is written: SQS would move the message without it."""
    dead, _ = run_in_sandbox("orders", sandbox, 2, lambda failure, next_step: make())
    assert [each.failure.reason for each in dead] == ["exhausted"]
    assert "of an outcome is a text or None, got a value of type" in field(lines(caplog, "step_failed")[0], "error")


def test_a_failure_step_may_use_the_traceback_of_the_error() -> None:  # SPEC E3
    seen: list[str] = []

    def show(failure: Failure, next_step: Next) -> Outcome:
        seen.append("".join(traceback.format_exception(failure.error)))
        return next_step(failure)

    settle(consumer(on_failure=[show, RetryInPlace(), DeadLetter()])(fails), batch_of(3))
    assert ["in fails" in text for text in seen] == [True, True, True]
