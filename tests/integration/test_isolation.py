"""Crash isolation: redelivered messages run last, and each gets a visibility timeout of its own before they start."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tarry import Consumer, Fixed, LeaseLost, Message, Reject, batch_consumer, consumer
from tarry.testing import Sandbox
from tarry.world import current
from tests.handlers import timed
from tests.loglines import Caplog, field, lines
from tests.records import Context, event, failed, record
from tests.settled import orders
from tests.wire import Request, client_error

CHANGE_VISIBILITY, DELETE = "ChangeMessageVisibilityBatch", "DeleteMessageBatch"
CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 2])


def batch(fresh: int, redelivered: int, queue: str = "orders", receives: int = 2) -> dict[str, Any]:
    """Return an event of redelivered messages and fresh ones behind them; on FIFO each message has its own group."""
    counts = {f"old-{index}": receives for index in range(redelivered)}
    counts |= {f"new-{index}": 1 for index in range(fresh)}
    return event(*(record("{}", name, queue, receives=count, group=name) for name, count in counts.items()))


def nothing(_: Message) -> None: ...


def sleeps(seconds: float) -> Callable[[Message], None]:
    return lambda _: current().clock.sleep(seconds)


class IsolationRun:
    """A run of a consumer: the order of its messages, and the requests sent before each of them started."""

    def __init__(self, handle: Callable[[Message], None] = nothing, **settings: Any) -> None:
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

    def of(self, the_event: dict[str, Any], context: Any = None, remaining: float = 30) -> "IsolationRun":
        with self.wire:
            self.reported = failed(self.handler(the_event, context or Context(remaining)))
        return self

    @property
    def sizes_of_deletes(self) -> list[int]:
        return [len(request.entries) for request in self.wire.sent(DELETE)]

    @property
    def deleted(self) -> list[str]:
        entries = [entry for request in self.wire.sent(DELETE) for entry in request.entries]
        return [entry["ReceiptHandle"].removeprefix("handle-") for entry in entries]

    @property
    def visibilities(self) -> dict[str, int]:
        return {handle.removeprefix("handle-"): seconds for handle, seconds in self.wire.visibilities().items()}


def test_redelivered_messages_run_last_when_the_others_are_deleted_and_each_has_its_visibility() -> None:  # SPEC A2, G4
    """The deadline is in 30 seconds. With boto3 loaded, the margin is 1 second."""

    def fail_one(message: Message) -> None:
        if message.id == "new-1":
            raise ValueError

    run = IsolationRun(fail_one).of(batch(fresh=12, redelivered=4))
    assert run.ran[:12] == [f"new-{index}" for index in range(12)]
    assert sorted(run.ran[12:]) == ["old-0", "old-1", "old-2", "old-3"]
    assert [request for request in run.before["new-11"] if request.operation == DELETE] == []
    before = run.before[run.ran[12]]
    assert sorted(len(request.entries) for request in before if request.operation == DELETE) == [1, 10]
    assert sorted(run.deleted) == sorted(f"new-{index}" for index in range(12) if index != 1)
    [spread] = [each for each in before if each.operation == CHANGE_VISIBILITY and len(each.entries) == 4]
    visibility = {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in spread.entries}
    assert [visibility[f"handle-{message_id}"] for message_id in run.ran[12:]] == [31, 61, 91, 121]
    assert run.reported == ["new-1"]


@pytest.mark.parametrize("count", [31, 61, 1_000])
def test_any_number_of_redelivered_messages_come_back_within_15_minutes_of_each_other(count: int) -> None:  # SPEC G4
    times = sorted(IsolationRun().of(batch(fresh=0, redelivered=count)).visibilities.values())
    assert (times[0], times[-1]) == (31, 931)
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert max(steps) - min(steps) <= 1


def test_the_visibility_timeouts_of_isolation_stay_within_the_limit_of_sqs() -> None:  # SPEC G4, C6
    run = IsolationRun().of(batch(fresh=0, redelivered=3), remaining=43_199)
    assert set(run.visibilities.values()) == {43_200 - 330 - 1}


def test_a_redelivered_message_that_fails_waits_for_its_policy_and_an_exit_releases_those_behind_it() -> None:
    # SPEC A5, G1, G4
    def fail(message: Message) -> None:
        raise SystemExit if message.receive_count == 3 else ValueError

    run = IsolationRun(fail).of(batch(fresh=0, redelivered=2))
    assert (run.reported, run.visibilities) == (["old-0", "old-1"], {"old-0": 60, "old-1": 60})
    assert [entry["VisibilityTimeout"] for entry in run.before[run.ran[0]][-1].entries] == [31, 61]
    run = IsolationRun(fail).of(batch(fresh=0, redelivered=3, receives=3))
    assert (len(run.ran), run.reported) == (1, ["old-0", "old-1", "old-2"])
    assert sorted(run.visibilities.values()) == [0, 0, 60]


@pytest.mark.parametrize("fresh", [0, 3])
def test_with_concurrency_too_redelivered_messages_are_isolated_before_the_first_of_them(fresh: int) -> None:
    """SPEC G4, I1."""
    run = IsolationRun(concurrency=2).of(batch(fresh, redelivered=2))
    acts = {each.operation for each in run.before[run.ran[fresh]]} - {"GetQueueAttributes"}
    assert acts == {CHANGE_VISIBILITY, *[DELETE][:fresh]}
    assert sorted(run.visibilities.values()) == [31, 61]


@CONCURRENCY
def test_an_exit_of_a_fresh_message_isolates_no_redelivered_one(concurrency: int) -> None:  # SPEC A5, G4
    def leave(_: Message) -> None:
        raise SystemExit

    run = IsolationRun(leave, concurrency=concurrency).of(batch(fresh=concurrency, redelivered=2))
    entries = [entry for request in run.wire.sent(CHANGE_VISIBILITY) for entry in request.entries]
    assert [entry["VisibilityTimeout"] for entry in entries] == [*[60] * concurrency, 0, 0]


def test_each_redelivered_message_is_logged_first_and_a_single_one_no_more(caplog: Caplog) -> None:  # SPEC G4
    caplog.set_level("INFO")
    named: dict[str, list[str]] = {}

    def handle(message: Message) -> None:
        named[message.id] = [field(line, "message_id") for line in lines(caplog, "isolated_start")][-1:]

    IsolationRun(handle).of(batch(fresh=1, redelivered=2, receives=3))
    assert named == {"new-0": [], "old-0": ["old-0"], "old-1": ["old-1"]}
    line = lines(caplog, "isolated_start")[0]
    assert (line.levelname, field(line, "receive_count"), line.lineno > 0) == ("INFO", 3, True)
    caplog.clear()
    assert IsolationRun(sleeps(5)).of(batch(fresh=0, redelivered=1)).wire.acts == []
    assert [field(line, "message_id") for line in lines(caplog)] == ["old-0"]
    assert IsolationRun().of(batch(fresh=2, redelivered=1)).wire.acts == [DELETE]


def test_isolate_false_turns_isolation_off_and_batch_handlers_have_none(caplog: Caplog) -> None:  # SPEC G4
    caplog.set_level("DEBUG")
    the_event, received = batch(fresh=2, redelivered=2), list[str]()
    run = IsolationRun(isolate=False).of(the_event)
    with orders() as wire:
        batch_consumer(lambda messages: received.extend(message.id for message in messages))(the_event, Context())
    assert run.ran == received == ["old-0", "old-1", "new-0", "new-1"]
    assert (run.wire.acts, wire.acts, lines(caplog)) == ([], [], [])


@CONCURRENCY
def test_without_a_deadline_isolation_only_changes_the_order(concurrency: int) -> None:  # SPEC G4
    run = IsolationRun(concurrency=concurrency).of(batch(fresh=1, redelivered=2), object())
    assert (run.ran[0], run.wire.requests) == ("new-0", [])


# deletes, and FIFO


def test_acknowledged_messages_are_deleted_in_tens_while_redelivered_ones_run() -> None:  # SPEC G4, G3
    run = IsolationRun().of(batch(fresh=0, redelivered=35))
    assert run.sizes_of_deletes == [10, 10, 10]
    assert sorted(run.deleted) == sorted(run.ran[:30])


@pytest.mark.parametrize(
    ("fresh", "redelivered", "receives", "deleted"),
    [
        *((0, 10, 2, [3, 5]), (0, 9, 2, [3, 5]), (0, 3, 2, [1]), (0, 2, 2, [1])),
        *((5, 5, 2, [5, 3]), (9, 1, 2, [9]), (8, 2, 2, [8, 1])),
        *((0, 10, 3, [4, 5]), (0, 10, 4, [5]), (0, 10, 5, [1, 5]), (0, 10, 6, [2, 5]), (0, 10, 7, [3, 5])),
    ],
)
def test_on_fifo_acknowledged_messages_are_deleted_while_redelivered_groups_run(
    fresh: int, redelivered: int, receives: int, deleted: list[int]
) -> None:  # SPEC G4
    """The messages of a group come back together after a crash, so those before the poison message must be deleted.

    At each delivery, the deletes come after other messages, so that all are done after some crashes.
    """
    run = IsolationRun().of(batch(fresh, redelivered, "orders.fifo", receives))
    assert run.sizes_of_deletes == deleted


def test_on_fifo_redelivered_groups_run_last_as_a_whole_each_with_its_visibility_timeout() -> None:  # SPEC G4, H1
    """By the one request that renews the leases anyway. All messages of a group get the same visibility timeout."""
    counts = {"a1": 2, "b1": 1, "a2": 1, "b2": 3, "c1": 4, "d1": 3}
    run = IsolationRun().of(
        event(*(record("{}", name, "orders.fifo", count, group=name[0]) for name, count in counts.items()))
    )
    assert run.ran == ["b1", "b2", "a1", "a2", "d1", "c1"]
    assert (run.wire.acts[0], run.wire.acts.count(CHANGE_VISIBILITY)) == (CHANGE_VISIBILITY, 1)
    assert run.visibilities == {"b1": 31, "b2": 31, "a1": 31, "a2": 31, "d1": 61, "c1": 91}


# requests that fail, and lost leases


def test_a_redelivered_message_with_a_lost_lease_runs_and_is_only_reported(caplog: Caplog) -> None:  # SPEC G4, G5
    """Another consumer may have the message, so tarry makes no more requests for it."""

    def handle(message: Message) -> None:
        if message.id != "old-0":
            raise Reject

    run = IsolationRun(handle)
    run.wire.refuses[CHANGE_VISIBILITY] = lambda *_: ("ReceiptHandleIsInvalid", "The receipt handle is invalid.")
    run.of(batch(fresh=0, redelivered=3))
    assert (sorted(run.ran), run.reported) == (["old-0", "old-1", "old-2"], ["old-1", "old-2"])
    assert run.wire.acts == [CHANGE_VISIBILITY]
    assert sorted(field(line, "message_id") for line in lines(caplog, "lease_lost")) == ["old-0", "old-1", "old-2"]
    not_settled = {field(line, "message_id"): field(line, "not_settled") for line in lines(caplog, "unhandled")}
    assert set(not_settled) == {"old-1", "old-2"}
    assert {field(line, "event") for line in lines(caplog)} == {"lease_lost", "unhandled"}
    assert "lease is lost" in not_settled["old-1"]


@pytest.mark.parametrize(
    ("operation", "error", "logged"),
    [
        (CHANGE_VISIBILITY, client_error("ServiceUnavailable", "try again", status=503), "not_set_apart"),
        (CHANGE_VISIBILITY, client_error("AccessDenied", status=403), "missing_permission"),
        (CHANGE_VISIBILITY, OSError("try again"), "not_set_apart"),
        (DELETE, client_error("ServiceUnavailable", "try again", status=503), "delete_failed"),
        (DELETE, client_error("AccessDenied", status=403), "missing_permission"),
        (DELETE, OSError("try again"), "delete_failed"),
    ],
)
def test_a_failing_request_of_isolation_is_only_logged(
    operation: str, error: Exception, logged: str, caplog: Caplog
) -> None:  # SPEC A8, G4, G1
    run = IsolationRun()
    run.wire.fails[operation] = error
    run.of(batch(fresh=11, redelivered=11))
    assert (len(run.ran), run.reported) == (22, [])
    assert {field(line, "event") for line in lines(caplog, level=30)} == {logged}
    assert logged == "missing_permission" or "try again" in field(lines(caplog, logged)[0], "error")
    if logged == "missing_permission":
        run.of(batch(fresh=0, redelivered=2))
        assert len(lines(caplog, level=30)) == 1


def test_isolation_sends_no_more_deletes_after_sqs_has_not_answered_and_leaves_those_messages_to_lambda(
    caplog: Caplog,
) -> None:  # SPEC G3, G4
    run = IsolationRun()
    run.wire.fails[DELETE] = OSError("no route")
    run.of(batch(fresh=5, redelivered=35))
    assert len(run.wire.sent(DELETE)) == len(lines(caplog, "delete_failed")) == 1
    caplog.clear()
    run = IsolationRun()
    run.wire.refuses[DELETE] = lambda _, entry: ("InternalError", "no") if entry["Id"] == "1" else None
    assert run.of(batch(fresh=3, redelivered=1)).reported == []
    assert [field(line, "message_id") for line in lines(caplog, "delete_failed")] == ["new-1"]


def test_a_message_acknowledged_after_it_lost_its_lease_is_not_deleted_early() -> None:  # SPEC G3, E6
    """On a standard queue, an old receipt handle changes the newer delivery, which may be running."""

    def handle(message: Message) -> None:
        with pytest.raises(LeaseLost):
            message.extend(60)

    run = IsolationRun(handle, ack="eager")
    run.wire.refuses[CHANGE_VISIBILITY] = lambda *_: ("ReceiptHandleIsInvalid", "")
    assert (run.of(batch(fresh=10, redelivered=0)).reported, run.deleted) == ([], [])


# time


def not_started(caplog: Caplog) -> list[str]:
    """Return how many messages were not started, and of how many, as each line about lacking time says."""
    return [field(line, "text").partition(" messages were not started")[0] for line in lines(caplog, "out_of_time")]


@CONCURRENCY
def test_redelivered_messages_without_time_to_run_are_released_instead_of_isolated(
    concurrency: int, caplog: Caplog
) -> None:  # SPEC G4, I2
    run = IsolationRun(sleeps(16), concurrency=concurrency).of(batch(fresh=1, redelivered=3))
    assert (run.ran, run.wire.acts) == (["new-0"], [CHANGE_VISIBILITY])
    assert (set(run.visibilities.values()), not_started(caplog)) == ({0}, ["3 of 4"])


@pytest.mark.parametrize(("seconds", "fresh", "count"), [(15, 2, 5), (29.5, 2, 2), (29.5, 0, 3)])
def test_the_time_of_isolation_does_not_count_as_the_time_of_a_message(seconds: float, fresh: int, count: int) -> None:
    """SPEC G4, I2. If no time is left, only the first message of a batch starts, and those that follow at once."""
    run = IsolationRun()
    run.wire.fails[CHANGE_VISIBILITY] = lambda _: run.wire.clock.sleep(seconds)
    run.of(batch(fresh, redelivered=3))
    assert (len(run.ran), len(run.reported)) == (count, fresh + 3 - count)


def test_fresh_messages_are_released_first_when_time_is_short(caplog: Caplog) -> None:  # SPEC I2
    """With 30 seconds for 7 messages of 5 seconds, five run. The two redelivered messages are among them."""
    run = IsolationRun(sleeps(5)).of(batch(fresh=5, redelivered=2))
    assert (run.ran[:3], sorted(run.ran[3:])) == (["new-0", "new-1", "new-2"], ["old-0", "old-1"])
    assert (run.reported, not_started(caplog)) == (["new-3", "new-4"], ["2 of 7"])


def test_redelivered_messages_with_the_fewest_deliveries_are_released_first(caplog: Caplog) -> None:  # SPEC I2, G4
    """Otherwise, messages with many deliveries would be released each time and dead-lettered without a run."""
    counts = [2, 2, 2, 5, 2, 7, 2]
    run = IsolationRun(sleeps(5)).of(event(*(record("{}", f"m{i}", receives=n) for i, n in enumerate(counts))))
    assert (len(run.ran), run.ran[-2:]) == (5, ["m3", "m5"])
    assert not {"m3", "m5"} & set(run.reported)
    assert not_started(caplog) == ["2 of 7"]


@CONCURRENCY
def test_redelivered_messages_are_released_only_for_those_with_more_deliveries(
    concurrency: int, caplog: Caplog
) -> None:
    """SPEC I2, G4. There is time for one more message: the one with the most deliveries."""
    run = IsolationRun(lambda message: sleeps(14)(message) if message.receive_count == 1 else None)
    run.handler = run.handler.replace(concurrency=concurrency)
    run.of(event(*(record("{}", f"m{count}", receives=count) for count in (1, 2, 3, 9))))
    assert (run.reported, run.ran, not_started(caplog)) == (["m2", "m3"], ["m1", "m9"], ["2 of 4"])
    assert ("m9" in run.visibilities) is (concurrency == 2)  # one after the other, it is alone when it is isolated


Spans = dict[str, tuple[float, float]]


def run_at_once(the_event: dict[str, Any], sandbox: Sandbox, kind: str, concurrency: int, seconds: float) -> Any:
    """Run several handlers at once, each of some seconds; return the times of each, and the ids reported as failed."""
    spans, reported = Spans(), list[str]()

    def end(message: Message) -> None:
        spans[message.delivery_id] = sandbox.elapsed - seconds, sandbox.elapsed

    inner = timed(kind, lambda _: seconds, end, concurrency=concurrency)
    trigger = sandbox.queue("trigger")
    sandbox.queue("orders")
    sandbox.connect(lambda _, context: reported.extend(failed(inner(the_event, context))), "trigger")
    sandbox.send("trigger", trigger)
    sandbox.run(check=False)
    return spans, reported


THREADS_AND_TASKS = pytest.mark.parametrize("kind", ["sync", "async"], ids=["threads", "tasks"])


@THREADS_AND_TASKS
def test_with_concurrency_redelivered_messages_start_after_all_fresh_ones(kind: str, sandbox: Sandbox) -> None:
    """SPEC G4, I1. A crash cannot undo a finished message. Redelivered messages run concurrently with each other."""
    spans, _ = run_at_once(batch(fresh=6, redelivered=3), sandbox, kind, concurrency=4, seconds=2)
    old, new = ([span for name, span in spans.items() if name.startswith(age)] for age in ("old", "new"))
    assert (len(old), len(new)) == (3, 6)
    assert min(began for began, _ in old) >= max(ended for _, ended in new)
    assert max(began for began, _ in old) < min(ended for _, ended in old)


@pytest.mark.parametrize(("kind", "concurrency"), [("sync", 2), ("async", 1)], ids=["threads", "tasks"])
def test_without_redelivered_messages_a_message_starts_if_one_more_fits_in_the_time_left(
    kind: str, concurrency: int, sandbox: Sandbox
) -> None:  # SPEC I2, I1
    spans, _ = run_at_once(batch(fresh=14, redelivered=0), sandbox, kind, concurrency, seconds=5)
    assert len(spans) == 5 * concurrency


@THREADS_AND_TASKS
def test_with_concurrency_fresh_messages_are_released_first(kind: str, sandbox: Sandbox, caplog: Caplog) -> None:
    # SPEC I2, I1
    """With 30 seconds for 14 messages of 5 seconds, two at a time, ten run, including all four redelivered messages."""
    spans, reported = run_at_once(batch(fresh=10, redelivered=4), sandbox, kind, concurrency=2, seconds=5)
    ran = sorted(spans, key=lambda name: spans[name])
    assert (len(ran), sorted(ran[-4:])) == (10, ["old-0", "old-1", "old-2", "old-3"])
    assert {name[:3] for name in reported} == {"new"}
    assert "BatchSize of 10 would have fitted" in field(lines(caplog, "out_of_time")[0], "text")
