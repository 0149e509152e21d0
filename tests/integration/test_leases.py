"""Requests while a batch runs: leases are renewed, kept alive by `keepalive=`, and extended; `ack="eager"` deletes."""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tarry import Batch, ConfigurationError, Consumer, Fixed, LeaseLost, Message, Reject, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, batch_of, event, failed, record
from tests.sandboxes import work
from tests.settled import orders, settle
from tests.wire import Wire, client_error

CHANGE, DELETE = "ChangeMessageVisibilityBatch", "DeleteMessageBatch"

# FIFO: leases that may end soon are renewed

EXPIRED = (
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
)
NOT_OF_SQS = "ReceiptHandleIsInvalid", 'The input receipt handle "handle-a1" is not a valid receipt handle.'


def entry(name: str, receives: int = 1, age: float = 0, queue: str = "orders.fifo", **more: Any) -> dict[str, Any]:
    """Return a record of the group ``name[0]`` that was received ``age`` seconds before the invocation."""
    return record("{}", name, queue, receives=receives, group=name[0], received_at=RECEIVED_AT - age, **more)


def without(made: dict[str, Any], name: str) -> dict[str, Any]:
    attributes = {key: value for key, value in made["attributes"].items() if key != name}
    return {key: value for key, value in {**made, "attributes": attributes}.items() if key != name}


def run(
    *entries: dict[str, Any],
    wire: Wire | None = None,
    handle: Callable[[Message], Any] = lambda _: None,
    remaining: float = 30,
) -> tuple[list[str], list[str], Wire]:
    """Return the ids of the messages that ran, and of those reported as failed, and the wire."""
    ran: list[str] = []

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        ran.append(message.id)
        handle(message)

    return ran, *settle(handler, event(*entries), wire, remaining)


def refusing(*message_ids: str) -> Wire:
    wire, handles = orders(), {f"handle-{message_id}" for message_id in message_ids}
    wire.refuses[CHANGE] = lambda _, each: EXPIRED if each["ReceiptHandle"] in handles else None
    return wire


def test_the_leases_of_a_batch_that_was_received_long_before_its_invocation_are_renewed_before_it_runs() -> None:
    requests, wire = list[int](), orders()  # SPEC H4, I2
    batch = [entry("a1", age=11), *(entry(f"b{index}") for index in range(9))]
    run(*batch, wire=wire, handle=lambda _: requests.append(len(wire.requests)), remaining=20.5)
    assert requests == [1] * 10
    [renewal] = wire.sent(CHANGE)
    assert [each["ReceiptHandle"] for each in renewal.entries] == [each["receiptHandle"] for each in batch]
    assert {*wire.visibilities().values()} == {math.ceil(20.5 + 1)}  # the remaining time and a margin


RECEIVE_TIME = "ApproximateFirstReceiveTimestamp"


def test_only_leases_that_may_end_soon_are_renewed() -> None:  # SPEC G2, G5, H4
    may_end = {
        "redelivered: its receive time is unknown": entry("a1", receives=2),
        "without a receive time": without(entry("a1"), RECEIVE_TIME),
        "with an invalid receive time": entry("a1", system={RECEIVE_TIME: "soon"}),
    }
    others = {f"received {age} s ago": entry("a1", age=age) for age in (0, 5, 10)} | {
        "of a standard queue": entry("a1", age=60, queue="orders"),
        # SQS was not asked, so it has not refused the handle
        "without a receipt handle": without(entry("a1", age=11), "receiptHandle"),
    }
    for name, odd in (may_end | others).items():
        ran, reported, wire = run(odd)
        assert (ran, reported, wire.acts) == (["a1"], [], [CHANGE] if name in may_end else []), name


def test_a_group_with_a_refused_receipt_handle_does_not_run_and_is_only_reported(caplog: Caplog) -> None:  # SPEC H4
    batch = [entry("a1", age=11), *map(entry, ("b1", "a2", "a3", "b2"))]
    ran, reported, wire = run(*batch, wire=refusing("a2"))
    assert (ran, reported) == (["b1", "b2"], ["a1", "a2", "a3"])
    assert len(wire.requests) == 1  # no settlement requests
    [line] = lines(caplog)
    assert (field(line, "event"), field(line, "message_id")) == ("lease_lost", "a2")
    received: list[str] = []
    handler = batch_consumer(lambda batch: received.extend(message.id for message in batch))
    assert settle(handler, event(*batch), refusing("a2"))[0] == ["a1", "a2", "a3"]
    assert received == ["b1", "b2"]
    assert run(entry("a1", receives=3), wire=refusing("a1"))[:2] == ([], ["a1"])


def test_a_batch_runs_although_its_leases_cannot_be_renewed() -> None:  # SPEC H4, A8
    for error in (
        client_error("AccessDenied", status=403),
        client_error("ServiceUnavailable", status=503),
        OSError(),
        None,
    ):
        wire = orders()
        wire.fails[CHANGE] = error
        wire.refuses[CHANGE] = lambda _, __: ("InternalError", "try again")
        assert run(entry("a1", age=11), entry("a2"), wire=wire)[:2] == (["a1", "a2"], []), error


def test_leases_are_renewed_within_the_limit_of_sqs_and_not_without_a_deadline() -> None:  # SPEC H4, C6
    """A handler called without a context has no remaining time to renew them for."""
    assert run(entry("a1", age=100), remaining=43_190)[2].visibilities() == {"handle-a1": 43_200 - 100 - 1}
    with orders() as wire:
        consumer(lambda _: None)(event(entry("a1", receives=2)), None)
    assert wire.requests == []


@pytest.mark.parametrize("on_lambda", [False, True])
def test_a_receipt_handle_that_is_not_of_sqs_stops_its_group_on_lambda_only(
    on_lambda: bool, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC G5, H4
    """A unit test calls a consumer with made-up handles; on Lambda, such a handle means that the lease is lost."""
    if on_lambda:
        monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")
    wire = orders()
    wire.refuses[CHANGE] = lambda *_: NOT_OF_SQS
    ids = ["a1", "a2"]
    found = run(*(entry(name, age=20) for name in ids), wire=wire)[:2]
    assert found == (([], ids) if on_lambda else (ids, []))
    assert len(lines(caplog, "lease_lost")) == 2


# keepalive, in virtual time


class KeepaliveRun:
    """A queue with a short visibility timeout, and a consumer whose handler may take longer.

    Lambda refuses a mapping whose queue has a visibility timeout below the function's timeout, so each lease is
    shortened at the start of the invocation.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        handle: Callable[[Message], Any] = lambda _: None,
        *,
        visibility: int = 30,
        queue: str = "orders",
        handler: Any = None,
        **settings: Any,
    ) -> None:
        self.sandbox, self.queue = sandbox, queue
        self.runs: list[tuple[str, float]] = []
        """The body of each message that ran, and when its run began."""
        self.handles: list[str] = []
        self.answers: list[list[str]] = []

        def note_and_handle(message: Message) -> None:
            self.runs.append((message.body, sandbox.elapsed))
            handle(message)

        inner = handler or consumer(**{"keepalive": 10, "backoff": Fixed(100), **settings})(note_and_handle)
        sandbox.queue(queue, visibility_timeout=900, dead_letter="dead.fifo" if queue.endswith(".fifo") else "dead")

        def function(the_event: Any, context: Any) -> Any:
            handles = [each["receiptHandle"] for each in the_event["Records"]]
            for handle in handles:
                self._call("ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=visibility)
            self.handles += handles
            answer = inner(the_event, context)
            self.answers.append(failed(answer))
            return answer

        sandbox.connect(function, queue, timeout=900)
        self._call("SetQueueAttributes", Attributes={"VisibilityTimeout": str(visibility)})

    def of(self, *bodies: str, until: Callable[[], bool] | None = None) -> "KeepaliveRun":
        for body in bodies:
            self.sandbox.send(self.queue, body, group_id="a" if self.queue.endswith(".fifo") else None)
        self.sandbox.run(until, check=False)
        return self

    @property
    def ran(self) -> list[str]:
        return [body for body, _ in self.runs]

    def delete(self, handle: str) -> None:
        """Delete a message, as another consumer would: its lease is lost."""
        self._call("DeleteMessage", ReceiptHandle=handle)

    def _call(self, operation: str, **parameters: Any) -> None:
        self.sandbox.sqs.call(operation, {"QueueUrl": self.sandbox.sqs.url(self.queue), **parameters})

    def requests(self, operation: str = CHANGE) -> list[float]:
        events = self.sandbox.history.events
        return [each.at for each in events if each.what == "request" and each.fields["operation"] == operation]

    @property
    def extended(self) -> list[tuple[int, int]]:
        """The visibility changes: the time, in seconds since the sandbox was made, and the new timeout in seconds."""
        began = self.sandbox.now - self.sandbox.elapsed
        changed = [each for each in self.sandbox.history.events if each.what == "visibility_changed"]
        own = [each for each in changed if each.fields.get("by") and each.at - began > 1]
        return [(round(each.at - began), each.fields["seconds"]) for each in own]


def test_at_each_interval_leases_are_extended_to_three_intervals_but_never_shortened(sandbox: Sandbox) -> None:
    """SPEC I4. So the handler may take longer than the visibility timeout of its queue, or else it runs again."""
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(45)).of("order")
    assert (run.ran, run.extended) == (["order"], [(10, 30), (20, 30), (30, 30), (40, 30)])
    assert len(KeepaliveRun(sandbox, lambda _: sandbox.sleep(45), keepalive=None, queue="o").of("again").ran) > 1
    with Sandbox() as another:
        run = KeepaliveRun(another, lambda _: another.sleep(25), visibility=300).of("order")
        assert [when for when, _ in run.extended] == [10, 20]
        assert all(290 <= when + seconds <= 301 for when, seconds in run.extended)


@pytest.mark.parametrize(("extends_at", "changes"), [(9.5, [300]), (10.3, [30, 300])], ids=["before", "during"])
def test_keepalive_does_not_undo_an_extension_of_the_handler(
    sandbox: Sandbox, extends_at: float, changes: list[int]
) -> None:  # SPEC I4, I6
    """Requests take a while to SQS: at 10 seconds, that of keepalive leaves before or after that of the handler."""

    def handle(message: Message) -> None:
        sandbox.sleep(extends_at)
        message.extend(300)
        sandbox.sleep(5)

    sandbox.faults.add("late", operation=CHANGE, times=2, seconds=0.9)
    assert [seconds for _, seconds in KeepaliveRun(sandbox, handle).of("order").extended] == changes


def test_keepalive_extends_a_lease_that_would_end_while_its_handler_waits_for_an_extension(sandbox: Sandbox) -> None:
    sandbox.faults.add("late", operation=CHANGE, seconds=4)  # SPEC I4, I6
    run = KeepaliveRun(sandbox, lambda message: message.extend(5), keepalive=1, visibility=3)
    assert run.of("order").ran == ["order"]


def test_a_lease_of_unknown_length_is_assumed_to_last_as_long_as_the_functions_timeout(sandbox: Sandbox) -> None:
    """SPEC I4. Three intervals would be 3 seconds, less than the visibility timeout of any queue of this function."""
    sandbox.faults.add("denied", operation="GetQueueAttributes", times=None)
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(2.5), keepalive=1, visibility=900).of("order")
    assert [round(when + seconds) for when, seconds in run.extended] == [900, 900]


def test_the_leases_of_waiting_messages_are_extended_too_ten_in_a_request_until_they_end(sandbox: Sandbox) -> None:
    """SPEC I4. Leases of ended messages are not, and the request that deletes those is made before their leases end."""
    bodies = [f"order-{number}" for number in range(10)]
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(16)).of(*bodies)
    assert sorted(run.ran) == sorted(bodies)
    assert [run.extended.count((when, 30)) for when in (10, 20, 30, 40)] == [10, 9, 9, 8]
    assert [round(at - sandbox.now + sandbox.elapsed) for at in run.requests()].count(10) == 1
    assert run.requests(DELETE)


def test_a_failed_message_is_redelivered_after_its_delay_and_a_finished_one_is_not_while_their_batch_still_runs(
    sandbox: Sandbox,
) -> None:
    """SPEC C11, I4. Lambda deletes the finished one only after the response, long after its lease would have ended."""

    def handle(message: Message) -> None:
        if message.body == "fails" and message.receive_count == 1:
            raise ValueError
        sandbox.sleep(200 if message.body == "long" else 1)

    run = KeepaliveRun(sandbox, handle).of("finished", "fails", "long")
    assert sorted(run.ran) == ["fails", "fails", "finished", "long"]
    first, second = (at for body, at in run.runs if body == "fails")
    assert second - first == pytest.approx(100, abs=2)


def test_a_clean_batch_shorter_than_the_interval_makes_no_request(sandbox: Sandbox) -> None:  # SPEC G2
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(9)).of("order")
    assert run.requests() == run.requests("GetQueueAttributes") == []


def test_an_extension_in_progress_does_not_override_the_delay_of_a_failed_message(sandbox: Sandbox) -> None:  # SPEC I4
    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(10.001)
            raise ValueError

    (_, first), (_, second) = KeepaliveRun(sandbox, handle).of("order").runs
    assert second - first >= 110


@pytest.mark.parametrize("kind", ["async", "batch", "threads"])
def test_keepalive_works_for_all_kinds_of_handlers(kind: str, sandbox: Sandbox) -> None:  # SPEC I4
    ran: list[str] = []

    async def in_a_task(message: Message) -> None:
        ran.append(message.body)
        await current().clock.asleep(100)

    def in_a_thread(*messages: Message) -> None:
        ran.extend(message.body for message in messages)
        sandbox.sleep(100)

    handlers: dict[str, Any] = {
        "async": consumer(keepalive=10)(in_a_task),
        "batch": batch_consumer(keepalive=10)(lambda batch: in_a_thread(*batch)),
        "threads": consumer(keepalive=10, concurrency=2)(in_a_thread),
    }
    KeepaliveRun(sandbox, handler=handlers[kind]).of("a", "b")
    assert sorted(ran) == ["a", "b"]


@pytest.mark.parametrize("error", [None, ValueError(), Reject()], ids=["success", "a failure", "a verdict"])
def test_a_lease_is_lost_when_sqs_refuses_the_handle(error: Exception | None, sandbox: Sandbox, caplog: Caplog) -> None:
    """SPEC I4. A message that succeeds is acknowledged all the same; one that fails is only reported."""

    def handle(message: Message) -> None:
        run.delete(run.handles[-1])
        sandbox.sleep(25)
        if error is not None:
            raise error

    run = KeepaliveRun(sandbox, handle)
    run.of("order")
    assert len(run.answers[0]) == (error is not None)
    assert lines(caplog, level=30)[0] in lines(caplog, "lease_lost")
    assert len(lines(caplog, "lease_lost")) == len(run.requests()) == 1  # the refused extension
    assert (run.extended, run.requests("SendMessageBatch")) == ([], [])


@pytest.mark.parametrize("times", [2, None], ids=["once", "until its end"])
def test_a_lease_survives_an_extension_that_fails_once_and_is_lost_at_its_end(
    times: int | None, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I4
    """The lease is extended at 10 seconds, until 40; then extensions fail. Both tries of boto3 make one failure."""

    def handle(message: Message) -> None:
        if message.receive_count == 1:
            sandbox.sleep(11)
            sandbox.faults.add("unavailable", operation=CHANGE, times=times)
            sandbox.sleep(24)
            assert not lines(caplog, "lease_lost")
            sandbox.sleep(20)
            sandbox.faults.clear()

    run = KeepaliveRun(sandbox, handle).of("order")
    found = [field(line, "text") for line in lines(caplog, "lease_lost")]
    if times is None:
        assert ["The lease has ended: another consumer may have the message" in text for text in found] == [True]
    else:
        assert (run.ran, found) == (["order"], [])


def test_on_fifo_a_message_that_loses_its_lease_while_it_waits_does_not_run(sandbox: Sandbox) -> None:  # SPEC I4, H4
    def handle(message: Message) -> None:
        if message.body == "first":
            run.delete(run.handles[1])
            sandbox.sleep(15)

    run = KeepaliveRun(sandbox, handle, queue="ledger.fifo")
    run.of("first", "second", "third")
    assert (run.ran, len(run.answers[0])) == (["first", "third"], 2)


@pytest.mark.parametrize(
    ("verdict", "settings"),
    [(Message.reject, {"queue": "ledger.fifo"}), (Message.ack, {"ack": "eager"})],
    ids=["dead-lettered on FIFO", "deleted eagerly"],
)
def test_a_message_settled_during_the_batch_does_not_count_as_a_lost_lease(
    verdict: Any, settings: Any, sandbox: Sandbox, caplog: Caplog
) -> None:  # SPEC I4
    """It is deleted before the batch ends, so SQS refuses its receipt handle afterwards."""

    def handle(message: Message) -> None:
        if message.body == "first":
            verdict(message)
        sandbox.sleep(25)

    assert KeepaliveRun(sandbox, handle, **settings).of("first", "second").ran == ["first", "second"]
    assert lines(caplog, "lease_lost") == []


def test_an_extension_that_hangs_delays_the_response_by_two_seconds_at_most(sandbox: Sandbox) -> None:  # SPEC I4, G6
    sandbox.faults.add("hang", operation=CHANGE, times=None)
    run = KeepaliveRun(sandbox, lambda _: sandbox.sleep(10.5))
    run.of("order", until=lambda: any(each.what == "answered" for each in sandbox.history.events))
    [(_, began)] = run.runs
    assert sandbox.elapsed - began - 10.5 <= 2.5


# message.extend


def extending(*seconds: Any, errors: list[Exception] | None = None, wire: Wire | None = None) -> Any:
    """Make a consumer that extends by each of these seconds, and keeps what that raises."""

    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        for each in seconds:
            try:
                message.extend(each)
            except Exception as error:
                if errors is None:
                    raise
                errors.append(error)
                if isinstance(error, LeaseLost):
                    raise
            if wire is not None:
                wire.clock.now += 61

    return handler


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [([300], [300]), ([60.5], [61]), ([timedelta(0, 120)], [120]), ([43_200], [43_199]), ([500, 10], [500, 500])],
)
def test_extend_sets_the_visibility_timeout_counted_from_now_and_never_shortens_a_lease(
    seconds: list[Any], asked: list[int]
) -> None:  # SPEC I6
    reported, wire = settle(extending(*seconds), wire=orders(visibility_timeout=60), remaining=900)
    assert (reported, [request.entries[0]["VisibilityTimeout"] for request in wire.sent(CHANGE)]) == ([], asked)
    assert len(wire.sent("GetQueueAttributes")) == 1


def test_without_the_visibility_timeout_extend_asks_for_the_time_left(caplog: Caplog) -> None:
    """SPEC I6: the queue's visibility timeout is at least as long as the function's timeout."""
    wire = orders()
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied", "no")
    settle(extending(5), wire=wire, remaining=20)
    assert wire.visibilities() == {"handle-m1": 20}
    assert [field(line, "event") for line in caplog.records] == ["missing_permission"]


def test_on_fifo_extend_includes_the_later_messages_of_the_group() -> None:  # SPEC I6, H1
    _, reported, wire = run(
        *map(entry, ("a1", "a2", "b1", "a3")),
        wire=orders(visibility_timeout=60),
        handle=lambda message: message.id == "a1" and message.extend(300),
        remaining=900,
    )
    assert (reported, wire.visibilities()) == ([], {"handle-a1": 300, "handle-a2": 300, "handle-a3": 300})


@pytest.mark.parametrize(
    ("queue", "bodies", "visibility_timeout", "steps"),
    [
        pytest.param("orders", "a", 60, (10, -5, 30), id="a short extension"),
        # the messages behind it keep their own leases
        pytest.param("orders.fifo", "abc", 60, (10, -5), id="a short extension on FIFO"),
        pytest.param("orders", "a", 300, (50, -60) * 4, id="beyond the visibility timeout"),
    ],
)
def test_a_message_that_is_extended_runs_once(
    queue: str, bodies: str, visibility_timeout: int, steps: tuple[int, ...], sandbox: Sandbox
) -> None:
    """SPEC I6, H1. The handler sleeps for the seconds above 0 and extends by those below."""
    runs: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        runs.append(message.body)
        for seconds in steps:
            sandbox.sleep(seconds) if seconds > 0 else message.extend(-seconds)

    work(sandbox, handler, *bodies, queue=queue, visibility_timeout=visibility_timeout, timeout=visibility_timeout - 10)
    sandbox.run()
    assert runs == [*bodies]


def test_extend_async_lets_other_handlers_run_meanwhile(sandbox: Sandbox) -> None:  # SPEC I6
    ended: list[str] = []

    @consumer(concurrency=2)
    async def handler(message: Message) -> None:
        if message.body == "first":
            await message.extend_async(100)
        ended.append(message.body)

    sandbox.faults.add("late", operation=CHANGE, seconds=3)
    work(sandbox, handler, "first", "second")
    sandbox.run()
    assert ended == ["second", "first"]


def test_extend_raises_an_error_for_invalid_seconds_and_any_error_of_sqs() -> None:  # SPEC I6, B6
    raised, odd = list[Exception](), (0, -1, 43_201, float("nan"), "soon", True, None)
    _, wire = settle(extending(*odd, errors=raised))
    assert [(type(error), "seconds" in str(error)) for error in raised] == [(ValueError, True)] * len(odd)
    assert wire.requests == []
    wire = orders()
    wire.fails[CHANGE] = client_error("AccessDenied", "no")
    assert settle(extending(60, errors=raised), wire=wire, remaining=900)[0] == []
    assert "AccessDenied" in str(raised[-1])


def test_a_message_whose_lease_is_lost_cannot_be_extended_and_is_only_reported() -> None:
    """SPEC E6, G5, I6. Its time is over, its receipt handle is refused, it has no handle, or its handler has ended."""
    raised, wire, kept = list[Exception](), orders(visibility_timeout=60), list[Message]()
    handler = extending(60, 60, errors=raised, wire=wire)

    def refuse(*_: object) -> tuple[str, str]:
        return "ReceiptHandleIsInvalid", "expired"

    for made, text, requests in [
        (record(), "its lease has ended", 1),
        (record(), "ReceiptHandleIsInvalid", 2),
        (without(record(), "receiptHandle"), "no receipt handle", 2),
    ]:
        assert settle(handler, event(made), wire, remaining=900)[0] == ["m1"]
        assert (type(raised[-1]), text in str(raised[-1])) == (LeaseLost, True)
        assert wire.acts == [CHANGE] * requests
        wire.refuses[CHANGE] = refuse
    settle(consumer(kept.append), wire=wire)
    with wire, pytest.raises(LeaseLost, match="its handler has ended"):
        kept[0].extend(60)
    assert wire.acts == [CHANGE] * 2


# ack="eager"; test_crashes.py shows that deleted messages stay done, also if there are fewer than ten

TENS = [[f"m{index}" for index in range(first, first + 10)] for first in range(0, 100, 10)]


def deleted(wire: Wire) -> list[list[str]]:
    return [[entry["ReceiptHandle"][7:] for entry in request.entries] for request in wire.sent(DELETE)]


def eager(handle: Callable[[Message], Any] = lambda _: None, **settings: Any) -> Consumer[Any]:
    return consumer(ack="eager", backoff=Fixed(60), **settings)(handle)


@pytest.mark.parametrize("verdict", ["ack", "return", "discard"])
def test_done_messages_are_deleted_in_batches_of_ten_while_the_batch_runs(verdict: str) -> None:  # SPEC G3
    """By default, Lambda deletes them after the response. Failed messages are not deleted."""
    wire, seen = orders(), list[int]()

    def handle(message: Message) -> None:
        seen.append(len(wire.sent(DELETE)))
        if message.id == "m3":
            raise ValueError
        message.retry(30) if message.id == "m4" else getattr(message, verdict, lambda: None)()

    assert settle(eager(handle), batch_of(27), wire)[0] == ["m3", "m4"]
    assert seen == [0] * 12 + [1] * 10 + [2] * 5
    done = [f"m{index}" for index in range(22) if index not in (3, 4)]
    assert deleted(wire) == [done[:10], done[10:]]
    assert settle(consumer(handle), batch_of(3))[1].requests == []


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


def test_in_a_batch_handler_eager_acks_are_deleted_while_it_runs_and_final_but_for_ack_all_on_fifo() -> None:
    """SPEC G3, B4. On a standard queue, the messages are deleted, so a later verdict is ignored."""
    wire, seen = orders(), list[int]()

    @batch_consumer(ack="eager")
    def one_by_one(batch: Batch) -> None:
        for message in batch:
            message.ack()
            seen.append(len(wire.sent(DELETE)))
        raise SystemExit

    assert settle(one_by_one, batch_of(15), wire)[0] == []
    assert seen == [0] * 9 + [1] * 6

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
    in_threads = settle(eager(concurrency=2), batch_of(30))[1]
    assert [len(request) for request in deleted(in_threads)] == [10] * 3


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


NO_SECONDS = [0, -1, True, math.nan, math.inf, "10"]


@pytest.mark.parametrize(
    ("name", "text", "odd"),
    [
        ("ack", "on_return", ["Eager", "", None, True, 1]),
        *((name, f"{name} must be a number of seconds above 0", NO_SECONDS) for name in ("keepalive", "timeout")),
        ("concurrency", "concurrency must be a whole number from 1 to 1000", [0, -1, 1_001, 2.0, True, "3", None]),
        ("log", "log takes LogOptions", [None, {"body": True}]),
    ],
)
def test_invalid_settings_are_refused(name: str, text: str, odd: list[Any]) -> None:  # SPEC C5, I1, I3, I4
    for each in odd:
        with pytest.raises(ConfigurationError, match=f"{text}.*{re.escape(repr(each))}"):
            consumer(**{name: each})


def test_the_least_and_the_greatest_values_of_settings_are_accepted() -> None:  # SPEC C5, I1, I3, I4
    made = [
        consumer(lambda _: None, **each) for each in ({"concurrency": 1_000, "timeout": 0.001, "keepalive": 0.5}, {})
    ]
    assert [(each.concurrency, each.timeout, each.keepalive) for each in made] == [(1_000, 0.001, 0.5), (1, None, None)]
    for concurrency in (0, 2):
        with pytest.raises(ConfigurationError, match=r"concurrency.*(1 to 1000|has no effect with @batch_consumer)"):
            batch_consumer(concurrency=concurrency)
    with pytest.raises(TypeError, match="unknown settings: concurency; the settings are model, policy"):
        made[0].replace(concurency=2)
