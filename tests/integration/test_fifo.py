"""The order of FIFO groups: one message of a group at a time, and none past one that stays in its queue."""

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


WORDS: dict[str, Callable[[Message], Any]] = {
    "ack": lambda message: message.ack(),
    "discard": lambda message: message.discard(),
    "reject": lambda message: message.reject(),
    "retry": lambda message: message.retry(60),
    "retry at once": lambda message: message.retry(0),
    "defer": lambda message: message.defer(60),
    "fail": lambda message: message.fail(ValueError()),
}

GOES_ON = ["ack", "discard", "reject"]
STOPS = ["retry", "retry at once", "defer", "fail"]


class Invoked:
    """A consumer that says words of some messages, its run, and what became of each."""

    def __init__(self, words: dict[str, str], the_event: dict[str, Any], wire: Wire, **settings: Any) -> None:
        self.runs: list[str] = []
        self.wire = wire

        def handler(message: Message) -> None:
            self.runs.append(message.delivery_id)
            if (word := words.get(message.delivery_id)) == "raise":
                raise ValueError
            if word:
                WORDS[word](message)

        with wire:
            self.reported = failed(consumer(backoff=Fixed(WAIT), **settings)(handler)(the_event, Context()))

    @property
    def hidden(self) -> dict[str, int]:
        return {handle.removeprefix("handle-"): seconds for handle, seconds in self.wire.visibilities().items()}


@pytest.mark.parametrize("word", GOES_ON)
def test_a_group_goes_on_behind_a_message_that_leaves_its_queue(word: str) -> None:  # SPEC H1
    invoked = Invoked({"a1": word}, batch(), ledger())
    assert invoked.runs == ["a1", "b1", "a2", "b2", "a3"]
    assert (invoked.reported, invoked.hidden) == ([], {})


@pytest.mark.parametrize("word", [*STOPS, "raise"])
def test_a_group_stops_at_a_message_that_stays(word: str) -> None:  # SPEC H1
    invoked = Invoked({"a1": word}, batch(), ledger())
    assert invoked.runs == ["a1", "b1", "b2"]
    assert invoked.reported == ["a1", "a2", "a3"]
    head = {"retry": 60, "retry at once": 0, "defer": 60}.get(word, WAIT)
    assert invoked.hidden == {"a1": head, "a2": 0, "a3": 0}


def test_a_group_that_stops_later_keeps_what_was_done() -> None:  # SPEC H1
    invoked = Invoked({"a2": "raise"}, batch(), ledger())
    assert invoked.runs == ["a1", "b1", "a2", "b2"]
    assert (invoked.reported, invoked.hidden) == (["a2", "a3"], {"a2": WAIT, "a3": 0})


def test_each_group_stops_for_itself() -> None:  # SPEC H1
    invoked = Invoked({"a1": "raise", "b2": "raise"}, batch(), ledger())
    assert invoked.runs == ["a1", "b1", "b2"]
    assert (invoked.reported, invoked.hidden) == (["a1", "a2", "b2", "a3"], {"a1": WAIT, "a2": 0, "b2": WAIT, "a3": 0})


def test_a_group_goes_on_behind_an_exhausted_message() -> None:  # SPEC H1
    the_event = event(entry("a1", "a", receives=5), entry("a2", "a", receives=5))
    invoked = Invoked({"a1": "raise"}, the_event, ledger())
    assert (invoked.runs, invoked.reported) == (["a1", "a2"], [])
    assert [kept["id"] for kept in invoked.wire.records()] == ["a1"]


def test_a_dead_letter_is_in_its_queue_before_the_next_of_the_group_runs() -> None:  # SPEC H1
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
            lambda: ledger(fails={"SendMessageBatch": client_error("InternalError", status=500)}), 900, id="refused"
        ),
        pytest.param(lambda: ledger(fails={"SendMessageBatch": ConnectionError()}), 240, id="no answer"),
        pytest.param(lambda: ledger(wrong_md5=True), 240, id="not confirmed"),
        pytest.param(lambda: Wire(queues={"ledger.fifo": Queue()}), 900, id="no dead-letter queue"),
    ],
)
def test_a_group_stops_where_a_dead_lettering_failed(
    wire: Callable[[], Wire], waits: int
) -> None:  # SPEC H1, F4, F5, E7
    """Where SQS may have the letter all the same, it is repeated while SQS would swallow it."""
    invoked = Invoked({"a1": "reject"}, batch(), wire())
    assert invoked.runs == ["a1", "b1", "b2"]
    assert invoked.reported == ["a1", "a2", "a3"]
    assert invoked.hidden == {"a1": waits, "a2": 0, "a3": 0}


def test_a_group_stops_at_an_unhandled_message() -> None:  # SPEC H1, E4
    from tarry import RetryInPlace

    the_event = event(entry("a1", "a", receives=5), entry("a2", "a"))
    invoked = Invoked({"a1": "raise"}, the_event, ledger(), on_failure=[RetryInPlace()])
    assert (invoked.runs, invoked.hidden) == (["a1"], {"a1": 900, "a2": 0})


def test_a_settlement_error_of_one_group_stops_no_other() -> None:  # SPEC H1, G1
    wire = ledger(fails={"ChangeMessageVisibilityBatch": client_error("InternalError", status=500)})
    invoked = Invoked({"a1": "raise"}, batch(), wire)
    assert (invoked.runs, invoked.reported) == (["a1", "b1", "b2"], ["a1", "a2", "a3"])


def test_what_is_given_back_comes_after_its_head_at_the_wire() -> None:  # SPEC G6, H1
    invoked = Invoked({"a1": "raise"}, batch(), ledger())
    asked = [entry["ReceiptHandle"] for request in invoked.wire.requests if "Entries" in request.parameters
             for entry in request.entries]  # fmt: skip
    assert asked == ["handle-a1", "handle-a2", "handle-a3"]


def test_async_handlers_keep_the_order_too() -> None:  # SPEC H1
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


def test_a_system_exit_gives_back_all_that_was_not_started() -> None:  # SPEC A5, H1
    def handler(message: Message) -> None:
        if message.delivery_id == "b1":
            raise SystemExit

    with ledger() as wire:
        assert failed(consumer(backoff=Fixed(WAIT))(handler)(batch(), Context())) == ["b1", "a2", "b2", "a3"]
    assert wire.visibilities() == {"handle-b1": WAIT, "handle-a2": 0, "handle-b2": 0, "handle-a3": 0}


# groups, and what is none


def test_without_group_ids_a_fifo_queue_is_one_group() -> None:  # SPEC H3
    the_event = event(entry("m1", None), entry("m2", None), entry("m3", None))
    invoked = Invoked({"m2": "raise"}, the_event, ledger())
    assert (invoked.runs, invoked.hidden) == (["m1", "m2"], {"m2": WAIT, "m3": 0})


def test_a_group_id_on_a_standard_queue_is_no_order() -> None:  # SPEC H3
    the_event = event(*(entry(f"m{index}", "a", "orders") for index in range(3)))
    invoked = Invoked({"m0": "raise"}, the_event, Wire(queues={"orders": Queue("orders-dlq")}))
    assert (invoked.runs, invoked.reported) == (["m0", "m1", "m2"], ["m0"])


def test_a_group_of_the_same_name_on_another_queue_is_another_group() -> None:  # SPEC H1
    the_event = event(entry("m1", "a"), entry("m2", "a", "other.fifo"), entry("m3", "a"))
    invoked = Invoked({"m1": "raise"}, the_event, ledger())
    assert (invoked.runs, invoked.reported) == (["m1", "m2"], ["m1", "m3"])


def test_beside_fifo_messages_those_of_a_standard_queue_keep_their_attempts() -> None:  # SPEC C2, H3
    attempts: dict[str, int] = {}
    the_event = event(
        entry("f1", "a"), entry("s1", None, "orders", receives=4), entry("s2", None, "orders", receives=4)
    )
    with ledger():
        consumer(lambda m: attempts.update({m.id: m.attempt}))(the_event, Context())
    assert attempts == {"f1": 1, "s1": 4, "s2": 4}


def test_what_is_given_back_on_a_standard_queue_is_logged_with_its_own_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC C2, L2
    def handler(message: Message) -> None:
        raise SystemExit

    caplog.set_level("INFO", "tarry")
    with ledger():
        consumer(handler)(event(*(record("{}", f"m{index}", receives=4) for index in range(3))), Context())
    given_back = [line for line in caplog.records if getattr(line, "event", "") == "released"]
    assert [line.attempt for line in given_back] == [4, 4]  # type: ignore[attr-defined]


# batch handlers


class BatchInvoked:
    def __init__(self, say: Callable[[dict[str, Message], Batch], Any], wire: Wire, **settings: Any) -> None:
        def handler(messages: Batch) -> None:
            say({message.delivery_id: message for message in messages}, messages)

        with wire:
            self.reported = failed(batch_consumer(backoff=Fixed(WAIT), **settings)(handler)(batch(), Context()))
        self.hidden = {handle.removeprefix("handle-"): seconds for handle, seconds in wire.visibilities().items()}
        self.dead = [kept["id"] for kept in wire.records()]


@pytest.mark.parametrize("word", STOPS)
def test_what_is_left_unsaid_behind_a_message_that_stays_is_given_back(word: str) -> None:  # SPEC H2
    invoked = BatchInvoked(lambda by_id, _: WORDS[word](by_id["a1"]), ledger())
    assert invoked.reported == ["a1", "a2", "a3"]
    assert (invoked.hidden["a2"], invoked.hidden["a3"]) == (0, 0)


@pytest.mark.parametrize("word", GOES_ON)
def test_what_is_left_unsaid_behind_a_message_that_leaves_is_acknowledged(word: str) -> None:  # SPEC H1, H2
    invoked = BatchInvoked(lambda by_id, _: WORDS[word](by_id["a1"]), ledger())
    assert (invoked.reported, invoked.hidden) == ([], {})


@pytest.mark.parametrize("word", GOES_ON)
def test_what_is_said_behind_a_message_that_stays_holds_if_it_leaves_the_queue(word: str) -> None:  # SPEC H2, B5
    def say(by_id: dict[str, Message], _: Batch) -> None:
        by_id["a1"].retry(60)
        WORDS[word](by_id["a2"])

    invoked = BatchInvoked(say, ledger())
    assert invoked.reported == ["a1", "a3"]
    assert invoked.hidden == {"a1": 60, "a3": 0}
    assert invoked.dead == (["a2"] if word == "reject" else [])


def test_a_retry_behind_a_message_that_stays_comes_back_with_its_head() -> None:  # SPEC H1
    def say(by_id: dict[str, Message], _: Batch) -> None:
        by_id["a1"].retry(60)
        by_id["a2"].retry(600)

    assert BatchInvoked(say, ledger()).hidden == {"a1": 60, "a2": 0, "a3": 0}


def test_retry_all_on_fifo_keeps_each_group_behind_its_head() -> None:  # SPEC H1
    invoked = BatchInvoked(lambda _, messages: messages.retry_all(60), ledger())
    assert invoked.reported == ["a1", "b1", "a2", "b2", "a3"]
    assert invoked.hidden == {"a1": 60, "b1": 60, "a2": 0, "b2": 0, "a3": 0}


def test_ack_all_acknowledges_what_stands_behind_a_retry() -> None:  # SPEC H2, B4
    def say(by_id: dict[str, Message], messages: Batch) -> None:
        by_id["a1"].retry(60)
        messages.ack_all()

    assert BatchInvoked(say, ledger()).reported == ["a1"]


def test_a_batch_handler_that_raises_fails_the_heads_and_gives_back_the_rest() -> None:  # SPEC H1, B5
    def say(by_id: dict[str, Message], _: Batch) -> None:
        raise ValueError

    assert BatchInvoked(say, ledger()).hidden == {"a1": WAIT, "b1": WAIT, "a2": 0, "b2": 0, "a3": 0}


def test_a_group_stops_where_a_dead_lettering_failed_in_a_batch_handler_too() -> None:  # SPEC H1, H2
    wire = ledger(fails={"SendMessageBatch": client_error("InternalError", status=500)})
    invoked = BatchInvoked(lambda by_id, _: by_id["a1"].reject(), wire)
    assert invoked.reported == ["a1", "a2", "a3"]
    assert invoked.hidden == {"a1": 900, "a2": 0, "a3": 0}


def test_a_batch_error_on_fifo_acknowledges_before_and_gives_back_after() -> None:  # SPEC B5, H1
    def say(_: dict[str, Message], messages: Batch) -> None:
        raise BatchError(message=messages[2])

    invoked = BatchInvoked(say, ledger())
    assert invoked.reported == ["a2", "b2", "a3"]
    assert invoked.hidden == {"a2": WAIT, "b2": 0, "a3": 0}


def test_an_exhausted_head_is_dead_lettered_and_the_next_fails_as_its_first_attempt() -> None:  # SPEC C2, H1
    the_event = event(entry("a1", "a", receives=5), entry("a2", "a", receives=5))

    def handler(messages: Batch) -> None:
        raise ValueError

    with ledger() as wire:
        assert failed(batch_consumer(backoff=Fixed(WAIT))(handler)(the_event, Context())) == ["a2"]
    assert [kept["id"] for kept in wire.records()] == ["a1"]
    assert wire.visibilities()["handle-a2"] == WAIT
