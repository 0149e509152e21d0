"""The order of FIFO groups: one message of a group at a time, and none behind a message that stays in its queue."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, BatchError, Fixed, Message, RetryInPlace, batch_consumer, consumer
from tests.loglines import Caplog, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, client_error

WAIT = 77


def ledger(**more: Any) -> Wire:
    return Wire(queues={"ledger.fifo": Queue(dead_letter="ledger-dlq.fifo")}, **more)


def entry(message_id: str, group: str | None, queue: str = "ledger.fifo", **more: Any) -> dict[str, Any]:
    return record("{}", message_id, queue, group=group, **more)


def batch(names: str = "a1 b1 a2 b2 a3", **more: Any) -> dict[str, Any]:
    """Return messages whose groups are the first characters of their names: by default two groups, interleaved."""
    return event(*(entry(name, name[0], **more) for name in names.split()))


VERDICTS: dict[str, Callable[[Message], Any]] = {
    "ack": lambda message: message.ack(),
    "discard": lambda message: message.discard(),
    "reject": lambda message: message.reject(),
    "retry": lambda message: message.retry(60),
    "retry at once": lambda message: message.retry(0),
    "defer": lambda message: message.defer(60),
    "fail": lambda message: message.fail(ValueError()),
}
LEAVES = ["ack", "discard", "reject"]
STAYS = {"retry": 60, "retry at once": 0, "defer": 60, "fail": WAIT}


class FifoRun:
    """A run of a consumer that gives these verdicts by delivery id, with the messages that ran and their outcomes."""

    def __init__(
        self, verdicts: dict[str, str], the_event: dict[str, Any] | None = None, wire: Wire | None = None, **more: Any
    ) -> None:
        self.runs: list[str] = []
        self.wire = wire or ledger()

        def handler(message: Message) -> None:
            self.runs.append(message.delivery_id)
            if (verdict := verdicts.get(message.delivery_id)) == "raise":
                raise ValueError
            if verdict:
                VERDICTS[verdict](message)

        with self.wire:
            function = consumer(backoff=Fixed(WAIT), **more)(handler)
            self.reported = failed(function(the_event or batch(), Context()))

    @property
    def visibilities(self) -> dict[str, int]:
        return {handle.removeprefix("handle-"): seconds for handle, seconds in self.wire.visibilities().items()}


@pytest.mark.parametrize("verdict", LEAVES)
def test_a_group_continues_behind_a_message_that_leaves_its_queue(verdict: str) -> None:  # SPEC H1
    run = FifoRun({"a1": verdict})
    assert run.runs == ["a1", "b1", "a2", "b2", "a3"]
    assert (run.reported, run.visibilities) == ([], {})


@pytest.mark.parametrize(
    ("verdicts", "runs", "visibilities"),
    [
        *(({"a1": verdict}, "a1 b1 b2", {"a1": wait, "a2": 0, "a3": 0}) for verdict, wait in STAYS.items()),
        ({"a1": "raise"}, "a1 b1 b2", {"a1": WAIT, "a2": 0, "a3": 0}),
        ({"a2": "raise"}, "a1 b1 a2 b2", {"a2": WAIT, "a3": 0}),
        ({"a1": "raise", "b2": "raise"}, "a1 b1 b2", {"a1": WAIT, "a2": 0, "b2": WAIT, "a3": 0}),
    ],
)
def test_a_group_stops_at_its_own_message_that_stays_in_its_queue(
    verdicts: dict[str, str], runs: str, visibilities: dict[str, int]
) -> None:  # SPEC G6, H1
    """Messages before it stay done; messages behind it are released, in the requests too."""
    run = FifoRun(verdicts)
    assert (run.runs, run.visibilities) == (runs.split(), visibilities)
    assert run.reported == [name for name in "a1 b1 a2 b2 a3".split() if name in visibilities]
    asked = [
        entry["ReceiptHandle"] for request in run.wire.sent("ChangeMessageVisibilityBatch") for entry in request.entries
    ]
    assert [handle[7:] for handle in asked if handle[7] == "a"] == [name for name in visibilities if name[0] == "a"]


@pytest.mark.parametrize(
    ("queue", "verdict", "more"),
    [
        (Queue(), "reject", {}),
        (Queue(dead_letter="ledger-dlq.fifo"), "raise", {"max_attempts": 1, "on_failure": [RetryInPlace()]}),
    ],
    ids=["no dead-letter queue", "no step takes it"],
)
def test_a_group_stops_at_an_unhandled_message(queue: Queue, verdict: str, more: Any) -> None:  # SPEC H1, E4, F5
    run = FifoRun({"a1": verdict}, wire=Wire(queues={"ledger.fifo": queue}), **more)
    assert (run.runs, run.reported) == (["a1", "b1", "b2"], ["a1", "a2", "a3"])
    assert run.visibilities == {"a1": 900, "a2": 0, "a3": 0}


def test_a_group_continues_behind_an_exhausted_message_once_its_dead_letter_is_sent() -> None:  # SPEC C2, H1
    """The next one of the group fails at its first attempt."""
    sent_before: list[list[str]] = []
    wire = ledger()

    @consumer(backoff=Fixed(WAIT))
    def handler(message: Message) -> None:
        sent_before.append([name for name in wire.acts if not name.startswith("Change")])
        raise ValueError

    with wire:
        assert failed(handler(batch("a1 a2", receives=5), Context())) == ["a2"]
    assert sent_before == [[], ["SendMessageBatch", "DeleteMessageBatch"]]
    assert [envelope["id"] for envelope in wire.envelopes()] == ["a1"]
    assert wire.visibilities()["handle-a2"] == WAIT


def test_async_handlers_keep_the_order_of_groups() -> None:  # SPEC H1
    runs: list[str] = []

    @consumer(backoff=Fixed(WAIT))
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        runs.append(message.delivery_id)
        if message.delivery_id == "a1":
            raise ValueError

    with ledger():
        assert failed(handler(batch(), Context())) == ["a1", "a2", "a3"]
    assert runs == ["a1", "b1", "b2"]


def test_a_system_exit_releases_all_messages_that_have_not_started() -> None:  # SPEC A5, H1
    @consumer(backoff=Fixed(WAIT))
    def handler(message: Message) -> None:
        if message.delivery_id == "b1":
            raise SystemExit

    with ledger() as wire:
        assert failed(handler(batch(), Context())) == ["b1", "a2", "b2", "a3"]
    assert wire.visibilities() == {"handle-b1": WAIT, "handle-a2": 0, "handle-b2": 0, "handle-a3": 0}


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
    run = FifoRun({fails: "raise"}, event(*(entry(*each) for each in entries)))
    assert (run.runs, run.reported) == (runs, reported)


def test_messages_of_a_standard_queue_keep_their_attempts_beside_fifo_and_when_released(caplog: Caplog) -> None:
    # SPEC C2, H3, L2
    attempts: dict[str, int] = {}

    @consumer
    def handler(message: Message) -> None:
        attempts[message.id] = message.attempt
        if len(attempts) == 3:
            raise SystemExit

    caplog.set_level("INFO", "tarry")
    with ledger():
        standard = [entry(f"s{number}", None, "orders", receives=4) for number in range(1, 5)]
        handler(event(entry("f1", "a"), *standard), Context())
    assert (attempts.pop("f1"), list(attempts.values())) == (1, [4, 4])
    assert [line.attempt for line in lines(caplog, "released")] == [4, 4]  # type: ignore[attr-defined]


class BatchHandlerRun:
    """A run of a batch handler over `batch`, with the outcomes of its messages."""

    def __init__(self, handle: Callable[[dict[str, Message], Batch], Any], wire: Wire | None = None) -> None:
        wire = wire or ledger()

        @batch_consumer(backoff=Fixed(WAIT))
        def handler(messages: Batch) -> None:
            handle({message.delivery_id: message for message in messages}, messages)

        with wire:
            self.reported = failed(handler(batch(), Context()))
        self.visibilities = {handle.removeprefix("handle-"): seconds for handle, seconds in wire.visibilities().items()}
        self.dead = [envelope["id"] for envelope in wire.envelopes()]


@pytest.mark.parametrize("verdict", [*LEAVES, *STAYS])
def test_messages_without_a_verdict_are_released_behind_one_that_stays(verdict: str) -> None:  # SPEC H1, H2
    """Behind one that leaves they are acknowledged."""
    run = BatchHandlerRun(lambda by_id, _: VERDICTS[verdict](by_id["a1"]))
    assert run.reported == ([] if verdict in LEAVES else ["a1", "a2", "a3"])
    assert run.visibilities == ({} if verdict in LEAVES else {"a1": STAYS[verdict], "a2": 0, "a3": 0})


@pytest.mark.parametrize("verdict", LEAVES)
def test_a_verdict_that_removes_a_message_holds_behind_one_that_stays(verdict: str) -> None:  # SPEC H2, B5
    def handle(by_id: dict[str, Message], _: Batch) -> None:
        by_id["a1"].retry(60)
        VERDICTS[verdict](by_id["a2"])

    run = BatchHandlerRun(handle)
    assert (run.reported, run.visibilities) == (["a1", "a3"], {"a1": 60, "a3": 0})
    assert run.dead == (["a2"] if verdict == "reject" else [])


def raises(_: dict[str, Message], __: Batch) -> None:
    raise ValueError


def fails_at_the_third(_: dict[str, Message], messages: Batch) -> None:
    raise BatchError(message=messages[2])


HEADS = {"a1": 0, "b1": 0, "a2": 0, "b2": 0, "a3": 0}


@pytest.mark.parametrize(
    ("handle", "visibilities"),
    [
        (lambda by_id, _: (by_id["a1"].retry(60), by_id["a2"].retry(600)), {"a1": 60, "a2": 0, "a3": 0}),
        (lambda _, messages: messages.retry_all(60), HEADS | {"a1": 60, "b1": 60}),
        (lambda by_id, messages: (by_id["a1"].retry(60), messages.ack_all()), {"a1": 60}),
        (raises, HEADS | {"a1": WAIT, "b1": WAIT}),
        (fails_at_the_third, {"a2": WAIT, "b2": 0, "a3": 0}),
    ],
    ids=["two retries", "retry_all", "ack_all after a retry", "an exception", "a BatchError"],
)
def test_the_first_message_of_each_group_fails_and_those_behind_it_are_released(
    handle: Any, visibilities: dict[str, int]
) -> None:  # SPEC H1, H2, B4, B5
    """Only `ack_all` still acknowledges what stands behind; a `BatchError` acknowledges what stands before."""
    run = BatchHandlerRun(handle)
    assert (run.visibilities, run.reported) == (visibilities, list(visibilities))


def test_in_a_batch_handler_a_group_stops_at_a_message_that_could_not_be_dead_lettered() -> None:  # SPEC H1, H2
    wire = ledger(fails={"SendMessageBatch": client_error("AccessDenied", status=403)})
    run = BatchHandlerRun(lambda by_id, _: by_id["a1"].reject(), wire)
    assert (run.reported, run.visibilities) == (["a1", "a2", "a3"], {"a1": 900, "a2": 0, "a3": 0})


def test_a_batch_error_on_fifo_acknowledges_the_messages_before_and_releases_those_after() -> None:  # SPEC B5, H1
    def handle(_: dict[str, Message], messages: Batch) -> None:
        raise BatchError(message=messages[2])

    run = BatchHandlerRun(handle, ledger())
    assert run.reported == ["a2", "b2", "a3"]
    assert run.visibilities == {"a2": WAIT, "b2": 0, "a3": 0}


def test_behind_an_exhausted_message_the_next_one_of_its_group_fails_at_its_first_attempt() -> None:  # SPEC C2, H1
    the_event = event(entry("a1", "a", receives=5), entry("a2", "a", receives=5))

    def handler(messages: Batch) -> None:
        raise ValueError

    with ledger() as wire:
        assert failed(batch_consumer(backoff=Fixed(WAIT))(handler)(the_event, Context())) == ["a2"]
    assert [envelope["id"] for envelope in wire.envelopes()] == ["a1"]
    assert wire.visibilities()["handle-a2"] == WAIT


@pytest.mark.parametrize("is_async", [False, True])
def test_no_message_of_a_batch_is_acknowledged_behind_one_whose_dead_letter_could_not_be_sent(is_async: bool) -> None:
    def handle(batch: Batch) -> None:  # SPEC H1, F4
        batch[0].reject()

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    with ledger() as wire:
        wire.fails["SendMessageBatch"] = client_error("AccessDenied")
        handler = batch_consumer(handle_async if is_async else handle)
        assert failed(handler(event(entry("a1", "a"), entry("a2", "a")), Context())) == ["a1", "a2"]
