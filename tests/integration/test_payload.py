"""`message.payload`: the body as a model, and bodies that do not fit."""

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


class OrderModel(BaseModel):
    number: int
    customer: str = "unknown"


@dataclass
class InvoiceData:
    total: float


class ParcelDict(TypedDict):
    weight: int


class FailingModel(BaseModel):
    """A model whose validator raises errors other than `ValueError`."""

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
    """Return the payload that a handler gets for a body."""
    seen: list[Any] = []
    with orders() as wire:
        consumer(**settings)(lambda message: seen.append(message.payload))(event(record(body)), Context())
    assert wire.requests == []
    [payload] = seen
    return payload


def refusal_of(body: Any, **settings: Any) -> str:
    """Return the reason why a body does not fit, from the failure record of its dead letter."""
    ran: list[Any] = []
    with orders() as wire:
        assert failed(consumer(**settings)(ran.append)(event(record(body)), Context())) == []
    assert ran == []
    [dead_letter], [envelope] = wire.sent_entries(), wire.envelopes()
    assert dead_letter["MessageBody"] == (body if isinstance(body, str) else json.dumps(body))
    assert (envelope["failure"]["reason"], envelope["failure"]["type"]) == ("undecodable", "tarry.Undecodable")
    return envelope["failure"]["message"]


# models


@pytest.mark.parametrize(
    ("model", "body", "payload"),
    [
        pytest.param(OrderModel, {"number": 7}, OrderModel(number=7), id="pydantic"),
        pytest.param(InvoiceData, {"total": 1.5}, InvoiceData(1.5), id="dataclass"),
        pytest.param(ParcelDict, {"weight": 3}, {"weight": 3}, id="TypedDict"),
        pytest.param(Annotated[OrderModel, Field(strict=True)], {"number": 7}, OrderModel(number=7), id="annotated"),
        pytest.param(list[OrderModel], [{"number": 7}], [OrderModel(number=7)], id="a list of models"),
    ],
)
def test_the_payload_is_the_body_as_the_model(model: Any, body: Any, payload: Any) -> None:  # SPEC K2
    assert payload_of(body, model=model) == payload


def test_the_payload_is_the_same_object_each_time() -> None:  # SPEC K2
    seen: list[Any] = []
    with orders():
        consumer(model=OrderModel)(lambda message: seen.extend((message.payload, message.payload)))(
            event(record({"number": 1})), Context()
        )
    assert seen[0] is seen[1]


def test_a_strict_model_converts_types_that_json_lacks() -> None:  # SPEC K2
    class StrictTime(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime

    at = {"at": "2026-01-01T00:00:00Z"}
    for body, envelope in [
        (at, None),
        ({"detail": at}, "eventbridge"),
        (notification(json.dumps(at)), "sns"),
        ({"Records": [at]}, "s3"),
    ]:
        assert payload_of(body, model=StrictTime, envelope=envelope).at.year == 2026


def test_an_async_handler_gets_the_payload() -> None:  # SPEC K2
    seen: list[OrderModel] = []

    @consumer
    async def handler(message: Message[OrderModel]) -> None:
        seen.append(message.payload)

    with orders():
        assert failed(handler(event(record({"number": 7})), Context())) == []
    assert seen == [OrderModel(number=7)]


def test_replace_changes_the_model() -> None:  # SPEC K2
    seen: list[Any] = []
    handler = consumer(model=OrderModel)(lambda message: seen.append(message.payload))
    with orders():
        handler.replace(max_attempts=2)(event(record({"number": 7})), Context())
        handler.replace(model=InvoiceData)(event(record({"total": 7})), Context())
    assert seen == [OrderModel(number=7), InvoiceData(7)]


# bodies that do not fit


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"number": "x"}, "number: Input should be a valid integer"),
        ({}, "number: Field required"),
        ("", "m1 is not JSON: EOF"),
        ("{", "m1 is not JSON: EOF"),
        ("[1]", "Input should be an object"),
        ("[" * 100_000, "recursion limit"),
        ("\ud800", "unicode"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_body_that_does_not_fit_is_dead_lettered_with_the_path_and_problem_and_does_not_run(
    body: Any, problem: str
) -> None:  # SPEC K2, D4
    text = refusal_of(body, model=OrderModel)
    assert text.startswith(("the body of message m1 does not fit OrderModel: ", "the body of message m1 is not JSON: "))
    assert problem in text


def test_all_problems_of_a_body_are_recorded_with_their_paths() -> None:  # SPEC K2
    text = refusal_of([{"number": 1}, {"number": None}, {"customer": 5}], model=list[OrderModel])
    assert "1.number: Input should be a valid integer; 2.number: Field required; 2.customer: " in text


def test_only_the_first_20_problems_of_a_body_are_recorded() -> None:  # SPEC K2
    text = refusal_of([{}] * 500, model=list[OrderModel])
    assert text.count("Field required") == 20
    assert text.endswith("and 480 more")


class CardPayment(BaseModel):
    kind: Literal["card"]


class CashPayment(BaseModel):
    kind: Literal["cash"]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (OrderModel, {"number": "hunter2"}),
        (Annotated[CardPayment | CashPayment, Field(discriminator="kind")], {"kind": "hunter2"}),
        (ParcelDict, "hunter2"),
    ],
    ids=["a field", "the tag of a union", "not JSON"],
)
def test_an_invalid_value_is_neither_in_the_failure_record_nor_in_the_log(
    model: Any, body: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K2, L2
    assert "hunter2" not in refusal_of(body, model=model)
    assert "hunter2" not in everything(caplog)
    assert len(lines(caplog, "dead_lettered")) == 1


def test_a_body_that_does_not_fit_is_never_retried_whatever_the_policy() -> None:  # SPEC D4
    refusal_of({}, model=OrderModel, retry_on=ValueError, max_attempts=10)


def test_the_payload_raises_the_same_error_in_a_failure_step() -> None:  # SPEC D4
    refusals: list[str] = []

    class ReadsPayload:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            with pytest.raises(Undecodable) as refusal:
                _ = failure.message.payload
            refusals.append(str(refusal.value))
            return Outcome.discard("seen")

    with orders() as wire:
        handler = consumer(model=OrderModel, on_failure=[ReadsPayload(), DeadLetter()])(print)
        assert failed(handler(event(record({})), Context())) == []
    assert wire.sent_entries() == []
    assert "number: Field required" in refusals[0]


def test_the_other_messages_run_when_one_does_not_fit() -> None:  # SPEC K2
    seen: list[int] = []
    with orders() as wire:
        handler = consumer(model=OrderModel)(lambda message: seen.append(message.payload.number))
        bodies = event(record({"number": 1}, "m1"), record({}, "m2"), record({"number": 3}, "m3"))
        assert failed(handler(bodies, Context())) == []
    assert seen == [1, 3]
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m2"]


def test_a_message_that_does_not_fit_and_cannot_be_dead_lettered_waits_in_its_queue() -> None:  # SPEC K2, F4
    wire = orders(fails={"SendMessageBatch": client_error("AccessDenied", status=403)})
    with wire:
        assert failed(consumer(model=OrderModel)(print)(event(record({})), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 900}


@settings(max_examples=120)
@given(body=st.text(st.characters(), max_size=100) | JSON.map(json.dumps), envelope=st.sampled_from(ENVELOPES))
def test_any_body_is_either_handled_or_dead_lettered_byte_for_byte(body: str, envelope: Any) -> None:  # SPEC K2, A2
    seen: list[str] = []
    with orders() as wire:
        handler = consumer(model=OrderModel, envelope=envelope)(lambda message: seen.append(message.body))
        assert failed(handler(event(record(body)), Context())) == []
    assert [*seen, *(dead_letter["MessageBody"] for dead_letter in wire.sent_entries())] == [body]


# other errors of a validator


@pytest.mark.parametrize(("number", "error"), [(1, "KeyError"), (2, "AttributeError"), (5, "CancelledError")])
@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_any_other_error_of_a_validator_is_an_ordinary_failure_of_its_own_message(
    number: int, error: str, as_batch: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC K2
    bodies = event(record({"number": 7}, "m1"), record({"number": number}, "m2"), record({"number": 8}, "m3"))
    make: Any = batch_consumer if as_batch else consumer
    with orders() as wire:
        handler = make(model=FailingModel, backoff=Fixed(WAIT))(lambda _: None)
        assert failed(handler(bodies, Context())) == ["m2"]
    assert wire.visibilities() == {"handle-m2": WAIT}
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").endswith(error)


def test_the_policy_classifies_an_error_of_a_validator() -> None:  # SPEC K2, D1
    with orders() as wire:
        consumer(model=FailingModel, fatal=LookupError)(print)(event(record({"number": 1})), Context())
        consumer(model=FailingModel, fatal=AttributeError)(print)(event(record({"number": 2})), Context())
        consumer(model=FailingModel)(print)(event(record({"number": 3})), Context())
    failures = [(each["failure"]["reason"], each["failure"]["type"]) for each in wire.envelopes()]
    assert [reason for reason, _ in failures] == ["fatal", "fatal", "rejected"]
    assert [kind for _, kind in failures][:2] == ["KeyError", "AttributeError"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("queue", ["orders", "o.fifo"])
def test_a_system_exit_of_a_validator_ends_the_batch_before_its_handler_runs(queue: str, is_async: bool) -> None:
    # SPEC A5
    ran: list[Any] = []

    async def append_async(batch: Batch[Any]) -> None:
        ran.append(batch)

    handler = batch_consumer(model=FailingModel, backoff=Fixed(WAIT))(append_async if is_async else ran.append)
    numbers = [7, 4, 8]
    bodies = [record({"number": number}, f"m{number}", queue, group="g") for number in numbers]
    with orders() as wire:
        assert failed(handler(event(*bodies), Context())) == ["m7", "m4", "m8"]
    assert ran == []
    assert wire.visibilities() == {"handle-m7": 0, "handle-m4": WAIT, "handle-m8": 0}


def test_a_local_retry_runs_a_failed_validator_again_before_the_handler() -> None:  # SPEC K2, I5
    looked_up: list[int] = []
    seen: list[Any] = []

    class UnreliableModel(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def look_up(cls, number: int) -> int:
            looked_up.append(number)
            if len(looked_up) < 3:
                raise ConnectionError("the service does not answer")
            return number

    with orders() as wire:
        handler = consumer(model=UnreliableModel, on_failure=[LocalRetry(times=5, delay=0)])(seen.append)
        assert failed(handler(event(record({"number": 7})), Context())) == []
    assert (looked_up, len(seen), wire.sent_entries()) == ([7, 7, 7], 1, [])


# batches


def test_a_batch_contains_only_messages_that_fit() -> None:  # SPEC K2
    seen: list[list[int]] = []
    bodies = event(record({}, "m0"), record({"number": 1}, "m1"), record("", "m2"), record({"number": 3}, "m3"))
    with orders() as wire:
        handler = batch_consumer(model=OrderModel)(lambda batch: seen.append([each.payload.number for each in batch]))
        assert failed(handler(bodies, Context())) == []
    assert seen == [[1, 3]]
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m0", "m2"]


def test_verdicts_of_a_batch_handler_do_not_affect_messages_that_do_not_fit() -> None:  # SPEC K2, B5
    bodies = event(record({}, "m0"), record({"number": 1}, "m1"), record({"number": 2}, "m2"))

    @batch_consumer(backoff=Fixed(WAIT))
    def handler(batch: Batch[OrderModel]) -> None:
        batch.retry_all(delay=5)
        raise ValueError

    with orders() as wire:
        assert failed(handler(bodies, Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 5, "handle-m2": 5}
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m0"]


def test_a_batch_handler_does_not_run_if_no_message_fits() -> None:  # SPEC K2
    ran: list[Any] = []
    with orders() as wire:
        handler = batch_consumer(model=OrderModel)(ran.append)
        assert failed(handler(event(record({}, "m1"), record("x", "m2")), Context())) == []
    assert ran == []
    assert len(wire.sent_entries()) == 2


# FIFO groups


def fifo(body: Any, message_id: str) -> dict[str, Any]:
    return record(body, message_id, "o.fifo", group="a")


def test_a_message_that_does_not_fit_is_released_behind_a_failed_one_of_its_group() -> None:  # SPEC K2, H1
    def handler(message: Message[OrderModel]) -> None:
        raise ValueError

    with orders() as wire:
        response = consumer(backoff=Fixed(WAIT))(handler)(event(fifo({"number": 1}, "m1"), fifo({}, "m2")), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.sent_entries() == []
    assert wire.visibilities() == {"handle-m1": WAIT, "handle-m2": 0}


@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_a_message_that_does_not_fit_is_dead_lettered_before_its_group_continues(
    as_batch: bool,
) -> None:  # SPEC K2, H1
    sent_before: list[int] = []
    make: Any = batch_consumer if as_batch else consumer
    with orders() as wire:
        handler = make(model=OrderModel)(lambda _: sent_before.append(len(wire.sent_entries())))
        assert failed(handler(event(fifo({}, "m1"), fifo({"number": 2}, "m2")), Context())) == []
    assert sent_before == [1]


@pytest.mark.parametrize("as_batch", [False, True], ids=["one by one", "as a batch"])
def test_a_group_stops_at_a_message_that_does_not_fit_and_cannot_be_dead_lettered(
    as_batch: bool,
) -> None:  # SPEC K2, H1
    """The messages before it succeed."""
    ran: list[str] = []
    bodies = event(fifo({"number": 1}, "m1"), fifo({}, "m2"), fifo({"number": 3}, "m3"))

    def handler(message: Message) -> None:
        ran.append(message.id)

    def batch_handler(batch: Batch) -> None:
        ran.extend(message.id for message in batch)

    made = batch_consumer(model=OrderModel)(batch_handler) if as_batch else consumer(model=OrderModel)(handler)
    wire = orders(fails={"SendMessageBatch": client_error("AccessDenied", status=403)})
    with wire:
        assert failed(made(bodies, Context())) == ["m2", "m3"]
    assert ran == ["m1"]
    assert wire.visibilities() == {"handle-m2": 900, "handle-m3": 0}


def test_a_group_stops_at_a_message_that_a_step_wants_to_run_again_in_a_batch_handler() -> None:  # SPEC H1
    """A batch handler cannot run again for one of its messages."""
    ran: list[str] = []

    class AsksForAnotherRun:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            return Outcome.again(0)

    handler: Any = batch_consumer(model=FailingModel, on_failure=[AsksForAnotherRun()])
    bodies = event(fifo({"number": 7}, "m1"), fifo({"number": 1}, "m2"), fifo({"number": 8}, "m3"))
    with orders() as wire:
        made = handler(lambda batch: ran.extend(message.id for message in batch))
        assert failed(made(bodies, Context())) == ["m2", "m3"]
    assert ran == ["m1"]
    assert wire.visibilities() == {"handle-m2": 900, "handle-m3": 0}


def test_a_message_that_does_not_fit_is_dead_lettered_although_its_group_stops_before_it() -> None:
    # SPEC K2, H2
    bodies = event(fifo({"number": 1}, "m1"), fifo({}, "m2"), fifo({"number": 3}, "m3"))

    @batch_consumer(backoff=Fixed(WAIT))
    def handler(batch: Batch[OrderModel]) -> None:
        batch[0].retry()

    with orders() as wire:
        assert failed(handler(bodies, Context())) == ["m1", "m3"]
    assert [envelope["id"] for envelope in wire.envelopes()] == ["m2"]
    assert wire.visibilities() == {"handle-m1": WAIT, "handle-m3": 0}


# envelopes


def notification(message: str, **more: Any) -> dict[str, Any]:
    """Return a body as SNS sends it to a queue."""
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
    """Return a body as an EventBridge rule sends it to a queue."""
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
def test_the_payload_is_taken_out_of_its_envelope(body: Any, envelope: str) -> None:  # SPEC K2
    assert payload_of(body, model=OrderModel, envelope=envelope) == OrderModel(number=7)


@pytest.mark.parametrize("envelope", ["sns", "eventbridge", "s3"])
@pytest.mark.parametrize(("model", "payload"), [(InvoiceData, InvoiceData(7)), (ParcelDict, {"weight": 7})])
def test_an_envelope_works_with_every_kind_of_model(envelope: str, model: Any, payload: Any) -> None:  # SPEC K2
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


def test_the_test_event_of_s3_is_discarded_without_a_run(caplog: pytest.LogCaptureFixture) -> None:  # SPEC K2
    caplog.set_level("INFO", "tarry")
    ran: list[Any] = []
    for make in (consumer, batch_consumer):
        with orders() as wire:
            handler: Any = make(model=S3RecordModel, envelope="s3")
            assert failed(handler(ran.append)(event(record(TEST_EVENT)), Context())) == []
        assert (ran, wire.requests) == ([], [])
    assert len(lines(caplog, "discarded")) == 2


@pytest.mark.parametrize(
    ("body", "envelope", "problem"),
    [
        (notification("{}"), "sns", "as SNS notification, does not fit OrderModel: Message.number: Field required"),
        (notification("hello"), "sns", "Message: Invalid JSON"),
        ({"Type": "SubscriptionConfirmation", "TopicArn": "arn", "Message": "visit"}, "sns", "number: Field required"),
        ("hello", "sns", "m1, as SNS notification, is not JSON: expected value"),
        ("[" * 100_000, "sns", "recursion limit"),
        (
            eventbridge({}),
            "eventbridge",
            "as EventBridge event, does not fit OrderModel: detail.number: Field required",
        ),
        ({"number": 7}, "eventbridge", "detail: Field required"),
        ({"Records": []}, "s3", "Records: List should have at least 1 item"),
        ({"Records": [{"number": 1}, {"number": 2}]}, "s3", "Records: List should have at most 1 item"),
        ({"Event": ["s3:TestEvent"]}, "s3", "Records: Field required"),
        ("[]", "s3", "does not fit OrderModel"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_body_without_a_valid_payload_in_its_envelope_is_undecodable(
    body: Any, envelope: str, problem: str
) -> None:  # SPEC K2, D4
    assert problem in refusal_of(body, model=OrderModel, envelope=envelope)


def test_the_body_keeps_its_envelope() -> None:  # SPEC K1, K2
    body = notification('{"number": 7}')
    seen: list[Any] = []
    with orders():
        handler = consumer(model=OrderModel, envelope="sns")(lambda message: seen.append(message.json()))
        handler(event(record(body)), Context())
    assert seen == [body]


# without a model


def test_the_payload_without_a_model_raises_an_error_that_names_the_setting() -> None:  # SPEC K2
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


# paths with keys of the body

SECRET_KEY = "4111-1111-1111-1111"


class WithoutExtras(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int


class NestedModel(BaseModel):
    cards: dict[str, OrderModel]
    either: dict[str, int | OrderModel] = {}
    buyer: Annotated[str, Field(validation_alias="bought-by")] = ""


@pytest.mark.parametrize(
    ("body", "model", "problem"),
    [
        ({"number": 1, SECRET_KEY: 2}, WithoutExtras, "<key>: Extra inputs are not permitted"),
        ({"cards": {SECRET_KEY: {"number": "x"}}}, NestedModel, "cards.<key>.number: Input should be a valid integer"),
        ({"cards": {}, "either": {SECRET_KEY: "x"}}, NestedModel, "either.<key>.int: Input should be a valid integer"),
        ({"cards": {}, "either": {SECRET_KEY: {}}}, NestedModel, "either.<key>.OrderModel.number: Field required"),
        ({"cards": {}, "bought-by": 5}, NestedModel, "bought-by: Input should be a valid string"),
        ({SECRET_KEY: "x"}, dict[str, int], "<key>: Input should be a valid integer"),
        ({SECRET_KEY: "x"}, dict[int, int], "<key>.<key>: Input should be a valid integer"),
    ],
    ids=["extra", "a key", "a key of a union", "a class of a union", "an alias", "a dict", "a key that does not fit"],
)
def test_the_path_of_a_problem_contains_names_of_the_model_and_no_keys_of_the_body(
    body: Any, model: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC L2, D4
    text = refusal_of(body, model=model)
    assert problem in text
    assert SECRET_KEY not in text
    assert SECRET_KEY not in everything(caplog)
