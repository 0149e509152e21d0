"""Crash isolation: what was delivered before runs last, and is set apart from the rest before it starts."""

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

HIDE, DELETE = "ChangeMessageVisibilityBatch", "DeleteMessageBatch"


def orders(**more: Any) -> Wire:
    names = ("orders", "orders.fifo")
    return Wire(queues={name: Queue(dead_letter="dead", visibility_timeout=180) for name in names}, **more)


def batch(fresh: int, before: int, queue: str = "orders", receives: int = 2) -> dict[str, Any]:
    """Messages that were delivered before, and behind them fresh ones; on FIFO each of a group of its own."""
    names = [*(f"old-{index}" for index in range(before)), *(f"new-{index}" for index in range(fresh))]
    counts = [*([receives] * before), *([1] * fresh)]
    return event(
        *(record("{}", name, queue, receives=count, group=name) for name, count in zip(names, counts, strict=True))
    )


class Seen:
    """A consumer, the order in which it ran, and what had been sent when each message started."""

    def __init__(self, handle: Callable[[Message], None] = lambda _: None, **settings: Any) -> None:
        self.wire = orders()
        self.ran: list[str] = []
        self.before: dict[str, list[Request]] = {}
        self.reported: list[str] = []

        @consumer(**{"backoff": Fixed(60), **settings})
        def handler(message: Message) -> None:
            self.ran.append(message.delivery_id)
            self.before[message.delivery_id] = list(self.wire.requests)
            handle(message)

        self.handler: Consumer[Any] = handler

    def of(self, the_event: dict[str, Any], remaining: float = 30) -> "Seen":
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


def test_what_was_delivered_before_runs_behind_the_fresh_ones() -> None:  # SPEC G4
    seen = Seen().of(batch(fresh=3, before=3))
    assert seen.ran[:3] == ["new-0", "new-1", "new-2"]
    assert sorted(seen.ran[3:]) == ["old-0", "old-1", "old-2"]


def test_what_is_acknowledged_is_deleted_before_the_first_of_them_starts() -> None:  # SPEC G4
    seen = Seen().of(batch(fresh=12, before=1))
    deletes = [request for request in seen.before["old-0"] if request.operation == DELETE]
    assert sorted(len(request.entries) for request in deletes) == [2, 10]
    assert seen.before["new-11"] == []


def test_what_has_failed_is_not_deleted() -> None:  # SPEC A2, G4
    def handle(message: Message) -> None:
        if message.id == "new-1":
            raise ValueError

    seen = Seen(handle).of(batch(fresh=3, before=1))
    assert seen.deleted() == ["new-0", "new-2"]
    assert seen.reported == ["new-1"]


def test_each_of_them_gets_a_visibility_of_its_own_beyond_the_deadline() -> None:  # SPEC G4
    """The deadline is in 30 seconds, the margin of a loaded boto3 1 second."""
    seen = Seen().of(batch(fresh=1, before=4))
    [spread] = [request for request in seen.before[seen.ran[1]] if request.operation == HIDE]
    visibility = {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in spread.entries}
    assert [visibility[f"handle-{message_id}"] for message_id in seen.ran[1:]] == [31, 61, 91, 121]


@pytest.mark.parametrize(("count", "last"), [(31, 931), (61, 931), (1_000, 931)])
def test_however_many_there_are_they_come_back_within_a_quarter_of_an_hour(count: int, last: int) -> None:  # SPEC G4
    seen = Seen().of(batch(fresh=0, before=count))
    times = sorted(seen.wire.visibilities().values())
    assert times[0] == 31
    assert times[-1] == last
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert max(steps) - min(steps) <= 1


def test_none_is_hidden_for_longer_than_sqs_allows() -> None:  # SPEC G4, C6
    """With half a second less than 12 hours left, on a function of that kind."""
    seen = Seen().of(batch(fresh=0, before=3), remaining=43_199)
    assert set(seen.wire.visibilities().values()) == {43_200 - 330 - 1}


def test_what_fails_afterwards_waits_for_as_long_as_its_policy_says() -> None:  # SPEC G4, G1
    def handle(message: Message) -> None:
        raise ValueError

    seen = Seen(handle).of(batch(fresh=0, before=2))
    assert set(seen.wire.visibilities().values()) == {60}
    assert seen.reported == ["old-0", "old-1"]


def test_a_batch_of_one_sends_nothing() -> None:  # SPEC G4
    assert Seen().of(batch(fresh=0, before=1)).wire.requests == []


def test_a_single_one_is_not_hidden_since_there_is_nobody_to_be_set_apart_from() -> None:  # SPEC G4
    assert Seen().of(batch(fresh=2, before=1)).wire.operations == [DELETE]


def test_a_batch_handler_has_its_messages_as_they_come() -> None:  # SPEC G4
    given: list[str] = []

    @batch_consumer
    def handler(messages: Any) -> None:
        given.extend(message.id for message in messages)

    with orders() as wire:
        handler(batch(fresh=2, before=2), Context())
    assert given == ["old-0", "old-1", "new-0", "new-1"]
    assert wire.requests == []


def test_isolate_false_turns_it_off(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    caplog.set_level("DEBUG")
    seen = Seen(isolate=False).of(batch(fresh=2, before=2))
    assert seen.ran == ["old-0", "old-1", "new-0", "new-1"]
    assert seen.wire.requests == []
    assert lines(caplog) == []


def test_without_a_deadline_only_the_order_is_kept() -> None:  # SPEC G4
    """A handler called by hand, without a context: nothing will kill it."""
    seen = Seen()
    with seen.wire:
        seen.handler(batch(fresh=1, before=2), None)
    assert seen.ran[0] == "new-0"
    assert seen.wire.requests == []


@pytest.mark.parametrize(("fresh", "before"), [(0, 2), (5, 5), (0, 10), (10, 10), (7, 93), (95, 5), (300, 200)])
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_it_makes_few_requests_more(fresh: int, before: int, queue: str) -> None:  # SPEC G4
    """At most one for ten that are acknowledged and one for ten that were delivered before; on FIFO beside those that
    renew its leases."""
    seen = Seen().of(batch(fresh, before, queue))
    assert seen.reported == []
    renewing = -(-(fresh + before) // 10) if queue == "orders.fifo" else 0
    assert len(seen.wire.requests) - renewing <= -(-(fresh + before) // 10) - (-before // 10)


def test_while_they_run_what_is_acknowledged_is_deleted_in_tens() -> None:  # SPEC G4, G3
    seen = Seen().of(batch(fresh=0, before=35))
    assert [len(request.entries) for request in seen.wire.sent(DELETE)] == [10, 10, 10]
    assert sorted(seen.deleted()) == sorted(seen.ran[:30])


@pytest.mark.parametrize(
    ("fresh", "before", "deleted"),
    [(0, 10, [3, 5]), (0, 9, [3, 5]), (0, 3, [1]), (0, 2, [1]), (5, 5, [5, 3]), (9, 1, [9]), (8, 2, [8, 1])],
)
def test_on_fifo_they_are_deleted_as_they_go(fresh: int, before: int, deleted: list[int]) -> None:  # SPEC G4
    """Messages of a group come back together after a crash: what ran before the poison must be done with."""
    seen = Seen().of(batch(fresh, before, "orders.fifo"))
    assert [len(request.entries) for request in seen.wire.sent(DELETE)] == deleted


def test_on_fifo_they_are_deleted_at_other_places_each_time() -> None:  # SPEC G4
    """So that however few stand before the poison in its group, they are done with after some crashes."""
    deletes = [Seen().of(batch(0, 10, "orders.fifo", receives)).wire.sent(DELETE) for receives in range(2, 8)]
    assert [len(first.entries) for first, *_ in deletes] == [3, 4, 5, 1, 2, 3]


def test_on_fifo_groups_come_back_one_by_one_each_as_one() -> None:  # SPEC G4, H1
    """By the one request that renews the leases anyway: no message of a group is hidden longer than its head."""
    entries = [("a1", "a", 2), ("b1", "b", 1), ("a2", "a", 1), ("b2", "b", 3), ("c1", "c", 4), ("d1", "d", 3)]
    seen = Seen().of(
        event(*(record("{}", name, "orders.fifo", receives=count, group=group) for name, group, count in entries))
    )
    assert seen.wire.operations[0] == HIDE
    assert seen.count(HIDE) == 1
    hidden = {handle.removeprefix("handle-"): seconds for handle, seconds in seen.wire.visibilities().items()}
    assert hidden == {"b1": 31, "b2": 31, "a1": 31, "a2": 31, "d1": 61, "c1": 91}


def test_on_fifo_a_group_that_was_delivered_before_runs_behind_the_others_as_a_whole() -> None:  # SPEC G4, H1
    entries = [("a1", "a", 2), ("b1", "b", 1), ("a2", "a", 1), ("b2", "b", 3), ("c1", "c", 4)]
    seen = Seen().of(
        event(*(record("{}", name, "orders.fifo", receives=count, group=group) for name, group, count in entries))
    )
    assert seen.ran == ["b1", "b2", "a1", "a2", "c1"]


def test_each_is_named_in_the_log_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    caplog.set_level("INFO")
    named: dict[str, list[str]] = {}

    def handle(message: Message) -> None:
        named[message.id] = [field(line, "message_id") for line in lines(caplog, "suspect_started")]

    Seen(handle).of(batch(fresh=1, before=2, receives=3))
    assert {message_id: names[-1:] for message_id, names in named.items()} == {
        "new-0": [],
        "old-0": ["old-0"],
        "old-1": ["old-1"],
    }
    line = lines(caplog, "suspect_started")[0]
    assert line.levelname == "INFO"
    assert field(line, "receive_count") == 3


def test_one_that_is_alone_is_named_too(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    caplog.set_level("INFO")
    Seen().of(batch(fresh=0, before=1))
    assert [field(line, "message_id") for line in lines(caplog)] == ["old-0"]


# when SQS does not do what it is asked for


def refused(_: Request, __: dict[str, Any]) -> Refusal:
    return "ReceiptHandleIsInvalid", "The input receipt handle is invalid."


def test_a_refused_handle_is_logged_and_the_message_runs(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G5
    seen = Seen()
    seen.wire.refuses[HIDE] = refused
    seen.of(batch(fresh=1, before=2))
    assert sorted(seen.ran) == ["new-0", "old-0", "old-1"]
    assert seen.reported == []
    assert sorted(field(line, "message_id") for line in lines(caplog, "lease_lost")) == ["old-0", "old-1"]


def test_a_message_whose_lease_is_lost_is_not_deleted_and_when_it_fails_only_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4
    """Somebody else has it, or had it: nothing is done with it at SQS any more."""

    def handle(message: Message) -> None:
        if message.id != "old-0":
            raise Reject

    seen = Seen(handle)
    seen.wire.refuses[HIDE] = refused
    seen.of(batch(fresh=0, before=3))
    assert seen.reported == ["old-1", "old-2"]
    assert seen.deleted() == []
    assert seen.wire.letters() == []
    assert seen.count(HIDE) == 1
    told = {field(line, "message_id"): field(line, "not_settled") for line in lines(caplog, "unhandled")}
    assert set(told) == {"old-1", "old-2"}
    assert "lease is lost" in told["old-1"]


@pytest.mark.parametrize(
    "error", [client_error("ServiceUnavailable", status=503), client_error("AccessDenied", status=403), OSError("gone")]
)
@pytest.mark.parametrize("operation", [HIDE, DELETE])
def test_a_request_that_fails_changes_no_messages_fate(operation: str, error: Exception) -> None:  # SPEC G4, G1
    seen = Seen()
    seen.wire.fails[operation] = error
    seen.of(batch(fresh=11, before=11))
    assert len(seen.ran) == 22
    assert seen.reported == []


def test_a_missing_permission_is_said_once_a_cold_start(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    seen = Seen()
    seen.wire.fails[HIDE] = client_error("AccessDenied", status=403)
    seen.of(batch(fresh=0, before=2)).of(batch(fresh=0, before=2))
    assert [field(line, "event") for line in lines(caplog, level=30)] == ["missing_permission"]


def test_where_they_could_not_be_set_apart_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    seen = Seen()
    seen.wire.fails[HIDE] = client_error("ServiceUnavailable", "try again", status=503)
    seen.of(batch(fresh=0, before=20))
    [line] = lines(caplog, level=30)
    assert field(line, "event") == "not_set_apart"
    assert "try again" in field(line, "error")


def test_an_acknowledged_message_that_could_not_be_deleted_is_left_to_lambda(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC G4, G3
    seen = Seen()
    seen.wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "1" else None
    seen.of(batch(fresh=3, before=1))
    assert seen.reported == []
    assert [field(line, "message_id") for line in lines(caplog, "delete_failed")] == ["new-1"]


def test_when_sqs_gives_no_answer_it_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:  # SPEC G4
    seen = Seen()
    seen.wire.fails[DELETE] = OSError("no route")
    seen.of(batch(fresh=5, before=35))
    assert seen.count(DELETE) == 1
    assert len(lines(caplog, "delete_failed")) == 1


# time


def test_it_is_left_out_where_there_is_no_time_for_them() -> None:  # SPEC G4, I2
    def handle(message: Message) -> None:
        current().clock.sleep(16)

    seen = Seen(handle).of(batch(fresh=1, before=3))
    assert seen.ran == ["new-0"]
    assert seen.wire.operations == [HIDE]
    assert set(seen.wire.visibilities().values()) == {0}


def test_what_it_takes_is_not_taken_for_the_time_of_a_message() -> None:  # SPEC G4, I2
    """Of 30 seconds it takes 15; the messages take nothing, and there is time for all of them."""
    seen = Seen()

    def slow(_: Request) -> None:
        seen.wire.clock.now += 15

    seen.wire.fails[DELETE] = slow
    seen.of(batch(fresh=2, before=3))
    assert len(seen.ran) == 5


def test_an_exit_after_it_gives_back_what_was_not_started() -> None:  # SPEC A5, G4
    def handle(message: Message) -> None:
        if message.id.startswith("old"):
            raise SystemExit

    seen = Seen(handle).of(batch(fresh=1, before=3))
    assert len(seen.ran) == 2
    assert sorted(seen.wire.visibilities().values()) == [0, 0, 60]
    assert seen.reported == ["old-0", "old-1", "old-2"]


def test_with_an_async_handler_it_is_the_same() -> None:  # SPEC G4
    ran: list[str] = []

    @consumer
    async def handler(message: Message) -> None:
        ran.append(message.id)
        await current().clock.asleep(0)

    with orders() as wire:
        handler(batch(fresh=2, before=2), Context())
    assert ran[:2] == ["new-0", "new-1"]
    assert wire.operations == [DELETE, HIDE]


# beside each other


class Several:
    """A consumer of which several handlers run at once, each for some seconds, and when each began and ended."""

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

    def of(self, the_event: dict[str, Any]) -> "Several":
        """Runs it over an event, as the simulated Lambda would, in virtual time."""
        invoked = [self._sandbox.queue("trigger"), self._sandbox.queue("orders")]
        self._sandbox.connect(lambda _, context: self._invoke(the_event, context), "trigger")
        self._sandbox.send("trigger", invoked[0])
        self._sandbox.run(check=False)
        return self

    def _invoke(self, the_event: dict[str, Any], context: Any) -> None:
        self.reported = failed(self.handler(the_event, context))

    def names(self) -> list[str]:
        """What ran, in the order in which it began."""
        return sorted(self.spans, key=lambda name: self.spans[name])


SEVERAL = pytest.mark.parametrize("kind", ["threads", "tasks"])


@SEVERAL
def test_beside_each_other_they_start_when_all_others_have_ended(kind: str, sandbox: Sandbox) -> None:  # SPEC G4, I1
    """Nothing that is done with can be lost by their crash; among each other they run side by side."""
    seen = Several(sandbox, kind, seconds=2, concurrency=4).of(batch(fresh=6, before=3))
    old = [span for name, span in seen.spans.items() if name.startswith("old")]
    new = [span for name, span in seen.spans.items() if name.startswith("new")]
    assert (len(old), len(new)) == (3, 6)
    assert min(began for began, _ in old) >= max(ended for _, ended in new)
    assert max(began for began, _ in old) < min(ended for _, ended in old)


def test_fresh_messages_give_way_when_time_is_short(caplog: pytest.LogCaptureFixture) -> None:  # SPEC I2
    """Of 30 seconds and 7 messages of 5, there is time for five: the two that were delivered before are among them."""

    def handle(message: Message) -> None:
        current().clock.sleep(5)

    seen = Seen(handle).of(batch(fresh=5, before=2))
    assert seen.ran[:3] == ["new-0", "new-1", "new-2"]
    assert sorted(seen.ran[3:]) == ["old-0", "old-1"]
    assert seen.reported == ["new-3", "new-4"]
    [line] = lines(caplog, "out_of_time")
    assert "2 of 7 messages were not started" in field(line, "text")


def test_of_those_that_were_delivered_before_the_fewest_deliveries_give_way() -> None:  # SPEC I2, G4
    """Last in the order, the others would be given back each time, and reach the dead-letter queue unrun."""

    def handle(message: Message) -> None:
        current().clock.sleep(5)

    counts = [2, 2, 2, 5, 2, 7, 2]
    seen = Seen(handle).of(event(*(record("{}", f"m{i}", receives=count) for i, count in enumerate(counts))))
    assert len(seen.ran) == 5
    assert seen.ran[-2:] == ["m3", "m5"]
    assert not {"m3", "m5"} & set(seen.reported)


@SEVERAL
def test_fresh_messages_give_way_where_several_run_at_once(kind: str, sandbox: Sandbox) -> None:  # SPEC I2, I1
    """Of 30 seconds and 14 messages of 5, two at a time, there is time for ten: all four of the old ones are there."""
    seen = Several(sandbox, kind, seconds=5, concurrency=2).of(batch(fresh=10, before=4))
    ran = seen.names()
    assert sorted(ran[-4:]) == ["old-0", "old-1", "old-2", "old-3"]
    assert len(ran) == 10
    assert {name[:3] for name in seen.reported} == {"new"}
