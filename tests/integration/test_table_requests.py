"""Requests to the idempotency table: in the handler's thread if its client has short timeouts, else in another one."""

import math
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from botocore.config import Config

from tarry import Message, consumer, world
from tarry.run.idempotency import CONNECTED_SECONDS, answer_times
from tarry.run.idempotency_layer import longest_request
from tests.loglines import Caplog, lines
from tests.records import Context, batch_of, failed
from tests.tables import SlowTable
from tests.wire import Queue, Wire

SHORT: dict[str, Any] = {
    "connect_timeout": 1,
    "read_timeout": 0.5,
    "retries": {"total_max_attempts": 1, "mode": "standard"},
}


class Answers(BaseHTTPRequestHandler):
    """Answers each request of DynamoDB with nothing, as for a success."""

    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.silent.wait(0):  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        else:
            self.server.over.wait(10)  # type: ignore[attr-defined]
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class DynamoDB(socketserver.ThreadingTCPServer):
    """A table on the loopback interface that falls silent when told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.silent, self.over = threading.Event(), threading.Event()

    def layer(self, **settings: Any) -> DynamoDBPersistenceLayer:
        login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        config, url = Config(**{**SHORT, **settings}), f"http://127.0.0.1:{self.server_address[1]}"
        client = boto3.client("dynamodb", endpoint_url=url, config=config, **login)  # type: ignore[call-overload]
        return DynamoDBPersistenceLayer(table_name="idempotency", boto3_client=client)


@pytest.fixture
def table() -> Iterator[DynamoDB]:
    with DynamoDB() as server, Wire(queues={"orders": Queue(dead_letter="orders-dlq")}):
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        yield server
        server.over.set()
        server.shutdown()
        serving.join()


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
    orders = Consumed(table.layer())
    assert (orders.batch(2), orders.threads) == ([], ["another", "this", "this", "this"])
    assert (orders.batch(1), orders.threads) == ([], ["this", "this"])
    answered_at = world.current().keep(answer_times)
    answered_at.update(dict.fromkeys(answered_at, -CONNECTED_SECONDS))
    assert (orders.batch(1), orders.threads) == ([], ["another", "this"])


@pytest.mark.parametrize(
    ("settings", "remaining"),
    [({"read_timeout": 60}, 30), ({"retries": {"total_max_attempts": 5, "mode": "standard"}}, 30), ({}, 4)],
    ids=["a long timeout", "many tries", "little time"],
)
def test_requests_that_may_outlast_the_patience_are_made_in_another_thread(
    settings: dict[str, Any], remaining: float, table: DynamoDB
) -> None:
    orders = Consumed(table.layer(**settings))
    for _ in range(2):
        assert (orders.batch(1, remaining), orders.threads) == ([], ["another", "another"])


def test_a_table_that_falls_silent_costs_each_request_its_timeout_and_no_message(
    table: DynamoDB, caplog: Caplog
) -> None:
    """The client then has to connect again, so the next requests are made in another thread."""
    orders = Consumed(table.layer())
    orders.batch(1)
    table.silent.set()
    began = time.monotonic()
    assert (orders.batch(1), orders.ran, orders.threads) == ([], ["m0"], ["this", "another"])
    assert time.monotonic() - began < 2 * 0.5 + 2
    assert [len(lines(caplog, name)) for name in ("unprotected", "completion_not_stored")] == [1, 1]


def test_a_table_that_falls_silent_while_a_failed_message_is_removed_delays_its_retry_only(table: DynamoDB) -> None:
    def fails(_: Message) -> None:
        table.silent.set()
        raise ValueError("declined")

    orders = Consumed(table.layer())
    orders.batch(1)
    orders._do = fails
    assert (orders.batch(1), orders.ran, orders.threads) == (["m0"], ["m0"], ["this"] * 2)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, OSError])
def test_whatever_a_request_in_the_handlers_thread_raises_the_messages_run_and_are_done(
    error: type[BaseException], table: DynamoDB, caplog: Caplog
) -> None:
    orders = Consumed(table.layer())
    orders.batch(1)

    def fails() -> None:
        raise error

    orders.before = fails
    assert (orders.batch(2), orders.ran) == ([], ["m0", "m1"])
    assert orders.threads == ["this", "another", "another", "another"]
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
