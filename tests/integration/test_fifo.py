"""The order of FIFO groups: one message of a group at a time, and none behind a message that stays in its queue."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Batch, BatchError, Fixed, Message, batch_consumer, consumer
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, client_error

WAIT = 77


def ledger(**more: Any) -> Wire:
    return Wire(queues={"ledger.fifo": Queue(dead_letter="ledger-dlq.fifo")}, **more)


def entry(message_id: str, group: str | None, queue: str = "ledger.fifo", **more: Any) -> dict[str, Any]:
    return record("{}", message_id, queue, group=group, **more)


def batch() -> dict[str, Any]:
    """Two groups, interleaved: a1, b1, a2, b2, a3."""
    return event(entry("a1", "a"), entry("b1", "b"), entry("a2", "a"), entry("b2", "b"), entry("a3", "a"))


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
STAYS = ["retry", "retry at once", "defer", "fail"]


class FifoRun:
    """A run of a consumer that gives these verdicts by delivery id, with the messages that ran and their outcomes."""

    def __init__(self, verdicts: dict[str, str], the_event: dict[str, Any], wire: Wire, **settings: Any) -> None:
        self.runs: list[str] = []
        self.wire = wire

        def handler(message: Message) -> None:
            self.runs.append(message.delivery_id)
            if (verdict := verdicts.get(message.delivery_id)) == "raise":
                raise ValueError
            if verdict:
                VERDICTS[verdict](message)

        with wire:
            self.reported = failed(consumer(backoff=Fixed(WAIT), **settings)(handler)(the_event, Context()))

    @property
    def visibilities(self) -> dict[str, int]:
        return {handle.removeprefix("handle-"): seconds for handle, seconds in self.wire.visibilities().items()}


@pytest.mark.parametrize("verdict", LEAVES)
def test_a_group_continues_behind_a_message_that_leaves_its_queue(verdict: str) -> None:  # SPEC H1
    run = FifoRun({"a1": verdict}, batch(), ledger())
    assert run.runs == ["a1", "b1", "a2", "b2", "a3"]
    assert (run.reported, run.visibilities) == ([], {})


@pytest.mark.parametrize("verdict", [*STAYS, "raise"])
def test_a_group_stops_at_a_message_that_stays_in_its_queue(verdict: str) -> None:  # SPEC H1
    run = FifoRun({"a1": verdict}, batch(), ledger())
    assert run.runs == ["a1", "b1", "b2"]
    assert run.reported == ["a1", "a2", "a3"]
    head = {"retry": 60, "retry at once": 0, "defer": 60}.get(verdict, WAIT)
    assert run.visibilities == {"a1": head, "a2": 0, "a3": 0}


def test_messages_before_the_one_that_stops_a_group_stay_done() -> None:  # SPEC H1
    run = FifoRun({"a2": "raise"}, batch(), ledger())
    assert run.runs == ["a1", "b1", "a2", "b2"]
    assert (run.reported, run.visibilities) == (["a2", "a3"], {"a2": WAIT, "a3": 0})


def test_each_group_stops_at_its_own_failed_message() -> None:  # SPEC H1
    run = FifoRun({"a1": "raise", "b2": "raise"}, batch(), ledger())
    assert run.runs == ["a1", "b1", "b2"]
    assert (run.reported, run.visibilities) == (["a1", "a2", "b2", "a3"], {"a1": WAIT, "a2": 0, "b2": WAIT, "a3": 0})


def test_a_group_continues_behind_an_exhausted_message() -> None:  # SPEC H1
    the_event = event(entry("a1", "a", receives=5), entry("a2", "a", receives=5))
    run = FifoRun({"a1": "raise"}, the_event, ledger())
    assert (run.runs, run.reported) == (["a1", "a2"], [])
    assert [envelope["id"] for envelope in run.wire.envelopes()] == ["a1"]


def test_a_dead_letter_is_sent_before_the_next_message_of_its_group_runs() -> None:  # SPEC H1
    sent_before: list[list[str]] = []
    wire = ledger()

    @consumer
    def handler(message: Message) -> None:
        sent_before.append([name for name in wire.operations if name.endswith("Batch")])
        if message.delivery_id == "a1":
            message.reject()

    with wire:
        handler(event(entry("a1", "a"), entry("a2", "a")), Context())
    assert sent_before == [[], ["SendMessageBatch", "DeleteMessageBatch"]]


@pytest.mark.parametrize(
    ("wire", "waits"),
    [
        pytest.param(
            lambda: ledger(fails={"SendMessageBatch": client_error("AccessDenied", status=403)}), 900, id="refused"
        ),
        pytest.param(lambda: ledger(fails={"SendMessageBatch": ConnectionError()}), 240, id="no answer"),
        pytest.param(lambda: ledger(wrong_md5=True), 240, id="not confirmed"),
        pytest.param(lambda: Wire(queues={"ledger.fifo": Queue()}), 900, id="no dead-letter queue"),
    ],
)
def test_a_group_stops_at_a_message_that_could_not_be_dead_lettered(
    wire: Callable[[], Wire], waits: int
) -> None:  # SPEC H1, F4, F5, E7
    """If SQS may have the dead letter, it is repeated while SQS deduplicates it."""
    run = FifoRun({"a1": "reject"}, batch(), wire())
    assert run.runs == ["a1", "b1", "b2"]
    assert run.reported == ["a1", "a2", "a3"]
    assert run.visibilities == {"a1": waits, "a2": 0, "a3": 0}


def test_a_group_stops_at_an_unhandled_message() -> None:  # SPEC H1, E4
    from tarry import RetryInPlace

    the_event = event(entry("a1", "a", receives=5), entry("a2", "a"))
    run = FifoRun({"a1": "raise"}, the_event, ledger(), on_failure=[RetryInPlace()])
    assert (run.runs, run.visibilities) == (["a1"], {"a1": 900, "a2": 0})


def test_a_settlement_error_of_one_group_does_not_stop_other_groups() -> None:  # SPEC H1, G1
    wire = ledger(fails={"ChangeMessageVisibilityBatch": client_error("InternalError", status=500)})
    run = FifoRun({"a1": "raise"}, batch(), wire)
    assert (run.runs, run.reported) == (["a1", "b1", "b2"], ["a1", "a2", "a3"])


def test_released_messages_of_a_group_follow_its_failed_message_in_the_requests() -> None:  # SPEC G6, H1
    run = FifoRun({"a1": "raise"}, batch(), ledger())
    asked = [entry["ReceiptHandle"] for request in run.wire.requests if "Entries" in request.parameters
             for entry in request.entries]  # fmt: skip
    assert asked == ["handle-a1", "handle-a2", "handle-a3"]


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
    def handler(message: Message) -> None:
        if message.delivery_id == "b1":
            raise SystemExit

    with ledger() as wire:
        assert failed(consumer(backoff=Fixed(WAIT))(handler)(batch(), Context())) == ["b1", "a2", "b2", "a3"]
    assert wire.visibilities() == {"handle-b1": WAIT, "handle-a2": 0, "handle-b2": 0, "handle-a3": 0}


# what counts as a group


def test_without_group_ids_a_fifo_queue_is_one_group() -> None:  # SPEC H3
    the_event = event(entry("m1", None), entry("m2", None), entry("m3", None))
    run = FifoRun({"m2": "raise"}, the_event, ledger())
    assert (run.runs, run.visibilities) == (["m1", "m2"], {"m2": WAIT, "m3": 0})


def test_a_group_id_on_a_standard_queue_does_not_order_messages() -> None:  # SPEC H3
    the_event = event(*(entry(f"m{index}", "a", "orders") for index in range(3)))
    run = FifoRun({"m0": "raise"}, the_event, Wire(queues={"orders": Queue("orders-dlq")}))
    assert (run.runs, run.reported) == (["m0", "m1", "m2"], ["m0"])


def test_a_group_of_the_same_name_on_another_queue_is_another_group() -> None:  # SPEC H1
    the_event = event(entry("m1", "a"), entry("m2", "a", "other.fifo"), entry("m3", "a"))
    run = FifoRun({"m1": "raise"}, the_event, ledger())
    assert (run.runs, run.reported) == (["m1", "m2"], ["m1", "m3"])


def test_messages_of_a_standard_queue_in_a_batch_with_fifo_messages_keep_their_attempts() -> None:  # SPEC C2, H3
    attempts: dict[str, int] = {}
    the_event = event(
        entry("f1", "a"), entry("s1", None, "orders", receives=4), entry("s2", None, "orders", receives=4)
    )
    with ledger():
        consumer(lambda m: attempts.update({m.id: m.attempt}))(the_event, Context())
    assert attempts == {"f1": 1, "s1": 4, "s2": 4}


def test_released_messages_of_a_standard_queue_are_logged_with_their_own_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC C2, L2
    def handler(message: Message) -> None:
        raise SystemExit

    caplog.set_level("INFO", "tarry")
    with ledger():
        consumer(handler)(event(*(record("{}", f"m{index}", receives=4) for index in range(3))), Context())
    released = [line for line in caplog.records if getattr(line, "event", "") == "released"]
    assert [line.attempt for line in released] == [4, 4]  # type: ignore[attr-defined]


# batch handlers


class BatchHandlerRun:
    """A run of a batch handler over `batch`, with the outcomes of its messages."""

    def __init__(self, handle: Callable[[dict[str, Message], Batch], Any], wire: Wire, **settings: Any) -> None:
        def handler(messages: Batch) -> None:
            handle({message.delivery_id: message for message in messages}, messages)

        with wire:
            self.reported = failed(batch_consumer(backoff=Fixed(WAIT), **settings)(handler)(batch(), Context()))
        self.visibilities = {handle.removeprefix("handle-"): seconds for handle, seconds in wire.visibilities().items()}
        self.dead = [envelope["id"] for envelope in wire.envelopes()]


@pytest.mark.parametrize("verdict", STAYS)
def test_messages_without_a_verdict_behind_one_that_stays_are_released(verdict: str) -> None:  # SPEC H2
    run = BatchHandlerRun(lambda by_id, _: VERDICTS[verdict](by_id["a1"]), ledger())
    assert run.reported == ["a1", "a2", "a3"]
    assert (run.visibilities["a2"], run.visibilities["a3"]) == (0, 0)


@pytest.mark.parametrize("verdict", LEAVES)
def test_messages_without_a_verdict_behind_one_that_leaves_are_acknowledged(verdict: str) -> None:  # SPEC H1, H2
    run = BatchHandlerRun(lambda by_id, _: VERDICTS[verdict](by_id["a1"]), ledger())
    assert (run.reported, run.visibilities) == ([], {})


@pytest.mark.parametrize("verdict", LEAVES)
def test_a_verdict_that_removes_a_message_holds_behind_one_that_stays(verdict: str) -> None:  # SPEC H2, B5
    def handle(by_id: dict[str, Message], _: Batch) -> None:
        by_id["a1"].retry(60)
        VERDICTS[verdict](by_id["a2"])

    run = BatchHandlerRun(handle, ledger())
    assert run.reported == ["a1", "a3"]
    assert run.visibilities == {"a1": 60, "a3": 0}
    assert run.dead == (["a2"] if verdict == "reject" else [])


def test_a_retried_message_behind_one_that_stays_is_released() -> None:  # SPEC H1
    def handle(by_id: dict[str, Message], _: Batch) -> None:
        by_id["a1"].retry(60)
        by_id["a2"].retry(600)

    assert BatchHandlerRun(handle, ledger()).visibilities == {"a1": 60, "a2": 0, "a3": 0}


def test_retry_all_on_fifo_delays_the_first_message_of_each_group_and_releases_the_others() -> None:  # SPEC H1
    run = BatchHandlerRun(lambda _, messages: messages.retry_all(60), ledger())
    assert run.reported == ["a1", "b1", "a2", "b2", "a3"]
    assert run.visibilities == {"a1": 60, "b1": 60, "a2": 0, "b2": 0, "a3": 0}


def test_ack_all_acknowledges_messages_behind_a_retried_one() -> None:  # SPEC H2, B4
    def handle(by_id: dict[str, Message], messages: Batch) -> None:
        by_id["a1"].retry(60)
        messages.ack_all()

    assert BatchHandlerRun(handle, ledger()).reported == ["a1"]


def test_an_exception_of_a_batch_handler_fails_the_first_message_of_each_group_and_releases_the_others() -> (
    None
):  # SPEC H1, B5
    def handle(by_id: dict[str, Message], _: Batch) -> None:
        raise ValueError

    assert BatchHandlerRun(handle, ledger()).visibilities == {"a1": WAIT, "b1": WAIT, "a2": 0, "b2": 0, "a3": 0}


def test_in_a_batch_handler_a_group_stops_at_a_message_that_could_not_be_dead_lettered() -> None:  # SPEC H1, H2
    wire = ledger(fails={"SendMessageBatch": client_error("AccessDenied", status=403)})
    run = BatchHandlerRun(lambda by_id, _: by_id["a1"].reject(), wire)
    assert run.reported == ["a1", "a2", "a3"]
    assert run.visibilities == {"a1": 900, "a2": 0, "a3": 0}


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
