"""`ack="eager"`: acknowledged messages are deleted while the batch still runs and stay done if the process dies.

test_crashes.py shows that they stay done, also if there are fewer than ten.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Consumer, Fixed, Message, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import Caplog, field, lines
from tests.records import batch_of
from tests.settled import orders, settle
from tests.wire import Wire, client_error

DELETE = "DeleteMessageBatch"
TENS = [[f"m{index}" for index in range(first, first + 10)] for first in range(0, 100, 10)]


def deleted(wire: Wire) -> list[list[str]]:
    """Return the message ids of each delete request."""
    return [[entry["ReceiptHandle"][7:] for entry in request.entries] for request in wire.sent(DELETE)]


def eager(handle: Callable[[Message], Any] = lambda _: None, **settings: Any) -> Consumer[Any]:
    return consumer(ack="eager", backoff=Fixed(60), **settings)(handle)


@pytest.mark.parametrize("verdict", ["ack", "return", "discard"])
def test_done_messages_are_deleted_in_batches_of_ten_while_the_batch_runs(verdict: str) -> None:  # SPEC G3
    """By default, Lambda deletes them after the response. Failed messages are not deleted."""
    wire, seen = orders(), list[int]()

    def handle(message: Message) -> None:
        seen.append(len(wire.sent(DELETE)))
        if message.id == "m23":
            raise ValueError
        message.retry(30) if message.id == "m24" else getattr(message, verdict, lambda: None)()

    assert settle(eager(handle), batch_of(25), wire)[0] == ["m23", "m24"]
    assert seen == [0] * 10 + [1] * 10 + [2] * 5
    assert deleted(wire) == TENS[:2]
    assert settle(consumer(handle), batch_of(23))[1].requests == []


@pytest.mark.parametrize(("queue", "before_it_returns"), [("orders", 1), ("orders.fifo", 0)])
def test_an_acknowledged_message_is_deleted_once_before_its_handler_returns_and_on_fifo_after(
    queue: str, before_it_returns: int
) -> None:  # SPEC G3
    wire, seen = orders(), list[int]()

    def handle(message: Message) -> None:
        message.ack()
        seen.append(len(wire.sent(DELETE)))
        message.ack()

    settle(eager(handle), batch_of(10, queue, group="a"), wire)
    assert (seen[-1], deleted(wire)) == (before_it_returns, TENS[:1])


def test_messages_acknowledged_in_a_batch_handler_are_deleted_while_it_runs() -> None:  # SPEC G3
    wire, seen = orders(), list[int]()

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        for message in batch:
            message.ack()
            seen.append(len(wire.sent(DELETE)))
        raise SystemExit

    assert settle(handler, batch_of(15), wire)[0] == []
    assert seen == [0] * 9 + [1] * 6


def test_an_eager_ack_all_is_final_and_on_fifo_a_later_verdict_overrides_it() -> None:  # SPEC G3, B4
    """On a standard queue, the messages are deleted, so a later verdict is ignored."""

    @batch_consumer(ack="eager")
    def handler(batch: Batch) -> None:
        if len(batch) > 2:
            batch[0].retry(60)
        batch.ack_all()
        batch[1].reject()

    reported, wire = settle(handler, batch_of(12))
    assert (reported, wire.sent_entries()) == (["m0"], [])
    assert deleted(wire) == [[f"m{index}" for index in range(1, 11)]]
    reported, wire = settle(handler, batch_of(2, "orders.fifo", group="a"))
    assert (reported, [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()]) == ([], ["1"])


def test_an_async_handler_does_not_wait_for_the_deletes() -> None:  # SPEC G3
    """A thread sends the deletes, or Lambda deletes the messages; the event loop is not blocked."""

    async def handle(message: Message) -> None: ...

    reported, wire = settle(eager(handle), batch_of(30))
    assert reported == []
    assert all(len(request) <= 10 for request in deleted(wire))


@pytest.mark.parametrize(
    ("error", "invocations", "deletes", "event", "text"),
    [
        pytest.param(OSError("no route"), 1, 1, "delete_failed", "10 acknowledged messages were not", id="no answer"),
        pytest.param(client_error("ThrottlingException"), 1, 10, None, "", id="throttle"),
        pytest.param(client_error("AccessDenied", status=403), 2, 2, "missing_permission", "sqs:", id="denied"),
    ],
)
def test_messages_that_cannot_be_deleted_are_left_to_lambda(
    error: Exception, invocations: int, deletes: int, event: str | None, text: str, caplog: Caplog
) -> None:
    """SPEC A8, G3, G6. No more deletes are sent, except after a throttle; a missing permission is logged once."""
    wire, handler = orders(), eager()
    wire.fails[DELETE] = error
    for _ in range(invocations):
        assert settle(handler, batch_of(100), wire)[0] == []
    assert len(deleted(wire)) == deletes
    if event:
        [line] = lines(caplog)
        assert (field(line, "event"), text in field(line, "text")) == (event, True)


def test_a_message_that_cannot_be_deleted_is_left_to_lambda_and_not_reported_as_failed(caplog: Caplog) -> None:
    wire = orders()  # SPEC G3
    wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "4" else None
    assert settle(eager(), batch_of(10), wire)[0] == []
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("delete_failed", "m4")


def test_messages_are_left_to_lambda_if_no_thread_can_be_started() -> None:  # SPEC A2, G3
    waits: list[object] = []

    class ThreadsThatDoNotStart:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def start(self, _: Any) -> Any:
            raise RuntimeError("can't start new thread")

        def event(self) -> Any:
            event = real.event()
            event.wait = waits.append
            return event

    with orders() as wire:
        real, current().threads = current().threads, ThreadsThatDoNotStart()
        assert settle(eager(), batch_of(30), wire)[0] == []
    assert (wire.requests, waits) == ([], [])


@pytest.mark.parametrize("ack", ["Eager", "", None, True, 1])
def test_an_unknown_value_of_ack_is_refused(ack: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match=f"on_return.*{ack!r}"):
        consumer(ack=ack)


# in virtual time


@pytest.mark.parametrize(
    ("fault", "count", "seconds", "longest", "requests", "events"),
    [
        # each message is acknowledged alone, and deleted after a second
        pytest.param("denied", 3, 3, 60, 1, ["missing_permission"], id="a lone delete is denied"),
        pytest.param("hang", 100, 0, 2, None, [], id="a delete hangs"),
    ],
)
def test_no_more_deletes_are_sent_after_a_lone_one_was_denied_and_one_that_hangs_delays_the_batch_by_two_seconds(
    fault: str, count: int, seconds: int, longest: int, requests: Any, events: Any, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC A8, G3, G6
    ended: list[float] = []
    sandbox.queue("orders", dead_letter="dead")
    sandbox.faults.add(fault, operation=DELETE, times=None)
    for number in range(count):
        sandbox.send("orders", {"number": number})
    handler = eager(lambda _: (sandbox.sleep(seconds), ended.append(sandbox.elapsed))[1])
    sandbox.connect(handler, "orders", batch_size=100, window=1)
    report = sandbox.run()
    assert (report.settled, len(ended)) == (True, count)
    assert ended[-1] - ended[0] <= longest
    if requests:
        asked = [each.fields for each in report.events if each.what == "request"]
        own = [each for each in asked if each["operation"] == DELETE and "request_id" in each]
        assert (len(own), [field(line, "event") for line in lines(caplog)]) == (requests, events)
