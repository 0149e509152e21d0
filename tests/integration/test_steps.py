"""The failure steps, and what travels with a message that is sent again."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    Exponential,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, arn


def orders(**queues: Queue) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq"), **queues})


def fails(message: Message) -> None:
    raise ValueError("out of order")


def relay(wire: Wire, message_id: str) -> dict[str, Any]:
    """The last message that was sent, as the next event has it."""
    request = wire.sent("SendMessageBatch")[-1]
    entry = request.entries[-1]
    attributes = {
        name: {"dataType": attribute["DataType"], "stringValue": attribute.get("StringValue")}
        for name, attribute in entry.get("MessageAttributes", {}).items()
    }
    return record(
        entry["MessageBody"],
        message_id,
        request.queue,
        group=entry.get("MessageGroupId"),
        attributes=attributes,
        received_at=wire.clock.now,
    )


def life(handler: Any, wire: Wire, first: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a message and its copies until none is sent any more; the entries that were sent."""
    current, runs = first, 0
    while True:
        sent = len(wire.letters())
        with wire:
            handler(event(current), Context())
        runs += 1
        if len(wire.letters()) == sent or wire.sent("SendMessageBatch")[-1].queue.endswith("-dlq"):
            return wire.letters()
        current = relay(wire, f"copy-{runs}")
        wire.clock.now += wire.letters()[-1].get("DelaySeconds", 0) + 1


def the_tarry(record_: dict[str, Any]) -> dict[str, Any]:
    return json.loads(record_["messageAttributes"]["Tarry"]["stringValue"])


# sending again


def test_the_worked_example_comes_out_exactly(caplog: pytest.LogCaptureFixture) -> None:  # SPEC E2, E3
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

    wire = orders(**{"failed-messages": Queue()})
    sent = life(handler, wire, record("{}", "m1"))
    assert len(runs) == 33
    assert runs[:4] == ["orders 1", "orders 2", "failed-messages 3", "failed-messages 4"]
    assert [entry.get("DelaySeconds") for entry in sent[:2]] == [None, None]
    assert [entry["DelaySeconds"] for entry in sent[2:]] == [5, 8, 12, 17, 26, 38, 57] + [60] * 23
    assert [field(line, "message_id") for line in lines(caplog, "unhandled")] == ["m1"]


def test_a_copy_keeps_its_identity_attempts_failure_and_history() -> None:  # SPEC E6
    handler = consumer(on_failure=[SendAgain("slow", times=12), DeadLetter()])(fails)
    wire = orders()
    life(handler, wire, record("{}", "m1", attributes={"tenant": {"dataType": "String", "stringValue": "acme"}}))
    copies, letter = wire.records()[:-1], wire.records()[-1]
    assert [copy["carried"] for copy in copies] == list(range(1, 13))
    assert [copy["hops"] for copy in copies] == list(range(1, 13))
    assert [copy["steps"] for copy in copies] == [{"slow": number} for number in range(1, 13)]
    assert {copy["id"] for copy in wire.records()} == {"m1"}
    assert {copy["origin"] for copy in copies} == {arn("orders")}
    assert copies[-1]["failure"]["reason"] == "error"
    assert copies[-1]["failure"]["first_failed_at"] == copies[0]["failure"]["failed_at"]
    assert [entry["attempt"] for entry in copies[-1]["history"]] == [1, *range(4, 13)]
    assert wire.letters()[-1]["MessageAttributes"]["tenant"]["StringValue"] == "acme"
    assert (letter["failure"]["attempts"], "carried" in letter, "steps" in letter) == (13, False, False)


def test_a_copy_is_sent_confirmed_and_then_deleted() -> None:  # SPEC E6
    wire = orders()
    with wire:
        assert failed(consumer(on_failure=[SendAgain("slow")])(fails)(batch_of(1), Context())) == []
    assert wire.operations[-2:] == ["SendMessageBatch", "DeleteMessageBatch"]


@pytest.mark.parametrize(
    ("delay", "seconds", "due"), [(0, 0, None), (900, 900, None), (901, 900, 901), (43_200, 900, 43_200)]
)
def test_a_long_delay_is_parked_first_and_due_later(delay: int, seconds: int, due: int | None) -> None:  # SPEC J4, E3
    wire = orders()
    with wire:
        consumer(on_failure=[SendAgain("slow", delay=delay)])(fails)(batch_of(1), Context())
    [entry], [told] = wire.letters(), wire.records()
    assert entry["DelaySeconds"] == seconds
    assert told.get("due") == (None if due is None else wire.clock.now + due)


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({f"a{number}": {"dataType": "String", "stringValue": "x"} for number in range(10)}, "{}"),
        ({}, "x" * 990),
        ({}, "x" * 1_025),
    ],
    ids=["ten attributes", "no room", "no room for the body alone"],
)
def test_a_message_whose_record_has_no_room_goes_to_the_next_step(
    attributes: dict[str, Any], body: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E6
    wire = orders(orders=Queue(dead_letter="orders-dlq", maximum_message_size=1024))
    with wire:
        response = consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails)(
            event(record(body, "m1", attributes=attributes)), Context()
        )
    assert failed(response) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq"]
    assert lines(caplog, "step_passed_on")


def test_from_the_twelfth_hop_the_log_says_where_lambda_stops(caplog: pytest.LogCaptureFixture) -> None:  # SPEC E8
    life(consumer(on_failure=[SendAgain("slow", times=13)])(fails), orders(), record("{}", "m1"))
    assert len(lines(caplog, "many_hops")) == 2
    assert "RecursiveLoop" in lines(caplog, "many_hops")[0].getMessage()


def test_a_fatal_or_rejected_message_is_not_sent_again() -> None:  # SPEC E1
    wire = orders()
    handler = consumer(fatal=ValueError, on_failure=[SendAgain("slow"), DeadLetter()])(fails)
    with wire:
        handler(batch_of(1), Context())
        consumer(on_failure=[SendAgain("slow")])(lambda message: message.reject("no"))(batch_of(1), Context())
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["orders-dlq", "orders-dlq"]


# FIFO


def fifo() -> Wire:
    return Wire(queues={"ledger.fifo": Queue(dead_letter="ledger-dlq.fifo")})


def test_sending_to_the_same_fifo_queue_must_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:  # SPEC E7
    wire = fifo()
    with wire:
        consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails)(
            event(record("{}", "m1", "ledger.fifo", group="a")), Context()
        )
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["ledger-dlq.fifo"]
    assert "breaks_order=True" in lines(caplog, "step_passed_on")[0].getMessage()


def test_on_fifo_a_copy_has_its_group_and_a_deduplication_id_of_its_own_and_lets_the_group_go_on() -> (
    None
):  # SPEC E7, H1
    wire = fifo()
    handler = consumer(on_failure=[SendAgain("slow", times=2, breaks_order=True)])(
        lambda message: fails(message) if message.delivery_id != "m2" else None
    )
    with wire:
        response = handler(event(*(record("{}", name, "ledger.fifo", group="a") for name in ("m1", "m2"))), Context())
        assert failed(response) == []
        handler(event(relay(wire, "copy-1")), Context())
        handler(event(record("{}", "m1", "ledger.fifo", group="a")), Context())
    first, second, repeated = wire.letters()
    assert first["MessageGroupId"] == "a"
    assert "DelaySeconds" not in first
    assert first["MessageDeduplicationId"] != second["MessageDeduplicationId"]
    assert first["MessageDeduplicationId"] == repeated["MessageDeduplicationId"]


# settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: SendAgain(""),
        lambda: SendAgain("slow", times=0),
        lambda: SendAgain("slow", delay=-1),
        lambda: SendAgain("slow", delay=43_201),
        lambda: SendAgain("slow", times=9, delay=Exponential(3600, maximum=90_000)),
        lambda: SendAgain("slow", delay=5, queue="other.fifo"),
        lambda: LocalRetry(0),
        lambda: LocalRetry(1, delay=-1),
        lambda: DeadLetter(enrich="x"),
        lambda: consumer(on_failure=[SendAgain("a"), SendAgain("a", queue="b")]),
        lambda: consumer(on_failure={"orders": "RetryInPlace"}),
        lambda: consumer(on_failure=[DropMessage(), DeadLetter()]),
        lambda: consumer(on_failure={"orders": [SendAgain("a")], "default": [DeadLetter()]}, max_attempts=3),
        lambda: batch_consumer(on_failure=[LocalRetry(2)]),
        lambda: consumer(retry_when=True),
        lambda: consumer(traverse_causes="yes"),
    ],
)
def test_contradictory_settings_are_refused_when_made(make: Callable[[], object]) -> None:  # SPEC C5, E3
    with pytest.raises(ConfigurationError):
        make()


def test_a_queue_without_a_list_or_with_an_empty_one_has_the_default() -> None:  # SPEC E2
    wire = Wire()
    handler = consumer(on_failure={"orders": [], "default": [DropMessage()]})(fails)
    with wire:
        assert failed(handler(event(record("{}", "m1"), record("{}", "m2", "refunds")), Context())) == []
    assert wire.letters() == []


def test_where_its_own_list_retries_nothing_a_message_has_no_last_attempt() -> None:  # SPEC C2, E2
    seen: list[tuple[str, bool | None, int | None]] = []
    handler = consumer(on_failure={"orders": [DropMessage()]}, max_attempts=3)(
        lambda message: seen.append((message.queue, message.is_last_attempt, message.max_attempts))
    )
    with Wire():
        handler(event(record("{}", "m1", receives=3), record("{}", "m2", "refunds", receives=3)), Context())
    assert seen == [("orders", None, None), ("refunds", True, 3)]


# drop


def test_a_dropped_message_is_done_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:  # SPEC F5
    caplog.set_level("INFO", "tarry")
    wire = orders()
    with wire:
        assert failed(consumer(on_failure=[DropMessage()])(fails)(batch_of(1), Context())) == []
    [line] = lines(caplog, "discarded")
    assert field(line, "error") == "ValueError: out of order"


# local retries


def flaky(times: int) -> tuple[Callable[[Message], None], list[str]]:
    runs: list[str] = []

    def handler(message: Message) -> None:
        runs.append(message.id)
        if runs.count(message.id) <= times:
            raise ConnectionError("busy")

    return handler, runs


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_local_retry_runs_the_handler_again_within_the_delivery(queue: str) -> None:  # SPEC I5
    handler, runs = flaky(2)
    wire = orders()
    before = wire.clock.now
    with wire:
        response = consumer(on_failure=[LocalRetry(2, 0.5), RetryInPlace()])(handler)(
            event(record("{}", "m1", queue), record("{}", "m2", queue)), Context()
        )
    assert failed(response) == []
    assert sorted(runs) == ["m1"] * 3 + ["m2"] * 3
    assert wire.clock.now - before == 2
    assert wire.visibilities() == {}


def test_async_handlers_are_tried_again_too() -> None:  # SPEC I5
    handler, runs = flaky(1)

    @consumer(on_failure=[LocalRetry(1, 1), RetryInPlace()])
    async def later(message: Message) -> None:
        handler(message)

    with orders():
        assert failed(later(batch_of(2), Context())) == []
    assert sorted(runs) == ["m0", "m0", "m1", "m1"]


def test_local_retries_come_after_the_other_messages_of_a_standard_queue() -> None:  # SPEC I5
    handler, runs = flaky(1)
    with orders():
        consumer(on_failure=[LocalRetry(1), RetryInPlace()])(handler)(batch_of(3), Context())
    assert runs == ["m0", "m1", "m2", "m0", "m1", "m2"]


def test_all_local_tries_are_one_attempt() -> None:  # SPEC I5
    handler, runs = flaky(9)
    wire = orders()
    with wire:
        response = consumer(backoff=Fixed(60), on_failure=[LocalRetry(3), RetryInPlace()])(handler)(
            batch_of(1), Context()
        )
    assert failed(response) == ["m0"]
    assert len(runs) == 4
    assert wire.visibilities() == {"handle-m0": 60}


def test_a_word_or_a_signal_ends_the_local_tries() -> None:  # SPEC I5
    runs: list[str] = []

    @consumer(on_failure=[LocalRetry(5), RetryInPlace()])
    def handler(message: Message) -> None:
        runs.append(message.id)
        if message.id == "m0":
            message.retry(delay=7)
        raise Retry(9)

    wire = orders()
    with wire:
        handler(batch_of(2), Context())
    assert runs == ["m0", "m1"]
    assert wire.visibilities() == {"handle-m0": 7, "handle-m1": 9}


def test_a_word_said_in_a_later_try_counts() -> None:  # SPEC I5, B4
    runs: list[str] = []

    @consumer(on_failure=[LocalRetry(5), RetryInPlace()])
    def handler(message: Message) -> None:
        runs.append(message.id)
        if len(runs) == 2:
            return message.discard("enough")
        raise ValueError("again")

    with orders():
        assert failed(handler(batch_of(1), Context())) == []
    assert len(runs) == 2


def test_a_local_retry_does_not_sleep_past_the_deadline() -> None:  # SPEC I5
    handler, runs = flaky(1)
    wire = orders()
    with wire:
        response = consumer(backoff=Fixed(60), on_failure=[LocalRetry(1, 30), RetryInPlace()])(handler)(
            batch_of(1), Context(remaining=30)
        )
    assert failed(response) == ["m0"]
    assert (runs, wire.visibilities()) == (["m0"], {"handle-m0": 60})


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_batch_ends_it_in_a_later_try_too(error: type[BaseException]) -> None:  # SPEC A5, I5
    runs: list[str] = []

    @consumer(backoff=Fixed(60), on_failure=[LocalRetry(5), RetryInPlace()])
    def handler(message: Message) -> None:
        runs.append(message.id)
        raise ValueError("again") if len(runs) <= 2 else error

    wire = orders()
    with wire:
        assert failed(handler(batch_of(2), Context())) == ["m0", "m1"]
    assert len(runs) == 3
    assert set(wire.visibilities()) == {"handle-m0", "handle-m1"}


# custom steps


def test_a_custom_step_reads_what_it_wrote_on_an_earlier_copy() -> None:  # SPEC E5
    seen: list[int] = []

    class Thrice:
        def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
            seen.append(failure.note("thrice"))
            if failure.note("thrice") < 3:
                return Outcome.resend(delay=1, note={"thrice": failure.note("thrice") + 1})
            return next_step(failure)

    life(consumer(on_failure=[Thrice(), DeadLetter()])(fails), orders(), record("{}", "m1"))
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "note", [{"mine": "x" * 257}, {"mine": -1}, {"mine": 1_001}, {"mine": True}, {"mine": None}, {7: 1}, "mine", 7]
)
def test_a_note_that_could_not_be_read_again_leaves_the_message_where_it_is(
    note: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E5, E6
    """Sent with it, the copy would begin anew, and go round for ever."""

    class Noting:
        def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
            return Outcome.resend(note=note)

    wire = orders()
    with wire:
        assert failed(consumer(on_failure=[Noting()])(fails)(batch_of(1), Context())) == ["m0"]
    assert wire.letters() == []
    assert wire.visibilities() == {"handle-m0": 900}
    assert lines(caplog, "step_failed")


@pytest.mark.parametrize("error", [ValueError("out of order"), Reject("never mind")])
def test_a_step_that_wants_a_message_back_after_its_last_delivery_has_it_dead_lettered(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C8, E5
    """SQS would move it to the same dead-letter queue, but would not say why."""

    class Stubborn:
        def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
            return Outcome.retry(60)

    def handler(message: Message) -> None:
        raise error

    wire = orders(orders=Queue(dead_letter="orders-dlq", max_receive_count=3))
    stubborn = consumer(on_failure=[Stubborn()])(handler)
    with wire:
        assert failed(stubborn(event(record("{}", "m1", receives=2)), Context())) == ["m1"]
        assert failed(stubborn(event(record("{}", "m1", receives=3)), Context())) == []
    assert [each["failure"]["attempts"] for each in wire.records()] == [3]
    assert "Raise the queue's maxReceiveCount" in field(lines(caplog, "no_delivery_left")[0], "text")


def test_enrich_adds_to_the_record() -> None:  # SPEC F6
    wire = orders()
    with wire:
        consumer(on_failure=[DeadLetter(enrich=lambda failure: {"tenant": failure.message.body})])(fails)(
            event(record("acme", "m1")), Context()
        )
    assert wire.records()[0]["extra"] == {"tenant": "acme"}


@pytest.mark.parametrize("enrich", [lambda _: 1 / 0, lambda _: {"x": object()}, lambda _: 7])
def test_an_enrich_that_fails_adds_nothing(enrich: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC F6, A2
    wire = orders()
    with wire:
        assert failed(consumer(on_failure=[DeadLetter(enrich=enrich)])(fails)(batch_of(1), Context())) == []
    assert "extra" not in wire.records()[0]
    assert lines(caplog, "enrich_failed")


def test_the_dead_letter_queue_may_depend_on_the_failure() -> None:  # SPEC F6
    wire = orders()
    with wire:
        consumer(on_failure=[DeadLetter(queue=lambda failure: f"{failure.reason}-letters")])(fails)(
            batch_of(1), Context()
        )
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["error-letters"]


# retry_when, causes


def outcome_of(error: BaseException, **settings: Any) -> str:
    """What becomes of a message whose handler raises ``error``."""

    def handler(message: Message) -> None:
        raise error

    wire = orders()
    with wire:
        consumer(backoff=Fixed(60), **settings)(handler)(batch_of(1), Context())
    if wire.letters():
        return wire.records()[0]["failure"]["reason"]
    return f"retry {wire.visibilities()['handle-m0']}"


@pytest.mark.parametrize(
    ("answer", "becomes"),
    [
        (True, "retry 60"),
        (False, "fatal"),
        (None, "retry 60"),
        (0, "retry 0"),
        (0.0, "retry 0"),
        (7.2, "retry 8"),
        (1, "retry 1"),
        (timedelta(minutes=2), "retry 120"),
        (timedelta(0), "retry 0"),
        (50_000, "retry 43199"),
    ],
    ids=repr,
)
def test_retry_when_has_the_last_word(answer: Any, becomes: str) -> None:  # SPEC D3
    assert outcome_of(ValueError(), retry_when=lambda _: answer) == becomes


def test_retry_when_overrules_the_classes() -> None:  # SPEC D3
    assert outcome_of(ValueError(), fatal=ValueError, retry_when=lambda _: 5) == "retry 5"


def raises(_: Failure) -> None:
    raise Reject("no verdict, but a hook that fails")


@pytest.mark.parametrize(
    "answer", ["soon", "60", -1, float("nan"), float("inf"), timedelta(-1), [5], object(), Retry(5), Outcome.retry(5)]
)
def test_an_answer_of_retry_when_that_is_none_is_no_opinion(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC D3
    assert outcome_of(ValueError(), retry_when=lambda _: answer) == "retry 60"
    assert outcome_of(ValueError(), fatal=ValueError, retry_when=lambda _: answer) == "fatal"
    assert len(lines(caplog, "retry_when_failed")) == 2


@pytest.mark.parametrize("hook", [lambda _: 1 / 0, lambda: True, raises])
def test_a_retry_when_that_fails_had_no_opinion(hook: Any, caplog: pytest.LogCaptureFixture) -> None:  # SPEC D3
    assert outcome_of(ValueError(), retry_when=hook) == "retry 60"
    assert lines(caplog, "retry_when_failed")


@pytest.mark.parametrize("answer", [True, 0, 5])
def test_retry_when_gives_no_attempt_beyond_the_last(answer: Any) -> None:  # SPEC D3, C8
    assert outcome_of(ValueError(), retry_when=lambda _: answer, max_attempts=1) == "exhausted"


def test_retry_when_is_not_asked_of_verdicts() -> None:  # SPEC D3, B3
    assert outcome_of(Retry(9), retry_when=lambda _: False) == "retry 9"


def chain(error: BaseException, cause: BaseException, *, explicit: bool) -> BaseException:
    if explicit:
        error.__cause__ = cause
    else:
        error.__context__ = cause
    return error


def cycle() -> BaseException:
    first, second = ValueError("a"), TypeError("b")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (chain(ValueError(), KeyError(), explicit=True), "fatal"),
        (chain(ValueError(), KeyError(), explicit=False), "fatal"),
        (ExceptionGroup("g", [ValueError(), KeyError()]), "fatal"),
        (chain(ValueError(), OSError(), explicit=True), "retry 60"),
        (cycle(), "retry 60"),
    ],
    ids=["a cause", "a context", "a group", "another cause", "a cycle"],
)
def test_causes_are_looked_along_when_asked_for(error: BaseException, becomes: str) -> None:  # SPEC D2
    assert outcome_of(error, fatal=KeyError, traverse_causes=True) == becomes
    assert outcome_of(error, fatal=KeyError) == "retry 60"


def test_a_suppressed_context_is_not_looked_at() -> None:  # SPEC D2
    error = chain(ValueError(), KeyError(), explicit=False)
    error.__suppress_context__ = True
    assert outcome_of(error, fatal=KeyError, traverse_causes=True) == "retry 60"


def test_the_nearest_named_class_along_the_causes_wins() -> None:  # SPEC D1, D2
    error = chain(ConnectionError(), KeyError(), explicit=True)
    assert outcome_of(error, fatal=KeyError, retry_on=ConnectionError, traverse_causes=True) == "retry 60"


def test_a_batch_handlers_failures_may_be_sent_again() -> None:  # SPEC E3, B2
    wire = orders()

    @batch_consumer(on_failure=[SendAgain("slow"), DeadLetter()])
    def handler(batch: Batch) -> None:
        batch[1].fail(ValueError("this one"))

    with wire:
        assert failed(handler(batch_of(3), Context())) == []
    assert [entry["MessageBody"] for entry in wire.letters()] == ["1"]
