"""Requests to the idempotency table: in the handler's thread if its client has short timeouts, else in another one."""

import math
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError

from tarry import Message, consumer, world
from tarry.run.idempotency import answer_times
from tarry.run.idempotency_layer import longest_request
from tests.loglines import Caplog, lines
from tests.records import Context, batch_of, failed
from tests.settled import orders
from tests.tables import SlowTable
from tests.wire import http_answer

SHORT: dict[str, Any] = {
    "connect_timeout": 1,
    "read_timeout": 0.5,
    "retries": {"total_max_attempts": 1, "mode": "standard"},
}


class DynamoDB:
    """A table that answers each request as for a success, until it falls silent: then each exceeds its timeout."""

    is_silent = False

    def layer(self, **settings: Any) -> DynamoDBPersistenceLayer:
        login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        client = boto3.client("dynamodb", config=Config(**{**SHORT, **settings}), **login)  # type: ignore[call-overload]
        client.meta.events.register("before-send.dynamodb", self._answer)
        return DynamoDBPersistenceLayer(table_name="idempotency", boto3_client=client)

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        if self.is_silent:
            raise ReadTimeoutError(endpoint_url=request.url)
        return http_answer(200, {})


@pytest.fixture
def table() -> Iterator[DynamoDB]:
    with orders():
        yield DynamoDB()


class Consumed:
    """A consumer of a layer, with the threads in which the layer's requests were made."""

    def __init__(self, layer: DynamoDBPersistenceLayer, do: Callable[[Message], None] = lambda _: None) -> None:
        self.threads: list[str] = []
        self.ran: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self._do = do
        layer.client.meta.events.register("before-call.dynamodb", self._request)
        self.consumer = consumer(idempotency=layer, name="orders")(self.run)

    def _request(self, **_: Any) -> None:
        self.threads.append("this" if threading.current_thread() is threading.main_thread() else "another")
        self.before()

    def run(self, message: Message) -> None:
        self.ran.append(message.delivery_id)
        self._do(message)

    def batch(self, size: int, remaining: float = 30) -> list[str]:
        """Handle a batch; return the ids that are reported as failed."""
        self.threads.clear()
        self.ran.clear()
        return failed(self.consumer(batch_of(size), Context(remaining)))


def test_after_the_first_answer_requests_with_short_timeouts_are_made_in_the_handlers_thread(table: DynamoDB) -> None:
    """A look-up of the table's name has no timeout, so the first request, which connects, is made in another one."""
    consumed = Consumed(table.layer())
    assert (consumed.batch(2), consumed.threads) == ([], ["another", "this", "this", "this"])
    assert (consumed.batch(1), consumed.threads) == ([], ["this", "this"])
    answered_at, now = world.current().keep(answer_times), world.current().clock.monotonic()
    for seconds, thread in ((9.75, "this"), (10, "another")):
        answered_at.update(dict.fromkeys(answered_at, now - seconds))
        assert (consumed.batch(1), consumed.threads) == ([], [thread, "this"])


@pytest.mark.parametrize(
    ("settings", "remaining"),
    [({"read_timeout": 60}, 30), ({"retries": {"total_max_attempts": 5, "mode": "standard"}}, 30), ({}, 4)],
    ids=["a long timeout", "many tries", "little time"],
)
def test_requests_that_may_outlast_the_patience_are_made_in_another_thread(
    settings: dict[str, Any], remaining: float, table: DynamoDB
) -> None:
    consumed = Consumed(table.layer(**settings))
    for _ in range(2):
        assert (consumed.batch(1, remaining), consumed.threads) == ([], ["another", "another"])


def test_a_table_that_falls_silent_costs_no_message(table: DynamoDB, caplog: Caplog) -> None:
    """The client then has to connect again, so the next requests are made in another thread."""
    consumed = Consumed(table.layer())
    consumed.batch(1)
    table.is_silent = True
    assert (consumed.batch(2), consumed.ran) == ([], ["m0", "m1"])
    assert consumed.threads == ["this", "another", "another", "another"]
    assert [len(lines(caplog, name)) for name in ("unprotected", "completion_not_stored")] == [1, 2]


def test_a_table_that_falls_silent_while_a_failed_message_is_removed_delays_its_retry_only(table: DynamoDB) -> None:
    def fails(_: Message) -> None:
        table.is_silent = True
        raise ValueError("declined")

    consumed = Consumed(table.layer())
    consumed.batch(1)
    consumed._do = fails
    assert (consumed.batch(1), consumed.ran, consumed.threads) == (["m0"], ["m0"], ["this"] * 2)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, OSError])
def test_whatever_a_request_in_the_handlers_thread_raises_the_messages_run_and_are_done(
    error: type[BaseException], table: DynamoDB, caplog: Caplog
) -> None:
    consumed = Consumed(table.layer())
    consumed.batch(1)

    def fails() -> None:
        raise error

    consumed.before = fails
    assert (consumed.batch(2), consumed.ran) == ([], ["m0", "m1"])
    assert consumed.threads == ["this", "another", "another", "another"]
    assert [len(lines(caplog, name)) for name in ("unprotected", "completion_not_stored")] == [1, 2]


def client_with(**config: Any) -> Any:
    return SimpleNamespace(meta=SimpleNamespace(config=Config(**config)))


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 2, "mode": "standard"}}, 5),
        ({"connect_timeout": 0.5, "read_timeout": 1, "retries": {"total_max_attempts": 1}}, 1.5),
        ({"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 7}}, 14 + 1 + 2 + 4 + 8 + 16 + 20),
        ({"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 1, "mode": "adaptive"}}, math.inf),
        ({"connect_timeout": 1, "read_timeout": None, "retries": {"total_max_attempts": 1}}, math.inf),
        ({"connect_timeout": 1, "read_timeout": 1}, math.inf),
        ({}, math.inf),
    ],
)
def test_a_request_takes_at_most_its_timeouts_and_pauses_for_each_try(config: dict[str, Any], seconds: float) -> None:
    layer = DynamoDBPersistenceLayer(table_name="idempotency", boto3_client=boto3.client("dynamodb", "us-east-1"))
    layer.client = client_with(**config)
    assert longest_request(layer) == seconds


def test_how_long_a_request_of_a_layer_of_ones_own_takes_is_unknown() -> None:
    class Audited(DynamoDBPersistenceLayer):
        """Makes another request for each."""

    audited = Audited(table_name="idempotency", boto3_client=boto3.client("dynamodb", "us-east-1"))
    audited.client = client_with(**SHORT)
    assert [longest_request(layer) for layer in (audited, SlowTable(), None)] == [math.inf] * 3
