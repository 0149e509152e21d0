"""`message.payload`: what a handler gets of a body, and what becomes of one that does not fit."""

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from aws_lambda_powertools.utilities.parser.models import S3RecordModel
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from tarry import (
    Batch,
    ConfigurationError,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Undecodable,
    batch_consumer,
    consumer,
)
from tests.loglines import everything, field, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, client_error

WAIT = 77
ENVELOPES = [None, "sns", "eventbridge", "s3"]
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["number", "customer", "Type", "TopicArn", "Message", "detail", "Records", "Event"]),
            inner | st.just("Notification"),
            max_size=4,
        )
    ),
    max_leaves=8,
)


class Order(BaseModel):
    number: int
    customer: str = "nobody"


@dataclass
class Invoice:
    total: float


class Parcel(TypedDict):
    weight: int


class Fragile(BaseModel):
    """A model whose validator does what no validator should."""

    number: int

    @field_validator("number")
    @classmethod
    def look_up(cls, number: int) -> int:
        match number:
            case 1:
                raise KeyError("no such order")
            case 2:
                raise AttributeError("the client has no such method") from OSError("gone")
            case 3:
                raise Reject("a validator may give a verdict")
            case 4:
                raise SystemExit
            case 5:
                raise asyncio.CancelledError
        return number


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq"), "o.fifo": Queue(dead_letter="dlq.fifo")}, **more)


def payload_of(body: Any, **settings: Any) -> Any:
    """What a handler gets of a body."""
    seen: list[Any] = []
    with orders() as wire:
        consumer(**settings)(lambda message: seen.append(message.payload))(event(record(body)), Context())
    assert wire.requests == []
    [payload] = seen
    return payload


def refusal_of(body: Any, **settings: Any) -> str:
    """Why a body does not fit, as its dead letter says."""
    ran: list[Any] = []
    with orders() as wire:
        assert failed(consumer(**settings)(ran.append)(event(record(body)), Context())) == []
    assert ran == []
    [letter], [kept] = wire.letters(), wire.records()
    assert letter["MessageBody"] == (body if isinstance(body, str) else json.dumps(body))
    assert (kept["failure"]["reason"], kept["failure"]["type"]) == ("undecodable", "tarry.Undecodable")
    return kept["failure"]["message"]


# models


@pytest.mark.parametrize(
    ("model", "body", "payload"),
    [
        pytest.param(Order, {"number": 7}, Order(number=7), id="pydantic"),
        pytest.param(Invoice, {"total": 1.5}, Invoice(1.5), id="dataclass"),
        pytest.param(Parcel, {"weight": 3}, {"weight": 3}, id="TypedDict"),
        pytest.param(Annotated[Order, Field(strict=True)], {"number": 7}, Order(number=7), id="annotated"),
        pytest.param(list[Order], [{"number": 7}], [Order(number=7)], id="a list of models"),
    ],
)
def test_the_payload_is_the_body_as_the_model(model: Any, body: Any, payload: Any) -> None:  # SPEC K2
    assert payload_of(body, model=model) == payload


def test_the_payload_is_the_same_object_each_time() -> None:  # SPEC K2
    seen: list[Any] = []
    with orders():
        consumer(model=Order)(lambda message: seen.extend((message.payload, message.payload)))(
            event(record({"number": 1})), Context()
        )
    assert seen[0] is seen[1]


def test_a_strict_model_takes_from_json_what_json_has_no_type_for() -> None:  # SPEC K2
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime

    at = {"at": "2026-01-01T00:00:00Z"}
    for body, envelope in [
        (at, None),
        ({"detail": at}, "eventbridge"),
        (notification(json.dumps(at)), "sns"),
        ({"Records": [at]}, "s3"),
    ]:
        assert payload_of(body, model=Strict, envelope=envelope).at.year == 2026


def test_an_async_handler_gets_its_payload() -> None:  # SPEC K2
    seen: list[Order] = []

    @consumer
    async def handler(message: Message[Order]) -> None:
        seen.append(message.payload)

    with orders():
        assert failed(handler(event(record({"number": 7})), Context())) == []
    assert seen == [Order(number=7)]


def test_replace_changes_the_model() -> None:  # SPEC K2
    seen: list[Any] = []
    handler = consumer(model=Order)(lambda message: seen.append(message.payload))
    with orders():
        handler.replace(max_attempts=2)(event(record({"number": 7})), Context())
        handler.replace(model=Invoice)(event(record({"total": 7})), Context())
    assert seen == [Order(number=7), Invoice(7)]


# a body that does not fit


@pytest.mark.parametrize(
    ("body", "where_and_why"),
    [
        ({"number": "x"}, "number: Input should be a valid integer"),
        ({}, "number: Field required"),
        ("", "Invalid JSON: EOF"),
        ("{", "Invalid JSON: EOF"),
        ("[1]", "Input should be an object"),
        ("[" * 100_000, "recursion limit"),
        ("\ud800", "unicode"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_body_that_does_not_fit_is_dead_lettered_unrun_saying_where_and_why(
    body: Any, where_and_why: str
) -> None:  # SPEC K2, D4
    text = refusal_of(body, model=Order)
    assert "message m1 does not fit Order: " in text
    assert where_and_why in text


def test_all_problems_of_a_body_are_told_with_their_paths() -> None:  # SPEC K2
    text = refusal_of([{"number": 1}, {"number": None}, {"customer": 5}], model=list[Order])
    assert "1.number: Input should be a valid integer; 2.number: Field required; 2.customer: " in text


def test_of_very_many_problems_the_first_are_told() -> None:  # SPEC K2
    text = refusal_of([{}] * 500, model=list[Order])
    assert text.count("Field required") == 20
    assert text.endswith("and 480 more")


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (Order, {"number": "hunter2"}),
        (Annotated[Card | Cash, Field(discriminator="kind")], {"kind": "hunter2"}),
        (Parcel, "hunter2"),
    ],
    ids=["a field", "the tag of a union", "no JSON"],
)
def test_the_input_itself_is_neither_in_the_record_nor_in_the_log(
    model: Any, body: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K2, L2
    assert "hunter2" not in refusal_of(body, model=model)
    assert "hunter2" not in everything(caplog)
    assert len(lines(caplog, "dead_lettered")) == 1


def test_a_body_that_does_not_fit_is_never_retried_whatever_the_policy_says() -> None:  # SPEC D4
    refusal_of({}, model=Order, retry_on=ValueError, max_attempts=10)


def test_a_failure_step_that_asks_for_the_payload_meets_the_same_refusal() -> None:  # SPEC D4
    refusals: list[str] = []

    class Step:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            with pytest.raises(Undecodable) as refusal:
                _ = failure.message.payload
            refusals.append(str(refusal.value))
            return Outcome.discard("seen")

    with orders() as wire:
        handler = consumer(model=Order, on_failure=[Step(), DeadLetter()])(print)
        assert failed(handler(event(record({})), Context())) == []
    assert wire.letters() == []
    assert "number: Field required" in refusals[0]


def test_the_messages_beside_one_that_does_not_fit_run() -> None:  # SPEC K2
    seen: list[int] = []
    with orders() as wire:
        handler = consumer(model=Order)(lambda message: seen.append(message.payload.number))
        bodies = event(record({"number": 1}, "m1"), record({}, "m2"), record({"number": 3}, "m3"))
        assert failed(handler(bodies, Context())) == []
    assert seen == [1, 3]
    assert [kept["id"] for kept in wire.records()] == ["m2"]


def test_one_that_can_not_be_dead_lettered_stays_in_its_queue() -> None:  # SPEC K2, F4
    wire = orders(fails={"SendMessageBatch": client_error("InternalError", status=500)})
    with wire:
        assert failed(consumer(model=Order)(print)(event(record({})), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 900}


@settings(max_examples=200, deadline=None)
@given(body=st.text(st.characters(), max_size=100) | JSON.map(json.dumps), envelope=st.sampled_from(ENVELOPES))
def test_whatever_the_body_is_it_is_handled_or_kept_byte_for_byte(body: str, envelope: Any) -> None:  # SPEC K2, A2
    seen: list[str] = []
    with orders() as wire:
        handler = consumer(model=Order, envelope=envelope)(lambda message: seen.append(message.body))
        assert failed(handler(event(record(body)), Context())) == []
    assert [*seen, *(letter["MessageBody"] for letter in wire.letters())] == [body]


# what else a validator raises


@pytest.mark.parametrize(("number", "error"), [(1, "KeyError"), (2, "AttributeError"), (5, "CancelledError")])
@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_any_other_error_of_a_validator_is_an_ordinary_failure_of_that_message_alone(
    number: int, error: str, as_batch: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K2
    bodies = event(record({"number": 7}, "m1"), record({"number": number}, "m2"), record({"number": 8}, "m3"))
    make: Any = batch_consumer if as_batch else consumer
    with orders() as wire:
        handler = make(model=Fragile, backoff=Fixed(WAIT))(lambda _: None)
        assert failed(handler(bodies, Context())) == ["m2"]
    assert wire.visibilities() == {"handle-m2": WAIT}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").endswith(error)


def test_the_policy_decides_of_a_validators_error() -> None:  # SPEC K2, D1
    with orders() as wire:
        consumer(model=Fragile, fatal=LookupError)(print)(event(record({"number": 1})), Context())
        consumer(model=Fragile, fatal=AttributeError)(print)(event(record({"number": 2})), Context())
        consumer(model=Fragile)(print)(event(record({"number": 3})), Context())
    kept = [(one["failure"]["reason"], one["failure"]["type"]) for one in wire.records()]
    assert [reason for reason, _ in kept] == ["fatal", "fatal", "rejected"]
    assert [kind for _, kind in kept][:2] == ["KeyError", "AttributeError"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("queue", ["orders", "o.fifo"])
def test_a_validator_that_ends_the_process_ends_a_batch_before_its_handler(queue: str, is_async: bool) -> None:
    # SPEC A5
    ran: list[Any] = []

    async def later(batch: Batch[Any]) -> None:
        ran.append(batch)

    handler = batch_consumer(model=Fragile, backoff=Fixed(WAIT))(later if is_async else ran.append)
    numbers = [7, 4, 8]
    bodies = [record({"number": number}, f"m{number}", queue, group="g") for number in numbers]
    with orders() as wire:
        assert failed(handler(event(*bodies), Context())) == ["m7", "m4", "m8"]
    assert ran == []
    assert wire.visibilities() == {"handle-m7": 0, "handle-m4": WAIT, "handle-m8": 0}


def test_a_validator_that_failed_is_asked_again_before_the_handler_by_a_local_retry() -> None:  # SPEC K2, I5
    looked_up: list[int] = []
    seen: list[Any] = []

    class Flaky(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def look_up(cls, number: int) -> int:
            looked_up.append(number)
            if len(looked_up) < 3:
                raise ConnectionError("the service does not answer")
            return number

    with orders() as wire:
        handler = consumer(model=Flaky, on_failure=[LocalRetry(times=5, delay=0)])(seen.append)
        assert failed(handler(event(record({"number": 7})), Context())) == []
    assert (looked_up, len(seen), wire.letters()) == ([7, 7, 7], 1, [])


# batches


def test_a_batch_holds_only_what_fits() -> None:  # SPEC K2
    seen: list[list[int]] = []
    bodies = event(record({}, "m0"), record({"number": 1}, "m1"), record("", "m2"), record({"number": 3}, "m3"))
    with orders() as wire:
        handler = batch_consumer(model=Order)(lambda batch: seen.append([each.payload.number for each in batch]))
        assert failed(handler(bodies, Context())) == []
    assert seen == [[1, 3]]
    assert [kept["id"] for kept in wire.records()] == ["m0", "m2"]


def test_what_does_not_fit_has_no_part_in_what_a_batch_handler_says() -> None:  # SPEC K2, B5
    bodies = event(record({}, "m0"), record({"number": 1}, "m1"), record({"number": 2}, "m2"))

    @batch_consumer(backoff=Fixed(WAIT))
    def handler(batch: Batch[Order]) -> None:
        batch.retry_all(delay=5)
        raise ValueError

    with orders() as wire:
        assert failed(handler(bodies, Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 5, "handle-m2": 5}
    assert [kept["id"] for kept in wire.records()] == ["m0"]


def test_a_batch_of_which_nothing_fits_is_not_run() -> None:  # SPEC K2
    ran: list[Any] = []
    with orders() as wire:
        handler = batch_consumer(model=Order)(ran.append)
        assert failed(handler(event(record({}, "m1"), record("x", "m2")), Context())) == []
    assert ran == []
    assert len(wire.letters()) == 2


# FIFO groups


def fifo(body: Any, message_id: str) -> dict[str, Any]:
    return record(body, message_id, "o.fifo", group="a")


def test_a_message_that_does_not_fit_does_not_pass_a_stopped_head() -> None:  # SPEC K2, H1
    def handler(message: Message[Order]) -> None:
        raise ValueError

    with orders() as wire:
        response = consumer(backoff=Fixed(WAIT))(handler)(event(fifo({"number": 1}, "m1"), fifo({}, "m2")), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.letters() == []
    assert wire.visibilities() == {"handle-m1": WAIT, "handle-m2": 0}


@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_a_message_that_does_not_fit_is_in_the_dead_letter_queue_before_its_group_goes_on(
    as_batch: bool,
) -> None:  # SPEC K2, H1
    sent_before: list[int] = []
    make: Any = batch_consumer if as_batch else consumer
    with orders() as wire:
        handler = make(model=Order)(lambda _: sent_before.append(len(wire.letters())))
        assert failed(handler(event(fifo({}, "m1"), fifo({"number": 2}, "m2")), Context())) == []
    assert sent_before == [1]


@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_a_group_stops_at_a_message_that_does_not_fit_and_stays(as_batch: bool) -> None:  # SPEC K2, H1
    """What stood before it is done all the same."""
    ran: list[str] = []
    bodies = event(fifo({"number": 1}, "m1"), fifo({}, "m2"), fifo({"number": 3}, "m3"))

    def handler(message: Message) -> None:
        ran.append(message.id)

    def batch_handler(batch: Batch) -> None:
        ran.extend(message.id for message in batch)

    made = batch_consumer(model=Order)(batch_handler) if as_batch else consumer(model=Order)(handler)
    wire = orders(fails={"SendMessageBatch": client_error("InternalError", status=500)})
    with wire:
        assert failed(made(bodies, Context())) == ["m2", "m3"]
    assert ran == ["m1"]
    assert wire.visibilities() == {"handle-m2": 900, "handle-m3": 0}


def test_a_group_stops_also_where_a_step_would_run_a_message_of_a_batch_again() -> None:  # SPEC H1
    """A batch cannot be run again in part."""
    ran: list[str] = []

    class Step:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            return Outcome.again(0)

    handler: Any = batch_consumer(model=Fragile, on_failure=[Step()])
    bodies = event(fifo({"number": 7}, "m1"), fifo({"number": 1}, "m2"), fifo({"number": 8}, "m3"))
    with orders() as wire:
        made = handler(lambda batch: ran.extend(message.id for message in batch))
        assert failed(made(bodies, Context())) == ["m2", "m3"]
    assert ran == ["m1"]
    assert wire.visibilities() == {"handle-m2": 900, "handle-m3": 0}


def test_a_message_that_does_not_fit_is_dead_lettered_also_where_the_batch_handler_then_stops_its_group() -> None:
    # SPEC K2, H2
    bodies = event(fifo({"number": 1}, "m1"), fifo({}, "m2"), fifo({"number": 3}, "m3"))

    @batch_consumer(backoff=Fixed(WAIT))
    def handler(batch: Batch[Order]) -> None:
        batch[0].retry()

    with orders() as wire:
        assert failed(handler(bodies, Context())) == ["m1", "m3"]
    assert [kept["id"] for kept in wire.records()] == ["m2"]
    assert wire.visibilities() == {"handle-m1": WAIT, "handle-m3": 0}


# envelopes


def notification(message: str, **more: Any) -> dict[str, Any]:
    """As SNS puts it into a queue."""
    return {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic",
        "Message": message,
        "Timestamp": "2026-05-02T00:54:06.655Z",
        "SignatureVersion": "1",
        "UnsubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe",
        **more,
    }


def eventbridge(detail: Any) -> dict[str, Any]:
    """As a rule with a queue as its target sends it."""
    return {
        "version": "0",
        "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
        "detail-type": "Order placed",
        "source": "shop",
        "account": "111122223333",
        "time": "2026-12-22T18:43:48Z",
        "region": "us-west-1",
        "resources": [],
        "detail": detail,
    }


S3_RECORD = {
    "eventVersion": "2.1",
    "eventSource": "aws:s3",
    "awsRegion": "us-east-2",
    "eventTime": "2026-09-03T19:37:27.192Z",
    "eventName": "ObjectCreated:Put",
    "userIdentity": {"principalId": "AWS:AIDAINPONIXQXHT3IKHL2"},
    "requestParameters": {"sourceIPAddress": "205.255.255.255"},
    "responseElements": {"x-amz-request-id": "D82B88E5F771F645", "x-amz-id-2": "vlR7PnpV2Ce81l0PRw6jlUpck7Jo5ZsQjry"},
    "s3": {
        "s3SchemaVersion": "1.0",
        "configurationId": "828aa6fc-f7b5-4305-8584-487c791949c1",
        "bucket": {
            "name": "uploads",
            "ownerIdentity": {"principalId": "A3I5XTEXAMAI3E"},
            "arn": "arn:aws:s3:::uploads",
        },
        "object": {
            "key": "a+b.jpg",
            "size": 1305107,
            "eTag": "b21b84d653bb07b05b1e6b33684dc11b",
            "sequencer": "0C0F6F",
        },
    },
}
TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-10-13T15:57:02.089Z",
    "Bucket": "uploads",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR",
}


@pytest.mark.parametrize(
    ("body", "envelope"),
    [
        pytest.param(notification('{"number": 7}'), "sns", id="SNS"),
        pytest.param({"number": 7}, "sns", id="SNS, delivered raw"),
        pytest.param(notification('{"number": 7}', SequenceNumber="10000000000000003000"), "sns", id="SNS, FIFO"),
        pytest.param(eventbridge({"number": 7}), "eventbridge", id="EventBridge"),
        pytest.param({"Records": [{"number": 7}]}, "s3", id="S3"),
    ],
)
def test_an_envelope_is_taken_off_first(body: Any, envelope: str) -> None:  # SPEC K2
    assert payload_of(body, model=Order, envelope=envelope) == Order(number=7)


@pytest.mark.parametrize("envelope", ["sns", "eventbridge", "s3"])
@pytest.mark.parametrize(("model", "payload"), [(Invoice, Invoice(7)), (Parcel, {"weight": 7})])
def test_an_envelope_holds_any_kind_of_model(envelope: str, model: Any, payload: Any) -> None:  # SPEC K2
    inner = {"total": 7, "weight": 7}
    bodies = {"sns": notification(json.dumps(inner)), "eventbridge": eventbridge(inner), "s3": {"Records": [inner]}}
    assert payload_of(bodies[envelope], model=model, envelope=envelope) == payload


def test_the_payload_of_an_s3_notification_is_its_one_record() -> None:  # SPEC K2
    payload = payload_of({"Records": [S3_RECORD]}, model=S3RecordModel, envelope="s3")
    assert (payload.eventName, payload.s3.bucket.name, payload.s3.object.key) == (
        "ObjectCreated:Put",
        "uploads",
        "a+b.jpg",
    )


def test_the_test_event_of_s3_is_done_with_unrun(caplog: pytest.LogCaptureFixture) -> None:  # SPEC K2
    caplog.set_level("INFO", "tarry")
    ran: list[Any] = []
    for make in (consumer, batch_consumer):
        with orders() as wire:
            handler: Any = make(model=S3RecordModel, envelope="s3")
            assert failed(handler(ran.append)(event(record(TEST_EVENT)), Context())) == []
        assert (ran, wire.requests) == ([], [])
    assert len(lines(caplog, "discarded")) == 2


@pytest.mark.parametrize(
    ("body", "envelope", "where_and_why"),
    [
        (notification("{}"), "sns", "as SNS notification, does not fit Order: Message.number: Field required"),
        (notification("hello"), "sns", "Message: Invalid JSON"),
        ({"Type": "SubscriptionConfirmation", "TopicArn": "arn", "Message": "visit"}, "sns", "number: Field required"),
        ("hello", "sns", "Invalid JSON"),
        ("[" * 100_000, "sns", "recursion limit"),
        (eventbridge({}), "eventbridge", "as EventBridge event, does not fit Order: detail.number: Field required"),
        ({"number": 7}, "eventbridge", "detail: Field required"),
        ({"Records": []}, "s3", "Records: List should have at least 1 item"),
        ({"Records": [{"number": 1}, {"number": 2}]}, "s3", "Records: List should have at most 1 item"),
        ({"Event": ["s3:TestEvent"]}, "s3", "Records: Field required"),
        ("[]", "s3", "does not fit Order"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_an_envelope_does_not_hold_is_undecodable(
    body: Any, envelope: str, where_and_why: str
) -> None:  # SPEC K2, D4
    assert where_and_why in refusal_of(body, model=Order, envelope=envelope)


def test_the_body_stays_whole_beside_the_payload() -> None:  # SPEC K1, K2
    body = notification('{"number": 7}')
    seen: list[Any] = []
    with orders():
        handler = consumer(model=Order, envelope="sns")(lambda message: seen.append(message.json()))
        handler(event(record(body)), Context())
    assert seen == [body]


# without a model


def test_a_payload_without_a_model_says_what_to_set() -> None:  # SPEC K2
    refusals: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        with pytest.raises(ConfigurationError) as refusal:
            _ = message.payload
        refusals.append(str(refusal.value))

    with orders():
        handler(event(record({"number": 7})), Context())
    assert "model=Order" in refusals[0]
    assert "Message[Order]" in refusals[0]


# a path that leads over the body's own keys

SECRET_KEY = "4111-1111-1111-1111"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int


class Nested(BaseModel):
    cards: dict[str, Order]
    either: dict[str, int | Order] = {}
    buyer: Annotated[str, Field(validation_alias="bought-by")] = ""


@pytest.mark.parametrize(
    ("body", "model", "where_and_why"),
    [
        ({"number": 1, SECRET_KEY: 2}, Strict, "<key>: Extra inputs are not permitted"),
        ({"cards": {SECRET_KEY: {"number": "x"}}}, Nested, "cards.<key>.number: Input should be a valid integer"),
        ({"cards": {}, "either": {SECRET_KEY: "x"}}, Nested, "either.<key>.int: Input should be a valid integer"),
        ({"cards": {}, "either": {SECRET_KEY: {}}}, Nested, "either.<key>.Order.number: Field required"),
        ({"cards": {}, "bought-by": 5}, Nested, "bought-by: Input should be a valid string"),
        ({SECRET_KEY: "x"}, dict[str, int], "<key>: Input should be a valid integer"),
        ({SECRET_KEY: "x"}, dict[int, int], "<key>.<key>: Input should be a valid integer"),
    ],
    ids=["extra", "a key", "a key of a union", "a class of a union", "an alias", "a dict", "a key that does not fit"],
)
def test_a_problem_shows_the_names_of_the_model_and_no_keys_of_the_body(
    body: Any, model: Any, where_and_why: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC L2, D4
    text = refusal_of(body, model=model)
    assert where_and_why in text
    assert SECRET_KEY not in text
    assert SECRET_KEY not in everything(caplog)
