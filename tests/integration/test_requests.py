"""The requests of a batch: their number, order, size, and timeouts."""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tarry import Consumer, Fixed, Message, batch_consumer, consumer
from tarry.message.invocation import Invocation
from tarry.sqs.client import Lookups, Requests, make_client
from tarry.sqs.refusals import NoAnswer, OutOfTime
from tarry.support.values import QueueArn
from tarry.testing import Sandbox
from tarry.world import RealThreads, World, use
from tests.handlers import behave, plain
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Request, RunningClock, TestClock, Wire, arn


def orders(**queue: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq", **queue)})


def events(*names: str) -> dict[str, Any]:
    return event(*(record(name, name) for name in names))


# batches without requests


def test_acknowledged_and_discarded_messages_make_no_client() -> None:  # SPEC G2, B2
    def no_client() -> Any:
        raise AssertionError("a client was made")

    with use(World(client_factory=no_client)):
        for count in (0, 1, 1_000):
            assert plain()(batch_of(count), Context()) == {"batchItemFailures": []}
        assert failed(consumer(lambda message: message.discard("old"))(batch_of(20), Context())) == []


def test_a_client_is_made_once_and_kept() -> None:  # SPEC G2, A6
    wire = orders()
    made: list[Any] = []
    make: Any = wire.world.client_factory
    wire.world.client_factory = lambda: made.append(1) or make()
    with wire:
        for _ in range(3):
            plain()(events("retry-1", "dead-1"), Context())
    assert made == [1]


# the order


def kind(request: Request) -> str:
    if request.operation != "ChangeMessageVisibilityBatch":
        return request.operation
    return "release" if all(not entry["VisibilityTimeout"] for entry in request.entries) else "retry"


def test_sends_with_their_deletes_come_first_then_delayed_retries_then_releases() -> None:  # SPEC G6, E6, F2
    with orders() as wire:
        plain()(events("retry-1", "dead-1", "retry-2", "exit-1", "ok-1"), Context())
    [dead_letter] = wire.sent_entries()
    assert (dead_letter["MessageBody"], dead_letter["DelaySeconds"]) == ("dead-1", 0)
    assert list(map(kind, wire.requests)) == [
        *["GetQueueAttributes"] * 2, *["SendMessageBatch", "DeleteMessageBatch"], "retry", "release",
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (10, 1), (11, 2), (95, 10)])
def test_settlements_are_requested_in_tens_and_each_delete_follows_its_send(count: int, requests: int) -> None:
    """SPEC E6, G1, G6. PLATFORM: entry ids must be unique in the call."""
    with orders() as wire:
        reported = failed(
            plain()(events(*(f"{kind}-{n}" for n in range(count) for kind in ("dead", "retry"))), Context())
        )
    assert reported == [f"retry-{n}" for n in range(count)]
    assert wire.visibilities() == {f"handle-{name}": 60 for name in reported}
    sent, deleted = set[str](), set[str]()
    for request in wire.requests:
        if request.operation == "SendMessageBatch":
            sent |= {f"handle-{entry['MessageBody']}" for entry in request.entries}
        elif request.operation == "DeleteMessageBatch":
            deleted |= {entry["ReceiptHandle"] for entry in request.entries}
            assert deleted <= sent
        if "Entries" in request.parameters:
            assert len({entry["Id"] for entry in request.entries}) == len(request.entries)
    assert len(sent) == len(deleted) == count
    for operation in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        assert len(wire.sent(operation)) == requests


def test_on_fifo_a_dead_letter_is_sent_and_its_original_deleted_before_its_group_continues() -> None:  # SPEC H1, G6
    seen: list[list[str]] = []
    wire = Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")})

    @consumer
    def handler(message: Message) -> None:
        seen.append(wire.acts)
        behave(message)

    with wire:
        handler(event(*(record("{}", name, "orders.fifo", group="a") for name in ("dead-1", "ok-1"))), Context())
    assert seen == [[], ["SendMessageBatch", "DeleteMessageBatch"]]


@pytest.mark.parametrize("bytes_each", [400_000, 104_000, 1_048_576, 1_048_000])
def test_no_request_is_larger_than_1_mib(bytes_each: int) -> None:  # SPEC E6
    def size(entry: dict[str, Any]) -> int:
        attributes = entry.get("MessageAttributes", {}).items()
        own = (len(name) + len(each["DataType"]) + len(each["StringValue"]) for name, each in attributes)
        return len(entry["MessageBody"].encode()) + sum(own)

    records = [record("x" * bytes_each, f"dead-{index}") for index in range(12)]
    with orders() as wire:
        assert failed(plain()(event(*records), Context())) == []
    assert all(sum(map(size, request.entries)) <= 1_048_576 for request in wire.sent("SendMessageBatch"))
    assert len(wire.sent_entries()) == 12


def test_messages_of_several_queues_are_settled_at_their_own_queue() -> None:  # SPEC E2, G1
    wire = Wire(queues={name: Queue(dead_letter=f"{name}-dlq") for name in ("orders", "refunds")})
    records = [record(f"{kind}-{name}", f"{kind}-{name}", name) for name in wire.queues for kind in ("retry", "dead")]
    with wire:
        plain()(event(*records), Context())
    for operation in ("ChangeMessageVisibilityBatch", "DeleteMessageBatch"):
        for request in wire.sent(operation):
            assert all(entry["ReceiptHandle"].endswith(request.queue) for entry in request.entries)
    sent = [
        (entry["MessageBody"], request.queue) for request in wire.sent("SendMessageBatch") for entry in request.entries
    ]
    assert sorted(sent) == [("dead-orders", "orders-dlq"), ("dead-refunds", "refunds-dlq")]


# slow handlers


def slow(wire: Wire, seconds: float) -> Consumer[Any]:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        wire.clock.now += seconds
        behave(message)

    return handler


def test_on_a_standard_queue_receipt_handles_are_not_tested() -> None:  # SPEC E6
    """SQS accepts an old handle there, and the test would change the newer delivery. For FIFO: test_failing_sqs.py."""
    with orders(visibility_timeout=180) as wire:
        assert failed(slow(wire, 170)(events("dead-1"), Context(900))) == []
    assert wire.acts == ["SendMessageBatch", "DeleteMessageBatch"]


@pytest.mark.parametrize(("waited", "handled", "is_lost"), [(0, 179, False), (0, 180, True), (170, 11, True)])
@pytest.mark.parametrize("name", ["dead-1", "retry-1"])
def test_a_message_whose_lease_has_ended_is_only_reported(
    name: str, waited: float, handled: float, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC E6
    """A lease begins at the receive, which may be long before the invocation."""
    with orders(visibility_timeout=180) as wire:
        wire.clock.now += waited
        response = slow(wire, handled)(events(name), Context(900))
    assert failed(response) == ([name] if is_lost or name == "retry-1" else [])
    assert (wire.acts == []) == is_lost
    assert ("the lease is lost" in caplog.text) == is_lost


def test_on_fifo_a_message_that_cannot_be_dead_lettered_for_its_lost_lease_stops_its_group() -> None:  # SPEC E6, H1
    wire = Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo", visibility_timeout=180)})
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: (
        ("ReceiptHandleIsInvalid", "expired") if entry["VisibilityTimeout"] == 180 else None
    )
    records = [record("{}", name, "orders.fifo", group=name[-1]) for name in ("dead-a", "ok-a", "ok-b")]
    with wire:
        assert failed(slow(wire, 100)(event(*records), Context(9_000))) == ["dead-a", "ok-a"]
    assert wire.sent_entries() == []


# the time limit of requests


def test_the_client_has_short_timeouts_makes_two_tries_and_does_not_check_parameters_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC G6
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = make_client()
    config = client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (1, 5)
    assert config.retries["total_max_attempts"] == 2
    client.meta.events.register("before-call.sqs", lambda **_: (SimpleNamespace(status_code=200), {"Attributes": {}}))
    assert client.get_queue_attributes(QueueUrl=1)["Attributes"] == {}


@pytest.mark.parametrize(("remaining", "handled"), [(0.05, 0.0), (30, 29.9)])
def test_without_time_left_no_request_is_made_and_all_messages_are_reported(
    remaining: float, handled: float, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC G6, A2
    names = ("retry-1", "dead-1", "exit-1", "ok-1")
    wire = orders()
    with wire:
        assert failed(slow(wire, handled)(events(*names), Context(remaining))) == list(names)
    assert wire.requests == []
    if handled:
        assert [field(line, "message_id") for line in lines(caplog, "waiting_retry")] == ["retry-1"]


class HttpSqs:
    """A minimal SQS over HTTP. ``answers`` produce the statuses of the next settlement requests; later ones succeed.

    Where a request hangs, all waits for answers end at once: the clock then is at the end of their timeout.
    """

    def __init__(self) -> None:
        self.answers: list[Callable[[], int]] = []
        self.asked: list[str] = []
        self.most_bytes = 1_048_576
        """The size above which entries are refused."""
        self.look_up = lambda: None
        self.hanging, self.resumed = threading.Event(), threading.Event()
        self.clock = TestClock()
        self.threads: set[threading.Thread] = set()
        """The threads that run before the test."""

    def hang(self) -> int:
        """Give no answer until the test resumes the server; then succeed."""
        self.hanging.set()
        self.resumed.wait(60)
        return 200

    def hang_with_nine_others(self) -> int:
        if len(self.asked) < 10:
            self.resumed.wait(60)
            return 200
        time.sleep(0.1)  # an eleventh request would come now
        return self.hang()

    def hang_then_fail(self) -> int:
        self.hang()
        return 500

    def answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if operation == "GetQueueAttributes":
            self.look_up()
            queue = asked["QueueUrl"].rpartition("/")[2]
            target = "unreadable" if queue == "bills" else "dlq"
            dead_letter = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:123456789012:{target}"})
            if queue == "unreadable":
                return 400, {}
            return 200, {"Attributes": {"RedrivePolicy": dead_letter, "VisibilityTimeout": "180"}}
        self.asked.append(operation)
        status = self.answers.pop(0)() if self.answers else 200
        large = [entry for entry in asked["Entries"] if len(entry.get("MessageBody", "")) > self.most_bytes]
        accepted = [receipt(entry) for entry in asked["Entries"] if entry not in large]
        return status, {"Successful": accepted, "Failed": [too_large(entry) for entry in large]}

    def respond(self, handler: Consumer[Any], batch: dict[str, Any], remaining: float = 2) -> list[str]:
        """Return what the consumer reports in time; it then ends all requests that hang, and their threads."""
        began = self.clock.now
        reported = failed(handler(batch, Context(remaining)))
        assert self.clock.now - began < remaining
        self.resumed.set()
        for thread in set(threading.enumerate()) - self.threads:
            if "process_request_thread" not in thread.name:
                thread.join(60)
        return reported


def receipt(entry: dict[str, Any]) -> dict[str, Any]:
    md5 = hashlib.md5(entry.get("MessageBody", "").encode(), usedforsecurity=False).hexdigest()
    return {"Id": entry["Id"], "MessageId": "copy", "MD5OfMessageBody": md5}


def too_large(entry: dict[str, Any]) -> dict[str, Any]:
    text = "Message must be shorter than 2048 bytes."
    return {"Id": entry["Id"], "SenderFault": True, "Code": "InvalidParameterValue", "Message": text}


class ImpatientThreads(RealThreads):
    """Threads that wait as `HttpSqs` says."""

    def __init__(self, sqs: HttpSqs) -> None:
        self._sqs = sqs

    def event(self) -> Any:
        sqs = self._sqs

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                while not self.is_set():
                    super().wait(0.002)
                    if sqs.hanging.is_set() and timeout is not None:
                        sqs.clock.now += timeout
                        break
                return self.is_set()

        return Event()


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpSqs]:
    """Start the server as the endpoint of tarry's client, whose second tries come without a pause."""
    sqs = HttpSqs()

    class SqsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = sqs.answer(self.headers["X-Amz-Target"].rpartition(".")[2], asked)
            body = json.dumps(answer if status == 200 else {"__type": "InternalFailure"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), SqsHandler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    serving.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    with use(World(clock=sqs.clock, threads=ImpatientThreads(sqs))):
        plain()(events("retry-0", "dead-0"), Context())  # imports and makes the client
        sqs.asked.clear()
        sqs.threads = set(threading.enumerate())
        yield sqs
    sqs.resumed.set()
    server.shutdown()
    serving.join()
    server.server_close()


def test_a_request_that_fails_is_tried_a_second_and_no_third_time(sqs: HttpSqs) -> None:  # SPEC G6
    sqs.answers = [lambda: 500]
    assert sqs.respond(plain(), events("dead-1")) == []
    assert sqs.asked == ["SendMessageBatch", "SendMessageBatch", "DeleteMessageBatch"]
    sqs.asked, sqs.answers = [], [lambda: 500] * 9
    assert sqs.respond(plain(), events("retry-1")) == ["retry-1"]
    assert sqs.asked == ["ChangeMessageVisibilityBatch"] * 2


CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"


@pytest.mark.parametrize(
    ("names", "answers", "asked", "reported"),
    [
        pytest.param("retry-1", ["hang"], [CHANGE], "retry-1", id="retry"),
        pytest.param("retry-1", ["hang_then_fail"], [CHANGE], "retry-1", id="no second try after the response"),
        # a message that was reported as failed stays: a duplicate is better than a loss
        pytest.param("dead-1", ["hang"], [SEND], "dead-1", id="no delete after a late confirmation"),
        # Lambda deletes the original; if reported, it would be redelivered and dead-lettered a second time
        pytest.param("dead-1", ["ok", "hang"], [SEND, DELETE], "", id="a confirmed dead letter whose delete hangs"),
        pytest.param("retry-1 dead-1 ok-1 exit-1 ok-2", ["hang"] * 9, None, "retry-1 dead-1 exit-1 ok-2", id="mixed"),
    ],
)
def test_a_hanging_request_does_not_prevent_the_response(
    names: str, answers: list[str], asked: list[str] | None, reported: str, sqs: HttpSqs
) -> None:  # SPEC G6, A2, E6, F4
    sqs.answers = [getattr(sqs, each, lambda: 200) for each in answers]
    assert sqs.respond(plain(), events(*names.split())) == reported.split()
    assert asked is None or sqs.asked == asked


def test_many_hanging_requests_do_not_add_up(sqs: HttpSqs) -> None:  # SPEC G6, G1
    sqs.answers = [sqs.hang_with_nine_others] * 99
    names = [f"retry-{index}" for index in range(150)]
    assert sqs.respond(plain(), events(*names)) == names
    assert len(sqs.asked) == 10, "more at once, or requests after the response"


def test_a_confirmed_dead_letter_is_not_reported_while_another_of_its_request_is_sent_again(
    sqs: HttpSqs,
) -> None:  # SPEC E6, F4
    """The other one was refused for its size and is sent with a smaller failure record, which hangs."""
    sqs.most_bytes = 2_048
    sqs.answers = [lambda: 200, sqs.hang]
    batch = event(record("small", "dead-1", "bills"), record("x" * 3_000, "dead-2", "bills"))
    assert sqs.respond(plain(), batch) == ["dead-2"]
    assert sqs.asked == [SEND, SEND]


def test_a_request_that_outlives_its_invocation_does_not_disturb_the_next(sqs: HttpSqs) -> None:  # SPEC A6, G6
    sqs.answers = [sqs.hang_then_fail]
    assert failed(plain()(events("retry-1"), Context(remaining=2))) == ["retry-1"]
    sqs.hanging.clear()
    assert sqs.respond(plain(), events("dead-2", "retry-2")) == ["retry-2"]
    assert sqs.asked == [CHANGE, SEND, DELETE, CHANGE]


def test_a_hanging_look_up_does_not_prevent_the_response(sqs: HttpSqs) -> None:  # SPEC G6, F1
    sqs.look_up = sqs.hang  # type: ignore[assignment]
    other = event(record("{}", "dead-1", queue="refunds"), record("{}", "ok-1", queue="refunds"))
    assert sqs.respond(plain(), other) == ["dead-1"]


def test_a_client_that_is_slow_to_make_does_not_prevent_the_response(sqs: HttpSqs) -> None:  # SPEC G6
    world = World(clock=sqs.clock, threads=ImpatientThreads(sqs), client_factory=lambda: sqs.hang() and make_client())
    with use(world):
        assert sqs.respond(consumer(lambda message: message.defer(5)), events("m1")) == ["m1"]
    assert sqs.asked == []


# what settling a redelivered message may need


WAYS: dict[str, Callable[[Callable[[Any], None]], Consumer[Any]]] = {
    "one by one": consumer,
    "without isolation": consumer(isolate=False),
    "threads": consumer(concurrency=4),
    "async": lambda handle: consumer(concurrency=4)(_async(handle)),
    "batch": batch_consumer,
}


def _async(handle: Callable[[Any], None]) -> Callable[[Message], Any]:
    async def handler(message: Message) -> None:
        handle(message)

    return handler


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_queue_and_dead_letter_queue_are_known_before_a_redelivered_message_runs(way: str, queue: str) -> None:
    """SPEC C8, I2. With two requests in a cold process, and with none in a warm one."""
    wire = Wire(queues={queue: Queue(dead_letter="orders-dlq")})
    seen: list[list[str]] = []
    handler = WAYS[way](lambda _: seen.append(list(wire.operations)))
    batch = event(record("{}", "m1", queue, receives=2, group="g"))
    with wire:
        for _ in range(2):
            assert failed(handler(batch, Context())) == []
        assert failed(handler(batch, None)) == []  # without a deadline, as in a unit test of a handler
    assert [run.count("GetQueueAttributes") for run in seen] == [2, 2, 2]
    assert wire.acts == ([CHANGE] * 2 if queue == "orders.fifo" else [])  # it renews leases
    with Wire() as cold:
        assert failed(handler(batch, None)) == []
    assert cold.requests == []


def test_fresh_messages_do_not_wait_for_the_look_ups_of_a_redelivered_one(sandbox: Sandbox) -> None:  # SPEC I2
    ran: list[tuple[int, float]] = []

    @consumer(backoff=Fixed(0))
    def handler(message: Message) -> None:
        ran.append((message.receive_count, sandbox.elapsed))
        if message.body == "old" and message.receive_count == 1:
            sandbox.send("orders", "new")
            raise ValueError

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders", timeout=30, window=1)
    sandbox.faults.add("hang", operation="GetQueueAttributes", times=None)
    sandbox.send("orders", "old")
    sandbox.run(for_=60)
    redelivered = next(at for count, at in ran if count == 2)
    assert [count for count, _ in ran] == [1, 1, 2]
    assert ran[1][1] <= redelivered


def test_a_redelivered_message_waits_for_look_ups_a_third_of_the_time_at_most(sandbox: Sandbox) -> None:  # SPEC I2
    ran: list[float] = []

    @consumer(backoff=Fixed(0))
    def handler(message: Message) -> None:
        ran.append(sandbox.now)
        if message.receive_count == 1:
            raise ValueError

    sandbox.queue("orders", dead_letter="dead")
    sandbox.connect(handler, "orders", timeout=9)
    sandbox.send("orders", "{}")
    sandbox.faults.add("hang", operation="GetQueueAttributes", times=None)
    report = sandbox.run(for_=60)
    began = [each.at for each in report.events if each.what == "invoked"]
    assert ran[1] - began[1] == pytest.approx(3, abs=0.2)
    assert report.count("COMMITTED") == 1


def test_queue_attributes_count_until_their_invocation_ends() -> None:  # SPEC C8, F1
    """They are 15 minutes old when the handler ends; asking again would take time that is kept for settling."""
    wire = orders()

    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        wire.clock.now += 20
        raise ValueError

    with wire:
        handler(event(record("{}", receives=2)), Context())
        wire.clock.now += 900 - 30
        assert failed(handler(event(record("{}", receives=2)), Context())) == []
    assert wire.operations.count("GetQueueAttributes") == 2


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
def test_a_message_that_there_was_no_time_to_dead_letter_waits_for_its_backoff(
    is_fifo: bool, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC C8. The log names the time and not a permission; at its next delivery the message is dead-lettered."""
    end = ".fifo" if is_fifo else ""

    @consumer(max_attempts=1, backoff=Fixed(7))
    def handler(message: Message) -> None:
        sandbox.sleep(60)

    sandbox.queue(f"orders{end}", dead_letter=f"dead{end}", fifo=is_fifo)
    sandbox.connect(handler, f"orders{end}", timeout=6)
    sandbox.faults.add("hang", operation="GetQueueAttributes")
    sandbox.send(f"orders{end}", "{}", **({"group_id": "g"} if is_fifo else {}))
    sandbox.run()
    [line] = lines(caplog, "unhandled")
    assert field(line, "delay") in (6, 7)  # what is left of it at the settlement
    assert "there was no time to read the redrive policy of orders" in field(line, "not_sent")
    assert "grant" not in caplog.text
    [dead] = sandbox.messages(f"dead{end}")
    assert dead.failure is not None
    assert dead.failure.attempts == 2


def test_requests_are_measured_and_a_slow_one_is_forgotten_slowly() -> None:  # SPEC I2
    wire = orders()

    def slow(_: Request) -> None:
        wire.clock.now += 0.8

    wire.fails["ChangeMessageVisibilityBatch"] = slow
    with wire:
        plain()(events("retry-1"), Context())
        assert wire.world.request_seconds == pytest.approx(0.8)
        del wire.fails["ChangeMessageVisibilityBatch"]
        plain()(events("retry-1"), Context())
        assert wire.world.request_seconds == pytest.approx(0.4)


# the effect of one failing message on the others


def test_the_queue_is_looked_up_once_and_right_after_the_first_failure() -> None:  # SPEC C8, C11
    ran: list[str] = []
    wire = orders()

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(f"{message.id} after {wire.operations}")
        raise ValueError("again")

    with wire:
        handler(events("retry-1", "retry-2"), Context())
    assert ran == ["retry-1 after []", "retry-2 after ['GetQueueAttributes']"]
    assert wire.operations == ["GetQueueAttributes", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize(("suffix", "timeout", "seconds"), [("", 30, 1), (".fifo", 9, 3)])
def test_a_hanging_look_up_delays_the_other_messages_by_one_second_once_and_on_fifo_by_a_third_of_the_time(
    suffix: str, timeout: int, seconds: float, sandbox: Sandbox
) -> None:  # SPEC A8, C11, H1
    ran: list[float] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(sandbox.elapsed)
        raise ValueError

    sandbox.queue(f"orders{suffix}", dead_letter=f"dead{suffix}")
    sandbox.connect(handler, f"orders{suffix}", timeout=timeout)
    for group in "abc":
        sandbox.send(f"orders{suffix}", "{}", group_id=group)
    sandbox.faults.add("hang", operation="GetQueueAttributes")
    sandbox.run(for_=30)
    assert len(ran) == 3
    assert ran[1] - ran[0] == pytest.approx(seconds, rel=0.1)
    assert ran[2] - ran[1] < 0.1


def test_a_request_whose_thread_cannot_be_started_counts_as_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with orders() as wire:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert failed(plain()(events("retry-1", "dead-1", "ok-1"), Context())) == ["retry-1", "dead-1"]  # SPEC A2
    assert wire.requests == []


# in parallel


@pytest.mark.parametrize(
    ("kind", "operation"), [("retry", "ChangeMessageVisibilityBatch"), ("dead", "SendMessageBatch")]
)
def test_the_messages_of_one_request_are_logged_while_another_waits_for_its_answer(kind: str, operation: str) -> None:
    logged, in_time = threading.Event(), list[bool]()

    class Notes(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            if field(line, "delivery_id") == f"{kind}-0":
                logged.set()

    def slow(request: Request) -> None:
        if len(request.entries) == 5:
            in_time.append(logged.wait(10))

    notes = Notes()
    logging.getLogger("tarry").addHandler(notes)
    try:
        with orders() as wire:
            wire.fails[operation] = slow
            plain()(events(*(f"{kind}-{index}" for index in range(15))), Context())
    finally:
        logging.getLogger("tarry").removeHandler(notes)
    assert in_time == [True]


# without a deadline


def test_without_a_deadline_every_answer_is_awaited() -> None:  # SPEC G6
    """As in a script or a test that calls the handler without a context. Slow answers are awaited."""

    def slow(_: Request) -> None:
        time.sleep(0.05)

    with Wire({"orders": Queue(dead_letter="orders-dlq")}, clock=RunningClock()) as wire:
        wire.fails["SendMessageBatch"] = slow
        assert failed(plain()(events(*(f"dead-{index}" for index in range(25))), None)) == []
    assert len(wire.sent("DeleteMessageBatch")) == 3


def test_an_invocation_waits_in_another_thread_for_the_look_up_that_another_one_makes() -> None:  # SPEC A6, I1
    """Two invocations at once in one process: otherwise the second would wait on its event loop."""
    is_asked, may_answer = threading.Event(), threading.Event()

    def hang(_: Request) -> None:
        is_asked.set()
        may_answer.wait(60)

    first, second = threading.Event(), threading.Event()
    with Wire(fails={"GetQueueAttributes": hang}) as wire:
        log = consumer(print).log
        lookups = [Lookups(Requests(Invocation(wire.world, Context(30), lambda _: None, log)), log) for _ in range(2)]
        lookups[0].prepare(QueueArn(arn("orders")), first.set)
        assert is_asked.wait(60)
        lookups[1].prepare(QueueArn(arn("orders")), second.set)
        assert not second.is_set()
        may_answer.set()
        assert first.wait(60)
        assert second.wait(60)
    assert len(wire.requests) == 1


class Reported(Invocation):
    """An invocation whose report begins as soon as a request has looked for its observer."""

    observers: list[Any]

    @property
    def observer(self) -> Any:
        return self.observers.pop() if self.observers else None

    @observer.setter
    def observer(self, observer: Any) -> None: ...


def test_a_request_that_the_report_overtakes_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """SPEC L5. Its own failure would count as that of the queue, also for the next invocation."""
    with orders() as wire:
        log = consumer(print).log
        invocation = Reported(wire.world, Context(30), lambda _: None, log)
        invocation.observers = [SimpleNamespace(requests=[])]
        assert Lookups(Requests(invocation), log).source(QueueArn(arn("orders"))).error is None
    assert len(wire.requests) == 1
    assert lines(caplog, "look_up_failed") == []


class HangingThreads:
    """Threads that never start, and events that are never set, with the timeouts of their waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def start(self, _: Any) -> None: ...

    def event(self) -> "HangingThreads":
        return self

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)


@pytest.mark.parametrize(
    ("is_loaded", "share", "all_", "what"),
    [(True, 2.98, 29.8, "SQS did not answer"), (False, 9.83, 29.5, "boto3 was not loaded")],
)
def test_in_a_new_process_requests_have_time_to_load_boto3(
    is_loaded: bool, share: float, all_: float, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G4, G6. After a crash the process is new, and a tenth of the time left may be too little for isolation."""
    monkeypatch.setattr(World, "is_loaded", is_loaded)
    threads: Any = HangingThreads()
    invocation = Invocation(World(TestClock(), threads=threads), Context(30), lambda _: None, consumer(print).log)
    requests = Requests(invocation)
    [result] = requests.all([lambda: None], share=0.1)
    assert (type(result), str(result)) == (NoAnswer, f"{what} in the time that was left")
    requests.all([lambda: None])
    list(requests.each([lambda: None]))
    assert threads.waits == [pytest.approx(share, abs=0.05), *[pytest.approx(all_, abs=0.15)] * 2]


def test_without_a_deadline_one_request_needs_no_thread_and_two_are_made_at_once() -> None:  # SPEC G6
    threads: Any = HangingThreads()
    invocation = Invocation(World(TestClock(), threads=threads), None, lambda _: None, consumer(print).log)
    assert Requests(invocation).all([lambda: 1]) == [1]
    assert threads.waits == []
    assert [type(result) for result in Requests(invocation).all([lambda: 1, lambda: 2])] == [NoAnswer, NoAnswer]
    assert len(threads.waits) == 2


def test_no_request_is_begun_whose_answer_could_not_be_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC E6, G6. A wait that ended at the limit leaves some nanoseconds: a copy would be sent, but not confirmed."""
    monkeypatch.setattr(World, "is_loaded", True)
    threads: Any = HangingThreads()
    invocation = Invocation(World(TestClock(), threads=threads), Context(0.204), lambda _: None, consumer(print).log)
    [result] = Requests(invocation).all([lambda: None])
    assert isinstance(result, OutOfTime)
    assert not isinstance(result, NoAnswer)
    assert str(result) == "no time left for a request"
    assert threads.waits == []
