"""The requests of a batch: their number, order and size, and the look-ups that they need."""

import logging
import queue
import threading
import time
from typing import Any

import pytest

from tarry import Consumer, Fixed, Message, consumer
from tarry.testing import Sandbox
from tests.handlers import WAYS, behave, plain
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.settled import orders, settle
from tests.wire import NoThreads, Queue, Request, RunningClock, Wire, size_of

CHANGE, SEND, DELETE = "ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch"


def events(*names: str) -> dict[str, Any]:
    return event(*(record(name, name) for name in names))


def kind(request: Request) -> str:
    if request.operation != CHANGE:
        return request.operation
    return "release" if all(not entry["VisibilityTimeout"] for entry in request.entries) else "retry"


def test_acknowledged_and_discarded_messages_make_no_client_and_others_make_one_that_is_kept() -> None:
    made, wire = list[Any](), orders()  # SPEC G2, A6, B2
    make: Any = wire.world.client_factory
    wire.world.client_factory = lambda: made.append(1) or make()
    for handler in (consumer(lambda message: message.discard("old")), plain()):
        assert settle(handler, batch_of(1_000), wire)[0] == made == []
    for _ in range(3):
        settle(plain(), events("retry-1", "dead-1"), wire)
    assert made == [1]


def test_sends_with_their_deletes_come_first_then_delayed_retries_then_releases() -> None:  # SPEC G6, E6, F2
    wire = settle(plain(), events("retry-1", "dead-1", "retry-2", "exit-1", "ok-1"))[1]
    [dead_letter] = wire.sent_entries()
    assert (dead_letter["MessageBody"], dead_letter["DelaySeconds"]) == ("dead-1", 0)
    assert list(map(kind, wire.requests)) == [*["GetQueueAttributes"] * 2, SEND, DELETE, "retry", "release"]


def test_a_hundred_failed_messages_are_settled_while_the_others_run() -> None:  # SPEC I2
    wire, settled = orders(), list[int]()
    handler = consumer(lambda message: settled.append(len(wire.visibilities())) or behave(message))
    settle(handler, events(*(f"retry-{number}" for number in range(102))), wire)
    assert settled == [0] * 100 + [100, 100]


@pytest.mark.parametrize(("count", "requests"), [(1, 1), (10, 1), (11, 2), (95, 10)])
def test_settlements_are_requested_in_tens_and_each_delete_follows_its_send(count: int, requests: int) -> None:
    """SPEC E6, G1, G6. PLATFORM: entry ids must be unique in the call."""
    reported, wire = settle(plain(), events(*(f"{kind}-{n}" for n in range(count) for kind in ("dead", "retry"))))
    assert reported == [f"retry-{n}" for n in range(count)]
    assert wire.visibilities() == {f"handle-{name}": 60 for name in reported}
    sent, deleted = set[str](), set[str]()
    for request in wire.requests:
        if request.operation == SEND:
            sent |= {f"handle-{entry['MessageBody']}" for entry in request.entries}
        elif request.operation == DELETE:
            deleted |= {entry["ReceiptHandle"] for entry in request.entries}
            assert deleted <= sent
        if "Entries" in request.parameters:
            assert len({entry["Id"] for entry in request.entries}) == len(request.entries)
    assert len(sent) == len(deleted) == count
    assert [len(wire.sent(operation)) for operation in (SEND, DELETE, CHANGE)] == [requests] * 3


@pytest.mark.parametrize("bytes_each", [104_000, 400_000, 1_048_576])
def test_no_request_is_larger_than_1_mib(bytes_each: int) -> None:  # SPEC E6
    reported, wire = settle(plain(), event(*(record("x" * bytes_each, f"dead-{index}") for index in range(12))))
    assert (reported, len(wire.sent_entries())) == ([], 12)
    assert all(sum(map(size_of, request.entries)) <= 1_048_576 for request in wire.sent(SEND))


def test_messages_of_several_queues_are_settled_at_their_own_queue() -> None:  # SPEC E2, G1
    wire = Wire(queues={name: Queue(dead_letter=f"{name}-dlq") for name in ("orders", "refunds")})
    batch = event(*(record(name, f"{kind}-{name}", name) for name in wire.queues for kind in ("retry", "dead")))
    settle(plain(), batch, wire)
    for name in wire.queues:
        done = [
            (
                kind(request),
                request.queue,
                [entry.get("MessageBody") or entry["ReceiptHandle"] for entry in request.entries],
            )
            for request in wire.requests
            if name in request.queue and "Entries" in request.parameters
        ]
        sent, deleted = (SEND, f"{name}-dlq", [name]), (DELETE, name, [f"handle-dead-{name}"])
        assert done == [sent, deleted, ("retry", name, [f"handle-retry-{name}"])]


# slow handlers


def slow(wire: Wire, seconds: float) -> Consumer[Any]:
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        wire.clock.now += seconds
        behave(message)

    return handler


@pytest.mark.parametrize(("waited", "handled", "is_lost"), [(0, 179, False), (0, 180, True), (170, 11, True)])
@pytest.mark.parametrize(("name", "acts"), [("dead-1", [SEND, DELETE]), ("retry-1", [CHANGE])])
def test_a_message_whose_lease_has_ended_is_only_reported(
    name: str, acts: list[str], waited: float, handled: float, is_lost: bool, caplog: Caplog
) -> None:  # SPEC E6
    """A lease begins at the receive, which may be long before the invocation. The handle is not tested on a standard
    queue: SQS accepts an old one there, and the test would change the newer delivery. FIFO: test_failing_sqs.py."""
    wire = orders(waited)
    reported, _ = settle(slow(wire, handled), events(name), wire, remaining=900)
    assert reported == ([name] if is_lost or name == "retry-1" else [])
    assert wire.acts == ([] if is_lost else acts)
    assert ("the lease is lost" in caplog.text) == is_lost


def test_on_fifo_a_message_that_cannot_be_dead_lettered_for_its_lost_lease_stops_its_group() -> None:  # SPEC E6, H1
    wire, expired = orders(), ("ReceiptHandleIsInvalid", "expired")
    wire.refuses[CHANGE] = lambda _, entry: expired if entry["VisibilityTimeout"] == 180 else None
    batch = event(*(record("{}", name, "orders.fifo", group=name[-1]) for name in ("dead-a", "ok-a", "ok-b")))
    assert settle(slow(wire, 100), batch, wire, 9_000)[0] == ["dead-a", "ok-a"]
    assert wire.sent_entries() == []


def test_without_time_left_no_request_is_made_and_all_messages_are_reported(caplog: Caplog) -> None:  # SPEC G6, A2
    names, wire = ["retry-1", "dead-1", "exit-1", "ok-1"], orders()
    assert settle(slow(wire, 29.9), events(*names), wire)[0] == names
    assert wire.requests == []
    assert [field(line, "message_id") for line in lines(caplog, "waiting_retry")] == ["retry-1"]


# look-ups


@pytest.mark.parametrize("more", [{}, {"isolate": False}], ids=["isolated", "not isolated"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_queue_and_dead_letter_queue_are_known_before_a_redelivered_message_runs(
    way: str, more: Any, queue: str
) -> None:
    """SPEC C8, I2. With two requests in a cold process, and with none in a warm one."""
    wire, seen = orders(), list[int]()
    handler = WAYS[way](lambda _: seen.append(wire.operations.count("GetQueueAttributes")), **more)
    ids = ["m1", "m2"] if queue == "orders.fifo" else ["m1"]
    batch = event(*(record("{}", each, queue, receives=2, group="g") for each in ids))
    with wire:
        for context in (Context(), Context(), None):  # without a deadline, as in a unit test of a handler
            assert failed(handler(batch, context)) == []
    assert seen == [2] * len(ids) * 3
    of_leases = [each for each in wire.acts if each != DELETE or queue == "orders"]
    assert of_leases == ([CHANGE] * 2 if queue == "orders.fifo" else [])  # it renews leases
    with Wire() as cold:
        assert failed(handler(batch, None)) == []
    assert cold.requests == []


@pytest.mark.parametrize("way", ["batch", "async batch"])
def test_a_batch_handler_waits_for_the_look_ups_of_a_redelivered_message_wherever_it_stands(way: str) -> None:
    wire, seen = orders(), list[int]()  # SPEC C8, I2
    wire.fails["GetQueueAttributes"] = lambda _: time.sleep(0.01)  # type: ignore[func-returns-value]
    handler = WAYS[way](lambda _: seen.append(wire.operations.count("GetQueueAttributes")))
    assert settle(handler, event(record(), record("{}", "m2", receives=2)), wire)[0] == []
    assert seen == [2, 2]


def test_the_queue_is_looked_up_once_and_right_after_the_first_failure() -> None:  # SPEC C8, C11
    ran, wire = list[str](), orders()

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(f"{message.id} after {wire.operations}")
        raise ValueError("again")

    settle(handler, events("retry-1", "retry-2"), wire)
    assert ran == ["retry-1 after []", "retry-2 after ['GetQueueAttributes']"]
    assert wire.operations == ["GetQueueAttributes", CHANGE]


def test_queue_attributes_count_until_their_invocation_ends() -> None:  # SPEC C8, F1
    """They are 15 minutes old when the handler ends; asking again would take time that is kept for settling."""
    wire = orders()

    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        wire.clock.now += 20
        raise ValueError

    for _ in range(2):
        assert settle(handler, event(record("{}", receives=2)), wire)[0] == []
        wire.clock.now += 900 - 21
    assert wire.operations.count("GetQueueAttributes") == 2


def test_fresh_messages_do_not_wait_for_the_look_ups_of_a_redelivered_one() -> None:  # SPEC I2
    wire, ran, in_time = orders(), list[str](), queue.SimpleQueue[bool]()
    is_asked, fresh_has_run = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        ran.append(message.id)
        if message.id == "fresh":
            assert is_asked.wait(60)
            fresh_has_run.set()

    def look_up(_: Request) -> None:
        is_asked.set()
        in_time.put(fresh_has_run.wait(60))

    wire.fails["GetQueueAttributes"] = look_up
    batch = event(record("{}", "old", receives=2), record("{}", "fresh"))
    assert settle(consumer(handle), batch, wire, remaining=900)[0] == []
    assert (ran, in_time.get(timeout=60)) == (["fresh", "old"], True)


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


@pytest.mark.parametrize(("suffix", "timeout", "seconds"), [("", 30, 1), ("", 10, 0.5), (".fifo", 9, 3)])
def test_a_hanging_look_up_delays_the_others_by_a_second_or_a_twentieth_of_the_time_and_on_fifo_by_a_third(
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
    first, second, third = ran
    assert second - first == pytest.approx(seconds, rel=0.1)
    assert third - second < 0.1


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_a_message_that_there_was_no_time_to_dead_letter_waits_for_its_backoff(
    suffix: str, sandbox: Sandbox, caplog: Caplog
) -> None:
    """SPEC C8. The log names the time and not a permission; at its next delivery the message is dead-lettered."""
    sandbox.queue(f"orders{suffix}", dead_letter=f"dead{suffix}")
    sandbox.connect(
        consumer(max_attempts=1, backoff=Fixed(7))(lambda _: sandbox.sleep(60)), f"orders{suffix}", timeout=6
    )
    sandbox.faults.add("hang", operation="GetQueueAttributes")
    sandbox.send(f"orders{suffix}", "{}", group_id="g")
    sandbox.run()
    [line] = lines(caplog, "unhandled")
    assert field(line, "delay") in (6, 7)  # what is left of it at the settlement
    assert "there was no time to read the redrive policy of orders" in field(line, "not_sent")
    assert "grant" not in caplog.text
    [dead] = sandbox.messages(f"dead{suffix}")
    assert dead.failure is not None
    assert dead.failure.attempts == 2


# time and threads


def test_requests_are_measured_and_a_slow_one_is_forgotten_slowly() -> None:  # SPEC I2
    wire = orders()
    wire.fails[CHANGE] = lambda _: wire.clock.sleep(0.8)
    for seconds in (0.8, 0.4):
        settle(plain(), events("retry-1"), wire)
        assert wire.world.request_seconds == pytest.approx(seconds)
        wire.fails.clear()


@pytest.mark.parametrize(("remaining", "requests"), [(13.3, [SEND, DELETE, CHANGE]), (13.1, [])])
def test_without_a_thread_a_request_is_made_only_if_its_timeouts_end_it_in_time(
    remaining: float, requests: list[str]
) -> None:  # SPEC A2, I2
    wire = orders()
    wire.world.threads = NoThreads()
    reported, _ = settle(plain(), events("retry-1", "dead-1", "ok-1"), wire, remaining)
    assert reported == (["retry-1"] if requests else ["retry-1", "dead-1"])
    assert [each.operation for each in wire.requests if each.operation in {CHANGE, SEND, DELETE}] == requests


@pytest.mark.parametrize(("kind", "operation"), [("retry", CHANGE), ("dead", SEND)])
def test_the_messages_of_one_request_are_logged_while_another_waits_for_its_answer(kind: str, operation: str) -> None:
    logged, in_time = threading.Event(), list[bool]()

    class Notes(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            if field(line, "delivery_id") == f"{kind}-0":
                logged.set()

    def slow(request: Request) -> None:
        if len(request.entries) == 5:
            in_time.append(logged.wait(10))

    wire, notes = orders(), Notes()
    wire.fails[operation] = slow
    logging.getLogger("tarry").addHandler(notes)
    try:
        settle(plain(), events(*(f"{kind}-{index}" for index in range(15))), wire)
    finally:
        logging.getLogger("tarry").removeHandler(notes)
    assert in_time == [True]


def test_without_a_deadline_every_answer_is_awaited() -> None:  # SPEC G6
    """As in a script or a test that calls the handler without a context. Slow answers are awaited."""
    with orders(clock=RunningClock()) as wire:
        wire.fails[SEND] = lambda _: time.sleep(0.05)
        assert failed(plain()(events(*(f"dead-{index}" for index in range(25))), None)) == []
    assert len(wire.sent(DELETE)) == 3
