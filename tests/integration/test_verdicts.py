"""The verdicts of a handler on its messages, and their precedence. For verdicts that are raised, see the next file."""

import asyncio
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

LONGEST = 43_200
"""The longest delay in seconds. It takes a copy, because the limit in place is a second shorter."""

BY_POLICY = "retried in 77"
"""The fate of a message that is retried by the policy."""
RELEASED = "retried in 0"


def orders() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")})


def fates(handler: Any, batch: dict[str, Any]) -> list[str]:
    """Return the fate of each message: done, dead, or the seconds until its retry, in place or as a copy."""
    with orders() as wire:
        reported = failed(handler.replace(backoff=Fixed(77))(batch, Context()))
    found = {name: f"retried in {wire.visibilities().get(f'handle-{name}')}" for name in reported}
    sent = [(request.queue, entry) for request in wire.sent("SendMessageBatch") for entry in request.entries]
    for (queue, entry), envelope in zip(sent, wire.envelopes(), strict=True):
        until_due = envelope.get("due", wire.clock.now) - wire.clock.now
        copied = f"retried in {max(int(until_due), entry['DelaySeconds'])}"
        found[envelope["id"]] = copied if queue == "orders" else "dead"
    assert not {f"handle-{name}" for name in found if name not in reported} & {*wire.visibilities()}
    return [found.get(each["messageId"], "done") for each in batch["Records"]]


def fate_of_one(handle: Callable[[Message], Any]) -> str:
    [found] = fates(consumer(handle), event(record()))
    return found


# one verdict


GIVEN: dict[str, tuple[Callable[[Message], None], str, Outcome | None]] = {
    # the fate of the message, and its outcome, unless the policy decides later
    "ack()": (lambda m: m.ack(), "done", Outcome.ack()),
    "retry()": (lambda m: m.retry(), BY_POLICY, Outcome.retry()),
    "retry(60)": (lambda m: m.retry(60), "retried in 60", Outcome.retry(60)),
    "retry(0)": (lambda m: m.retry(0), "retried in 0", Outcome.retry(0)),
    "reject()": (lambda m: m.reject(), "dead", Outcome.dead_letter("rejected")),
    "discard(x)": (lambda m: m.discard("x"), "done", Outcome.discard("x")),
    "defer(30)": (lambda m: m.defer(30), "retried in 30", Outcome.defer(30)),
    "defer(0)": (lambda m: m.defer(0), "retried in 1", Outcome.defer(1)),
    "fail(error)": (lambda m: m.fail(ValueError()), BY_POLICY, None),
    "fail(Reject())": (lambda m: m.fail(Reject()), "dead", Outcome.dead_letter("rejected")),
    "fail(Retry(9))": (lambda m: m.fail(Retry(9)), "retried in 9", Outcome.retry(9)),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_first_verdict_on_a_message_holds(name: str) -> None:  # SPEC B1, B2, B4, B5
    give, expected, outcome = GIVEN[name]

    def then_raises(message: Message) -> None:
        assert message.outcome is None
        give(message)
        outcomes.append(message.outcome)
        raise Reject("too late") if expected != "dead" else ValueError

    def then_gives(message: Message) -> None:
        give(message)
        GIVEN[message.body][0](message)

    assert fate_of_one(give) == expected
    outcomes: list[Outcome | None] = []
    assert fate_of_one(then_raises) == expected
    assert outcomes == [outcome]
    later = [record(other, other) for other in GIVEN]
    assert fates(consumer(then_gives), event(*later)) == [expected] * len(later)
    assert fate_of_one(lambda _: None) == "done"


def test_a_second_verdict_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")

    @batch_consumer
    def handler(batch: Batch) -> None:
        batch.ack_all()
        batch.retry_all()

    assert fate_of_one(lambda message: message.ack() or message.reject("changed my mind")) == "done"
    [line] = caplog.records
    assert (line.levelno, "m1" in line.getMessage()) == (logging.DEBUG, True)
    assert fates(handler, batch_of(1)) == ["done"]
    assert [line.levelno for line in caplog.records] == [logging.DEBUG] * 2


def test_a_discarded_message_is_logged_and_not_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:  # SPEC B2
    caplog.set_level(logging.INFO, "tarry")
    with orders() as wire:
        consumer(lambda message: message.discard("too old"))(event(record()), Context())
    assert wire.requests == []
    [line] = caplog.records
    assert (line.event, line.reason) == ("discarded", "too old")  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", ["ValueError", None, ValueError, 3], ids=repr)
def test_fail_refuses_a_value_that_is_not_an_exception(value: Any) -> None:  # SPEC B2
    def handler(message: Message) -> None:
        with pytest.raises(TypeError):
            message.fail(value)

    assert fate_of_one(handler) == "done"


# verdicts on the message and on the batch, and an exception


PRECEDENCE = [
    # the verdicts in order; the fate of the message
    (["ack_all"], "done"),
    (["retry_all"], BY_POLICY),
    (["retry_all 600"], "retried in 600"),
    (["ack", "retry_all 600"], "done"),
    (["retry_all 600", "ack"], "retried in 600"),
    (["retry", "ack_all"], BY_POLICY),
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
    (["ack_all", "fail"], BY_POLICY),
    (["fail", "ack_all"], BY_POLICY),
    ([], "done"),
    (["raise"], BY_POLICY),
    (["ack", "raise"], "done"),
    (["reject", "raise"], "dead"),
    (["discard", "raise"], "done"),
    (["retry 60", "raise"], "retried in 60"),
    (["defer 30", "raise"], "retried in 30"),
    (["fail", "raise"], BY_POLICY),
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
    assert fates(batch_consumer(lambda batch: _give(batch, batch[0], verdicts)), event(record())) == [expected]


def test_a_verdict_on_one_message_does_not_affect_the_others() -> None:  # SPEC A4, B1, B5
    """Nor does an exception, for which each other message fails at its own attempt."""

    def handler(batch: Batch) -> None:
        batch[0].ack()
        batch[1].retry(60)
        batch[2].reject()
        if len(batch) > 4:
            raise ValueError

    async def async_handler(batch: Batch) -> None:
        await asyncio.sleep(0)
        handler(batch)

    for each in (handler, async_handler):
        assert fates(batch_consumer(each), batch_of(4)) == ["done", "retried in 60", "dead", "done"]
    records = [record("{}", f"m{at}", receives=receives) for at, receives in enumerate((1, 1, 1, 2, 3, 4))]
    found = fates(batch_consumer(handler, max_attempts=3), event(*records))
    assert found == ["done", "retried in 60", "dead", BY_POLICY, "dead", "dead"]


# BatchError


class StoppedAtLine(BatchError):
    pass


def _stop(index: Any, cause: Exception | None = None) -> Callable[[Batch], None]:
    def stop(batch: Batch) -> None:
        raise BatchError(index=index) from cause

    return stop


def _stop_by(error: Callable[[Batch], Exception]) -> Callable[[Batch], None]:
    def stop(batch: Batch) -> None:
        raise error(batch)

    return stop


def _stop_after_verdicts(batch: Batch) -> None:
    batch[0].retry(60)
    batch[1].ack()
    batch[2].reject()
    raise BatchError(index=1)


def _message_of_another_batch() -> Message:
    kept: list[Message] = []
    with orders():
        consumer(kept.append)(event(record("{}", "m0")), Context())
    return kept[0]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        pytest.param(_stop(0), [BY_POLICY, *[RELEASED] * 3], id="the first"),
        pytest.param(_stop(1), ["done", BY_POLICY, RELEASED, RELEASED], id="by its index"),
        pytest.param(_stop(3), ["done", "done", "done", BY_POLICY], id="the last"),
        pytest.param(
            _stop_by(lambda batch: BatchError(message=batch[1])),
            ["done", BY_POLICY, RELEASED, RELEASED],
            id="by the message",
        ),
        pytest.param(
            _stop_by(lambda batch: StoppedAtLine("the third line", index=1)),
            ["done", BY_POLICY, RELEASED, RELEASED],
            id="a subclass",
        ),
        *(
            pytest.param(_stop(1, cause), ["done", expected, RELEASED, RELEASED], id=f"from {cause!r}")
            for cause, expected in [
                (KeyError("x"), BY_POLICY),
                (Retry(9), "retried in 9"),
                (Reject("bad"), "dead"),
                (Discard(), "done"),
                (Defer(12), "retried in 12"),
            ]
        ),
        pytest.param(_stop_after_verdicts, ["retried in 60", "done", "dead", RELEASED], id="beside verdicts"),
        *(
            pytest.param(_stop(index), [BY_POLICY] * 4, id=f"invalid: {index!r}")
            for index in (-1, 4, 10**30, True, 1.0, "1")
        ),
        pytest.param(
            _stop_by(lambda batch: BatchError(message=_message_of_another_batch())), [BY_POLICY] * 4, id="another batch"
        ),
    ],
)
def test_a_batch_error_acknowledges_the_messages_before_its_own_and_releases_those_after(
    stop: Callable[[Batch], None], expected: list[str]
) -> None:  # SPEC B5, A2
    assert fates(batch_consumer(stop), batch_of(4)) == expected


# delays


def in_utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(RECEIVED_AT + seconds, UTC)


DELAYS = [
    (0, 0),
    (-0.0, 0),
    (1.2, 2),
    (0.001, 1),
    (Decimal("1.5"), 2),
    (Fraction(3, 2), 2),
    (timedelta(minutes=5), 300),
    (timedelta(milliseconds=1), 1),
    (in_utc(90.5), 91),
    (in_utc(90).astimezone(timezone(timedelta(hours=5))), 90),
    (in_utc(-3600), 0),
    (LONGEST, LONGEST),
]


@pytest.mark.parametrize(("delay", "seconds"), DELAYS, ids=[str(delay) for delay, _ in DELAYS])
def test_a_delay_may_be_a_number_a_timedelta_or_a_datetime(delay: Any, seconds: int) -> None:  # SPEC B6
    def raise_it(message: Message) -> None:
        raise Retry(delay)

    assert fate_of_one(lambda message: message.retry(delay)) == f"retried in {seconds}"
    assert fate_of_one(lambda message: message.defer(delay)) == f"retried in {max(1, seconds)}"
    assert fate_of_one(raise_it) == f"retried in {seconds}"


INVALID_DELAYS = [
    *(-1, -0.5, float("nan"), float("inf"), float("-inf"), True, False, "60", b"60", [60], 1j, object(), 10**400),
    *(Decimal("NaN"), Decimal("sNaN"), Decimal(-1), timedelta(seconds=-1)),
    datetime(2027, 1, 15),  # noqa: DTZ001 a naive datetime is the point
]
TOO_LONG = [LONGEST + 1, 50_000, timedelta(days=1), in_utc(10**6), 1e300]


@pytest.mark.parametrize(
    "delay", [*INVALID_DELAYS, *TOO_LONG], ids=lambda delay: repr(delay).partition(" at 0x")[0][:40]
)
def test_an_invalid_delay_or_one_beyond_12_hours_raises_an_error_at_the_call(delay: Any) -> None:  # SPEC B2, B6, C6
    """The handler continues, and no verdict is given."""
    is_too_long = any(delay is each for each in TOO_LONG)

    def handler(batch: Batch) -> None:
        calls: list[Callable[[Any], Any]] = [batch[0].retry, batch[0].defer, batch.retry_all]
        for call in [*calls, *([] if is_too_long else [Retry, Defer])]:
            with pytest.raises(ValueError) as raised:  # noqa: PT011 of a NaN that signals, the decimal module complains
                call(delay)
            assert isinstance(raised.value, DelayNotSupported) == is_too_long
            assert not is_too_long or str(LONGEST) in str(raised.value)

    assert fates(batch_consumer(handler), event(record())) == ["done"]
    with pytest.raises(ValueError, match="delay"):
        Defer(None)  # type: ignore[arg-type]


def test_a_delay_beyond_12_hours_that_is_raised_fails_the_message(caplog: pytest.LogCaptureFixture) -> None:  # SPEC C6
    def raises(error: Exception) -> Callable[[Message], None]:
        def handler(message: Message) -> None:
            raise error

        return handler

    caused = ValueError()
    caused.__cause__ = Retry(50_000)
    for error in (Retry(50_000), Defer(50_000), caused):
        caplog.clear()
        assert fate_of_one(raises(error)) == BY_POLICY
        [line] = [line for line in caplog.records if getattr(line, "event", "") == "waiting_retry"]
        assert line.error_type == "tarry.DelayNotSupported"  # type: ignore[attr-defined]
        assert "50000" in line.error  # type: ignore[attr-defined]
    assert fate_of_one(lambda message: message.fail(Retry(50_000))) == BY_POLICY
    assert fate_of_one(lambda message: message.retry(50_000)) == BY_POLICY


@pytest.mark.parametrize(
    ("receives", "age", "longest"),
    [
        pytest.param(1, 0, 43_199, id="received just now"),
        pytest.param(1, 100, 43_099, id="received 100 s ago"),
        pytest.param(1, 0.5, 43_198, id="parts of a second count"),
        pytest.param(2, 0, 43_200 - 330 - 1, id="redelivered: the first receive is unknown"),
    ],
)
def test_a_delay_within_the_limit_of_sqs_waits_in_place_and_a_longer_one_takes_a_copy_or_raises_an_error_on_fifo(
    receives: int, age: float, longest: int
) -> None:  # SPEC C6, E8, J4
    with orders() as wire:
        wire.clock.now += age
        consumer(lambda message: message.retry(longest))(event(record(receives=receives)), Context())
        assert (wire.visibilities(), wire.sent_entries()) == ({"handle-m1": longest}, [])
        handler = consumer(lambda message: message.retry(longest + 1))
        assert failed(handler(event(record(receives=receives)), Context())) == []
    [copy], [envelope] = wire.sent_entries(), wire.envelopes()
    assert copy["DelaySeconds"] == 900
    assert (envelope["carried"], envelope["due"]) == (receives, wire.clock.now + longest + 1)

    @consumer
    def on_fifo(message: Message) -> None:
        for give in (message.retry, message.defer):
            with pytest.raises(DelayNotSupported, match=str(longest)):
                give(longest + 1)
        message.retry(longest)

    with Wire(queues={"orders.fifo": Queue(dead_letter="orders-dlq.fifo")}) as wire:
        wire.clock.now += age
        on_fifo(event(record(queue="orders.fifo", receives=receives, group="g")), Context())
    assert wire.visibilities() == {"handle-m1": longest}


# the failure record


def in_an_except_block(give: Callable[[], Any]) -> None:
    try:
        raise ConnectionError("503")
    except ConnectionError:
        give()


@pytest.mark.parametrize(
    ("handler", "expected", "shows_error"),
    [
        pytest.param(
            consumer(lambda message: in_an_except_block(lambda: message.retry(delay=30)), max_attempts=1),
            ("exhausted", "ConnectionError", "503"),
            True,
            id="retry",
        ),
        pytest.param(
            batch_consumer(lambda batch: in_an_except_block(lambda: batch.retry_all(delay=30)), max_attempts=1),
            ("exhausted", "ConnectionError", "503"),
            True,
            id="retry_all",
        ),
        pytest.param(
            consumer(lambda message: in_an_except_block(lambda: message.reject("gone"))),
            ("rejected", "tarry.Reject", "gone"),
            True,
            id="reject",
        ),
        pytest.param(
            consumer(lambda message: message.reject()), ("rejected", "tarry.Reject", None), False, id="no reason"
        ),
        pytest.param(
            batch_consumer(_stop(0, KeyError("x")), max_attempts=1),
            ("exhausted", "KeyError", "'x'"),
            False,
            id="BatchError",
        ),
    ],
)
def test_the_failure_record_describes_the_exception_that_is_handled_and_the_reason_of_a_reject(
    handler: Any, expected: tuple[str, str, str | None], shows_error: bool
) -> None:  # SPEC B2, B5, E1, F2
    with orders() as wire:
        handler(batch_of(1), Context())
    [failure] = [envelope["failure"] for envelope in wire.envelopes()]
    assert (failure["reason"], failure["type"], failure.get("message")) == expected
    assert ("raise ConnectionError" in failure.get("traceback", "")) == shows_error


def test_the_failure_of_a_retry_after_an_except_block_has_no_error() -> None:  # SPEC E1
    seen: list[object] = []

    class RecordsErrors:
        def handle(self, failure: Failure, next_step: Any) -> Outcome:
            seen.append(failure.error)
            return next_step(failure)  # type: ignore[no-any-return]

    @consumer(on_failure=[RecordsErrors(), RetryInPlace()], max_attempts=1)
    def handler(message: Message) -> None:
        in_an_except_block(lambda: None)
        message.retry(delay=30)

    with orders():
        handler(batch_of(1), Context())
    assert seen == [None]


# what can be a handler


class CallableHandler:
    def __call__(self, message: Message) -> None: ...

    def method(self, message: Message) -> None: ...


def of_an_event_and_a_context(event: object, context: object) -> None: ...


def of_nothing() -> None: ...


def of_a_keyword(*, message: Message) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        *(CallableHandler, CallableHandler.method, of_an_event_and_a_context, of_nothing, of_a_keyword),
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
    [CallableHandler(), CallableHandler().method, lambda m, more=1: None, lambda *m: None,
     partial(lambda a, m: None, 1), print],
    ids=["an instance", "a bound method", "a default", "any number", "partial", "a builtin"],
)  # fmt: skip
def test_any_callable_with_a_message_can_be_a_handler(function: Any) -> None:  # SPEC B1
    with orders():
        assert failed(consumer(function)(batch_of(1), Context())) == []


def test_a_failure_step_behind_dead_letter_is_refused() -> None:  # SPEC E1
    with pytest.raises(ConfigurationError, match="must be the last step"):
        consumer(on_failure=[DeadLetter(), RetryInPlace()])
