"""The verdicts of a handler on its messages: given, raised, in groups and tasks, and their precedence."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from tarry import (
    Batch,
    BatchError,
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
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, record
from tests.settled import orders, settle
from tests.wire import Wire

LONGEST = 43_200
"""The longest delay in seconds. It takes a copy, because the limit in place is a second shorter."""

BY_POLICY = "retried in 77"
"""The fate of a message that is retried by the policy."""
RELEASED = "retried in 0"


def run(handler: Any, batch: dict[str, Any]) -> tuple[list[str], Wire]:
    """Return the fate of each message: done, dead, or the seconds until its retry, in place or as a copy."""
    reported, wire = settle(handler.replace(backoff=Fixed(77)), batch)
    found = {name: f"retried in {wire.visibilities().get(f'handle-{name}')}" for name in reported}
    sent = [(request.queue, entry) for request in wire.sent("SendMessageBatch") for entry in request.entries]
    for (queue, entry), envelope in zip(sent, wire.envelopes(), strict=True):
        until_due = envelope.get("due", wire.clock.now) - wire.clock.now
        copied = f"retried in {max(int(until_due), entry['DelaySeconds'])}"
        found[envelope["id"]] = copied if queue == "orders" else "dead"
    assert not {f"handle-{name}" for name in found if name not in reported} & {*wire.visibilities()}
    return [found.get(each["messageId"], "done") for each in batch["Records"]], wire


def fates(handle: Any, batch: dict[str, Any] | int = 1, make: Any = consumer, **settings: Any) -> list[str]:
    return run(make(**settings)(handle), batch_of(batch) if isinstance(batch, int) else batch)[0]


def fate_of_one(handle: Callable[[Message], Any]) -> str:
    [found] = fates(handle)
    return found


def raising(error: BaseException | type[BaseException]) -> Callable[[Any], None]:
    def handler(_: object) -> None:
        raise error

    return handler


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
    assert fates(then_gives, event(*later)) == [expected] * len(later)
    assert fate_of_one(lambda _: None) == "done"


def says(verdict: str, error: BaseException | None) -> Callable[[Any], None]:
    """Return a handler of a message, or of a batch, that gives these verdicts in turn and then raises."""

    def handler(given: Message | Batch) -> None:
        for message, name in zip([given] if isinstance(given, Message) else given, verdict.split(), strict=True):
            match name:
                case "fail":
                    message.fail(error)
                case "ack" | "discard" | "retry":
                    getattr(message, name)()
        if error is not None:
            raise error

    return handler


@pytest.mark.parametrize(
    ("make", "verdict", "error", "logged"),
    [
        *((consumer, verdict, ValueError("late"), True) for verdict in ("ack", "discard")),
        *((consumer, verdict, ValueError("late"), False) for verdict in ("nothing", "fail", "retry")),
        *((consumer, verdict, None, False) for verdict in ("ack", "nothing")),
        (consumer, "nothing", Retry(), False),
        (batch_consumer, "ack retry", ValueError("late"), True),
        *((batch_consumer, f"ack {other}", ValueError("late"), False) for other in ("fail", "nothing")),
        (batch_consumer, "ack retry", None, False),
    ],
)
def test_an_error_after_all_verdicts_is_logged_since_it_changes_none(
    make: Any, verdict: str, error: BaseException | None, logged: bool, caplog: Caplog
) -> None:  # SPEC B5
    """The error after a `retry()` is that of the failure."""
    fates(says(verdict, error), len(verdict.split()), make)
    found = lines(caplog, "raised_after_verdict")
    of_message = "m0" if make is consumer else None
    assert [(each.levelname, field(each, "error"), field(each, "message_id")) for each in found] == (
        [("WARNING", "ValueError: late", of_message)] if logged else []
    )


def test_a_second_verdict_is_logged_at_debug_level(caplog: Caplog) -> None:  # SPEC B4
    caplog.set_level(logging.DEBUG, "tarry")
    assert fate_of_one(lambda message: message.ack() or message.reject("changed my mind")) == "done"
    for handler in (
        lambda batch: (batch.ack_all(), batch.retry_all()),
        lambda batch: (batch.ack_all(), batch[0].retry()),
        lambda batch: (batch.retry_all(), batch[0].ack()),
    ):
        fates(handler, make=batch_consumer)
    assert [(line.levelno, "m0" in line.getMessage()) for line in lines(caplog, "ignored")] == [
        (logging.DEBUG, True)
    ] * 4


def test_fail_refuses_a_value_that_is_not_an_exception_and_a_delay_beyond_12_hours() -> None:  # SPEC B2, J4
    def handler(message: Message) -> None:
        for value in ("ValueError", None, ValueError, 3):
            with pytest.raises(TypeError, match="the exception with which the message failed, got "):
                message.fail(value)
        for signal in (Retry(50_000), Defer(50_000)):
            with pytest.raises(DelayNotSupported):
                message.fail(signal)

    assert fate_of_one(handler) == "done"


# verdicts on the message and on the batch, and an exception


PRECEDENCE = {  # by the fate of the message: its verdicts in order
    "done": (
        "nothing; ack_all; ack > retry_all 600; ack_all > retry; ack_all > retry 60; ack_all > retry_all 600; "
        "ack_all > retry > ack; retry_all 600 > discard; discard > retry_all 600; ack > raise; discard > raise; "
        "ack_all > raise; ack_all > retry 60 > raise"
    ),
    "dead": (
        "ack_all > reject; reject > ack_all; retry_all 600 > reject; reject > retry_all 600; reject > raise"
    ),
    BY_POLICY: "retry_all; retry > ack_all; ack_all > fail; fail > ack_all; raise; fail > raise",
    "retried in 0": "retry_all 600 > retry 0; retry_all 0",
    "retried in 30": "ack_all > defer 30; retry_all 600 > defer 30; defer 30 > raise",
    "retried in 60": (
        "retry_all 600 > retry 60; retry 60 > retry_all 600; retry_all > retry 60; "
        "retry_all 600 > ack > retry 60; retry 60 > raise"
    ),
    "retried in 600": (
        "retry_all 600; retry_all 600 > ack; retry_all 600 > retry; retry > retry_all 600; retry_all 600 > ack_all; "
        "retry_all 600 > retry_all 60; retry_all 600 > raise; retry_all 600 > ack > raise"
    ),
}  # fmt: skip


def test_verdicts_have_a_defined_precedence() -> None:  # SPEC B4, B5, B7
    def fate_after(verdicts: str) -> str:
        def handler(batch: Batch) -> None:
            for verdict in verdicts.split(" > "):
                name, *seconds = verdict.split()
                match name:
                    case "raise":
                        raise KeyError("raised at the end")
                    case "fail":
                        batch[0].fail(ValueError())
                    case "nothing":
                        pass
                    case _:
                        getattr(batch if name.endswith("_all") else batch[0], name)(*map(int, seconds))

        return fates(handler, make=batch_consumer)[0]

    for expected, rows in PRECEDENCE.items():
        found = {verdicts: fate_after(verdicts) for verdicts in rows.split("; ")}
        assert found == dict.fromkeys(found, expected)


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
        assert fates(each, 4, batch_consumer) == ["done", "retried in 60", "dead", "done"]
    records = [record("{}", f"m{at}", receives=receives) for at, receives in enumerate((1, 1, 1, 2, 3, 4))]
    found = fates(handler, event(*records), batch_consumer, max_attempts=3)
    assert found == ["done", "retried in 60", "dead", BY_POLICY, "dead", "dead"]


# BatchError


class StoppedAtLine(BatchError):
    pass


def stop(index: Any = 1, cause: Exception | None = None) -> Callable[[Batch], None]:
    def handler(batch: Batch) -> None:
        raise BatchError(index=index) from cause

    return handler


def stop_at_the_message(batch: Batch) -> None:
    raise BatchError(message=batch[1])


def stop_after_verdicts(batch: Batch) -> None:
    batch[0].retry(60)
    batch[1].ack()
    batch[2].reject()
    raise BatchError(index=1)


def stop_at_a_message_of_another_batch(batch: Batch) -> None:
    kept: list[Message] = []
    with orders():
        consumer(kept.append)(event(record("{}", "m0")), Context())
    raise BatchError(message=kept[0])


AT_THE_SECOND = ["done", BY_POLICY, RELEASED, RELEASED]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        pytest.param(stop(0), [BY_POLICY, *[RELEASED] * 3], id="the first"),
        pytest.param(stop(1), AT_THE_SECOND, id="by its index"),
        pytest.param(stop(3), ["done", "done", "done", BY_POLICY], id="the last"),
        pytest.param(stop_at_the_message, AT_THE_SECOND, id="by the message"),
        pytest.param(raising(StoppedAtLine("the third line", index=1)), AT_THE_SECOND, id="a subclass"),
        pytest.param(stop(1, KeyError("x")), AT_THE_SECOND, id="from an error"),
        pytest.param(stop(1, Retry(9)), ["done", "retried in 9", RELEASED, RELEASED], id="from Retry"),
        pytest.param(stop(1, Reject("bad")), ["done", "dead", RELEASED, RELEASED], id="from Reject"),
        pytest.param(stop(1, Discard()), ["done", "done", RELEASED, RELEASED], id="from Discard"),
        pytest.param(stop(1, Defer(12)), ["done", "retried in 12", RELEASED, RELEASED], id="from Defer"),
        pytest.param(stop_after_verdicts, ["retried in 60", "done", "dead", RELEASED], id="beside verdicts"),
        *(pytest.param(stop(bad), [BY_POLICY] * 4, id=f"invalid: {bad!r}") for bad in (-1, 4, 10**30, True, 1.0, "1")),
        pytest.param(stop_at_a_message_of_another_batch, [BY_POLICY] * 4, id="another batch"),
    ],
)
def test_a_batch_error_acknowledges_the_messages_before_its_own_and_releases_those_after(
    handler: Callable[[Batch], None], expected: list[str]
) -> None:  # SPEC B5, A2
    assert fates(handler, 4, batch_consumer) == expected


# delays


def in_utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(RECEIVED_AT + seconds, UTC)


DELAYS = [
    *((0, 0), (-0.0, 0), (1.2, 2), (0.001, 1), (Decimal("1.5"), 2), (Fraction(3, 2), 2), (LONGEST, LONGEST)),
    *((timedelta(minutes=5), 300), (timedelta(milliseconds=1), 1), (in_utc(90.5), 91), (in_utc(-3600), 0)),
    (in_utc(90).astimezone(timezone(timedelta(hours=5))), 90),
]


@pytest.mark.parametrize(("delay", "seconds"), DELAYS, ids=[str(delay) for delay, _ in DELAYS])
def test_a_delay_may_be_a_number_a_timedelta_or_a_datetime(delay: Any, seconds: int) -> None:  # SPEC B6
    def raise_it(_: object) -> None:
        raise Retry(delay)

    assert fate_of_one(raise_it) == fate_of_one(lambda message: message.retry(delay)) == f"retried in {seconds}"
    assert fate_of_one(lambda message: message.defer(delay)) == f"retried in {max(1, seconds)}"


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

    assert fates(handler, make=batch_consumer) == ["done"]
    with pytest.raises(ValueError, match="delay"):
        Defer(None)  # type: ignore[arg-type]


def test_a_delay_that_is_invalid_or_beyond_12_hours_and_raised_fails_only_its_message(caplog: Caplog) -> None:
    """SPEC A2, B3, C6."""
    invalid = Retry(5)
    invalid.delay = "soon"  # type: ignore[assignment]
    for error, shown in ((Retry(50_000), 50_000), (Defer(50_000), 50_000), (invalid, "soon")):
        for raised in (error, caused(ValueError(), error)):
            caplog.clear()
            assert fates(lambda message, raised=raised: message.id == "m1" and raising(raised)(message), 3) == [
                *("done", BY_POLICY, "done"),
            ]
            [line] = lines(caplog, "waiting_retry")
            assert str(shown) in field(line, "error")
            assert error is invalid or field(line, "error_type") == "tarry.DelayNotSupported"
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
    retries = [consumer(lambda message, delay=delay: message.retry(delay)) for delay in (longest, longest + 1)]
    _, wire = settle(retries[0], event(record(receives=receives)), orders(age))
    assert (wire.visibilities(), wire.sent_entries()) == ({"handle-m1": longest}, [])
    reported, wire = settle(retries[1], event(record(receives=receives)), orders(age))
    [copy], [envelope] = wire.sent_entries(), wire.envelopes()
    assert (reported, copy["DelaySeconds"], envelope["carried"]) == ([], 900, receives)
    assert envelope["due"] == wire.clock.now + longest + 1

    @consumer
    def on_fifo(message: Message) -> None:
        for give in (message.retry, message.defer):
            with pytest.raises(DelayNotSupported, match=str(longest)):
                give(longest + 1)
        message.retry(longest)

    _, wire = settle(on_fifo, event(record(queue="orders.fifo", receives=receives, group="g")), orders(age))
    assert wire.visibilities() == {"handle-m1": longest}


def test_a_verdict_whose_delay_cannot_be_read_does_not_take_that_of_its_batch(caplog: Caplog) -> None:  # SPEC B4, B7
    class Unreadable(Retry):
        is_broken = False

        def __init__(self) -> None: ...

        @property
        def delay(self) -> Any:
            if self.is_broken:
                raise KeyError

    def handler(batch: Batch) -> None:
        batch[0].fail(Unreadable())
        Unreadable.is_broken = True
        batch.retry_all(600)

    assert fates(handler, 2, batch_consumer) == [BY_POLICY, "retried in 600"]
    [line] = lines(caplog, "verdict_unreadable")
    assert field(line, "message_id") == "m0"


# raised verdicts


class GatewayBusy(Exception):
    pass


GATEWAY_BUSY = f"{__name__}.GatewayBusy"


def in_except(signal: Exception, way: str) -> None:
    try:
        raise GatewayBusy("503")
    except GatewayBusy as error:
        match way:
            case "from error":
                raise signal from error
            case "from None":
                raise signal from None
        raise signal  # noqa: B904 the implicit context is the point


@pytest.mark.parametrize(
    ("way", "expected", "shows_error"),
    [
        ("from error", (GATEWAY_BUSY, "503"), True),
        ("while handling it", ("tarry.Reject", "gone"), True),
        ("from None", ("tarry.Reject", "gone"), False),
    ],
)
def test_a_verdict_raised_in_an_except_block_holds_and_its_record_describes_the_error_it_was_raised_from(
    way: str, expected: tuple[str, str], shows_error: bool
) -> None:  # SPEC B3, F2
    assert fate_of_one(lambda _: in_except(Retry(60), way)) == "retried in 60"
    assert fate_of_one(lambda _: in_except(Discard(), way)) == "done"
    found, wire = run(consumer(lambda _: in_except(Reject("gone"), way)), batch_of(1))
    failure = wire.envelopes()[0]["failure"]
    assert (found, failure["reason"], (failure["type"], failure["message"])) == (["dead"], "rejected", expected)
    assert ("raise GatewayBusy" in failure["traceback"]) is shows_error


def leaves(first: Exception, then: Exception) -> None:
    try:
        raise first
    finally:
        raise then


def test_only_the_exception_that_leaves_the_handler_counts() -> None:  # SPEC B3
    assert fate_of_one(lambda _: leaves(Reject(), GatewayBusy())) == BY_POLICY
    assert fate_of_one(lambda _: leaves(Reject(), Retry(60))) == "retried in 60"


# in tasks


async def _raise(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def _until_cancelled(then: BaseException | None = None) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        if then is not None:
            raise then


async def _group(*more: Awaitable[None]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in more:
            group.create_task(each)  # type: ignore[arg-type]


async def _a_task_that_was_cancelled() -> None:
    task = asyncio.create_task(_until_cancelled(then=Reject()))
    await asyncio.sleep(0)
    task.cancel()
    await task


STEPS: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
    "with a cancelled sibling": (lambda: _group(_raise(Reject()), _until_cancelled()), "dead"),
    "whose clean-up fails": (lambda: _group(_raise(Reject()), _until_cancelled(GatewayBusy())), BY_POLICY),
    "gathered": (lambda: asyncio.gather(_raise(Reject()), _until_cancelled()), "dead"),
    "a task that was cancelled": (_a_task_that_was_cancelled, "dead"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_verdict_raised_in_a_task_holds_and_the_other_messages_run(name: str) -> None:  # SPEC B3, A5
    steps, expected = STEPS[name]

    async def handler(message: Message) -> None:
        if message.id == "m0":
            await steps()

    assert fates(handler, 3) == [expected, "done", "done"]


# the error that is raised


class PaymentRefused(Reject):
    pass


class DeferTwoMinutes(Defer):
    def __init__(self) -> None:
        super().__init__(timedelta(minutes=2))


class RetryWithoutSuper(Retry):
    """A subclass that never calls the constructor of its base."""

    def __init__(self, customer: str) -> None:
        self.customer = customer


class RetrySoonWithoutSuper(RetryWithoutSuper):
    delay = timedelta(seconds=5)  # type: ignore[assignment]


class RetryInAMinute(Retry):
    delay = 60


class FalsyReject(Reject):
    def __len__(self) -> int:
        return 0


def caused(error: BaseException, *causes: BaseException) -> Any:
    """Return the error, raised from the first cause, that from the second ..."""
    for link, cause in zip([error, *causes], causes, strict=False):
        link.__cause__ = cause
    return error


def chain_of(length: int, end: BaseException) -> Any:
    return caused(*(GatewayBusy() for _ in range(length)), end)


def group(*errors: BaseException) -> Any:
    return BaseExceptionGroup("several", errors)


def nested(depth: int, leaf: Exception) -> Exception:
    for _ in range(depth):
        leaf = ExceptionGroup("nested", [leaf])
    return leaf


def in_a_circle() -> Exception:
    one, other = GatewayBusy(1), GatewayBusy(2)
    one.__cause__, other.__cause__ = other, one
    return one


def group_in_a_circle(leaf: Exception) -> BaseException:
    """Return a group of which one error was raised from the group itself."""
    error = GatewayBusy()
    error.__cause__ = group(leaf, error)
    return error


def widening(levels: int, leaf: BaseException) -> BaseException:
    """Return nested groups of two errors, both raised from the next group: 2 ** levels paths to the leaf."""
    for _ in range(levels):
        leaf = group(chain_of(1, leaf), chain_of(1, leaf))
    return leaf


RAISED: dict[str, tuple[BaseException | type[BaseException], str]] = {
    "Retry()": (Retry(), BY_POLICY),
    "Retry(60)": (Retry(60), "retried in 60"),
    "Retry(0)": (Retry(0), "retried in 0"),
    "Reject": (Reject("reason"), "dead"),
    "Discard": (Discard("reason"), "done"),
    "Defer(30)": (Defer(30), "retried in 30"),
    "Defer(0)": (Defer(0), "retried in 1"),
    "a class": (Retry, BY_POLICY),
    "a class with a cause": (PaymentRefused, "dead"),
    "a delay of its own": (DeferTwoMinutes(), "retried in 120"),
    "no super": (RetryWithoutSuper("Ada"), BY_POLICY),
    "no super, a delay": (RetrySoonWithoutSuper("busy"), "retried in 5"),
    "a delay of the class": (RetryInAMinute(), "retried in 60"),
    "another delay": (RetryInAMinute(7), "retried in 7"),
    # along explicit causes
    "error from retry": (caused(ValueError(), Retry(60)), "retried in 60"),
    "error from a falsy one": (caused(ValueError(), FalsyReject()), "dead"),
    "two causes down": (caused(ValueError(), KeyError(), Reject()), "dead"),
    "the outermost wins": (caused(ValueError(), Discard(), Reject()), "done"),
    "a signal before its cause": (caused(Retry(60), Reject()), "retried in 60"),
    "SystemExit from retry": (caused(SystemExit(), Retry(60)), "retried in 60"),
    "causes in a circle": (in_a_circle(), BY_POLICY),
    "2,000 causes": (chain_of(2_000, Reject()), "dead"),
    "2,000 causes without a verdict": (chain_of(2_000, GatewayBusy()), BY_POLICY),
    # in groups, if every leaf is a verdict
    "one signal": (group(Reject()), "dead"),
    "reject before discard": (group(Discard(), Reject()), "dead"),
    "defer before reject": (group(Reject(), Defer(30), Discard()), "retried in 30"),
    "retry before all": (group(Discard(), Reject(), Defer(30), Retry(60)), "retried in 60"),
    "nested": (group(Discard(), group(Reject(), group(Retry(60)))), "retried in 60"),
    "subclasses": (group(PaymentRefused(), Discard()), "dead"),
    "mixed": (group(Reject(), ValueError()), BY_POLICY),
    "mixed below": (group(Reject(), group(Reject(), ValueError())), BY_POLICY),
    "no verdict": (group(ValueError(), KeyError()), BY_POLICY),
    "with a SystemExit": (group(Reject(), SystemExit()), BY_POLICY),
    "a leaf from a signal": (group(caused(ValueError(), Reject()), Reject()), "dead"),
    "a group in causes": (chain_of(3, group(Reject(), chain_of(2, Retry(60)))), "retried in 60"),
    "a mixed group in causes": (chain_of(3, group(Reject(), GatewayBusy())), BY_POLICY),
    "a leaf caused by a group": (group(chain_of(2, group(Reject())), Reject()), "dead"),
    "nested 3,000 deep": (nested(3_000, Reject()), "dead"),
    "nested 3,000 deep without a verdict": (nested(3_000, GatewayBusy()), BY_POLICY),
    "a leaf with circular causes": (group(Reject(), in_a_circle()), BY_POLICY),
    "a group in a circle without a verdict": (group_in_a_circle(GatewayBusy()), BY_POLICY),
    "2**60 paths to a verdict": (widening(60, Retry(60)), "retried in 60"),
    "2**60 paths without a verdict": (widening(60, GatewayBusy()), BY_POLICY),
}


def test_a_verdict_is_found_in_what_is_raised() -> None:  # SPEC B3, A2
    found = {name: fate_of_one(raising(error)) for name, (error, _) in RAISED.items()}
    assert found == {name: expected for name, (_, expected) in RAISED.items()}


def test_a_verdict_may_be_the_falsy_cause_of_an_error_that_is_passed_to_fail() -> None:  # SPEC B3
    assert fate_of_one(lambda message: message.fail(caused(GatewayBusy(), FalsyReject()))) == "dead"


def test_a_group_of_a_verdict_and_a_cancellation_is_a_failure_that_ends_the_batch() -> None:  # SPEC A5, B3
    """Task groups never raise such a group."""
    assert fates(raising(group(Reject(), asyncio.CancelledError())), 2) == [BY_POLICY, "retried in 0"]


# the failure record


def in_an_except_block(give: Callable[[], Any]) -> None:
    try:
        raise ConnectionError("503")
    except ConnectionError:
        give()


def once(handle: Any, make: Any = consumer) -> Any:
    return make(max_attempts=1)(handle)


CONNECTION_ERROR = ("exhausted", "ConnectionError", "503")


@pytest.mark.parametrize(
    ("handler", "expected", "shows_error"),
    [
        (once(lambda message: in_an_except_block(lambda: message.retry(delay=30))), CONNECTION_ERROR, True),
        (once(lambda batch: in_an_except_block(lambda: batch.retry_all(30)), batch_consumer), CONNECTION_ERROR, True),
        (
            once(lambda message: in_an_except_block(lambda: message.reject("gone"))),
            ("rejected", "tarry.Reject", "gone"),
            True,
        ),
        (once(lambda message: message.reject()), ("rejected", "tarry.Reject", None), False),
        (once(stop(0, KeyError("x")), batch_consumer), ("exhausted", "KeyError", "'x'"), False),
        (once(lambda m: m.fail(caused(GatewayBusy("503"), Retry()))), ("exhausted", GATEWAY_BUSY, "503"), False),
        (once(lambda m: m.fail(caused(GatewayBusy("503"), Reject()))), ("rejected", GATEWAY_BUSY, "503"), False),
    ],
)
def test_the_failure_record_describes_the_exception_that_is_handled_and_the_reason_of_a_reject(
    handler: Any, expected: tuple[str, str, str | None], shows_error: bool
) -> None:  # SPEC B2, B5, E1, F2
    [failure] = [envelope["failure"] for envelope in settle(handler, batch_of(1))[1].envelopes()]
    assert (failure["reason"], failure["type"], failure.get("message")) == expected
    assert ("raise ConnectionError" in failure.get("traceback", "")) == shows_error


def test_the_failure_of_a_retry_after_an_except_block_has_no_error() -> None:  # SPEC E1
    seen: list[object] = []

    def record_errors(failure: Failure, next_step: Any) -> Outcome:
        seen.append(failure.error)
        return next_step(failure)  # type: ignore[no-any-return]

    @consumer(on_failure=[record_errors, RetryInPlace()], max_attempts=1)
    def handler(message: Message) -> None:
        in_an_except_block(lambda: None)
        message.retry(delay=30)

    settle(handler)
    assert seen == [None]


def test_any_callable_with_a_message_can_be_a_handler() -> None:  # SPEC B1
    for function in (lambda m, more=1: None, lambda *m: None, print, partial(lambda a, m: None, 1)):
        assert settle(consumer(function))[0] == []
