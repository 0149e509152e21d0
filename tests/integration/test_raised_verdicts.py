"""Verdicts that are raised: in `except` and `finally`, in tasks and groups, in long and circular causes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tarry import Defer, Discard, Fixed, Message, Reject, Retry, consumer
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire

BY_POLICY = "retried in 77"


def fates(handle: Callable[[Message], Any], count: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    """Run the handler for fresh messages; return the fate of each, and the wire."""
    with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}) as wire:
        reported = failed(consumer(backoff=Fixed(77), **settings)(handle)(batch_of(count), Context()))
    sent = {
        envelope["id"]: "dead" if request.queue == "orders-dlq" else f"retried in {request.entries[0]['DelaySeconds']}"
        for request, envelope in zip(wire.sent("SendMessageBatch"), wire.envelopes(), strict=True)
    }
    retried = {name: f"retried in {wire.visibilities().get(f'handle-{name}')}" for name in reported}
    return [{**sent, **retried}.get(f"m{index}", "done") for index in range(count)], wire


def fate_of_one(handle: Callable[[Message], Any], **settings: Any) -> str:
    [found], _ = fates(handle, **settings)
    return found


def raising(error: BaseException | type[BaseException]) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        raise error

    return handler


# in an except block


class GatewayBusy(Exception):
    pass


def _from_error(signal: Exception) -> None:
    try:
        raise GatewayBusy("503")
    except GatewayBusy as error:
        raise signal from error


def _while_handling_error(signal: Exception) -> None:
    try:
        raise GatewayBusy("503")
    except GatewayBusy:
        raise signal  # noqa: B904 the implicit context is the point


def _instead_of_error(signal: Exception) -> None:
    try:
        raise GatewayBusy("503")
    except GatewayBusy:
        raise signal from None


@pytest.mark.parametrize(
    ("way", "error_type", "shows_error"),
    [(_from_error, "GatewayBusy", True), (_while_handling_error, "Reject", True), (_instead_of_error, "Reject", False)],
    ids=["from error", "implicit context", "from None"],
)
def test_a_verdict_raised_in_an_except_block_holds_and_its_record_describes_the_error_it_was_raised_from(
    way: Any, error_type: str, shows_error: bool
) -> None:  # SPEC B3, F2
    assert fate_of_one(lambda _: way(Retry(60))) == "retried in 60"
    assert fate_of_one(lambda _: way(Discard())) == "done"
    [found], wire = fates(lambda _: way(Reject("gone")))
    failure = wire.envelopes()[0]["failure"]
    assert (found, failure["reason"]) == ("dead", "rejected")
    assert failure["type"].rpartition(".")[2] == error_type
    assert failure["message"] == ("503" if error_type == "GatewayBusy" else "gone")
    assert ("raise GatewayBusy" in failure["traceback"]) is shows_error


@pytest.mark.parametrize("signal", [Retry(), Reject()], ids=repr)
def test_the_failure_record_describes_an_error_passed_to_fail_although_its_cause_is_a_verdict(
    signal: Exception,
) -> None:  # SPEC B2, F2
    [found], wire = fates(lambda message: message.fail(caused(GatewayBusy("503"), signal)), max_attempts=1)
    failure = wire.envelopes()[0]["failure"]
    assert (found, failure["type"].rpartition(".")[2], failure["message"]) == ("dead", "GatewayBusy", "503")


# only the exception that leaves the handler counts


def _error_over_signal() -> None:
    try:
        raise Reject
    finally:
        raise GatewayBusy


def _error_instead_of_signal() -> None:
    try:
        raise Reject
    except Reject:
        raise GatewayBusy from None


def _signal_over_signal() -> None:
    try:
        raise Reject
    finally:
        raise Retry(60)


def _suppressed() -> None:
    with suppress(Reject):
        raise Reject


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (_error_over_signal, BY_POLICY),
        (_error_instead_of_signal, BY_POLICY),
        (_signal_over_signal, "retried in 60"),
        (_suppressed, "done"),
    ],
)
def test_only_the_exception_that_leaves_the_handler_counts(block: Callable[[], None], expected: str) -> None:  # SPEC B3
    assert fate_of_one(lambda _: block()) == expected


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


async def _in_the_body() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_until_cancelled())
        await _raise(Retry(60))


async def _signal_split_off() -> None:
    try:
        await _group(_raise(Reject()), _until_cancelled(then=GatewayBusy()))
    except* Reject:
        pass


async def _error_raised_while_splitting() -> None:
    try:
        await _group(_raise(Reject()), _until_cancelled(then=GatewayBusy()))
    except* GatewayBusy:
        raise GatewayBusy  # noqa: B904 the implicit context is the point


async def _a_task_that_was_cancelled() -> None:
    task = asyncio.create_task(_until_cancelled(then=Reject()))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _after_a_time_out() -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError as error:
        raise Retry(60) from error


STEPS: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
    "with a cancelled sibling": (lambda: _group(_raise(Reject()), _until_cancelled()), "dead"),
    "whose clean-up fails": (lambda: _group(_raise(Reject()), _until_cancelled(GatewayBusy())), BY_POLICY),
    "whose clean-up retries": (lambda: _group(_raise(Reject()), _until_cancelled(Retry(60))), "retried in 60"),
    "in the body": (_in_the_body, "retried in 60"),
    "nested": (lambda: _group(_group(_raise(Reject()), _until_cancelled()), _until_cancelled()), "dead"),
    "nested with an error": (lambda: _group(_group(_raise(Reject())), _until_cancelled(GatewayBusy())), BY_POLICY),
    "an error raised while splitting": (_error_raised_while_splitting, BY_POLICY),
    "the signal split off": (_signal_split_off, BY_POLICY),
    "gathered": (lambda: asyncio.gather(_raise(Reject()), _until_cancelled()), "dead"),
    "a task that was cancelled": (_a_task_that_was_cancelled, "dead"),
    "after a time-out": (_after_a_time_out, "retried in 60"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_verdict_raised_in_a_task_holds_and_the_other_messages_run(name: str) -> None:  # SPEC B3, A5
    steps, expected = STEPS[name]

    async def handler(message: Message) -> None:
        if message.id == "m0":
            await steps()

    assert fates(handler, count=3)[0] == [expected, "done", "done"]


def test_a_group_of_a_verdict_and_a_cancellation_is_a_failure_that_ends_the_batch() -> None:  # SPEC A5, B3
    """Task groups never raise such a group."""
    found, _ = fates(raising(group(Reject(), asyncio.CancelledError())), count=2)
    assert found == [BY_POLICY, "retried in 0"]


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
    "a subclass": (PaymentRefused("no money"), "dead"),
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


@pytest.mark.parametrize("name", RAISED)
def test_a_verdict_is_found_in_what_is_raised(name: str) -> None:  # SPEC B3, A2
    error, expected = RAISED[name]
    assert fate_of_one(raising(error)) == expected


def test_a_verdict_passed_to_fail_as_the_cause_of_an_error_may_be_falsy() -> None:  # SPEC B3
    assert fate_of_one(lambda message: message.fail(caused(GatewayBusy(), FalsyReject()))) == "dead"


def test_a_signal_with_an_invalid_delay_is_an_ordinary_failure_of_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A2, B3
    class RetryWithInvalidDelay(Retry):
        def __init__(self) -> None:
            self.delay = "soon"  # type: ignore[assignment]

    def handler(message: Message) -> None:
        if message.id == "m1":
            raise RetryWithInvalidDelay

    assert fates(handler, count=3)[0] == ["done", BY_POLICY, "done"]
    assert "soon" in caplog.text
