"""Crash isolation: redelivered messages run last, and each gets a visibility timeout of its own before they start."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tarry import Consumer, Fixed, Message, Reject, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.world import current
from tests.loglines import field, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Refusal, Request, Wire, client_error

CHANGE_VISIBILITY, DELETE = "ChangeMessageVisibilityBatch", "DeleteMessageBatch"
LOOK_UP = "GetQueueAttributes"


def orders(**more: Any) -> Wire:
    names = ("orders", "orders.fifo")
    return Wire(queues={name: Queue(dead_letter="dead", visibility_timeout=180) for name in names}, **more)


def batch(fresh: int, redelivered: int, queue: str = "orders", receives: int = 2) -> dict[str, Any]:
    """Return an event of redelivered messages and fresh ones behind them; on FIFO each message has its own group."""
    names = [*(f"old-{index}" for index in range(redelivered)), *(f"new-{index}" for index in range(fresh))]
    counts = [*([receives] * redelivered), *([1] * fresh)]
    return event(
        *(record("{}", name, queue, receives=count, group=name) for name, count in zip(names, counts, strict=True))
    )


class IsolationRun:
    """A run of a consumer: the order of its messages, and the requests sent before each of them started."""

    def __init__(self, handle: Callable[[Message], None] = lambda _: None, **settings: Any) -> None:
        self.wire = orders()
        self.ran: list[str] = []
        self.before: dict[str, list[Request]] = {}
        self.reported: list[str] = []

        @consumer(**{"backoff": Fixed(60), **settings})
        def handler(message: Message) -> None:
            self.ran.append(message.delivery_id)
            self.before[message.delivery_id] = [each for each in self.wire.requests if each.operation != LOOK_UP]
            handle(message)

        self.handler: Consumer[Any] = handler

    def of(self, the_event: dict[str, Any], remaining: float = 30) -> "IsolationRun":
        with self.wire:
            self.reported = failed(self.handler(the_event, Context(remaining)))
        return self

    def count(self, operation: str) -> int:
        return len(self.wire.sent(operation))

    def deleted(self) -> list[str]:
        return [
            entry["ReceiptHandle"].removeprefix("handle-")
            for request in self.wire.sent(DELETE)
            for entry in request.entries
        ]


def test_redelivered_messages_run_after_the_fresh_ones() -> None:  # SPEC G4
    run = IsolationRun().of(batch(fresh=3, redelivered=3))
    assert run.ran[:3] == ["new-0", "new-1", "new-2"]
    assert sorted(run.ran[3:]) == ["old-0", "old-1", "old-2"]


def test_acknowledged_messages_are_deleted_before_the_first_redelivered_message_starts() -> None:  # SPEC G4
    run = IsolationRun().of(batch(fresh=12, redelivered=1))
    deletes = [request for request in run.before["old-0"] if request.operation == DELETE]
    assert sorted(len(request.entries) for request in deletes) == [2, 10]
    assert run.before["new-11"] == []


def test_failed_messages_are_not_deleted_before_redelivered_ones_start() -> None:  # SPEC A2, G4
    def handle(message: Message) -> None:
        if message.id == "new-1":
            raise ValueError

    run = IsolationRun(handle).of(batch(fresh=3, redelivered=1))
    assert run.deleted() == ["new-0", "new-2"]
    assert run.reported == ["new-1"]


def test_each_redelivered_message_gets_its_own_visibility_timeout_beyond_the_deadline() -> None:  # SPEC G4
    """The deadline is in 30 seconds. With boto3 loaded, the margin is 1 second."""
    run = IsolationRun().of(batch(fresh=1, redelivered=4))
    [spread] = [request for request in run.before[run.ran[1]] if request.operation == CHANGE_VISIBILITY]
    visibility = {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in spread.entries}
    assert [visibility[f"handle-{message_id}"] for message_id in run.ran[1:]] == [31, 61, 91, 121]


@pytest.mark.parametrize(("count", "last"), [(31, 931), (61, 931), (1_000, 931)])
def test_any_number_of_redelivered_messages_come_back_within_15_minutes_of_each_other(
    count: int, last: int
) -> None:  # SPEC G4
    run = IsolationRun().of(batch(fresh=0, redelivered=count))
    times = sorted(run.wire.visibilities().values())
    assert times[0] == 31
    assert times[-1] == last
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert max(steps) - min(steps) <= 1


def test_the_visibility_timeouts_of_isolation_stay_within_the_limit_of_sqs() -> None:  # SPEC G4, C6
    """With a deadline in almost 12 hours."""
    run = IsolationRun().of(batch(fresh=0, redelivered=3), remaining=43_199)
    assert set(run.wire.visibilities().values()) == {43_200 - 330 - 1}


def test_a_redelivered_message_that_fails_waits_for_the_delay_of_its_policy() -> None:  # SPEC G4, G1
    def handle(message: Message) -> None:
        raise ValueError

    run = IsolationRun(handle).of(batch(fresh=0, redelivered=2))
    assert set(run.wire.visibilities().values()) == {60}
    assert run.reported == ["old-0", "old-1"]


def test_isolation_of_a_batch_of_one_message_makes_no_request() -> None:  # SPEC G4
    assert IsolationRun().of(batch(fresh=0, redelivered=1)).wire.acts == []


def test_the_visibility_of_a_single_redelivered_message_is_not_changed() -> None:  # SPEC G4
    assert IsolationRun().of(batch(fresh=2, redelivered=1)).wire.acts == [DELETE]


def test_a_batch_handler_gets_its_messages_without_isolation() -> None:  # SPEC G4
    received: list[str] = []

    @batch_consumer
    def handler(messages: Any) -> None:
        received.extend(message.id for message in messages)

    with orders() as wire:
        handler(batch(fresh=2, redelivered=2), Context())
    assert received == ["old-0", "old-1", "new-0", "new-1"]
    assert wire.acts == []


def test_isolate_false_turns_isolation_off(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    caplog.set_level("DEBUG")
    run = IsolationRun(isolate=False).of(batch(fresh=2, redelivered=2))
    assert run.ran == ["old-0", "old-1", "new-0", "new-1"]
    assert run.wire.acts == []
    assert lines(caplog) == []


def test_without_a_deadline_isolation_only_changes_the_order() -> None:  # SPEC G4
    """A handler called without a context has no deadline."""
    run = IsolationRun()
    with run.wire:
        run.handler(batch(fresh=1, redelivered=2), None)
    assert run.ran[0] == "new-0"
    assert run.wire.requests == []


@pytest.mark.parametrize(("fresh", "redelivered"), [(0, 2), (5, 5), (0, 10), (10, 10), (7, 93), (95, 5), (300, 200)])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_isolation_takes_few_requests(fresh: int, redelivered: int, queue: str) -> None:  # SPEC G4
    """At most one for ten acknowledged messages and one for ten redelivered ones, not counting those that renew FIFO
    leases."""
    run = IsolationRun().of(batch(fresh, redelivered, queue))
    assert run.reported == []
    renewing = -(-(fresh + redelivered) // 10) if queue == "orders.fifo" else 0
    assert len(run.wire.acts) - renewing <= -(-(fresh + redelivered) // 10) - (-redelivered // 10)


def test_acknowledged_messages_are_deleted_in_tens_while_redelivered_ones_run() -> None:  # SPEC G4, G3
    run = IsolationRun().of(batch(fresh=0, redelivered=35))
    assert [len(request.entries) for request in run.wire.sent(DELETE)] == [10, 10, 10]
    assert sorted(run.deleted()) == sorted(run.ran[:30])


@pytest.mark.parametrize(
    ("fresh", "redelivered", "deleted"),
    [(0, 10, [3, 5]), (0, 9, [3, 5]), (0, 3, [1]), (0, 2, [1]), (5, 5, [5, 3]), (9, 1, [9]), (8, 2, [8, 1])],
)
def test_on_fifo_acknowledged_messages_are_deleted_while_redelivered_groups_run(
    fresh: int, redelivered: int, deleted: list[int]
) -> None:  # SPEC G4
    """The messages of a group come back together after a crash, so those before the poison message must be deleted."""
    run = IsolationRun().of(batch(fresh, redelivered, "orders.fifo"))
    assert [len(request.entries) for request in run.wire.sent(DELETE)] == deleted


def test_on_fifo_the_deletes_come_after_other_messages_at_each_delivery() -> None:  # SPEC G4
    """So messages before the poison message of their group are done after some crashes, however few they are."""
    deletes = [IsolationRun().of(batch(0, 10, "orders.fifo", receives)).wire.sent(DELETE) for receives in range(2, 8)]
    assert [len(first.entries) for first, *_ in deletes] == [3, 4, 5, 1, 2, 3]


def test_on_fifo_each_redelivered_group_gets_its_own_visibility_timeout() -> None:  # SPEC G4, H1
    """By the one request that renews the leases anyway. All messages of a group get the same visibility timeout."""
    entries = [("a1", "a", 2), ("b1", "b", 1), ("a2", "a", 1), ("b2", "b", 3), ("c1", "c", 4), ("d1", "d", 3)]
    run = IsolationRun().of(
        event(*(record("{}", name, "orders.fifo", receives=count, group=group) for name, group, count in entries))
    )
    assert run.wire.acts[0] == CHANGE_VISIBILITY
    assert run.count(CHANGE_VISIBILITY) == 1
    visibilities = {handle.removeprefix("handle-"): seconds for handle, seconds in run.wire.visibilities().items()}
    assert visibilities == {"b1": 31, "b2": 31, "a1": 31, "a2": 31, "d1": 61, "c1": 91}


def test_on_fifo_redelivered_groups_run_as_a_whole_after_the_others() -> None:  # SPEC G4, H1
    entries = [("a1", "a", 2), ("b1", "b", 1), ("a2", "a", 1), ("b2", "b", 3), ("c1", "c", 4)]
    run = IsolationRun().of(
        event(*(record("{}", name, "orders.fifo", receives=count, group=group) for name, group, count in entries))
    )
    assert run.ran == ["b1", "b2", "a1", "a2", "c1"]


def test_each_redelivered_message_is_logged_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    caplog.set_level("INFO")
    named: dict[str, list[str]] = {}

    def handle(message: Message) -> None:
        named[message.id] = [field(line, "message_id") for line in lines(caplog, "isolated_start")]

    IsolationRun(handle).of(batch(fresh=1, redelivered=2, receives=3))
    assert {message_id: names[-1:] for message_id, names in named.items()} == {
        "new-0": [],
        "old-0": ["old-0"],
        "old-1": ["old-1"],
    }
    line = lines(caplog, "isolated_start")[0]
    assert line.levelname == "INFO"
    assert line.lineno > 0
    assert field(line, "receive_count") == 3


def test_a_redelivered_message_that_is_alone_in_its_batch_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4
    caplog.set_level("INFO")
    IsolationRun().of(batch(fresh=0, redelivered=1))
    assert [field(line, "message_id") for line in lines(caplog)] == ["old-0"]


# requests that SQS refuses


def refused(_: Request, __: dict[str, Any]) -> Refusal:
    return "ReceiptHandleIsInvalid", "The input receipt handle is invalid."


def test_a_redelivered_message_whose_receipt_handle_is_refused_is_logged_and_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G5
    run = IsolationRun()
    run.wire.refuses[CHANGE_VISIBILITY] = refused
    run.of(batch(fresh=1, redelivered=2))
    assert sorted(run.ran) == ["new-0", "old-0", "old-1"]
    assert run.reported == []
    assert sorted(field(line, "message_id") for line in lines(caplog, "lease_lost")) == ["old-0", "old-1"]


def test_a_message_with_a_lost_lease_is_not_deleted_and_only_reported_if_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4
    """Another consumer may have the message, so tarry makes no more requests for it."""

    def handle(message: Message) -> None:
        if message.id != "old-0":
            raise Reject

    run = IsolationRun(handle)
    run.wire.refuses[CHANGE_VISIBILITY] = refused
    run.of(batch(fresh=0, redelivered=3))
    assert run.reported == ["old-1", "old-2"]
    assert run.deleted() == []
    assert run.wire.sent_entries() == []
    assert run.count(CHANGE_VISIBILITY) == 1
    not_settled = {field(line, "message_id"): field(line, "not_settled") for line in lines(caplog, "unhandled")}
    assert set(not_settled) == {"old-1", "old-2"}
    assert "lease is lost" in not_settled["old-1"]


@pytest.mark.parametrize(
    "error", [client_error("ServiceUnavailable", status=503), client_error("AccessDenied", status=403), OSError("gone")]
)
@pytest.mark.parametrize("operation", [CHANGE_VISIBILITY, DELETE])
def test_a_failing_request_of_isolation_does_not_affect_the_outcome_of_a_message(
    operation: str, error: Exception
) -> None:  # SPEC G4, G1
    run = IsolationRun()
    run.wire.fails[operation] = error
    run.of(batch(fresh=11, redelivered=11))
    assert len(run.ran) == 22
    assert run.reported == []


def test_a_missing_visibility_permission_is_logged_once_per_cold_start(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    run = IsolationRun()
    run.wire.fails[CHANGE_VISIBILITY] = client_error("AccessDenied", status=403)
    run.of(batch(fresh=0, redelivered=2)).of(batch(fresh=0, redelivered=2))
    assert [field(line, "event") for line in lines(caplog, level=30)] == ["missing_permission"]


def test_a_failed_isolation_is_logged(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    run = IsolationRun()
    run.wire.fails[CHANGE_VISIBILITY] = client_error("ServiceUnavailable", "try again", status=503)
    run.of(batch(fresh=0, redelivered=20))
    [line] = lines(caplog, level=30)
    assert field(line, "event") == "not_set_apart"
    assert "try again" in field(line, "error")


def test_an_acknowledged_message_that_could_not_be_deleted_is_left_to_lambda(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4, G3
    run = IsolationRun()
    run.wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "1" else None
    run.of(batch(fresh=3, redelivered=1))
    assert run.reported == []
    assert [field(line, "message_id") for line in lines(caplog, "delete_failed")] == ["new-1"]


def test_isolation_sends_no_more_deletes_after_sqs_has_not_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4
    run = IsolationRun()
    run.wire.fails[DELETE] = OSError("no route")
    run.of(batch(fresh=5, redelivered=35))
    assert run.count(DELETE) == 1
    assert len(lines(caplog, "delete_failed")) == 1


# time


def test_redelivered_messages_without_time_to_run_are_released_instead_of_isolated() -> None:  # SPEC G4, I2
    def handle(message: Message) -> None:
        current().clock.sleep(16)

    run = IsolationRun(handle).of(batch(fresh=1, redelivered=3))
    assert run.ran == ["new-0"]
    assert run.wire.acts == [CHANGE_VISIBILITY]
    assert set(run.wire.visibilities().values()) == {0}


def test_the_time_of_isolation_does_not_count_as_the_time_of_a_message() -> None:  # SPEC G4, I2
    """Isolation takes 15 of 30 seconds and the messages take none, so there is time for all of them."""
    run = IsolationRun()

    def slow(_: Request) -> None:
        run.wire.clock.now += 15

    run.wire.fails[DELETE] = slow
    run.of(batch(fresh=2, redelivered=3))
    assert len(run.ran) == 5


def test_an_exit_of_a_redelivered_message_releases_those_that_have_not_started() -> None:  # SPEC A5, G4
    def handle(message: Message) -> None:
        if message.id.startswith("old"):
            raise SystemExit

    run = IsolationRun(handle).of(batch(fresh=1, redelivered=3))
    assert len(run.ran) == 2
    assert sorted(run.wire.visibilities().values()) == [0, 0, 60]
    assert run.reported == ["old-0", "old-1", "old-2"]


def test_messages_of_an_async_handler_are_isolated() -> None:  # SPEC G4
    ran: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        ran.append(message.id)
        await current().clock.asleep(0)

    with orders() as wire:
        handler(batch(fresh=2, redelivered=2), Context())
    assert ran[:2] == ["new-0", "new-1"]
    assert wire.acts == [DELETE, CHANGE_VISIBILITY]


# concurrency


class ConcurrentRun:
    """A run of several handlers at once, each of which takes ``seconds``, with the times of their start and end."""

    def __init__(self, sandbox: Sandbox, kind: str, seconds: float, **settings: Any) -> None:
        self.spans: dict[str, tuple[float, float]] = {}
        self.reported: list[str] = []
        self._sandbox = sandbox

        def threads(message: Message) -> None:
            began = sandbox.elapsed
            sandbox.sleep(seconds)
            self.spans[message.delivery_id] = began, sandbox.elapsed

        async def tasks(message: Message) -> None:
            began = sandbox.elapsed
            await current().clock.asleep(seconds)
            self.spans[message.delivery_id] = began, sandbox.elapsed

        function: Any = threads if kind == "threads" else tasks
        self.handler: Any = consumer(**settings)(function)

    def of(self, the_event: dict[str, Any]) -> "ConcurrentRun":
        """Run the consumer with the event in a simulated Lambda function, in virtual time."""
        invoked = [self._sandbox.queue("trigger"), self._sandbox.queue("orders")]
        self._sandbox.connect(lambda _, context: self._invoke(the_event, context), "trigger")
        self._sandbox.send("trigger", invoked[0])
        self._sandbox.run(check=False)
        return self

    def _invoke(self, the_event: dict[str, Any], context: Any) -> None:
        self.reported = failed(self.handler(the_event, context))

    def names(self) -> list[str]:
        """Return the messages that ran, in the order of their start."""
        return sorted(self.spans, key=lambda name: self.spans[name])


THREADS_AND_TASKS = pytest.mark.parametrize("kind", ["threads", "tasks"])


@THREADS_AND_TASKS
def test_with_concurrency_redelivered_messages_start_after_all_fresh_ones_have_ended(
    kind: str, sandbox: Sandbox
) -> None:  # SPEC G4, I1
    """A crash cannot undo a finished message. Redelivered messages run concurrently with each other."""
    run = ConcurrentRun(sandbox, kind, seconds=2, concurrency=4).of(batch(fresh=6, redelivered=3))
    old = [span for name, span in run.spans.items() if name.startswith("old")]
    new = [span for name, span in run.spans.items() if name.startswith("new")]
    assert (len(old), len(new)) == (3, 6)
    assert min(began for began, _ in old) >= max(ended for _, ended in new)
    assert max(began for began, _ in old) < min(ended for _, ended in old)


def test_fresh_messages_are_released_first_when_time_is_short(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I2
    """With 30 seconds for 7 messages of 5 seconds, five run. The two redelivered messages are among them."""

    def handle(message: Message) -> None:
        current().clock.sleep(5)

    run = IsolationRun(handle).of(batch(fresh=5, redelivered=2))
    assert run.ran[:3] == ["new-0", "new-1", "new-2"]
    assert sorted(run.ran[3:]) == ["old-0", "old-1"]
    assert run.reported == ["new-3", "new-4"]
    [line] = lines(caplog, "out_of_time")
    assert "2 of 7 messages were not started" in field(line, "text")


def test_redelivered_messages_with_the_fewest_deliveries_are_released_first() -> None:  # SPEC I2, G4
    """Otherwise, messages with many deliveries would be released each time and dead-lettered without a run."""

    def handle(message: Message) -> None:
        current().clock.sleep(5)

    counts = [2, 2, 2, 5, 2, 7, 2]
    run = IsolationRun(handle).of(event(*(record("{}", f"m{i}", receives=count) for i, count in enumerate(counts))))
    assert len(run.ran) == 5
    assert run.ran[-2:] == ["m3", "m5"]
    assert not {"m3", "m5"} & set(run.reported)


@THREADS_AND_TASKS
def test_with_concurrency_fresh_messages_are_released_first_when_time_is_short(
    kind: str, sandbox: Sandbox
) -> None:  # SPEC I2, I1
    """With 30 seconds for 14 messages of 5 seconds, two at a time, ten run, including all four redelivered messages."""
    run = ConcurrentRun(sandbox, kind, seconds=5, concurrency=2).of(batch(fresh=10, redelivered=4))
    ran = run.names()
    assert sorted(ran[-4:]) == ["old-0", "old-1", "old-2", "old-3"]
    assert len(ran) == 10
    assert {name[:3] for name in run.reported} == {"new"}
