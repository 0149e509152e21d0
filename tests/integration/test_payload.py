"""`message.payload`: the body as a model, and bodies that do not fit."""

import asyncio
import json
import re
from collections.abc import Callable
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
from tests.loglines import Caplog, everything, field, lines
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


class PayloadRun:
    """A run of a consumer of orders, one by one or as a batch, over bodies with the message ids m0, m1, ..."""

    def __init__(
        self,
        *bodies: Any,
        make: Any = consumer,
        does: Callable[[Any], Any] = lambda _: None,
        queue: str = "orders",
        is_denied: bool = False,
        **settings: Any,
    ) -> None:
        self.ran: list[str] = []
        """The ids of the messages that reached the handler."""
        self.sent_before: list[int] = []
        """How many dead letters were sent before each call of the handler."""

        def handler(given: Any) -> Any:
            self.sent_before.append(len(self.wire.sent_entries()))
            self.ran += [each.id for each in ([given] if make is consumer else given)]
            return does(given)

        self.wire = Wire(queues={"orders": Queue("orders-dlq"), "o.fifo": Queue("dlq.fifo")})
        if is_denied:
            self.wire.fails["SendMessageBatch"] = client_error("AccessDenied", status=403)
        records = [record(body, f"m{index}", queue, group="a") for index, body in enumerate(bodies)]
        with self.wire:
            made = make(**{"model": OrderModel, "backoff": Fixed(WAIT), **settings})(handler)
            self.reported = failed(made(event(*records), Context()))
        self.dead = [envelope["id"] for envelope in self.wire.envelopes()]
        self.visibilities = {handle[7:]: seconds for handle, seconds in self.wire.visibilities().items()}


def payload_of(body: Any, **settings: Any) -> Any:
    """Return the payload that a handler gets for a body."""
    seen: list[Any] = []
    run = PayloadRun(body, does=lambda message: seen.append(message.payload), **settings)
    assert run.wire.requests == []
    return seen[0]


def refusal_of(body: Any, **settings: Any) -> str:
    """Return the reason why a body does not fit, from the failure record of its dead letter."""
    run = PayloadRun(body, **settings)
    assert (run.ran, run.reported) == ([], [])
    [dead_letter], [envelope] = run.wire.sent_entries(), run.wire.envelopes()
    assert dead_letter["MessageBody"] == (body if isinstance(body, str) else json.dumps(body))
    assert (envelope["failure"]["reason"], envelope["failure"]["type"]) == ("undecodable", "tarry.Undecodable")
    return str(envelope["failure"]["message"])


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


def test_a_strict_model_converts_types_that_json_lacks() -> None:  # SPEC K2
    class StrictTime(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime

    at = {"at": "2026-01-01T00:00:00Z"}
    bodies = [at, notification(json.dumps(at)), {"detail": at}, {"Records": [at]}]
    for body, envelope in zip(bodies, ENVELOPES, strict=True):
        assert payload_of(body, model=StrictTime, envelope=envelope).at.year == 2026


def test_an_async_handler_gets_the_payload_which_is_the_same_object_each_time() -> None:  # SPEC K2
    seen: list[OrderModel] = []

    @consumer
    async def handler(message: Message[OrderModel]) -> None:
        seen.extend((message.payload, message.payload))

    assert failed(handler(event(record({"number": 7})), Context())) == []
    assert seen[0] is seen[1]
    assert seen[0] == OrderModel(number=7)


def test_replace_changes_the_model() -> None:  # SPEC K2
    seen: list[Any] = []
    handler = consumer(model=OrderModel)(lambda message: seen.append(message.payload))
    handler.replace(max_attempts=2)(event(record({"number": 7})), Context())
    handler.replace(model=InvoiceData)(event(record({"total": 7})), Context())
    assert seen == [OrderModel(number=7), InvoiceData(7)]


@pytest.mark.parametrize(
    ("body", "model", "problem"),
    [
        ({"number": "x"}, OrderModel, "number: Input should be a valid integer"),
        ({}, OrderModel, "number: Field required"),
        ("", OrderModel, "m0 is not JSON: EOF"),
        ("{", OrderModel, "m0 is not JSON: EOF"),
        ("[1]", OrderModel, "Input should be an object"),
        ("[" * 100_000, OrderModel, "recursion limit"),
        ("\ud800", OrderModel, "unicode"),
        (
            [{"number": 1}, {"number": None}, {"customer": 5}],
            list[OrderModel],
            "1.number: Input should be a valid integer; 2.number: Field required; 2.customer: ",
        ),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_body_that_does_not_fit_is_dead_lettered_with_all_paths_and_problems_and_does_not_run(
    body: Any, model: Any, problem: str
) -> None:  # SPEC K2, D4
    """It is never retried, whatever the policy."""
    text = refusal_of(body, model=model, retry_on=ValueError, max_attempts=10)
    assert re.match(r"the body of message m0 (does not fit (list\[.*)?OrderModel\]?|is not JSON): ", text)
    assert problem in text


def test_only_the_first_20_problems_of_a_body_are_recorded() -> None:  # SPEC K2
    text = refusal_of([{}] * 500, model=list[OrderModel])
    assert (text.count("Field required"), text.endswith("and 480 more")) == (20, True)


class CardPayment(BaseModel):
    kind: Literal["card"]


class CashPayment(BaseModel):
    kind: Literal["cash"]


class WithoutExtras(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int


class NestedModel(BaseModel):
    cards: dict[str, OrderModel]
    either: dict[str, int | OrderModel] = {}
    buyer: Annotated[str, Field(validation_alias="bought-by")] = ""


SECRET = "4111-1111-1111-1111"
NO_INTEGER = "Input should be a valid integer"


@pytest.mark.parametrize(
    ("body", "model", "problem"),
    [
        ({"number": SECRET}, OrderModel, f"number: {NO_INTEGER}"),
        ({"kind": SECRET}, Annotated[CardPayment | CashPayment, Field(discriminator="kind")], "does not fit"),
        (SECRET, ParcelDict, "is not JSON"),
        ({"number": 1, SECRET: 2}, WithoutExtras, "<key>: Extra inputs are not permitted"),
        ({"cards": {SECRET: {"number": "x"}}}, NestedModel, f"cards.<key>.number: {NO_INTEGER}"),
        ({"cards": {}, "either": {SECRET: "x"}}, NestedModel, f"either.<key>.int: {NO_INTEGER}"),
        ({"cards": {}, "either": {SECRET: {}}}, NestedModel, "either.<key>.OrderModel.number: Field required"),
        ({"cards": {}, "bought-by": 5}, NestedModel, "bought-by: Input should be a valid string"),
        ({SECRET: "x"}, dict[str, int], f"<key>: {NO_INTEGER}"),
        ({SECRET: "x"}, dict[int, int], f"<key>.<key>: {NO_INTEGER}"),
    ],
    ids=[
        *("a field", "the tag of a union", "not JSON", "extra", "a key", "a key of a union", "a class of a union"),
        *("an alias", "a dict", "a key that does not fit"),
    ],
)
def test_the_reason_names_fields_of_the_model_and_neither_keys_nor_values_of_the_body(
    body: Any, model: Any, problem: str, caplog: Caplog
) -> None:  # SPEC K2, L2, D4
    text = refusal_of(body, model=model)
    assert problem in text
    assert SECRET not in text + everything(caplog)
    assert len(lines(caplog, "dead_lettered")) == 1


def test_the_payload_raises_the_same_error_in_a_failure_step() -> None:  # SPEC D4
    refusals: list[str] = []

    def reads_payload(failure: Failure, next_step: Any) -> Outcome:
        with pytest.raises(Undecodable) as refusal:
            _ = failure.message.payload
        refusals.append(str(refusal.value))
        return Outcome.discard("seen")

    run = PayloadRun({}, on_failure=[reads_payload, DeadLetter()])
    assert (run.reported, run.dead) == ([], [])
    assert "number: Field required" in refusals[0]


ONE_BY_ONE_OR_AS_A_BATCH = pytest.mark.parametrize("make", [consumer, batch_consumer], ids=["one by one", "as a batch"])


@ONE_BY_ONE_OR_AS_A_BATCH
def test_only_messages_that_fit_reach_the_handler(make: Any) -> None:  # SPEC K2, F4
    """A batch handler does not run if there is none. One that cannot be dead-lettered waits in its queue."""
    run = PayloadRun({}, {"number": 1}, "", {"number": 3}, make=make)
    assert (run.ran, run.reported, run.dead) == (["m1", "m3"], [], ["m0", "m2"])
    run = PayloadRun({}, "x", make=make, does=lambda _: 1 / 0)
    assert (run.ran, run.reported, run.dead) == ([], [], ["m0", "m1"])
    run = PayloadRun({}, make=make, is_denied=True)
    assert (run.ran, run.reported, run.visibilities) == ([], ["m0"], {"m0": 900})


def test_verdicts_of_a_batch_handler_do_not_affect_messages_that_do_not_fit() -> None:  # SPEC K2, B5
    def does(batch: Batch[OrderModel]) -> None:
        batch.retry_all(delay=5)
        raise ValueError

    run = PayloadRun({}, {"number": 1}, {"number": 2}, make=batch_consumer, does=does)
    assert (run.reported, run.visibilities, run.dead) == (["m1", "m2"], {"m1": 5, "m2": 5}, ["m0"])


@settings(max_examples=60)
@given(body=st.text(st.characters(), max_size=100) | JSON.map(json.dumps), envelope=st.sampled_from(ENVELOPES))
def test_any_body_is_either_handled_or_dead_lettered_byte_for_byte(body: str, envelope: Any) -> None:  # SPEC K2, A2
    seen: list[str] = []
    run = PayloadRun(body, envelope=envelope, does=lambda message: seen.append(message.body))
    assert run.reported == []
    assert [*seen, *(dead_letter["MessageBody"] for dead_letter in run.wire.sent_entries())] == [body]


@pytest.mark.parametrize(("number", "error"), [(1, "KeyError"), (2, "AttributeError"), (5, "CancelledError")])
@ONE_BY_ONE_OR_AS_A_BATCH
def test_any_other_error_of_a_validator_is_an_ordinary_failure_of_its_own_message(
    number: int, error: str, make: Any, caplog: Caplog
) -> None:  # SPEC K2
    run = PayloadRun({"number": 7}, {"number": number}, {"number": 8}, make=make, model=FailingModel)
    assert (run.ran, run.reported, run.visibilities) == (["m0", "m2"], ["m1"], {"m1": WAIT})
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").endswith(error)


@pytest.mark.parametrize(
    ("number", "fatal", "reason"),
    [(1, LookupError, "fatal"), (2, AttributeError, "fatal"), (3, (), "rejected")],
)
def test_the_policy_classifies_an_error_of_a_validator(number: int, fatal: Any, reason: str) -> None:  # SPEC K2, D1
    [envelope] = PayloadRun({"number": number}, model=FailingModel, fatal=fatal).wire.envelopes()
    assert envelope["failure"]["reason"] == reason
    assert number == 3 or envelope["failure"]["type"] == {1: "KeyError", 2: "AttributeError"}[number]


async def asynchronously(_: Batch) -> None: ...


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("queue", ["orders", "o.fifo"])
def test_a_system_exit_of_a_validator_ends_the_batch_before_its_handler_runs(queue: str, is_async: bool) -> None:
    # SPEC A5
    more: dict[str, Any] = {"make": batch_consumer, "model": FailingModel, "queue": queue}
    if is_async:
        more["does"] = asynchronously
    run = PayloadRun({"number": 7}, {"number": 4}, {"number": 8}, **more)
    assert (run.ran, run.reported) == ([], ["m0", "m1", "m2"])
    assert run.visibilities == {"m0": 0, "m1": WAIT, "m2": 0}


def test_a_local_retry_runs_a_failed_validator_again_before_the_handler() -> None:  # SPEC K2, I5
    looked_up: list[int] = []

    class UnreliableModel(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def look_up(cls, number: int) -> int:
            looked_up.append(number)
            if len(looked_up) < 3:
                raise ConnectionError("the service does not answer")
            return number

    run = PayloadRun({"number": 7}, model=UnreliableModel, on_failure=[LocalRetry(times=5, delay=0)])
    assert (looked_up, run.ran, run.reported, run.dead) == ([7, 7, 7], ["m0"], [], [])


def test_a_message_that_does_not_fit_is_released_behind_a_failed_one_of_its_group() -> None:  # SPEC K2, H1
    run = PayloadRun({"number": 1}, {}, queue="o.fifo", does=lambda _: 1 / 0)
    assert (run.reported, run.visibilities, run.dead) == (["m0", "m1"], {"m0": WAIT, "m1": 0}, [])


@ONE_BY_ONE_OR_AS_A_BATCH
def test_a_group_continues_once_a_message_that_does_not_fit_is_dead_lettered_and_stops_otherwise(make: Any) -> None:
    """SPEC K2, H1. The messages before it succeed."""
    bodies = [{"number": 1}, {}, {"number": 3}]
    run = PayloadRun(*bodies, make=make, queue="o.fifo")
    assert (run.ran, run.reported, run.dead) == (["m0", "m2"], [], ["m1"])
    assert run.sent_before == ([0, 1] if make is consumer else [1])
    run = PayloadRun(*bodies, make=make, queue="o.fifo", is_denied=True)
    assert (run.ran, run.reported, run.visibilities) == (["m0"], ["m1", "m2"], {"m1": 900, "m2": 0})


def test_a_group_stops_at_a_message_that_a_step_wants_to_run_again_in_a_batch_handler() -> None:  # SPEC H1
    """A batch handler cannot run again for one of its messages."""
    bodies = [{"number": 7}, {"number": 1}, {"number": 8}]
    steps = [lambda failure, next_step: Outcome.again(0)]
    run = PayloadRun(*bodies, make=batch_consumer, model=FailingModel, queue="o.fifo", on_failure=steps)
    assert (run.ran, run.reported, run.visibilities) == (["m0"], ["m1", "m2"], {"m1": 900, "m2": 0})


def test_a_message_that_does_not_fit_is_dead_lettered_although_its_group_stops_before_it() -> None:  # SPEC K2, H2
    bodies = [{"number": 1}, {}, {"number": 3}]
    run = PayloadRun(*bodies, make=batch_consumer, queue="o.fifo", does=lambda batch: batch[0].retry())
    assert (run.reported, run.dead, run.visibilities) == (["m0", "m2"], ["m1"], {"m0": WAIT, "m2": 0})


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
    names = {"version": "0", "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718", "detail-type": "Order", "source": "shop"}
    return {**names, "account": "111122223333", "time": "2026-12-22T18:43:48Z", "resources": [], "detail": detail}


S3_RECORD: dict[str, Any] = {
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
        "bucket": {"name": "uploads", "ownerIdentity": {"principalId": "A3I5"}, "arn": "arn:aws:s3:::uploads"},
        "object": {"key": "a+b.jpg", "size": 1305107, "eTag": "b21b84d653bb07b05b1e6b33684dc11b", "sequencer": "0C0F"},
    },
}
TEST_EVENT = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-10-13T15:57:02.089Z", "Bucket": "uploads"}


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
def test_the_payload_is_taken_out_of_its_envelope_and_the_body_keeps_it(body: Any, envelope: str) -> None:
    # SPEC K1, K2
    seen: list[Any] = []
    PayloadRun(body, envelope=envelope, does=lambda message: seen.extend((message.payload, message.json())))
    assert seen == [OrderModel(number=7), body]


@pytest.mark.parametrize("envelope", ["sns", "eventbridge", "s3"])
@pytest.mark.parametrize(("model", "payload"), [(InvoiceData, InvoiceData(7)), (ParcelDict, {"weight": 7})])
def test_an_envelope_works_with_every_kind_of_model(envelope: str, model: Any, payload: Any) -> None:  # SPEC K2
    inner = {"total": 7, "weight": 7}
    bodies = {"sns": notification(json.dumps(inner)), "eventbridge": eventbridge(inner), "s3": {"Records": [inner]}}
    assert payload_of(bodies[envelope], model=model, envelope=envelope) == payload


def test_the_payload_of_an_s3_notification_is_its_one_record() -> None:  # SPEC K2
    payload = payload_of({"Records": [S3_RECORD]}, model=S3RecordModel, envelope="s3")
    assert (payload.eventName, payload.s3.bucket.name, payload.s3.object.key) == (
        *("ObjectCreated:Put", "uploads", "a+b.jpg"),
    )


@ONE_BY_ONE_OR_AS_A_BATCH
def test_the_test_event_of_s3_is_discarded_without_a_run(make: Any, caplog: Caplog) -> None:
    # SPEC K2
    caplog.set_level("INFO", "tarry")
    run = PayloadRun(TEST_EVENT, make=make, model=S3RecordModel, envelope="s3")
    assert (run.ran, run.reported, run.wire.requests) == ([], [], [])
    assert len(lines(caplog, "discarded")) == 1


@pytest.mark.parametrize(
    ("envelope", "body", "problem"),
    [
        ("sns", notification("{}"), "as SNS notification, does not fit OrderModel: Message.number: Field required"),
        ("sns", notification("hello"), "Message: Invalid JSON"),
        ("sns", {"Type": "SubscriptionConfirmation", "TopicArn": "arn", "Message": "visit"}, "number: Field required"),
        ("sns", "hello", "m0, as SNS notification, is not JSON: expected value"),
        ("sns", "[" * 100_000, "recursion limit"),
        ("eventbridge", eventbridge({}), "as EventBridge event, does not fit OrderModel: detail.number: Field req"),
        ("eventbridge", {"number": 7}, "detail: Field required"),
        ("s3", {"Records": []}, "Records: List should have at least 1 item"),
        ("s3", {"Records": [{"number": 1}, {"number": 2}]}, "Records: List should have at most 1 item"),
        ("s3", {"Event": ["s3:TestEvent"]}, "Records: Field required"),
        ("s3", "[]", "does not fit OrderModel"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_body_without_a_valid_payload_in_its_envelope_is_undecodable(envelope: str, body: Any, problem: str) -> None:
    # SPEC K2, D4
    assert problem in refusal_of(body, envelope=envelope)


def test_the_payload_without_a_model_raises_an_error_that_names_the_setting() -> None:  # SPEC K2
    def does(message: Message) -> None:
        with pytest.raises(ConfigurationError, match=r"(?s)model=Order.*Message\[Order\]"):
            _ = message.payload

    assert PayloadRun({"number": 7}, model=None, does=does).reported == []
