"""The verdicts of a handler on its messages, and their precedence."""

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
"""The delay of the policy's backoff in seconds. A message with this delay was retried by the policy."""

LONGEST = 43_200
"""The longest delay in seconds. It takes a copy, because the limit in place is a second shorter."""


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def fate(wire: Wire, response: dict[str, list[dict[str, str]]], message_id: str = "m1") -> str:
    """Return the fate of a message: done, dead, or the seconds until its retry, in place or as a copy."""
    is_reported = message_id in failed(response)
    seconds = wire.visibilities().get(f"handle-{message_id}")
    if is_reported:
        return f"retried in {seconds}"
    assert seconds is None
    sent = [(request.queue, entry) for request in wire.sent("SendMessageBatch") for entry in request.entries]
    for (queue, entry), envelope in zip(sent, wire.envelopes(), strict=True):
        if envelope["id"] == message_id:
            until_due = envelope.get("due", wire.clock.now) - wire.clock.now
            return f"retried in {max(int(until_due), entry['DelaySeconds'])}" if queue == "orders" else "dead"
    return "done"


def fate_of_one(handle: Callable[[Message], Any], **settings: Any) -> str:
    """Run the handler for one fresh message; return its fate."""
    handler = consumer(backoff=Fixed(POLICY), **settings)(handle)
    with orders() as wire:
        return fate(wire, handler(event(record()), Context()))


def raising(error: BaseException | type[BaseException]) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        raise error

    return handler


RETRIED_BY_POLICY = f"retried in {POLICY}"

# one verdict


VERDICTS: dict[str, tuple[Callable[[Message], None], str]] = {
    "no verdict": (lambda m: None, "done"),
    "ack()": (lambda m: m.ack(), "done"),
    "retry()": (lambda m: m.retry(), RETRIED_BY_POLICY),
    "retry(60)": (lambda m: m.retry(60), "retried in 60"),
    "retry(0)": (lambda m: m.retry(0), "retried in 0"),
    "reject()": (lambda m: m.reject(), "dead"),
    "discard()": (lambda m: m.discard(), "done"),
    "defer(30)": (lambda m: m.defer(30), "retried in 30"),
    "defer(0)": (lambda m: m.defer(0), "retried in 1"),
    "fail(error)": (lambda m: m.fail(ValueError()), RETRIED_BY_POLICY),
    "fail(Reject())": (lambda m: m.fail(Reject()), "dead"),
    "fail(Retry(9))": (lambda m: m.fail(Retry(9)), "retried in 9"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_decides_on_the_message(name: str) -> None:  # SPEC B1, B2
    give, expected = VERDICTS[name]
    assert fate_of_one(give) == expected


@pytest.mark.parametrize("name", [name for name in VERDICTS if name != "no verdict"])
def test_a_verdict_holds_although_the_handler_then_raises_an_exception(name: str) -> None:  # SPEC B5
    give, expected = VERDICTS[name]

    def handler(message: Message) -> None:
        give(message)
        raise Reject("too late") if expected != "dead" else ValueError

    assert fate_of_one(handler) == expected


@pytest.mark.parametrize("later", [name for name in VERDICTS if name != "no verdict"])
@pytest.mark.parametrize("first", [name for name in VERDICTS if name != "no verdict"])
def test_the_first_verdict_holds(first: str, later: str) -> None:  # SPEC B4
    def handler(message: Message) -> None:
        VERDICTS[first][0](message)
        VERDICTS[later][0](message)

    assert fate_of_one(handler) == VERDICTS[first][1]


def test_a_second_verdict_on_a_message_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")

    def handler(message: Message) -> None:
        message.ack()
        message.reject("changed my mind")

    assert fate_of_one(handler) == "done"
    [line] = caplog.records
    assert line.levelno == logging.DEBUG
    assert "m1" in line.getMessage()


def test_a_second_verdict_on_the_batch_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")

    @batch_consumer
    def handler(batch: Batch) -> None:
        batch.ack_all()
        batch.retry_all()

    with orders():
        assert failed(handler(batch_of(1), Context())) == []
    assert len(caplog.records) == 1


def test_a_discarded_message_is_logged_and_not_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B2
    caplog.set_level(logging.INFO, "tarry")
    with orders() as wire:
        consumer(lambda message: message.discard("too old"))(event(record()), Context())
    assert wire.requests == []
    [line] = caplog.records
    assert (line.event, line.reason) == ("discarded", "too old")  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", [None, "no such customer"])
def test_the_failure_record_of_a_reject_contains_its_reason(reason: str | None) -> None:  # SPEC B2, E1
    with orders() as wire:
        consumer(lambda message: message.reject(reason))(event(record()), Context())
    [envelope] = wire.envelopes()
    assert envelope["failure"]["reason"] == "rejected"
    assert envelope["failure"].get("message") == reason


@pytest.mark.parametrize("value", ["ValueError", None, ValueError, 3], ids=repr)
def test_fail_refuses_a_value_that_is_not_an_exception(value: Any) -> None:  # SPEC B2
    caught: list[Exception] = []

    def handler(message: Message) -> None:
        try:
            message.fail(value)
        except TypeError as error:
            caught.append(error)

    fate_of_one(handler)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        pytest.param(lambda m: None, None, id="no verdict"),
        pytest.param(lambda m: m.ack(), Outcome.ack(), id="ack"),
        pytest.param(lambda m: m.retry(5), Outcome.retry(5), id="retry"),
        pytest.param(lambda m: m.defer(5), Outcome.defer(5), id="defer"),
        pytest.param(lambda m: m.discard("x"), Outcome.discard("x"), id="discard"),
        pytest.param(lambda m: m.fail(ValueError()), None, id="fail: the policy decides later"),
    ],
)
def test_the_outcome_of_a_message_is_none_until_a_verdict_is_given(
    give: Any, expected: Outcome | None
) -> None:  # SPEC B2
    seen: list[Outcome | None] = []

    def handler(message: Message) -> None:
        assert message.outcome is None
        give(message)
        seen.append(message.outcome)

    fate_of_one(handler)
    assert seen == [expected]


# verdicts on the message and on the batch, and an exception


PRECEDENCE = [
    # the verdicts in order; the fate of the message
    (["ack_all"], "done"),
    (["retry_all"], RETRIED_BY_POLICY),
    (["retry_all 600"], "retried in 600"),
    (["ack", "retry_all 600"], "done"),
    (["retry_all 600", "ack"], "retried in 600"),
    (["retry", "ack_all"], RETRIED_BY_POLICY),
    (["ack_all", "retry"], "done"),
    (["ack_all", "retry 60"], "done"),
    (["retry_all 600", "retry 60"], "retried in 60"),
    (["retry 60", "retry_all 600"], "retried in 60"),
    (["retry_all", "retry 60"], "retried in 60"),
    (["retry_all 600", "retry"], "retried in 600"),
    (["retry", "retry_all 600"], "retried in 600"),
    (["retry_all 600", "retry 0"], "retried in 0"),
    (["retry_all 0"], "retried in 0"),
    (["ack_all", "retry_all 600"], "done"),
    (["retry_all 600", "ack_all"], "retried in 600"),
    (["retry_all 600", "retry_all 60"], "retried in 600"),
    (["retry_all 600", "ack", "retry 60"], "retried in 60"),
    (["ack_all", "retry", "ack"], "done"),
    (["ack_all", "reject"], "dead"),
    (["reject", "ack_all"], "dead"),
    (["retry_all 600", "reject"], "dead"),
    (["reject", "retry_all 600"], "dead"),
    (["retry_all 600", "discard"], "done"),
    (["discard", "retry_all 600"], "done"),
    (["ack_all", "defer 30"], "retried in 30"),
    (["retry_all 600", "defer 30"], "retried in 30"),
    (["ack_all", "fail"], RETRIED_BY_POLICY),
    (["fail", "ack_all"], RETRIED_BY_POLICY),
    ([], "done"),
    (["raise"], RETRIED_BY_POLICY),
    (["ack", "raise"], "done"),
    (["reject", "raise"], "dead"),
    (["discard", "raise"], "done"),
    (["retry 60", "raise"], "retried in 60"),
    (["defer 30", "raise"], "retried in 30"),
    (["fail", "raise"], RETRIED_BY_POLICY),
    (["ack_all", "raise"], "done"),
    (["retry_all 600", "raise"], "retried in 600"),
    (["ack_all", "retry 60", "raise"], "done"),
    (["retry_all 600", "ack", "raise"], "retried in 600"),
]


def _give(batch: Batch, message: Message, verdicts: list[str]) -> None:
    for verdict in verdicts:
        name, _, seconds = verdict.partition(" ")
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
    ("verdicts", "expected"), PRECEDENCE, ids=[", ".join(verdicts) or "none" for verdicts, _ in PRECEDENCE]
)
def test_verdicts_have_a_defined_precedence(verdicts: list[str], expected: str) -> None:  # SPEC B4, B5, B7
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        _give(batch, batch[0], verdicts)

    with orders() as wire:
        assert fate(wire, handler(event(record()), Context())) == expected


def test_a_verdict_on_one_message_does_not_affect_the_others() -> None:  # SPEC B1
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        batch[1].retry(60)
        batch[2].reject()

    with orders() as wire:
        response = handler(batch_of(4), Context())
        fates = [fate(wire, response, f"m{index}") for index in range(4)]
    assert fates == ["done", "retried in 60", "dead", "done"]


def test_when_a_batch_handler_raises_an_exception_each_message_fails_at_its_own_attempt() -> None:  # SPEC B5
    @batch_consumer(backoff=Fixed(POLICY), max_attempts=3)
    def handler(batch: Batch) -> None:
        batch[0].ack()
        raise ValueError

    records = [record("{}", f"m{receives}", receives=receives) for receives in (1, 2, 3, 4)]
    with orders() as wire:
        response = handler(event(*records), Context())
        fates = [fate(wire, response, f"m{receives}") for receives in (1, 2, 3, 4)]
    assert fates == ["done", RETRIED_BY_POLICY, "dead", "dead"]
    assert [envelope["failure"]["attempts"] for envelope in wire.envelopes()] == [3, 4]


# BatchError


def _batch_fates(stop: Callable[[Batch], None], count: int = 4) -> list[str]:
    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        stop(batch)

    with orders() as wire:
        response = handler(batch_of(count), Context())
        return [fate(wire, response, f"m{index}") for index in range(count)]


RELEASED = "retried in 0"


def _by_index(batch: Batch) -> None:
    raise BatchError(index=1)


def _by_message(batch: Batch) -> None:
    raise BatchError(message=batch[1])


def _by_subclass(batch: Batch) -> None:
    class StoppedAtLine(BatchError):
        pass

    raise StoppedAtLine("the third line", index=1)


@pytest.mark.parametrize("stop", [_by_index, _by_message, _by_subclass])
def test_a_batch_error_acknowledges_the_messages_before_its_own_and_releases_those_after(
    stop: Callable[[Batch], None],
) -> None:  # SPEC B5
    assert _batch_fates(stop) == ["done", RETRIED_BY_POLICY, RELEASED, RELEASED]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(KeyError("x"), RETRIED_BY_POLICY, id="an error"),
        pytest.param(Retry(9), "retried in 9", id="retry"),
        pytest.param(Reject("bad"), "dead", id="reject"),
        pytest.param(Discard(), "done", id="discard"),
        pytest.param(Defer(12), "retried in 12", id="defer"),
    ],
)
def test_the_cause_of_a_batch_error_is_the_failure_of_its_message(cause: Exception, expected: str) -> None:  # SPEC B5
    def stop(batch: Batch) -> None:
        raise BatchError(index=1) from cause

    assert _batch_fates(stop) == ["done", expected, RELEASED, RELEASED]


def test_the_failure_record_of_the_message_of_a_batch_error_describes_the_cause() -> None:  # SPEC B5, F2
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        raise BatchError(index=0) from KeyError("x")

    with orders() as wire:
        handler(batch_of(2), Context())
    assert [envelope["failure"]["type"] for envelope in wire.envelopes()] == ["KeyError"]


def test_explicit_verdicts_hold_beside_a_batch_error() -> None:  # SPEC B5
    def stop(batch: Batch) -> None:
        batch[0].retry(60)
        batch[1].ack()
        batch[2].reject()
        raise BatchError(index=1)

    assert _batch_fates(stop) == ["retried in 60", "done", "dead", RELEASED]


@pytest.mark.parametrize("index", [-1, 4, 10**30, True, 1.0, "1"], ids=repr)
def test_a_batch_error_with_an_invalid_index_fails_all_messages(index: Any) -> None:  # SPEC B5, A2
    def stop(batch: Batch) -> None:
        raise BatchError(index=index)

    assert _batch_fates(stop) == [RETRIED_BY_POLICY] * 4


def test_a_batch_error_with_a_message_of_another_batch_fails_all_messages() -> None:  # SPEC B5, A2
    kept: list[Message] = []
    with orders():
        consumer(kept.append)(event(record("{}", "m0")), Context())

    def stop(batch: Batch) -> None:
        raise BatchError(message=kept[0])

    assert _batch_fates(stop) == [RETRIED_BY_POLICY] * 4


def test_a_batch_error_may_name_the_first_or_the_last_message() -> None:  # SPEC B5
    def stop_at(index: int) -> Callable[[Batch], None]:
        def stop(batch: Batch) -> None:
            raise BatchError(index=index)

        return stop

    assert _batch_fates(stop_at(0), 3) == [RETRIED_BY_POLICY, RELEASED, RELEASED]
    assert _batch_fates(stop_at(2), 3) == ["done", "done", RETRIED_BY_POLICY]


# verdicts that are raised


class PaymentRefused(Reject):
    pass


class RetryWithoutSuper(Retry):
    """A subclass that never calls the constructor of its base."""

    def __init__(self, customer: str) -> None:
        self.customer = customer


class DeferTwoMinutes(Defer):
    def __init__(self) -> None:
        super().__init__(timedelta(minutes=2))


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Retry(), RETRIED_BY_POLICY),
        (Retry(60), "retried in 60"),
        (Retry(0), "retried in 0"),
        (Retry(timedelta(minutes=1)), "retried in 60"),
        (Reject(), "dead"),
        (Reject("reason"), "dead"),
        (Discard(), "done"),
        (Discard("reason"), "done"),
        (Defer(30), "retried in 30"),
        (Defer(0), "retried in 1"),
        (PaymentRefused("no money"), "dead"),
        (RetryWithoutSuper("Ada"), RETRIED_BY_POLICY),
        (DeferTwoMinutes(), "retried in 120"),
    ],
    ids=repr,
)
def test_a_verdict_can_be_raised(signal: Exception, expected: str) -> None:  # SPEC B3
    assert fate_of_one(raising(signal)) == expected


def test_a_verdict_may_be_raised_as_a_class() -> None:  # SPEC B3
    assert fate_of_one(raising(Retry)) == RETRIED_BY_POLICY
    assert fate_of_one(raising(PaymentRefused)) == "dead"


def test_a_verdict_may_be_raised_at_any_depth() -> None:  # SPEC B3
    def deep(levels: int) -> None:
        if not levels:
            raise Retry(60)
        deep(levels - 1)

    assert fate_of_one(lambda message: deep(50)) == "retried in 60"


def test_a_verdict_that_the_handler_catches_does_not_count() -> None:  # SPEC B3
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
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(_from(ValueError(), Retry(60)), "retried in 60", id="error from retry"),
        pytest.param(_from(ValueError(), KeyError(), Reject()), "dead", id="two causes down"),
        pytest.param(_from(ValueError(), Discard(), Reject()), "done", id="the outermost wins"),
        pytest.param(_from(Retry(60), Reject()), "retried in 60", id="a signal before its cause"),
        pytest.param(_from(Retry(60), ValueError()), "retried in 60", id="retry from error"),
        pytest.param(_from(SystemExit(), Retry(60)), "retried in 60", id="SystemExit from retry"),
        pytest.param(_circle(), RETRIED_BY_POLICY, id="causes in a circle"),
    ],
)
def test_a_verdict_is_found_along_explicit_causes(error: BaseException, expected: str) -> None:  # SPEC B3
    assert fate_of_one(raising(error)) == expected


@pytest.mark.parametrize("how", ["implicit", "from None"])
def test_a_verdict_in_the_implicit_context_of_an_error_does_not_count(how: str) -> None:  # SPEC B3
    def handler(message: Message) -> None:
        try:
            raise Reject("not this")
        except Reject:
            if how == "from None":
                raise ValueError from None
            raise ValueError  # noqa: B904

    assert fate_of_one(handler) == RETRIED_BY_POLICY


def _group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", list(errors))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(_group(Reject()), "dead", id="one signal"),
        pytest.param(_group(Discard(), Reject()), "dead", id="reject before discard"),
        pytest.param(_group(Reject(), Defer(30), Discard()), "retried in 30", id="defer before reject"),
        pytest.param(_group(Discard(), Reject(), Defer(30), Retry(60)), "retried in 60", id="retry before all"),
        pytest.param(_group(Discard(), _group(Reject(), _group(Retry(60)))), "retried in 60", id="nested"),
        pytest.param(_group(PaymentRefused(), Discard()), "dead", id="subclasses"),
        pytest.param(_group(Reject(), ValueError()), RETRIED_BY_POLICY, id="mixed"),
        pytest.param(_group(Reject(), _group(Reject(), ValueError())), RETRIED_BY_POLICY, id="mixed below"),
        pytest.param(_group(ValueError(), KeyError()), RETRIED_BY_POLICY, id="no verdict"),
        pytest.param(_from(ValueError(), _group(Reject())), "dead", id="as a cause"),
        pytest.param(_from(ValueError(), _group(Reject(), KeyError())), RETRIED_BY_POLICY, id="mixed as a cause"),
        pytest.param(_group(_from(ValueError(), Reject()), Reject()), "dead", id="a leaf from a signal"),
        pytest.param(BaseExceptionGroup("x", [Reject(), SystemExit()]), RETRIED_BY_POLICY, id="with a SystemExit"),
    ],
)
def test_a_verdict_in_an_exception_group_counts_if_every_leaf_is_a_verdict(
    error: BaseException, expected: str
) -> None:  # SPEC B3
    assert fate_of_one(raising(error)) == expected


def test_a_reject_raised_in_a_task_group_counts() -> None:  # SPEC B3
    import asyncio

    async def reject() -> None:
        raise PaymentRefused

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
def test_a_delay_may_be_a_number_a_timedelta_or_a_datetime(delay: Any, seconds: int) -> None:  # SPEC B6
    assert fate_of_one(lambda message: message.retry(delay)) == f"retried in {seconds}"
    assert fate_of_one(lambda message: message.defer(delay)) == f"retried in {max(1, seconds)}"

    def raise_it(message: Message) -> None:
        raise Retry(delay)

    assert fate_of_one(raise_it) == f"retried in {seconds}"


INVALID_DELAYS = [
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
    datetime(2027, 1, 15),  # noqa: DTZ001 a naive datetime is the point
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
    """Return the exception that the call raises in a handler, and the fate of the message."""
    caught: list[Exception] = []

    @batch_consumer(backoff=Fixed(POLICY))
    def handler(batch: Batch) -> None:
        try:
            call(batch[0], batch)
        except Exception as error:  # noqa: BLE001
            caught.append(error)

    with orders() as wire:
        found = fate(wire, handler(event(record()), Context()))
    return (caught[0] if caught else None), found


@pytest.mark.parametrize("call", _calls(0))
@pytest.mark.parametrize("delay", INVALID_DELAYS, ids=lambda delay: repr(delay)[:20])
def test_an_invalid_delay_raises_an_error_at_the_call(delay: Any, call: str) -> None:  # SPEC B6
    error, found = _caught(_calls(delay)[call])
    assert isinstance(error, ValueError)
    assert not isinstance(error, DelayNotSupported)
    assert found == "done"


@pytest.mark.parametrize("delay", [None, "60"], ids=repr)
def test_defer_needs_a_delay(delay: Any) -> None:  # SPEC B2
    with pytest.raises(ValueError, match="delay"):
        Defer(delay)


@pytest.mark.parametrize("delay", [LONGEST + 1, 50_000, timedelta(days=1), in_utc(10**6), 1e300], ids=str)
@pytest.mark.parametrize("call", ["message.retry", "message.defer", "batch.retry_all"])
def test_a_delay_beyond_12_hours_raises_an_error_at_the_call(delay: Any, call: str) -> None:  # SPEC C6, B6
    error, found = _caught(_calls(delay)[call])
    assert isinstance(error, DelayNotSupported)
    assert str(43_200) in str(error)
    assert found == "done"  # the handler continues, and no verdict is given


@pytest.mark.parametrize("raised", [Retry(50_000), Defer(50_000), _from(ValueError(), Retry(50_000))], ids=repr)
def test_a_raised_verdict_with_a_delay_beyond_12_hours_is_an_ordinary_failure(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC C6
    assert fate_of_one(raising(raised)) == RETRIED_BY_POLICY
    [line] = [line for line in caplog.records if getattr(line, "event", "") == "waiting_retry"]
    assert line.error_type == "tarry.DelayNotSupported"  # type: ignore[attr-defined]
    assert "50000" in line.error  # type: ignore[attr-defined]


def test_a_delay_beyond_12_hours_passed_to_fail_is_not_cut() -> None:  # SPEC C6
    def handler(message: Message) -> None:
        message.fail(Retry(50_000))

    assert fate_of_one(handler) == RETRIED_BY_POLICY


def test_an_uncaught_error_about_a_delay_fails_the_message() -> None:  # SPEC C6
    assert fate_of_one(lambda message: message.retry(50_000)) == RETRIED_BY_POLICY


IN_PLACE = pytest.mark.parametrize(
    ("receives", "age", "longest"),
    [
        pytest.param(1, 0, 43_199, id="received just now"),
        pytest.param(1, 100, 43_099, id="received 100 s ago"),
        pytest.param(1, 0.5, 43_198, id="parts of a second count"),
        pytest.param(2, 0, 43_200 - 330 - 1, id="redelivered: the first receive is unknown"),
    ],
)


@IN_PLACE
def test_a_delay_within_the_limit_of_sqs_waits_in_place(receives: int, age: float, longest: int) -> None:  # SPEC C6, E8
    with orders() as wire:
        wire.clock.now += age
        consumer(lambda message: message.retry(longest))(event(record(receives=receives)), Context())
    assert wire.visibilities() == {"handle-m1": longest}
    assert wire.sent_entries() == []


@IN_PLACE
def test_a_retry_with_a_delay_above_the_limit_of_sqs_is_sent_as_a_copy(
    receives: int, age: float, longest: int
) -> None:  # SPEC C6, J4
    with orders() as wire:
        wire.clock.now += age
        handler = consumer(lambda message: message.retry(longest + 1))
        assert failed(handler(event(record(receives=receives)), Context())) == []
    [copy], [envelope] = wire.sent_entries(), wire.envelopes()
    assert copy["DelaySeconds"] == 900
    assert (envelope["carried"], envelope["due"]) == (receives, wire.clock.now + longest + 1)


@IN_PLACE
def test_on_fifo_a_delay_above_the_limit_of_sqs_raises_an_error(
    receives: int, age: float, longest: int
) -> None:  # SPEC C6, J4
    refused: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        for give in (message.retry, message.defer):
            try:
                give(longest + 1)
            except DelayNotSupported as error:
                refused.append(str(error))
        message.retry(longest)

    with Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")}) as wire:
        wire.clock.now += age
        handler(event(record(queue="orders.fifo", receives=receives, group="g")), Context())
    assert wire.visibilities() == {"handle-m1": longest}
    assert [str(longest) in text for text in refused] == [True, True]


class RetrySoonWithoutSuper(Retry):
    delay = timedelta(seconds=5)  # type: ignore[assignment]

    def __init__(self, why: str) -> None:
        self.why = why


class RetryInAMinute(Retry):
    delay = 60


@pytest.mark.parametrize(
    ("signal", "seconds"),
    [(RetrySoonWithoutSuper("busy"), 5), (RetryInAMinute(), 60), (RetryInAMinute(7), 7)],
    ids=["no super", "own", "given"],
)
def test_a_subclass_of_a_signal_may_define_its_delay(signal: Retry, seconds: int) -> None:  # SPEC B3
    @consumer
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise signal

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": seconds}


class RetryWithInvalidDelay(Retry):
    def __init__(self) -> None:
        self.delay = "soon"  # type: ignore[assignment]


def test_a_signal_with_an_invalid_delay_is_an_ordinary_failure_of_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A2, B3
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        if message.id == "m1":
            raise RetryWithInvalidDelay

    with orders() as wire:
        assert failed(handler(batch_of(3), Context())) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
    assert "soon" in caplog.text


def test_the_failure_record_of_a_retry_in_an_except_block_describes_the_exception() -> None:  # SPEC F2
    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            message.retry(delay=30)

    with orders() as wire:
        handler(batch_of(1), Context())
    failure = wire.envelopes()[0]["failure"]
    assert (failure["reason"], failure["type"], failure["message"]) == ("exhausted", "ConnectionError", "503")
    assert "raise ConnectionError" in failure["traceback"]


def test_the_failure_record_of_a_retry_of_the_batch_in_an_except_block_describes_the_exception() -> None:  # SPEC F2
    @batch_consumer(max_attempts=1)
    def handler(batch: Batch) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            batch.retry_all(delay=30)

    with orders() as wire:
        handler(batch_of(2), Context())
    failures = [envelope["failure"] for envelope in wire.envelopes()]
    assert [(each["reason"], each["type"], each["message"]) for each in failures] == [
        ("exhausted", "ConnectionError", "503")
    ] * 2


def test_the_failure_of_a_retry_after_an_except_block_has_no_error() -> None:  # SPEC E1
    seen: list[object] = []

    class RecordsErrors:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            seen.append(failure.error)
            return next_step(failure)  # type: ignore[no-any-return]

    @consumer(on_failure=[RecordsErrors(), RetryInPlace()], max_attempts=1)
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            pass
        message.retry(delay=30)

    with orders():
        handler(batch_of(1), Context())
    assert seen == [None]


def test_the_traceback_of_a_reject_in_an_except_block_contains_the_exception() -> None:  # SPEC F2
    @consumer
    def handler(message: Message) -> None:
        try:
            raise ConnectionError("503")
        except ConnectionError:
            message.reject("gone")

    with orders() as wire:
        handler(batch_of(1), Context())
    failure = wire.envelopes()[0]["failure"]
    assert (failure["type"], failure["message"]) == ("tarry.Reject", "gone")
    assert "raise ConnectionError" in failure["traceback"]


class CallableHandler:
    def __call__(self, message: Message) -> None: ...

    def method(self, message: Message) -> None: ...


def of_an_event_and_a_context(event: object, context: object) -> None: ...


def of_nothing() -> None: ...


def of_a_keyword(*, message: Message) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        CallableHandler,
        CallableHandler.method,
        of_an_event_and_a_context,
        of_nothing,
        of_a_keyword,
        consumer(CallableHandler()),
    ],
    ids=["a class", "a method without its object", "a Lambda handler", "no argument", "a keyword", "a consumer"],
)
def test_a_handler_that_cannot_be_called_with_a_message_is_refused_when_the_consumer_is_made(
    function: Any,
) -> None:  # SPEC C5
    with pytest.raises(ConfigurationError, match="cannot be a handler"):
        consumer(function)


@pytest.mark.parametrize(
    "function",
    [
        CallableHandler(),
        CallableHandler().method,
        lambda m, more=1: None,
        lambda *m: None,
        partial(lambda a, m: None, 1),
        print,
    ],
    ids=["an instance", "a bound method", "a default", "any number", "partial", "a builtin"],
)
def test_any_callable_with_a_message_can_be_a_handler(function: Any) -> None:  # SPEC B1
    with orders():
        assert failed(consumer(function)(batch_of(1), Context())) == []


def test_a_failure_step_behind_dead_letter_is_refused() -> None:  # SPEC E1
    with pytest.raises(ConfigurationError, match="must be the last step"):
        consumer(on_failure=[DeadLetter(), RetryInPlace()])
