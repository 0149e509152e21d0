"""The user's failure steps: functions, notes, queues chosen by a function, and copies with another body."""

import json
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    Failure,
    Fixed,
    Message,
    Outcome,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.testing import Sandbox
from tests.integration.test_failure_steps import fails, last_copy, orders, run_with_copies
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, arn, url

Next = Callable[[Failure], Outcome]


def run(steps: Any, delivered: dict[str, Any] | None = None, wire: Wire | None = None) -> Wire:
    """Run the steps for a failing message; return the wire."""
    wire = wire or orders()
    with wire:
        consumer(on_failure=steps)(fails)(event(delivered or record('{"id": 1}', "m1")), Context())
    return wire


# functions


def test_a_function_can_be_a_failure_step() -> None:  # SPEC E3
    def drop_known(failure: Failure, next_step: Next) -> Outcome:
        return Outcome.discard("known") if failure.message.json()["id"] == 1 else next_step(failure)

    handler = consumer(on_failure=[drop_known, RetryInPlace(), DeadLetter()], backoff=Fixed(60))(fails)
    with orders() as wire:
        assert failed(handler(event(record('{"id": 1}', "m1"), record('{"id": 2}', "m2")), Context())) == ["m2"]
    assert wire.visibilities() == {"handle-m2": 60}


def test_the_method_handle_of_a_callable_object_is_the_failure_step() -> None:  # SPEC E3
    class CallableStep:
        def __call__(self, failure: Failure, next_step: Next) -> Outcome:
            raise AssertionError

        def handle(self, failure: Failure, next_step: Next) -> Outcome:
            return Outcome.discard()

    assert run([CallableStep()]).sent_entries() == []


async def async_step(failure: Failure, next_step: Next) -> Outcome:
    return next_step(failure)


def generator_step(failure: Failure, next_step: Next) -> Any:
    yield next_step(failure)


class AsyncStep:
    async def handle(self, failure: Failure, next_step: Next) -> Outcome:
        return next_step(failure)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (async_step, "a failure step must not be async or a generator, got <function async_step"),
        (generator_step, "a failure step must not be async or a generator, got <function generator_step"),
        (AsyncStep(), "a failure step must not be async or a generator, got <"),
        (lambda failure: None, "a function as a failure step takes (failure, next_step), got <function <lambda>"),
        (lambda a, b, c: None, "a function as a failure step takes (failure, next_step), got <function <lambda>"),
        (
            DropMessage,
            "on_failure takes objects with a method handle(failure, next_step), or functions of these two, got ",
        ),
        ("drop", "or functions of these two, got 'drop'"),
    ],
)
def test_a_function_that_cannot_be_a_failure_step_is_refused(step: Any, text: str) -> None:  # SPEC E3, C5
    with pytest.raises(ConfigurationError) as caught:
        consumer(on_failure=[step])
    assert text in str(caught.value)


def test_a_failure_step_may_have_additional_optional_parameters() -> None:  # SPEC E3
    def step(failure: Failure, next_step: Next, why: str = "known") -> Outcome:
        return Outcome.discard(why)

    assert run([step]).sent_entries() == []
    assert run([lambda *arguments: Outcome.discard()]).sent_entries() == []


def test_a_message_stays_in_its_queue_if_a_function_as_failure_step_raises_an_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E5
    def step(failure: Failure, next_step: Next) -> Outcome:
        raise OSError("no table")

    assert run([step]).visibilities() == {"handle-m1": 900}
    assert lines(caplog, "step_failed")


# ids


def test_two_failure_steps_with_the_same_id_are_refused() -> None:  # SPEC E3
    with pytest.raises(ConfigurationError) as caught:
        consumer(on_failure={"orders": [SendAgain("slow")], "default": [SendAgain("slow")]})
    assert str(caught.value) == (
        "two SendAgain steps have the id 'slow', and would share one counter: give each an id of its own, or put one "
        "step object into both lists"
    )


def test_a_failure_step_in_two_lists_has_one_counter() -> None:  # SPEC E3
    slow = SendAgain("slow", times=2)
    handler = consumer(on_failure={"orders": [slow, DeadLetter()], "default": [slow, DeadLetter()]})(fails)
    wire = orders()
    sent = run_with_copies(handler, wire, record("{}", "m1"))
    assert len(sent) == 3
    assert [envelope.get("steps") for envelope in wire.envelopes()] == [{"slow": 1}, {"slow": 2}, None]


# a queue chosen by a function


def test_the_queue_of_a_copy_may_be_chosen_by_a_function_of_the_failure() -> None:  # SPEC E3
    def choose_queue(failure: Failure) -> str | None:
        return "slow" if failure.attempt == 1 else None

    handler = consumer(on_failure=[SendAgain("route", times=2, queue=choose_queue), DeadLetter()])(fails)
    wire = orders(slow=Queue(dead_letter="orders-dlq"))
    run_with_copies(handler, wire, record("{}", "m1"))
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["slow", "slow", "orders-dlq"]


@pytest.mark.parametrize("answer", [OSError("no table"), 5, ["slow"]], ids=repr)
def test_a_failing_queue_function_counts_as_a_failure_step_that_raises_an_exception(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E3, E5
    def choose_queue(failure: Failure) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    wire = run([SendAgain("route", queue=choose_queue), DeadLetter()])
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 900})
    [line] = lines(caplog, "step_failed")
    if not isinstance(answer, Exception):
        assert f"queue of an outcome is a text or None, got a value of type {type(answer).__name__}" in field(
            line, "error"
        )


def test_the_queue_function_is_not_called_after_the_last_copy() -> None:  # SPEC E3
    asked: list[int] = []

    def choose_queue(failure: Failure) -> None:
        asked.append(failure.attempt)

    run_with_copies(
        consumer(on_failure=[SendAgain("route", times=2, queue=choose_queue), DeadLetter()])(fails),
        orders(),
        record("{}", "m1"),
    )
    assert asked == [1, 2]


def test_a_function_that_names_its_own_fifo_queue_needs_breaks_order(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC E7
    wire = Wire(queues={"orders.fifo": Queue(dead_letter="dlq.fifo")})
    steps = [SendAgain("route", queue=lambda failure: "orders.fifo"), DeadLetter()]
    run(steps, record("{}", "m1", "orders.fifo", group="g"), wire)
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["dlq.fifo"]
    assert lines(caplog, "step_passed_on")


def test_an_invalid_queue_of_send_again_is_refused() -> None:  # SPEC C5
    with pytest.raises(
        ConfigurationError, match=r"SendAgain\('slow'\) takes a queue's name, URL or ARN, or a function"
    ):
        SendAgain("slow", queue=5)  # type: ignore[arg-type]


# notes


def test_a_note_may_be_a_text() -> None:  # SPEC E3
    seen: list[Any] = []

    def step(failure: Failure, next_step: Next) -> Outcome:
        seen.append((failure.note("route"), failure.note("tries")))
        if failure.note("tries") == 2:
            return next_step(failure)
        return Outcome.resend(note={"route": "A" * 256, "tries": int(failure.note("tries")) + 1})

    wire = orders()
    run_with_copies(consumer(on_failure=[step, DeadLetter()])(fails), wire, record("{}", "m1"))
    assert seen == [(0, 0), ("A" * 256, 1), ("A" * 256, 2)]
    first, _, dead_letter = wire.envelopes()
    assert (first["steps"], first["notes"]) == ({"tries": 1}, {"route": "A" * 256})
    assert "notes" not in dead_letter


def test_a_note_may_change_between_text_and_number() -> None:  # SPEC E3
    def step(failure: Failure, next_step: Next) -> Outcome:
        match failure.note("route"):
            case 0:
                return Outcome.resend(note={"route": 7})
            case 7:
                return Outcome.resend(note={"route": ""})
            case "":
                return Outcome.resend(note={"route": 8})
        return next_step(failure)

    wire = orders()
    run_with_copies(consumer(on_failure=[step, DeadLetter()])(fails), wire, record("{}", "m1"))
    assert [(envelope.get("steps"), envelope.get("notes")) for envelope in wire.envelopes()] == [
        ({"route": 7}, None),
        (None, {"route": ""}),
        ({"route": 8}, None),
        (None, None),
    ]


def test_a_text_note_under_the_id_of_send_again_does_not_count_as_copies() -> None:  # SPEC E3
    def step(failure: Failure, next_step: Next) -> Outcome:
        return Outcome.resend(note={"slow": "text"}) if failure.attempt == 1 else next_step(failure)

    wire = orders()
    run_with_copies(consumer(on_failure=[step, SendAgain("slow"), DeadLetter()])(fails), wire, record("{}", "m1"))
    assert [envelope.get("steps") for envelope in wire.envelopes()] == [None, {"slow": 1}, None]


def test_a_deferred_copy_keeps_its_notes() -> None:  # SPEC E3, J5
    @consumer(on_failure=[lambda failure, next_step: Outcome.resend(note={"route": "slow"})])
    def handler(message: Message) -> None:
        if message.attempt == 2:
            return message.defer(60)
        raise ValueError

    wire = orders()
    with wire:
        handler(event(record("{}", "m1")), Context())
        handler(event(last_copy(wire, "m2")), Context())
    assert [envelope["notes"] for envelope in wire.envelopes()] == [{"route": "slow"}] * 2


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ({"route": "x" * 257}, "got 'route': 'xxx"),
        ({"route": 1_001}, "got 'route': 1001"),
        ({"route": 1.5}, "got 'route': 1.5"),
        ({5: 1}, "got 5: 1"),
    ],
)
def test_an_invalid_note_is_refused_with_the_limits(note: Any, text: str) -> None:  # SPEC E3
    with pytest.raises(ValueError, match="a whole number from 0 to 1000 or a text of at most 256 characters") as caught:
        Outcome.resend(note=note)
    assert text in str(caught.value)


# what SQS cannot keep


def answers(outcome: Outcome, **attributes: Any) -> Any:
    """Return a failure step that always answers with an outcome, and has these attributes."""

    def step(failure: Failure, next_step: Next) -> Outcome:
        return outcome

    step.__dict__.update(attributes)
    return step


class BreaksOrder:
    """A failure step that may send a message to its own FIFO queue."""

    breaks_order = True

    def handle(self, failure: Failure, next_step: Next) -> Outcome:
        return Outcome.resend()


def fifo() -> Wire:
    return Wire(queues={"orders.fifo": Queue(dead_letter="dlq.fifo"), "other.fifo": Queue()})


def run_on_fifo(*steps: Any) -> Wire:
    """Run the steps for a message of a FIFO queue with a backoff of a minute; return the wire."""
    with fifo() as wire:
        handler = consumer(on_failure=[*steps, RetryInPlace(), DeadLetter()], backoff=Fixed(60))(fails)
        handler(event(record("{}", "m1", "orders.fifo", group="g")), Context())
    return wire


@pytest.mark.parametrize("queue", [None, "orders.fifo", arn("orders.fifo"), url("orders.fifo")])
def test_on_fifo_a_step_that_sends_a_message_to_its_own_queue_passes_on_with_one_error(
    queue: str | None, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E7
    wire = run_on_fifo(answers(Outcome.resend(queue)))
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 60})
    [line] = lines(caplog, level=logging.ERROR)
    assert "The answer of step cannot be carried out: a copy in the same FIFO queue loses its place" in field(
        line, "text"
    )


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(answers(Outcome.resend(), breaks_order=True), id="function"),
        pytest.param(BreaksOrder(), id="class"),
        pytest.param(answers(Outcome.resend("other.fifo")), id="another queue"),
    ],
)
def test_on_fifo_a_step_may_send_to_its_own_queue_if_it_breaks_order(step: Any) -> None:  # SPEC E7
    assert len(run_on_fifo(step).sent_entries()) == 1


def test_a_step_that_returns_the_answer_of_another_step_needs_no_permission_of_its_own() -> None:  # SPEC E7
    wire = run_on_fifo(lambda failure, next_step: next_step(failure), SendAgain("slow", breaks_order=True))
    assert len(wire.sent_entries()) == 1


TOO_LONG = [Outcome.retry(43_201), Outcome.defer(43_201), Outcome.resend("elsewhere", 43_201)]


@pytest.mark.parametrize("outcome", TOO_LONG, ids=lambda outcome: outcome.kind)
def test_a_delay_above_12_hours_is_not_cut_and_the_step_passes_on_with_one_error(
    outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E7
    wire = orders()
    with wire:
        consumer(on_failure=[answers(outcome), RetryInPlace()], backoff=Fixed(60))(fails)(batch_of(1), Context())
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m0": 60})
    [line] = lines(caplog, level=logging.ERROR)
    assert "a delay of 43201 s was asked for, and SQS keeps at most 43200 s" in field(line, "text")


@pytest.mark.parametrize("outcome", [Outcome.retry(43_200), Outcome.defer(43_200)], ids=lambda outcome: outcome.kind)
def test_on_fifo_a_delay_that_cannot_be_kept_in_place_makes_the_step_pass_on(
    outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E7
    assert run_on_fifo(answers(outcome)).visibilities() == {"handle-m1": 60}
    assert len(lines(caplog, "step_passed_on")) == 1


def test_on_fifo_a_copy_with_a_delay_makes_the_step_pass_on(caplog: pytest.LogCaptureFixture) -> None:  # SPEC E7
    wire = run_on_fifo(answers(Outcome.resend("other.fifo", 5)), SendAgain("slow", delay=5, breaks_order=True))
    assert (wire.sent_entries(), wire.visibilities()) == ([], {"handle-m1": 60})
    assert [field(line, "text").split(" cannot ")[0] for line in lines(caplog, "step_passed_on")] == [
        "The answer of step",
        "The answer of SendAgain('slow', times=1)",
    ]


# the delay of the policy


def test_a_step_around_retry_in_place_gets_the_delay_of_the_policy() -> None:  # SPEC E1, E7
    seen: list[Any] = []

    def around(failure: Failure, next_step: Next) -> Outcome:
        outcome = next_step(failure)
        seen.append((failure.delay, failure.policy_delay, outcome.delay))
        return Outcome.retry(outcome.delay or 0)

    with orders() as wire:
        consumer(on_failure=[around, RetryInPlace()], backoff=Fixed(299.5))(fails)(batch_of(1), Context())
    assert seen == [(None, 299.5, 300)]
    assert wire.visibilities() == {"handle-m0": 300}


def test_the_delay_of_the_policy_is_drawn_once_for_a_failure() -> None:  # SPEC E1
    seen: list[float | None] = []

    def watch(failure: Failure, next_step: Next) -> Outcome:
        seen.extend((failure.policy_delay, failure.policy_delay, next_step(failure).delay))
        return Outcome.retry()

    with orders() as wire:
        handler = consumer(on_failure=[watch, RetryInPlace()], backoff=Fixed(40_000, jitter="full"))(fails)
        handler(batch_of(1), Context())
    first, second, of_retry_in_place = seen
    assert first == second
    assert wire.visibilities() == {"handle-m0": math.ceil(first or 0)} == {"handle-m0": of_retry_in_place}


def test_a_step_may_answer_with_a_delay_of_the_policy_that_is_cut() -> None:  # SPEC C6, E7
    with orders() as wire:
        steps = [lambda failure, next_step: Outcome.retry(failure.policy_delay)]
        consumer(on_failure=steps, backoff=Fixed(43_200))(fails)(batch_of(1), Context())
    assert wire.visibilities() == {"handle-m0": 43_199}


# another body or attributes


def resends(**changes: Any) -> list[Any]:
    """Return failure steps that send a copy once, with these changes."""

    def step(failure: Failure, next_step: Next) -> Outcome:
        return next_step(failure) if failure.note("once") else Outcome.resend(note={"once": 1}, **changes)

    step.breaks_order = True  # type: ignore[attr-defined]
    return [step, DeadLetter()]


TENANT = {"tenant": {"dataType": "String", "stringValue": "acme"}}


def test_a_copy_with_another_body_keeps_its_stable_id_and_records_the_time_of_the_edit() -> None:  # SPEC E3, K4
    bodies: list[str] = []

    @consumer(on_failure=resends(body={"id": 1, "currency": "EUR"}))
    def handler(message: Message) -> None:
        bodies.append(message.body)
        raise ValueError

    wire = orders()
    run_with_copies(handler, wire, record('{"id": 1}', "m1", attributes=TENANT))
    assert bodies == ['{"id": 1}', '{"id":1,"currency":"EUR"}']
    copy, dead_letter = wire.envelopes()
    assert (copy["id"], copy["carried"], copy["edited"]) == ("m1", 1, "2027-01-15T08:00:00.000Z")
    assert wire.sent_entries()[0]["MessageAttributes"]["tenant"]["StringValue"] == "acme"
    assert (dead_letter["id"], dead_letter["failure"]["attempts"], dead_letter["edited"]) == ("m1", 2, copy["edited"])


def test_the_attributes_of_a_resend_replace_those_of_the_message() -> None:  # SPEC E3
    wire = run(resends(attributes={"priority": 7, "key": b"\x00"}), record("{}", "m1", attributes=TENANT))
    attributes = wire.sent_entries()[0]["MessageAttributes"]
    assert {name: value["DataType"] for name, value in attributes.items()} == {
        "priority": "Number",
        "key": "Binary",
        "Tarry": "String",
    }
    assert "edited" in wire.envelopes()[0]
    assert list(
        run(resends(attributes={}), record("{}", "m1", attributes=TENANT)).sent_entries()[0]["MessageAttributes"]
    ) == ["Tarry"]


def test_a_copy_with_unchanged_contents_is_not_marked_as_edited() -> None:  # SPEC E3
    same = run(resends(body='{"id": 1}', attributes={"tenant": "acme"}), record('{"id": 1}', "m1", attributes=TENANT))
    assert "edited" not in same.envelopes()[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"body": "x" * 1_100_000}, "bytes, and orders accepts 1048576"),
        ({"body": ""}, "SQS would refuse the copy (the body is empty: SQS takes 1 character or more)"),
        ({"body": "\x00"}, "SQS would refuse the copy (the body holds U+0000 at index 0"),
        (
            {"body": {"secret"}},
            "SQS would refuse the copy (its body or an attribute has a type that SQS does not accept)",
        ),
        (
            {"body": {"secret": 1j}},
            "SQS would refuse the copy (its body or an attribute has a type that SQS does not accept)",
        ),
        ({"attributes": {str(n): "x" for n in range(11)}}, "a message has at most 10 attributes, got 11"),
        ({"attributes": {str(n): "x" for n in range(10)}}, "there is no space for its Tarry attribute"),
        ({"attributes": {"Tarry": "x"}}, "the attribute name Tarry is reserved for tarry"),
        ({"attributes": {"a": ""}}, "attribute 'a' is empty"),
        ({"attributes": 5}, "SQS would refuse the copy"),
    ],
)
def test_a_copy_beyond_the_limits_is_passed_on_to_the_next_failure_step(
    changes: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E3, F3
    wire = run(resends(**changes))
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    [line] = lines(caplog, "step_passed_on")
    assert text in field(line, "text")
    assert "secret" not in field(line, "text")


def test_the_repr_of_an_outcome_does_not_contain_the_body() -> None:  # SPEC L2
    assert "secret" not in repr(Outcome.resend(body={"a": "secret"}, attributes={"b": "secret"}))


def test_a_failure_step_can_repair_an_undecodable_body(sandbox: Sandbox) -> None:  # SPEC E3, D4
    done: list[Any] = []

    def repair(failure: Failure, next_step: Next) -> Outcome:
        if failure.reason == "undecodable":
            return Outcome.resend(body=failure.message.body.replace("'", '"'))
        return next_step(failure)

    @consumer(on_failure=[repair, RetryInPlace(), DeadLetter()])
    def handler(message: Message) -> None:
        done.append((message.json(), message.id))

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    sent = sandbox.send("orders", "{'id': 1}")
    report = sandbox.run()
    assert done == [({"id": 1}, sent)]
    assert report.story(sent)[-1].state == "COMMITTED"


def test_on_fifo_copies_with_different_bodies_have_the_same_deduplication_id() -> None:  # SPEC E7
    wire = Wire(queues={"orders.fifo": Queue(dead_letter="dlq.fifo")})
    delivered = record("{}", "m1", "orders.fifo", group="g")
    for body in ("[1]", "[2]"):
        run(resends(body=body), delivered, wire)
    first, second = wire.sent_entries()
    assert (first["MessageBody"], second["MessageBody"]) == ("[1]", "[2]")
    assert first["MessageDeduplicationId"] == second["MessageDeduplicationId"]


def test_each_history_entry_contains_the_delay_that_followed_it() -> None:  # DESIGN 3
    steps = [SendAgain("slow", times=3, delay=Fixed(30)), SendAgain("at once", queue="orders"), DeadLetter()]
    wire = orders()
    run_with_copies(consumer(on_failure=steps)(fails), wire, record("{}", "m1"))
    dead_letter = wire.envelopes()[-1]
    assert [entry.get("delay") for entry in dead_letter["history"]] == [30, 30, 30, None, None]


def test_the_history_contains_a_delay_that_a_copy_waits() -> None:  # DESIGN 3, J4
    @consumer
    def handler(message: Message) -> None:
        message.retry(43_200)

    with orders() as wire:
        handler(batch_of(1), Context())
    assert [entry["delay"] for entry in wire.envelopes()[0]["history"]] == [43_200]
    assert json.loads(json.dumps(wire.envelopes()[0]["due"])) == 1_800_043_200


@pytest.mark.parametrize(("recursive_loop", "warnings"), [("Allow", 0), ("Terminate", 2)])
def test_a_sandbox_that_allows_the_loop_has_no_line_about_many_copies(
    recursive_loop: Any, warnings: int, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E8, J5
    sandbox.queue("orders", dead_letter="orders-dlq")
    handler = consumer(on_failure=[SendAgain("slow", times=13), DeadLetter()])(fails)
    sandbox.connect(handler, "orders", recursive_loop=recursive_loop)
    sandbox.send("orders", "{}")
    sandbox.run()
    assert len(lines(caplog, "many_hops")) == warnings
    assert len(sandbox.messages("orders-dlq")) == 1


def test_a_step_that_asks_a_batch_handler_to_run_again_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC E5. A batch cannot run again in part; the other messages are not affected."""

    @batch_consumer(on_failure=[lambda failure, next_step: Outcome.again(0)])
    def handler(batch: Batch) -> None:
        batch[0].fail(ValueError())

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m0"]
    assert wire.visibilities() == {"handle-m0": 900}
    [line] = lines(caplog, "step_failed")
    assert (field(line, "message_id"), "Return Outcome.retry()" in field(line, "text")) == ("m0", True)


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_step_that_always_runs_the_message_again_ends_with_the_time_of_the_invocation(
    queue: str, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E5, I2
    sandbox.queue(queue, dead_letter=f"dead-{queue}", max_receive_count=2)

    @consumer(on_failure=[lambda failure, next_step: Outcome.again(0.5)])
    def handler(message: Message) -> None:
        raise ValueError

    sandbox.connect(handler, queue, timeout=10)
    sandbox.send(queue, "{}", group_id="a" if queue.endswith(".fifo") else None)
    events = [event.what for event in sandbox.run().events]
    assert events.count("handler_called") == events.count("handler_returned") == 2
    assert len(sandbox.messages(f"dead-{queue}")) == 1
    assert len(lines(caplog, "step_failed")) == 2


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_step_runs_a_message_at_most_1001_times_in_one_delivery(
    queue: str, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC E5. A handler that fails in no time would run until the deadline, as often as the processor can."""
    sandbox.queue(queue, dead_letter=f"dead-{queue}", max_receive_count=1)
    runs: list[int] = []

    @consumer(on_failure=[lambda failure, next_step: Outcome.again()])
    def handler(message: Message) -> None:
        runs.append(message.attempt)
        raise ValueError

    sandbox.connect(handler, queue)
    sandbox.send(queue, "{}", group_id="a" if queue.endswith(".fifo") else None)
    sandbox.run()
    assert len(runs) == 1_001
    assert len(sandbox.messages(f"dead-{queue}")) == 1
    [line] = lines(caplog, "step_passed_on")
    assert "the message has run 1001 times in this delivery" in field(line, "text")


@pytest.mark.parametrize("outcome", [Outcome.release(), Outcome.wait(60), Outcome.wait(1e9)], ids=repr)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_step_cannot_answer_that_a_failed_message_has_not_run(
    queue: str, outcome: Outcome, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC C8, E7. A message that is only released runs again and again, until SQS moves it without a record."""
    sandbox.queue(queue, dead_letter=f"dead-{queue}", max_receive_count=3)
    sandbox.connect(consumer(on_failure=[answers(outcome)])(fails), queue)
    sandbox.send(queue, "{}", group_id="a" if queue.endswith(".fifo") else None)
    sandbox.run()
    [dead_letter] = sandbox.messages(f"dead-{queue}")
    assert dead_letter.failure.reason == "exhausted"
    texts = [field(line, "text") for line in lines(caplog, "step_passed_on")]
    assert len(texts) == 3
    assert f"the outcome {outcome.kind} is of messages that have not run" in texts[0]


@pytest.mark.parametrize(
    "make", [lambda: Outcome.dead_letter(7), lambda: Outcome.dead_letter("bad", 7), lambda: Outcome.discard(object())]
)
def test_an_outcome_with_a_reason_or_a_queue_that_is_not_a_text_counts_as_a_step_that_raises(
    make: Any, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC C8, E5. Neither is found out when the dead letter is written: SQS would move the message without it."""
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=2)
    sandbox.connect(consumer(on_failure=[lambda failure, next_step: make()])(fails), "orders")
    sandbox.send("orders", "{}")
    sandbox.run()
    assert [each.failure.reason for each in sandbox.messages("orders-dlq")] == ["exhausted"]
    assert "of an outcome is a text or None, got a value of type" in field(lines(caplog, "step_failed")[0], "error")
