"""The order of FIFO groups: one message of a group at a time, and none behind a message that stays in its queue."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, BatchError, Consumer, Fixed, Message, Outcome, RetryInPlace, batch_consumer, consumer
from tarry.testing import Sandbox
from tests.handlers import WAYS, awaiting
from tests.loglines import Caplog, field, lines
from tests.records import event, record
from tests.settled import orders, settle
from tests.wire import Wire, client_error

WAIT = 77
NAMES = "a1 b1 a2 b2 a3"
"""Messages whose groups are the first characters of their names: two groups, interleaved."""


def batch(names: str = NAMES, queue: str = "orders.fifo", **more: Any) -> dict[str, Any]:
    return event(*(record("{}", name, queue, group=name[0], **more) for name in names.split()))


def raises(_: Any) -> None:
    raise ValueError


VERDICTS: dict[str, Callable[[Message], Any]] = {
    "ack": Message.ack,
    "discard": Message.discard,
    "reject": Message.reject,
    "retry": lambda message: message.retry(60),
    "retry at once": lambda message: message.retry(0),
    "defer": lambda message: message.defer(60),
    "fail": lambda message: message.fail(ValueError()),
    "raise": raises,
}
STAYS = {"retry": 60, "retry at once": 0, "defer": 60, "fail": WAIT, "raise": WAIT}


class FifoRun:
    """A run of a handler that gives these verdicts by delivery id, in one of the `WAYS`."""

    def __init__(
        self,
        verdicts: dict[str, str],
        given: Any = None,
        wire: Wire | None = None,
        way: str = "one by one",
        **more: Any,
    ) -> None:
        self.runs: list[str] = []
        self.sent_before: list[list[str]] = []
        """The sends and deletes before each run."""

        def handle(message: Message) -> None:
            self.runs.append(message.delivery_id)
            self.sent_before.append([each for each in self.wire.acts if not each.startswith("Change")])
            if verdict := verdicts.get(message.delivery_id):
                VERDICTS[verdict](message)

        self.wire = wire or orders()
        self._settle(WAYS[way](handle, backoff=Fixed(WAIT), **more), given or batch())

    def _settle(self, handler: Consumer[Any], given: Any) -> None:
        self.reported, _ = settle(handler, given, self.wire)
        self.visibilities = {handle[7:]: seconds for handle, seconds in self.wire.visibilities().items()}
        self.dead = [envelope["id"] for envelope in self.wire.envelopes()]


class BatchHandlerRun(FifoRun):
    def __init__(self, handle: Callable[[dict[str, Message], Batch], Any], *, is_async: bool = False) -> None:
        self.wire = orders()

        def handler(messages: Batch) -> None:
            handle({message.delivery_id: message for message in messages}, messages)

        made: Any = batch_consumer(backoff=Fixed(WAIT))
        self._settle(made(awaiting(handler) if is_async else handler), batch())


@pytest.mark.parametrize(
    ("verdicts", "visibilities"),
    [
        *(({"a1": verdict}, {"a1": wait, "a2": 0, "a3": 0}) for verdict, wait in STAYS.items()),
        *(({"a1": verdict}, {}) for verdict in VERDICTS if verdict not in STAYS),
        ({"a2": "raise"}, {"a2": WAIT, "a3": 0}),
        ({"a1": "raise", "b2": "raise"}, {"a1": WAIT, "a2": 0, "b2": WAIT, "a3": 0}),
        ({"a1": "reject, but it cannot be sent"}, {"a1": 900, "a2": 0, "a3": 0}),
    ],
    ids=str,
)
def test_a_group_stops_at_its_own_message_that_stays_in_its_queue_and_continues_behind_one_that_leaves(
    verdicts: dict[str, str], visibilities: dict[str, int]
) -> None:  # SPEC F4, G6, H1, H2
    """Messages before it stay done; messages behind it are released, in the requests too."""
    for way in WAYS:
        wire = orders()
        if "reject," in verdicts.get("a1", ""):
            wire.fails["SendMessageBatch"] = client_error("AccessDenied", status=403)
        run = FifoRun({name: verdict.partition(",")[0] for name, verdict in verdicts.items()}, wire=wire, way=way)
        assert run.visibilities == visibilities, way
        assert run.reported == [name for name in NAMES.split() if name in visibilities], way
        ran = [name for name in NAMES.split() if "batch" in way or name in verdicts or name not in visibilities]
        assert (run.runs if way == "one by one" else sorted(run.runs, key=NAMES.index)) == ran, way
        assert [name for name in run.runs if name[0] == "a"] == [name for name in ran if name[0] == "a"], way
        requests = wire.sent("ChangeMessageVisibilityBatch")
        asked = [entry["ReceiptHandle"][7:] for request in requests for entry in request.entries]
        assert [each for each in asked if each[0] == "a"] == [each for each in visibilities if each[0] == "a"], way


@pytest.mark.parametrize(
    ("dead_letter", "verdict", "more"),
    [(None, "reject", {}), ("orders-dlq", "raise", {"max_attempts": 1, "on_failure": [RetryInPlace()]})],
    ids=["no dead-letter queue", "no step takes it"],
)
def test_a_group_stops_at_an_unhandled_message(dead_letter: Any, verdict: str, more: Any) -> None:  # SPEC H1, E4, F5
    run = FifoRun({"a1": verdict}, wire=orders(dead_letter=dead_letter), **more)
    assert (run.runs, run.reported) == (["a1", "b1", "b2"], ["a1", "a2", "a3"])
    assert run.visibilities == {"a1": 900, "a2": 0, "a3": 0}


@pytest.mark.parametrize("way", WAYS)
def test_behind_an_exhausted_message_whose_dead_letter_is_sent_the_next_one_of_its_group_is_at_its_first_attempt(
    way: str,
) -> None:  # SPEC C2, H1
    run = FifoRun({"a1": "raise", "a2": "raise"}, batch("a1 a2", receives=5), way=way)
    assert (run.reported, run.dead, run.visibilities["a2"]) == (["a2"], ["a1"], WAIT)
    if "batch" not in way:
        assert run.sent_before == [[], ["SendMessageBatch", "DeleteMessageBatch"]]


def test_a_system_exit_releases_all_messages_that_have_not_started() -> None:  # SPEC A5, H1
    @consumer(backoff=Fixed(WAIT))
    def handler(message: Message) -> None:
        if message.delivery_id == "b1":
            raise SystemExit

    reported, wire = settle(handler, batch())
    assert reported == ["b1", "a2", "b2", "a3"]
    assert wire.visibilities() == {"handle-b1": WAIT, "handle-a2": 0, "handle-b2": 0, "handle-a3": 0}


@pytest.mark.parametrize("way", ["one by one", "async"])
def test_a_message_that_ends_the_batch_is_not_retried_within_its_delivery(way: str) -> None:  # SPEC A5, I5
    def exits(message: Message) -> None:
        raise SystemExit

    reported, wire = settle(WAYS[way](exits, on_failure=[lambda *_: Outcome.again()]), batch("a1 b1"))
    assert (reported, wire.visibilities()) == (["a1", "b1"], {"handle-a1": 900, "handle-b1": 0})  # unhandled


@pytest.mark.parametrize(
    ("entries", "fails", "runs", "reported"),
    [
        ([("m1", None), ("m2", None), ("m3", None)], "m2", ["m1", "m2"], ["m2", "m3"]),
        ([(f"m{index}", "a", "orders") for index in range(3)], "m0", ["m0", "m1", "m2"], ["m0"]),
        ([("m1", "a"), ("m2", "a", "other.fifo"), ("m3", "a")], "m1", ["m1", "m2"], ["m1", "m3"]),
    ],
    ids=["no group ids on FIFO are one group", "a standard queue has no groups", "another queue has other groups"],
)
def test_a_group_is_a_group_id_of_a_fifo_queue(entries: Any, fails: str, runs: Any, reported: Any) -> None:
    # SPEC H1, H3
    records = (record("{}", name, *(queue or ["orders.fifo"]), group=group) for name, group, *queue in entries)
    run = FifoRun({fails: "raise"}, event(*records))
    assert (run.runs, run.reported) == (runs, reported)


def test_messages_of_a_standard_queue_keep_their_attempts_beside_fifo_and_when_released(caplog: Caplog) -> None:
    attempts: dict[str, int] = {}  # SPEC C2, H3, L2

    @consumer
    def handler(message: Message) -> None:
        attempts[message.id] = message.attempt
        if len(attempts) == 3:
            raise SystemExit

    caplog.set_level("INFO", "tarry")
    both = [*batch("f1")["Records"], *batch("s1 s2 s3 s4", "orders", receives=4)["Records"]]
    settle(handler, event(*both))
    assert (attempts.pop("f1"), list(attempts.values())) == (1, [4, 4])
    assert [field(line, "attempt") for line in lines(caplog, "released")] == [4, 4]


# batch handlers


def fails_at_the_third(_: dict[str, Message], messages: Batch) -> None:
    raise BatchError(message=messages[2])


HEADS = {"a1": 0, "b1": 0, "a2": 0, "b2": 0, "a3": 0}


@pytest.mark.parametrize(
    ("handle", "visibilities"),
    [
        (lambda by_id, _: (by_id["a1"].retry(60), by_id["a2"].retry(600)), {"a1": 60, "a2": 0, "a3": 0}),
        (lambda _, messages: messages.retry_all(60), HEADS | {"a1": 60, "b1": 60}),
        (lambda by_id, messages: (by_id["a1"].retry(60), messages.ack_all()), {"a1": 60}),
        (lambda by_id, _: raises(by_id), HEADS | {"a1": WAIT, "b1": WAIT}),
        (fails_at_the_third, {"a2": WAIT, "b2": 0, "a3": 0}),
    ],
    ids=["two retries", "retry_all", "ack_all after a retry", "an exception", "a BatchError"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_first_message_of_each_group_fails_and_those_behind_it_are_released(
    is_async: bool, handle: Any, visibilities: dict[str, int]
) -> None:  # SPEC H1, H2, B4, B5
    """Only `ack_all` still acknowledges what stands behind; a `BatchError` acknowledges what stands before."""
    run = BatchHandlerRun(handle, is_async=is_async)
    assert (run.visibilities, run.reported) == (visibilities, list(visibilities))


@pytest.mark.parametrize("verdict", ["ack", "discard", "reject"])
def test_a_verdict_that_removes_a_message_holds_behind_one_that_stays(verdict: str) -> None:  # SPEC H2, B5
    run = BatchHandlerRun(lambda by_id, _: (by_id["a1"].retry(60), VERDICTS[verdict](by_id["a2"])))
    assert (run.reported, run.visibilities) == (["a1", "a3"], {"a1": 60, "a3": 0})
    assert run.dead == (["a2"] if verdict == "reject" else [])


# an outage


@pytest.mark.parametrize(
    ("batch_size", "receives", "attempts", "isolate"),
    [(1, 15, 5, True), (1, 15, 5, False), (10, 155, 15, True), (10, 155, 15, False), (10, 55, 5, True)],
    ids=["exact", "exact, not isolated", "many receives", "many receives, not isolated", "few receives"],
)
def test_only_messages_that_used_all_their_attempts_are_dead_lettered(
    batch_size: int, receives: int, attempts: int, isolate: bool, sandbox: Sandbox
) -> None:  # SPEC C9, H1
    """With `BatchSize: 1`, as in the template, attempts are exact: the first two messages use all five.

    Above that, messages that wait behind the first of their group are received with it each time. With a high
    `maxReceiveCount` they survive the outage; with a low one none is dead-lettered without a run.
    """
    runs: Counter[str] = Counter()
    order: list[str] = []

    @consumer(max_attempts=attempts, isolate=isolate)
    def handler(message: Message) -> None:
        runs[message.body] += 1
        if sandbox.elapsed < 300:
            raise ConnectionError
        order.append(message.body)

    sandbox.queue("orders.fifo", dead_letter="orders-dlq.fifo", max_receive_count=receives, visibility_timeout=180)
    sandbox.connect(handler, "orders.fifo", batch_size=batch_size, timeout=30)
    bodies = [f"m{number}" for number in range(10)]
    for body in bodies:
        sandbox.send("orders.fifo", body, group_id="g", deduplication_id=body)
    sandbox.run()
    dead = [dead_letter.body for dead_letter in sandbox.messages("orders-dlq.fifo")]
    assert [*dead, *order] == bodies
    assert all(runs[body] for body in dead)
    if batch_size == 1:
        assert {body: runs[body] for body in dead} == {"m0": 5, "m1": 5}
    assert receives != 155 or not dead
