"""`message.payload`: the body as a model, and bodies that do not fit."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from aws_lambda_powertools.utilities.parser.models import S3RecordModel
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator
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
from tests.handlers import awaiting
from tests.loglines import Caplog, everything, field, lines
from tests.records import Context, event, record
from tests.settled import orders, settle
from tests.wire import client_error

WAIT = 77
SECRET = "4111-1111-1111-1111"


class OrderModel(BaseModel):
    number: int
    customer: str = "unknown"


@dataclass
class InvoiceData:
    total: float


class ParcelDict(TypedDict):
    weight: int


class StrictTime(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


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
        ran: list[str] = []
        self.sent_before: list[int] = []
        """How many dead letters were sent before each call of the handler."""

        def handler(given: Any) -> Any:
            self.sent_before.append(len(self.wire.sent_entries()))
            ran.extend(each.id for each in ([given] if make is consumer else given))
            return does(given)

        self.wire = orders()
        if is_denied:
            self.wire.fails["SendMessageBatch"] = client_error("AccessDenied", status=403)
        records = [record(body, f"m{index}", queue, group="a") for index, body in enumerate(bodies)]
        made = make(**{"model": OrderModel, "backoff": Fixed(WAIT), **settings})(handler)
        reported, _ = settle(made, event(*records), self.wire)
        visibilities = {handle[7:]: seconds for handle, seconds in self.wire.visibilities().items()}
        self.outcomes = (ran, reported, visibilities, [each["id"] for each in self.wire.envelopes()])
        """The ids that reached the handler and that are reported, the visibilities, and the ids of dead letters."""


def refusal_of(body: Any, **settings: Any) -> str:
    """Return the reason why a body does not fit, from the failure record of its dead letter."""
    run = PayloadRun(body, **settings)
    assert run.outcomes == ([], [], {}, ["m0"])
    [dead_letter], [envelope] = run.wire.sent_entries(), run.wire.envelopes()
    assert dead_letter["MessageBody"] == (body if isinstance(body, str) else json.dumps(body))
    assert (envelope["failure"]["reason"], envelope["failure"]["type"]) == ("undecodable", "tarry.Undecodable")
    return str(envelope["failure"]["message"])


def notification(message: Any, **more: Any) -> dict[str, Any]:
    """Return a body as SNS sends it to a queue."""
    text = message if isinstance(message, str) else json.dumps(message)
    arn = "arn:aws:sns:us-west-2:123456789012:MyTopic"
    return {"Type": "Notification", "MessageId": "22b80b92", "TopicArn": arn, "Message": text, **more}


def eventbridge(detail: Any) -> dict[str, Any]:
    """Return a body as an EventBridge rule sends it to a queue."""
    return {"version": "0", "id": "6a7e8feb", "detail-type": "Order", "source": "shop", "detail": detail}


S3_RECORD: dict[str, Any] = {
    "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "us-east-2", "eventName": "ObjectCreated:Put",
    "eventTime": "2026-09-03T19:37:27.192Z", "userIdentity": {"principalId": "AWS:AIDAINPONIXQXHT3IKHL2"},
    "requestParameters": {"sourceIPAddress": "205.255.255.255"},
    "responseElements": {"x-amz-request-id": "D82B88E5F771F645", "x-amz-id-2": "vlR7PnpV2Ce81l0PRw6j"},
    "s3": {
        "s3SchemaVersion": "1.0", "configurationId": "828aa6fc",
        "bucket": {"name": "uploads", "ownerIdentity": {"principalId": "A3I5"}, "arn": "arn:aws:s3:::uploads"},
        "object": {"key": "a+b.jpg", "size": 1305107, "eTag": "b21b84d653bb07b05b1e6b33684dc11b", "sequencer": "0C0F"},
    },
}  # fmt: skip
TEST_EVENT = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-10-13T15:57:02.089Z", "Bucket": "uploads"}
WRAPPERS: dict[Any, Callable[[Any], Any]] = {
    None: lambda inner: inner,
    "sns": notification,
    "eventbridge": eventbridge,
    "s3": lambda inner: {"Records": [inner]},
}


@pytest.mark.parametrize("envelope", WRAPPERS)
@pytest.mark.parametrize(
    ("model", "inner", "payload"),
    [
        (OrderModel, {"number": 7}, OrderModel(number=7)),
        (InvoiceData, {"total": 1.5}, InvoiceData(1.5)),
        (ParcelDict, {"weight": 3}, {"weight": 3}),
        (Annotated[OrderModel, Field(strict=True)], {"number": 7}, OrderModel(number=7)),
        (list[OrderModel], [{"number": 7}], [OrderModel(number=7)]),
        (S3RecordModel, S3_RECORD, S3RecordModel.model_validate(S3_RECORD)),
        # a strict model converts types that JSON lacks
        (StrictTime, {"at": "2026-01-01T00:00:00Z"}, StrictTime(at=datetime(2026, 1, 1, tzinfo=UTC))),
    ],
    ids=["pydantic", "dataclass", "TypedDict", "annotated", "a list of models", "S3's record", "strict"],
)
def test_the_payload_is_the_body_or_a_part_of_it_as_the_model(
    model: Any, inner: Any, payload: Any, envelope: Any
) -> None:  # SPEC K1, K2
    seen: list[Any] = []
    body = WRAPPERS[envelope](inner)
    run = PayloadRun(
        body, model=model, envelope=envelope, does=lambda message: seen.extend((message.payload, message.json()))
    )
    assert (seen, run.wire.requests) == ([payload, body], [])


def test_a_notification_of_sns_may_be_raw_and_the_payload_is_the_same_object_each_time() -> None:  # SPEC K2
    seen: list[Any] = []
    handle = awaiting(lambda message: seen.append((message.payload, message.payload is message.payload)))
    PayloadRun({"number": 7}, notification({"number": 7}, SequenceNumber="1000"), envelope="sns", does=handle)
    assert seen == [(OrderModel(number=7), True)] * 2


def test_replace_changes_the_model() -> None:  # SPEC K2
    seen: list[Any] = []
    handler = consumer(model=OrderModel)(lambda message: seen.append(message.payload))
    handler.replace(max_attempts=2)(event(record({"number": 7})), Context())
    handler.replace(model=InvoiceData)(event(record({"total": 7})), Context())
    assert seen == [OrderModel(number=7), InvoiceData(7)]


WithoutExtras = create_model("WithoutExtras", __config__=ConfigDict(extra="forbid"), number=(int, ...))


class NestedModel(BaseModel):
    cards: dict[str, OrderModel]
    either: dict[str, int | OrderModel] = {}
    buyer: Annotated[str, Field(validation_alias="bought-by")] = ""


CARD, CASH = (create_model(f"{kind}Payment", kind=(Literal[kind], ...)) for kind in ("card", "cash"))
PAYMENT = Annotated[CARD | CASH, Field(discriminator="kind")]
NO_INTEGER = "Input should be a valid integer"
SUBSCRIPTION = {"Type": "SubscriptionConfirmation", "TopicArn": "arn", "Message": "visit"}


@pytest.mark.parametrize(
    ("model", "body", "problem"),
    [
        (OrderModel, {"number": "x"}, f"number: {NO_INTEGER}"),
        (OrderModel, {}, "number: Field required"),
        (OrderModel, "", "m0 is not JSON: EOF"),
        (OrderModel, "{", "m0 is not JSON: EOF"),
        (OrderModel, "[1]", "Input should be an object"),
        (OrderModel, "[" * 100_000, "recursion limit"),
        (OrderModel, "\ud800", "unicode"),
        (list[OrderModel], [{"number": 1}, {"number": None}, {"customer": 5}],
         f"1.number: {NO_INTEGER}; 2.number: Field required; 2.customer: "),
        (list[OrderModel], [{}] * 500, "19.number: Field required; and 480 more"),
        # neither keys nor values of the body
        (OrderModel, {"number": SECRET}, f"number: {NO_INTEGER}"),
        (PAYMENT, {"kind": SECRET}, "does not fit"),
        (ParcelDict, SECRET, "is not JSON"),
        (WithoutExtras, {"number": 1, SECRET: 2}, "<key>: Extra inputs are not permitted"),
        (NestedModel, {"cards": {SECRET: {"number": "x"}}}, f"cards.<key>.number: {NO_INTEGER}"),
        (NestedModel, {"cards": {}, "either": {SECRET: "x"}}, f"either.<key>.int: {NO_INTEGER}"),
        (NestedModel, {"cards": {}, "either": {SECRET: {}}}, "either.<key>.OrderModel.number: Field required"),
        (NestedModel, {"cards": {}, "bought-by": 5}, "bought-by: Input should be a valid string"),
        (dict[str, int], {SECRET: "x"}, f"<key>: {NO_INTEGER}"),
        (dict[str, int], {"type": "x"}, f"<key>: {NO_INTEGER}"),
        (OrderModel, TEST_EVENT, "number: Field required"),
        (dict[int, int], {SECRET: "x"}, f"<key>.<key>: {NO_INTEGER}"),
        # without a valid payload in an envelope
        ("sns", notification("{}"), "as SNS notification, does not fit OrderModel: Message.number: Field required"),
        ("sns", notification("hello"), "Message: Invalid JSON"),
        ("sns", SUBSCRIPTION, "number: Field required"),
        ("sns", "hello", "m0, as SNS notification, is not JSON: expected value"),
        ("sns", "[" * 100_000, "recursion limit"),
        ("eventbridge", eventbridge({}), "as EventBridge event, does not fit OrderModel: detail.number: Field req"),
        ("eventbridge", {"number": 7}, "detail: Field required"),
        ("s3", {"Records": []}, "Records: List should have at least 1 item"),
        ("s3", {"Records": [{"number": 1}, {"number": 2}]}, "Records: List should have at most 1 item"),
        ("s3", {"Event": ["s3:TestEvent"]}, "Records: Field required"),
        ("s3", "[]", "does not fit OrderModel"),
    ],
    ids=lambda value: ascii(value)[-30:],
)  # fmt: skip
def test_a_body_that_does_not_fit_is_dead_lettered_with_all_paths_and_problems_and_no_secret_and_does_not_run(
    model: Any, body: Any, problem: str, caplog: Caplog
) -> None:  # SPEC K2, L2, D4
    """It is never retried, whatever the policy."""
    given = {"envelope": model} if isinstance(model, str) else {"model": model}
    text = refusal_of(body, retry_on=ValueError, max_attempts=10, **given)
    assert re.match(r"the body of message m0(, as [\w ]+,)? (does not fit .+|is not JSON): ", text)
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

    assert PayloadRun({}, on_failure=[reads_payload, DeadLetter()]).outcomes == ([], [], {}, [])
    assert "number: Field required" in refusals[0]


ONE_BY_ONE_OR_AS_A_BATCH = pytest.mark.parametrize("make", [consumer, batch_consumer], ids=["one by one", "as a batch"])


@ONE_BY_ONE_OR_AS_A_BATCH
def test_only_messages_that_fit_reach_the_handler(make: Any) -> None:  # SPEC K2, F4
    """A batch handler does not run if there is none. One that cannot be dead-lettered waits in its queue."""
    run = PayloadRun({}, {"number": 1}, "", {"number": 3}, make=make)
    assert run.outcomes == (["m1", "m3"], [], {}, ["m0", "m2"])
    run = PayloadRun({}, "x", make=make, does=lambda _: 1 / 0)
    assert run.outcomes == ([], [], {}, ["m0", "m1"])
    run = PayloadRun({}, make=make, is_denied=True)
    assert run.outcomes[:3] == ([], ["m0"], {"m0": 900})


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


@settings(max_examples=40)
@given(body=st.text(st.characters(), max_size=100) | JSON.map(json.dumps), envelope=st.sampled_from(list(WRAPPERS)))
def test_any_body_is_either_handled_or_dead_lettered_byte_for_byte(body: str, envelope: Any) -> None:  # SPEC K2, A2
    seen: list[str] = []
    run = PayloadRun(body, envelope=envelope, does=lambda message: seen.append(message.body))
    assert run.outcomes[1] == []
    assert [*seen, *(dead_letter["MessageBody"] for dead_letter in run.wire.sent_entries())] == [body]


@pytest.mark.parametrize(("number", "error"), [(1, "KeyError"), (2, "AttributeError"), (5, "CancelledError")])
@ONE_BY_ONE_OR_AS_A_BATCH
def test_any_other_error_of_a_validator_is_an_ordinary_failure_of_its_own_message(
    number: int, error: str, make: Any, caplog: Caplog
) -> None:  # SPEC K2
    run = PayloadRun({"number": 7}, {"number": number}, {"number": 8}, make=make, model=FailingModel)
    assert run.outcomes == (["m0", "m2"], ["m1"], {"m1": WAIT}, [])
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").endswith(error)


@pytest.mark.parametrize(
    ("number", "fatal", "reason", "error"),
    [
        (1, LookupError, "fatal", "KeyError"),
        (2, AttributeError, "fatal", "AttributeError"),
        (3, (), "rejected", "tarry.Reject"),
    ],
)
def test_the_policy_classifies_an_error_of_a_validator(number: int, fatal: Any, reason: str, error: Any) -> None:
    [envelope] = PayloadRun({"number": number}, model=FailingModel, fatal=fatal).wire.envelopes()  # SPEC K2, D1
    assert (envelope["failure"]["reason"], envelope["failure"].get("type")) == (reason, error)


@pytest.mark.parametrize("does", [lambda _: None, awaiting(lambda _: None)], ids=["sync", "async"])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_system_exit_of_a_validator_ends_the_batch_before_its_handler_runs(queue: str, does: Any) -> None:
    bodies = [{"number": 7}, {"number": 4}, {"number": 8}]  # SPEC A5
    run = PayloadRun(*bodies, make=batch_consumer, model=FailingModel, queue=queue, does=does)
    assert run.outcomes == ([], ["m0", "m1", "m2"], {"m0": 0, "m1": WAIT, "m2": 0}, [])


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
    assert (looked_up, run.outcomes) == ([7, 7, 7], (["m0"], [], {}, []))


def retries_all_and_fails(batch: Batch[OrderModel]) -> None:
    batch.retry_all(delay=5)
    raise ValueError


BATCH, FIFO = {"make": batch_consumer}, {"queue": "orders.fifo"}
AGAIN = {"model": FailingModel, "on_failure": [lambda failure, next_step: Outcome.again(0)]}
A_GOOD_ONE, A_BAD_ONE, A_FAILING_ONE = {"number": 7}, {}, {"number": 1}


@pytest.mark.parametrize(
    ("bodies", "settings", "outcomes"),
    [
        ([A_BAD_ONE, A_GOOD_ONE, A_GOOD_ONE], {**BATCH, "does": retries_all_and_fails},
         (["m1", "m2"], ["m1", "m2"], {"m1": 5, "m2": 5}, ["m0"])),
        ([A_GOOD_ONE, A_BAD_ONE], {**FIFO, "does": lambda _: 1 / 0}, (["m0"], ["m0", "m1"], {"m0": WAIT, "m1": 0}, [])),
        # a batch handler cannot run again for one of its messages
        ([A_GOOD_ONE, A_FAILING_ONE, A_GOOD_ONE], {**FIFO, **BATCH, **AGAIN},
         (["m0"], ["m1", "m2"], {"m1": 900, "m2": 0}, [])),
        ([A_GOOD_ONE, A_BAD_ONE, A_GOOD_ONE], {**FIFO, **BATCH, "does": lambda batch: batch[0].retry()},
         (["m0", "m2"], ["m0", "m2"], {"m0": WAIT, "m2": 0}, ["m1"])),
    ],
    ids=[
        "verdicts on the batch do not affect it", "behind a failed one of its group it is released",
        "a step wants to run it again in a batch handler", "its group stops before it in a batch handler",
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_among_others(bodies: Any, settings: Any, outcomes: Any) -> None:
    # SPEC B5, H1, H2, K2
    assert PayloadRun(*bodies, **settings).outcomes == outcomes


@ONE_BY_ONE_OR_AS_A_BATCH
def test_a_group_continues_once_a_message_that_does_not_fit_is_dead_lettered_and_stops_otherwise(make: Any) -> None:
    """SPEC K2, H1. The messages before it succeed."""
    bodies = [{"number": 1}, {}, {"number": 3}]
    run = PayloadRun(*bodies, make=make, queue="orders.fifo")
    assert run.outcomes == (["m0", "m2"], [], {}, ["m1"])
    assert run.sent_before == ([0, 1] if make is consumer else [1])
    run = PayloadRun(*bodies, make=make, queue="orders.fifo", is_denied=True)
    assert run.outcomes[:3] == (["m0"], ["m1", "m2"], {"m1": 900, "m2": 0})


@ONE_BY_ONE_OR_AS_A_BATCH
def test_the_test_event_of_s3_is_discarded_without_a_run(make: Any, caplog: Caplog) -> None:  # SPEC K2
    caplog.set_level("INFO", "tarry")
    run = PayloadRun(TEST_EVENT, make=make, envelope="s3")
    assert (run.outcomes, run.wire.requests) == (([], [], {}, []), [])
    assert len(lines(caplog, "discarded")) == 1


def test_the_payload_without_a_model_raises_an_error_that_names_the_setting() -> None:  # SPEC K2
    def does(message: Message) -> None:
        with pytest.raises(ConfigurationError, match=r"(?s)model=Order.*Message\[Order\]"):
            _ = message.payload

    assert PayloadRun({"number": 7}, model=None, does=does).outcomes[1] == []
