"""What a handler can say of its messages, and which of its words holds."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from tarry import (
    Batch,
    BatchError,
    ConfigurationError,
    DeadLetter,
    Defer,
    DelayNotSupported,
    Discard,
    Failure,
    Fixed,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.wire import Queue, Wire

POLICY = 77
"""The seconds of the policy's backoff: a wait of as many was decided by the policy."""

LONGEST = 43_200
"""The longest delay that can be said: in place SQS keeps a second less, so it takes a copy."""


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def fate(wire: Wire, response: dict[str, list[dict[str, str]]], message_id: str = "m1") -> str:
    """What became of a message, in a word: done, dead, or the seconds it waits, in place or as a copy of its own."""
    is_reported = message_id in failed(response)
    seconds = wire.visibilities().get(f"handle-{message_id}")
    if is_reported:
        return f"again in {seconds}"
    assert seconds is None
    sent = [(request.queue, entry) for request in wire.sent("SendMessageBatch") for entry in request.entries]
    for (queue, entry), kept in zip(sent, wire.records(), strict=True):
        if kept["id"] == message_id:
            until_due = kept.get("due", wire.clock.now) - wire.clock.now
            return f"again in {max(int(until_due), entry['DelaySeconds'])}" if queue == "orders" else "dead"
    return "done"


def fate_of_one(handle: Callable[[Message], Any], **settings: Any) -> str:
    """What becomes of one fresh message under a handler."""
    handler = consumer(backoff=Fixed(POLICY), **settings)(handle)
    with orders() as wire:
        return fate(wire, handler(event(record()), Context()))


def raising(error: BaseException | type[BaseException]) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        raise error

    return handler


AGAIN_BY_POLICY = f"again in {POLICY}"

# one word


WORDS: dict[str, tuple[Callable[[Message], None], str]] = {
    "nothing": (lambda m: None, "done"),
    "ack()": (lambda m: m.ack(), "done"),
    "retry()": (lambda m: m.retry(), AGAIN_BY_POLICY),
    "retry(60)": (lambda m: m.retry(60), "again in 60"),
    "retry(0)": (lambda m: m.retry(0), "again in 0"),
    "reject()": (lambda m: m.reject(), "dead"),
    "discard()": (lambda m: m.discard(), "done"),
    "defer(30)": (lambda m: m.defer(30), "again in 30"),
    "defer(0)": (lambda m: m.defer(0), "again in 1"),
    "fail(error)": (lambda m: m.fail(ValueError()), AGAIN_BY_POLICY),
    "fail(Reject())": (lambda m: m.fail(Reject()), "dead"),
    "fail(Retry(9))": (lambda m: m.fail(Retry(9)), "again in 9"),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_decides_what_becomes_of_the_message(word: str) -> None:  # SPEC B1, B2
    say, expected = WORDS[word]
    assert fate_of_one(say) == expected


@pytest.mark.parametrize("word", [word for word in WORDS if word != "nothing"])
def test_a_word_holds_although_the_handler_then_raises(word: str) -> None:  # SPEC B5
    say, expected = WORDS[word]

    def handler(message: Message) -> None:
        say(message)
        raise Reject("too late") if expected != "dead" else ValueError

    assert fate_of_one(handler) == expected


@pytest.mark.parametrize("later", [word for word in WORDS if word != "nothing"])
@pytest.mark.parametrize("first", [word for word in WORDS if word != "nothing"])
def test_the_first_word_wins(first: str, later: str) -> None:  # SPEC B4
    def handler(message: Message) -> None:
        WORDS[first][0](message)
        WORDS[later][0](message)

    assert fate_of_one(handler) == WORDS[first][1]


def test_a_word_too_late_is_told_to_who_asks_for_debug_lines(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")

    def handler(message: Message) -> None:
        message.ack()
        message.reject("changed my mind")

    assert fate_of_one(handler) == "done"
    [line] = caplog.records
    assert line.levelno == logging.DEBUG
    assert "m1" in line.getMessage()


def test_a_word_on_the_batch_too_late_is_told_as_well(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")

    @batch_consumer
    def handler(batch: Batch) -> None:
        batch.ack_all()
        batch.retry_all()

    with orders():
        assert failed(handler(batch_of(1), Context())) == []
    assert len(caplog.records) == 1


def test_a_discarded_message_leaves_a_log_line_and_no_letter(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B2
    caplog.set_level(logging.INFO, "tarry")
    with orders() as wire:
        consumer(lambda message: message.discard("too old"))(event(record()), Context())
    assert wire.requests == []
    [line] = caplog.records
    assert (line.event, line.reason) == ("discarded", "too old")  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", [None, "no such customer"])
def test_a_reject_tells_its_reason_in_the_record(reason: str | None) -> None:  # SPEC B2, E1
    with orders() as wire:
        consumer(lambda message: message.reject(reason))(event(record()), Context())
    [kept] = wire.records()
    assert kept["failure"]["reason"] == "rejected"
    assert kept["failure"].get("message") == reason


@pytest.mark.parametrize("nothing", ["ValueError", None, ValueError, 3], ids=repr)
def test_fail_takes_an_exception(nothing: Any) -> None:  # SPEC B2
    caught: list[Exception] = []

    def handler(message: Message) -> None:
        try:
            message.fail(nothing)
        except TypeError as error:
            caught.append(error)

    fate_of_one(handler)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        pytest.param(lambda m: None, None, id="nothing"),
        pytest.param(lambda m: m.ack(), Outcome.ack(), id="ack"),
        pytest.param(lambda m: m.retry(5), Outcome.retry(5), id="retry"),
        pytest.param(lambda m: m.defer(5), Outcome.defer(5), id="defer"),
        pytest.param(lambda m: m.discard("x"), Outcome.discard("x"), id="discard"),
        pytest.param(lambda m: m.fail(ValueError()), None, id="fail: the policy is still to decide"),
    ],
)
def test_the_outcome_is_none_until_something_was_said(say: Any, expected: Outcome | None) -> None:  # SPEC B2
    seen: list[Outcome | None] = []

    def handler(message: Message) -> None:
        assert message.outcome is None
        say(message)
        seen.append(message.outcome)

    fate_of_one(handler)
    assert seen == [expected]


# a word on the message, one on the batch, and an exception


PRECEDENCE = [
    # said, in this order; what becomes of the message
    (["ack_all"], "done"),
    (["retry_all"], AGAIN_BY_POLICY),
    (["retry_all 600"], "again in 600"),
    (["ack", "retry_all 600"], "done"),
    (["retry_all 600", "ack"], "again in 600"),
    (["retry", "ack_all"], AGAIN_BY_POLICY),
    (["ack_all", "retry"], "done"),
    (["ack_all", "retry 60"], "done"),
    (["retry_all 600", "retry 60"], "again in 60"),
    (["retry 60", "retry_all 600"], "again in 60"),
    (["retry_all", "retry 60"], "again in 60"),
    (["retry_all 600", "retry"], "again in 600"),
    (["retry", "retry_all 600"], "again in 600"),
    (["retry_all 600", "retry 0"], "again in 0"),
    (["retry_all 0"], "again in 0"),
    (["ack_all", "retry_all 600"], "done"),
    (["retry_all 600", "ack_all"], "again in 600"),
    (["retry_all 600", "retry_all 60"], "again in 600"),
    (["retry_all 600", "ack", "retry 60"], "again in 60"),
    (["ack_all", "retry", "ack"], "done"),
    (["ack_all", "reject"], "dead"),
    (["reject", "ack_all"], "dead"),
    (["retry_all 600", "reject"], "dead"),
    (["reject", "retry_all 600"], "dead"),
    (["retry_all 600", "discard"], "done"),
    (["discard", "retry_all 600"], "done"),
    (["ack_all", "defer 30"], "again in 30"),
    (["retry_all 600", "defer 30"], "again in 30"),
    (["ack_all", "fail"], AGAIN_BY_POLICY),
    (["fail", "ack_all"], AGAIN_BY_POLICY),
    ([], "done"),
    (["raise"], AGAIN_BY_POLICY),
    (["ack", "raise"], "done"),
    (["reject", "raise"], "dead"),
    (["discard", "raise"], "done"),
    (["retry 60", "raise"], "again in 60"),
    (["defer 30", "raise"], "again in 30"),
    (["fail", "raise"], AGAIN_BY_POLICY),
    (["ack_all", "raise"], "done"),
    (["retry_all 600", "raise"], "again in 600"),
    (["ack_all", "retry 60", "raise"], "done"),
    (["retry_all 600", "ack", "raise"], "again in 600"),
]


def _say(batch: Batch, message: Message, words: list[str]) -> None:
    for word in words:
        name, _, seconds = word.partition(" ")
        arguments = [int(seconds)] if seconds else []
        match name:
            case "raise":
                raise KeyError("raised at the end")
            case "fail":
                message.fail(ValueError())
            case "ack_all" | "retry_all":
                getattr(batch, name)(*arguments)
            case _:
                getattr(message, name)(*arguments)


@pytest.mark.parametrize(
    ("words", "expected"), PRECEDENCE, ids=[", ".join(words) or "nothing" for words, _ in PRECEDENCE]
)
def test_which_word_holds(words: list[str], expected: str) -> None:  # SPEC B4, B5, B7
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        _say(batch, batch[0], words)

    with orders() as wire:
        assert fate(wire, handler(event(record()), Context())) == expected


def test_what_is_said_of_one_message_says_nothing_of_the_others() -> None:  # SPEC B1
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        batch[1].retry(60)
        batch[2].reject()

    with orders() as wire:
        response = handler(batch_of(4), Context())
        fates = [fate(wire, response, f"m{index}") for index in range(4)]
    assert fates == ["done", "again in 60", "dead", "done"]


def test_when_a_batch_handler_raises_each_message_fails_with_its_own_attempt() -> None:  # SPEC B5
    @batch_consumer(backoff=Fixed(POLICY), max_attempts=3)
    def handler(batch: Batch) -> None:
        batch[0].ack()
        raise ValueError

    records = [record("{}", f"m{receives}", receives=receives) for receives in (1, 2, 3, 4)]
    with orders() as wire:
        response = handler(event(*records), Context())
        fates = [fate(wire, response, f"m{receives}") for receives in (1, 2, 3, 4)]
    assert fates == ["done", AGAIN_BY_POLICY, "dead", "dead"]
    assert [kept["failure"]["attempts"] for kept in wire.records()] == [3, 4]


# the one that stopped a batch


def _batch_fates(stop: Callable[[Batch], None], count: int = 4) -> list[str]:
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        stop(batch)

    with orders() as wire:
        response = handler(batch_of(count), Context())
        return [fate(wire, response, f"m{index}") for index in range(count)]


BACK = "again in 0"


def _by_index(batch: Batch) -> None:
    raise BatchError(index=1)


def _by_message(batch: Batch) -> None:
    raise BatchError(message=batch[1])


def _by_subclass(batch: Batch) -> None:
    class Stopped(BatchError):
        pass

    raise Stopped("the third line", index=1)


@pytest.mark.parametrize("stop", [_by_index, _by_message, _by_subclass])
def test_a_batch_error_acknowledges_those_before_its_culprit_and_gives_back_those_after(
    stop: Callable[[Batch], None],
) -> None:  # SPEC B5
    assert _batch_fates(stop) == ["done", AGAIN_BY_POLICY, BACK, BACK]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(KeyError("x"), AGAIN_BY_POLICY, id="an error"),
        pytest.param(Retry(9), "again in 9", id="retry"),
        pytest.param(Reject("bad"), "dead", id="reject"),
        pytest.param(Discard(), "done", id="discard"),
        pytest.param(Defer(12), "again in 12", id="defer"),
    ],
)
def test_the_cause_of_a_batch_error_is_what_its_culprit_failed_with(cause: Exception, expected: str) -> None:  # SPEC B5
    def stop(batch: Batch) -> None:
        raise BatchError(index=1) from cause

    assert _batch_fates(stop) == ["done", expected, BACK, BACK]


def test_the_record_of_a_culprit_names_the_cause() -> None:  # SPEC B5, F2
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        raise BatchError(index=0) from KeyError("x")

    with orders() as wire:
        handler(batch_of(2), Context())
    assert [kept["failure"]["type"] for kept in wire.records()] == ["KeyError"]


def test_explicit_words_hold_beside_a_batch_error() -> None:  # SPEC B5
    def stop(batch: Batch) -> None:
        batch[0].retry(60)
        batch[1].ack()
        batch[2].reject()
        raise BatchError(index=1)

    assert _batch_fates(stop) == ["again in 60", "done", "dead", BACK]


@pytest.mark.parametrize("index", [-1, 4, 10**30, True, 1.0, "1"], ids=repr)
def test_a_batch_error_that_names_no_message_of_the_batch_fails_all(index: Any) -> None:  # SPEC B5, A2
    def stop(batch: Batch) -> None:
        raise BatchError(index=index)

    assert _batch_fates(stop) == [AGAIN_BY_POLICY] * 4


def test_a_batch_error_with_a_message_of_another_batch_fails_all() -> None:  # SPEC B5, A2
    kept: list[Message] = []
    with orders():
        consumer(kept.append)(event(record("{}", "m0")), Context())

    def stop(batch: Batch) -> None:
        raise BatchError(message=kept[0])

    assert _batch_fates(stop) == [AGAIN_BY_POLICY] * 4


def test_the_first_and_the_last_can_be_culprits() -> None:  # SPEC B5
    def stop_at(index: int) -> Callable[[Batch], None]:
        def stop(batch: Batch) -> None:
            raise BatchError(index=index)

        return stop

    assert _batch_fates(stop_at(0), 3) == [AGAIN_BY_POLICY, BACK, BACK]
    assert _batch_fates(stop_at(2), 3) == ["done", "done", AGAIN_BY_POLICY]


# words that are raised


class CardDeclined(Reject):
    pass


class Forgetful(Retry):
    """A subclass that never calls the constructor of its base."""

    def __init__(self, customer: str) -> None:
        self.customer = customer


class Later(Defer):
    def __init__(self) -> None:
        super().__init__(timedelta(minutes=2))


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Retry(), AGAIN_BY_POLICY),
        (Retry(60), "again in 60"),
        (Retry(0), "again in 0"),
        (Retry(timedelta(minutes=1)), "again in 60"),
        (Reject(), "dead"),
        (Reject("reason"), "dead"),
        (Discard(), "done"),
        (Discard("reason"), "done"),
        (Defer(30), "again in 30"),
        (Defer(0), "again in 1"),
        (CardDeclined("no money"), "dead"),
        (Forgetful("Ada"), AGAIN_BY_POLICY),
        (Later(), "again in 120"),
    ],
    ids=repr,
)
def test_a_verdict_can_be_raised(signal: Exception, expected: str) -> None:  # SPEC B3
    assert fate_of_one(raising(signal)) == expected


def test_a_class_is_a_verdict_too() -> None:  # SPEC B3
    assert fate_of_one(raising(Retry)) == AGAIN_BY_POLICY
    assert fate_of_one(raising(CardDeclined)) == "dead"


def test_a_verdict_is_found_from_any_depth() -> None:  # SPEC B3
    def deep(levels: int) -> None:
        if not levels:
            raise Retry(60)
        deep(levels - 1)

    assert fate_of_one(lambda message: deep(50)) == "again in 60"


def test_a_verdict_that_the_handler_caught_is_none() -> None:  # SPEC B3
    def handler(message: Message) -> None:
        try:
            raise Reject
        except Reject:
            return

    assert fate_of_one(handler) == "done"


def _from(error: BaseException, *causes: BaseException) -> Any:
    """``raise error from causes[0]``, that from causes[1], ..."""
    for link, cause in zip([error, *causes], causes, strict=False):
        link.__cause__ = cause
    return error


def _circle() -> BaseException:
    one, other = ValueError(1), ValueError(2)
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(_from(ValueError(), Retry(60)), "again in 60", id="error from retry"),
        pytest.param(_from(ValueError(), KeyError(), Reject()), "dead", id="two causes down"),
        pytest.param(_from(ValueError(), Discard(), Reject()), "done", id="the outermost wins"),
        pytest.param(_from(Retry(60), Reject()), "again in 60", id="a signal before its cause"),
        pytest.param(_from(Retry(60), ValueError()), "again in 60", id="retry from error"),
        pytest.param(_from(SystemExit(), Retry(60)), "again in 60", id="SystemExit from retry"),
        pytest.param(_circle(), AGAIN_BY_POLICY, id="causes in a circle"),
    ],
)
def test_a_verdict_is_found_along_explicit_causes(error: BaseException, expected: str) -> None:  # SPEC B3
    assert fate_of_one(raising(error)) == expected


@pytest.mark.parametrize("how", ["implicit", "from None"])
def test_a_verdict_that_was_being_handled_is_another_error(how: str) -> None:  # SPEC B3
    def handler(message: Message) -> None:
        try:
            raise Reject("not this")
        except Reject:
            if how == "from None":
                raise ValueError from None
            raise ValueError  # noqa: B904

    assert fate_of_one(handler) == AGAIN_BY_POLICY


def _group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", list(errors))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(_group(Reject()), "dead", id="one signal"),
        pytest.param(_group(Discard(), Reject()), "dead", id="reject before discard"),
        pytest.param(_group(Reject(), Defer(30), Discard()), "again in 30", id="defer before reject"),
        pytest.param(_group(Discard(), Reject(), Defer(30), Retry(60)), "again in 60", id="retry before all"),
        pytest.param(_group(Discard(), _group(Reject(), _group(Retry(60)))), "again in 60", id="nested"),
        pytest.param(_group(CardDeclined(), Discard()), "dead", id="subclasses"),
        pytest.param(_group(Reject(), ValueError()), AGAIN_BY_POLICY, id="mixed"),
        pytest.param(_group(Reject(), _group(Reject(), ValueError())), AGAIN_BY_POLICY, id="mixed below"),
        pytest.param(_group(ValueError(), KeyError()), AGAIN_BY_POLICY, id="no signal"),
        pytest.param(_from(ValueError(), _group(Reject())), "dead", id="as a cause"),
        pytest.param(_from(ValueError(), _group(Reject(), KeyError())), AGAIN_BY_POLICY, id="mixed as a cause"),
        pytest.param(_group(_from(ValueError(), Reject()), Reject()), "dead", id="a leaf from a signal"),
        pytest.param(BaseExceptionGroup("x", [Reject(), SystemExit()]), AGAIN_BY_POLICY, id="with a SystemExit"),
    ],
)
def test_in_a_group_a_verdict_counts_if_every_leaf_is_one(error: BaseException, expected: str) -> None:  # SPEC B3
    assert fate_of_one(raising(error)) == expected


def test_a_task_group_whose_tasks_reject_is_a_reject() -> None:  # SPEC B3
    import asyncio

    async def reject() -> None:
        raise CardDeclined

    async def handler(message: Message) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reject())

    assert fate_of_one(handler) == "dead"


# delays


def in_utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(RECEIVED_AT + seconds, UTC)


DELAYS = [
    (0, 0),
    (0.0, 0),
    (-0.0, 0),
    (1, 1),
    (1.2, 2),
    (0.001, 1),
    (59.999, 60),
    (Decimal("1.5"), 2),
    (Fraction(3, 2), 2),
    (timedelta(0), 0),
    (timedelta(minutes=5), 300),
    (timedelta(milliseconds=1), 1),
    (in_utc(90), 90),
    (in_utc(90.5), 91),
    (in_utc(90).astimezone(timezone(timedelta(hours=5))), 90),
    (in_utc(0), 0),
    (in_utc(-3600), 0),
    (LONGEST, LONGEST),
]


@pytest.mark.parametrize(("delay", "seconds"), DELAYS, ids=[str(delay) for delay, _ in DELAYS])
def test_a_delay_can_be_said_in_several_ways(delay: Any, seconds: int) -> None:  # SPEC B6
    assert fate_of_one(lambda message: message.retry(delay)) == f"again in {seconds}"
    assert fate_of_one(lambda message: message.defer(delay)) == f"again in {max(1, seconds)}"

    def raise_it(message: Message) -> None:
        raise Retry(delay)

    assert fate_of_one(raise_it) == f"again in {seconds}"


NO_DELAYS = [
    -1,
    -0.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    "60",
    b"60",
    [60],
    1j,
    object(),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal(-1),
    timedelta(seconds=-1),
    datetime(2027, 1, 15),  # noqa: DTZ001 that it is naive is the point
    10**400,
]


def _calls(delay: Any) -> dict[str, Callable[[Message, Batch], Any]]:
    return {
        "message.retry": lambda message, batch: message.retry(delay),
        "message.defer": lambda message, batch: message.defer(delay),
        "batch.retry_all": lambda message, batch: batch.retry_all(delay),
        "Retry": lambda message, batch: Retry(delay),
        "Defer": lambda message, batch: Defer(delay),
    }


def _caught(call: Callable[[Message, Batch], Any]) -> tuple[Exception | None, str]:
    """What a call in a handler raised there, and what became of the message, of which nothing else was said."""
    caught: list[Exception] = []

    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        try:
            call(batch[0], batch)
        except Exception as error:  # noqa: BLE001
            caught.append(error)

    with orders() as wire:
        became = fate(wire, handler(event(record()), Context()))
    return (caught[0] if caught else None), became


@pytest.mark.parametrize("call", _calls(0))
@pytest.mark.parametrize("delay", NO_DELAYS, ids=lambda delay: repr(delay)[:20])
def test_what_is_no_delay_is_refused_at_the_call(delay: Any, call: str) -> None:  # SPEC B6
    error, became = _caught(_calls(delay)[call])
    assert isinstance(error, ValueError)
    assert not isinstance(error, DelayNotSupported)
    assert became == "done"


@pytest.mark.parametrize("delay", [None, "60"], ids=repr)
def test_defer_needs_a_delay(delay: Any) -> None:  # SPEC B2
    with pytest.raises(ValueError, match="delay"):
        Defer(delay)


@pytest.mark.parametrize("delay", [LONGEST + 1, 50_000, timedelta(days=1), in_utc(10**6), 1e300], ids=str)
@pytest.mark.parametrize("call", ["message.retry", "message.defer", "batch.retry_all"])
def test_a_delay_that_sqs_cannot_keep_is_refused_at_the_call(delay: Any, call: str) -> None:  # SPEC C6, B6
    error, became = _caught(_calls(delay)[call])
    assert isinstance(error, DelayNotSupported)
    assert str(43_200) in str(error)
    assert became == "done"  # the handler went on, and nothing was said


@pytest.mark.parametrize("raised", [Retry(50_000), Defer(50_000), _from(ValueError(), Retry(50_000))], ids=repr)
def test_a_raised_delay_that_sqs_cannot_keep_is_a_failure(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C6
    assert fate_of_one(raising(raised)) == AGAIN_BY_POLICY
    [line] = [line for line in caplog.records if getattr(line, "event", "") == "waiting_retry"]
    assert line.error_type == "tarry.DelayNotSupported"  # type: ignore[attr-defined]
    assert "50000" in line.error  # type: ignore[attr-defined]


def test_a_delay_that_sqs_cannot_keep_is_not_cut_when_it_comes_with_fail() -> None:  # SPEC C6
    def handler(message: Message) -> None:
        message.fail(Retry(50_000))

    assert fate_of_one(handler) == AGAIN_BY_POLICY


def test_the_uncaught_refusal_of_a_delay_is_a_failure_of_the_message() -> None:  # SPEC C6
    assert fate_of_one(lambda message: message.retry(50_000)) == AGAIN_BY_POLICY


IN_PLACE = pytest.mark.parametrize(
    ("receives", "age", "longest"),
    [
        pytest.param(1, 0, 43_199, id="received just now"),
        pytest.param(1, 100, 43_099, id="received 100 s ago"),
        pytest.param(1, 0.5, 43_198, id="parts of a second count against it"),
        pytest.param(2, 0, 43_200 - 330 - 1, id="received before: when is not known"),
    ],
)


@IN_PLACE
def test_what_sqs_can_keep_in_place_waits_there(receives: int, age: float, longest: int) -> None:  # SPEC C6, E8
    with orders() as wire:
        wire.clock.now += age
        consumer(lambda message: message.retry(longest))(event(record(receives=receives)), Context())
    assert wire.visibilities() == {"handle-m1": longest}
    assert wire.letters() == []


@IN_PLACE
def test_a_retry_too_long_to_wait_in_place_is_sent_again(
    receives: int, age: float, longest: int
) -> None:  # SPEC C6, J4
    with orders() as wire:
        wire.clock.now += age
        said = consumer(lambda message: message.retry(longest + 1))
        assert failed(said(event(record(receives=receives)), Context())) == []
    [copy], [kept] = wire.letters(), wire.records()
    assert copy["DelaySeconds"] == 900
    assert (kept["carried"], kept["due"]) == (receives, wire.clock.now + longest + 1)


@IN_PLACE
def test_on_fifo_a_delay_too_long_to_wait_in_place_is_refused(
    receives: int, age: float, longest: int
) -> None:  # SPEC C6, J4
    refused: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        for say in (message.retry, message.defer):
            try:
                say(longest + 1)
            except DelayNotSupported as error:
                refused.append(str(error))
        message.retry(longest)

    with Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")}) as wire:
        wire.clock.now += age
        handler(event(record(queue="orders.fifo", receives=receives, group="g")), Context())
    assert wire.visibilities() == {"handle-m1": longest}
    assert [str(longest) in text for text in refused] == [True, True]


class SoonWithoutSuper(Retry):
    delay = timedelta(seconds=5)  # type: ignore[assignment]

    def __init__(self, why: str) -> None:
        self.why = why


class Later(Retry):
    delay = 60


@pytest.mark.parametrize(
    ("signal", "seconds"),
    [(SoonWithoutSuper("busy"), 5), (Later(), 60), (Later(7), 7)],
    ids=["no super", "own", "given"],
)
def test_a_signal_may_have_a_delay_of_its_own(signal: Retry, seconds: int) -> None:  # SPEC B3
    @consumer
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise signal

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": seconds}


class Nonsense(Retry):
    def __init__(self) -> None:
        self.delay = "soon"  # type: ignore[assignment]


def test_a_signal_with_a_delay_that_is_none_is_an_ordinary_failure_of_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A2, B3
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise Nonsense

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert "soon" in caplog.text


def test_a_retry_said_in_an_except_block_keeps_the_exception_as_its_reason() -> None:  # SPEC F2
    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            message.retry(delay=30)

    with orders() as wire:
        handler(batch_of(1), Context())
    told = wire.records()[0]["failure"]
    assert (told["reason"], told["type"], told["message"]) == ("exhausted", "ConnectionError", "503")
    assert "raise ConnectionError" in told["traceback"]


def test_a_retry_of_the_batch_said_in_an_except_block_keeps_the_exception_too() -> None:  # SPEC F2
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            batch.retry_all(delay=30)

    with orders() as wire:
        handler(batch_of(2), Context())
    told = [kept["failure"] for kept in wire.records()]
    assert [(each["reason"], each["type"], each["message"]) for each in told] == [
        ("exhausted", "ConnectionError", "503")
    ] * 2


def test_a_retry_said_after_an_except_block_has_no_error() -> None:  # SPEC E1
    seen: list[object] = []

    class Look:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            seen.append(failure.error)
            return next_step(failure)  # type: ignore[no-any-return]

    @consumer(on_failure=[Look(), RetryInPlace()])
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            pass
        message.retry(delay=30)

    with orders():
        handler(batch_of(1), Context())
    assert seen == [None]


def test_a_rejection_said_in_an_except_block_shows_the_exception_in_its_traceback() -> None:  # SPEC F2
    @consumer
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            message.reject("gone")

    with orders() as wire:
        handler(batch_of(1), Context())
    told = wire.records()[0]["failure"]
    assert (told["type"], told["message"]) == ("tarry.Reject", "gone")
    assert "raise ConnectionError" in told["traceback"]


class AClass:
    def __call__(self, message: Message) -> None: ...

    def method(self, message: Message) -> None: ...


def of_an_event_and_a_context(event: object, context: object) -> None: ...


def of_nothing() -> None: ...


def of_a_keyword(*, message: Message) -> None: ...


@pytest.mark.parametrize(
    "function",
    [AClass, AClass.method, of_an_event_and_a_context, of_nothing, of_a_keyword, consumer(AClass())],
    ids=["a class", "a method without its object", "a Lambda handler", "no argument", "a keyword", "a consumer"],
)
def test_a_function_that_cannot_be_called_with_a_message_is_refused_when_made(function: Any) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="cannot be a handler"):
        consumer(function)


@pytest.mark.parametrize(
    "function",
    [AClass(), AClass().method, lambda m, more=1: None, lambda *m: None, partial(lambda a, m: None, 1), print],
    ids=["an instance", "a bound method", "a default", "any number", "partial", "a builtin"],
)
def test_whatever_can_be_called_with_a_message_is_a_handler(function: Any) -> None:  # SPEC B1
    with orders():
        assert failed(consumer(function)(batch_of(1), Context())) == []


def test_nothing_may_stand_behind_a_dead_letter_step() -> None:  # SPEC E1
    with pytest.raises(ConfigurationError, match="must be the last step"):
        consumer(on_failure=[DeadLetter(), RetryInPlace()])
