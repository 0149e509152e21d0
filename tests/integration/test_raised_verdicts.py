"""Verdicts raised among other errors: in `except` and `finally`, in tasks and groups, along causes and in circles."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tarry import Discard, Fixed, Message, Reject, Retry, consumer
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire

BY_POLICY = "again in 77"


def fates(handle: Callable[[Message], Any], count: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    """What becomes of fresh messages under a handler, in a word each, and the wire."""
    with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}) as wire:
        reported = failed(consumer(backoff=Fixed(77), **settings)(handle)(batch_of(count), Context()))
    dead = {told["id"] for told in wire.records()}
    hidden = wire.visibilities()
    words = []
    for name in (f"m{index}" for index in range(count)):
        gone = "dead" if name in dead else "done"
        words.append(f"again in {hidden.get(f'handle-{name}')}" if name in reported else gone)
    return words, wire


def fate(handle: Callable[[Message], Any], **settings: Any) -> str:
    [word], _ = fates(handle, **settings)
    return word


def raising(error: BaseException) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        raise error

    return handler


# in an except block


class Busy(Exception):
    pass


def _from_error(signal: Exception) -> None:
    try:
        raise Busy("503")
    except Busy as error:
        raise signal from error


def _beside_error(signal: Exception) -> None:
    try:
        raise Busy("503")
    except Busy:
        raise signal  # noqa: B904 the implicit context is the point


def _instead_of_error(signal: Exception) -> None:
    try:
        raise Busy("503")
    except Busy:
        raise signal from None


WAYS = pytest.mark.parametrize(
    ("way", "told", "shows_error"),
    [(_from_error, "Busy", True), (_beside_error, "Reject", True), (_instead_of_error, "Reject", False)],
    ids=["from error", "implicit context", "from None"],
)


@WAYS
def test_a_verdict_raised_in_an_except_block_holds(way: Any, told: str, shows_error: bool) -> None:  # SPEC B3
    assert fate(lambda _: way(Retry(60))) == "again in 60"
    assert fate(lambda _: way(Discard())) == "done"


@WAYS
def test_the_record_tells_the_error_that_the_verdict_was_raised_from(
    way: Any, told: str, shows_error: bool
) -> None:  # SPEC F2
    [word], wire = fates(lambda _: way(Reject("gone")))
    failure = wire.records()[0]["failure"]
    assert (word, failure["reason"]) == ("dead", "rejected")
    assert failure["type"].rpartition(".")[2] == told
    assert failure["message"] == ("503" if told == "Busy" else "gone")
    assert ("raise Busy" in failure["traceback"]) is shows_error


@pytest.mark.parametrize("signal", [Retry(), Reject()], ids=repr)
def test_an_error_that_carries_a_verdict_is_told_when_it_comes_with_fail(signal: Exception) -> None:  # SPEC B2, F2
    def handler(message: Message) -> None:
        error = Busy("503")
        error.__cause__ = signal
        message.fail(error)

    [word], wire = fates(handler, max_attempts=1)
    failure = wire.records()[0]["failure"]
    assert (word, failure["type"].rpartition(".")[2], failure["message"]) == ("dead", "Busy", "503")


class Empty(Reject):
    def __len__(self) -> int:
        return 0


def test_a_verdict_that_is_falsy_is_one() -> None:  # SPEC B3
    error = Busy()
    error.__cause__ = Empty()
    assert fate(raising(error)) == "dead"
    assert fate(lambda message: message.fail(error)) == "dead"


# in a finally block, and in context managers


def _finally_over_error() -> None:
    try:
        raise Busy
    finally:
        raise Reject


def _error_over_signal() -> None:
    try:
        raise Reject
    finally:
        raise Busy


def _signal_over_signal() -> None:
    try:
        raise Reject
    finally:
        raise Retry(60)


def _passing_a_finally() -> None:
    with ExitStack() as stack:
        stack.callback(lambda: None)
        raise Reject


def _suppressed() -> None:
    with suppress(Reject):
        raise Reject


def _error_suppressed_around() -> None:
    with suppress(Busy):
        raise Reject


def _all_suppressed() -> None:
    with suppress(Exception):
        raise Retry(60)


def _callback_fails() -> None:
    def fail() -> None:
        raise Busy

    with ExitStack() as stack:
        stack.callback(fail)
        raise Reject


def _callback_rejects() -> None:
    def reject() -> None:
        raise Reject

    with ExitStack() as stack:
        stack.callback(reject)
        raise Busy


@contextmanager
def _converting(*, explicitly: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if explicitly:
            raise Busy from error
        raise Busy  # noqa: B904 the implicit context is the point


def _converted_explicitly() -> None:
    with _converting(explicitly=True):
        raise Reject


def _converted_implicitly() -> None:
    with _converting(explicitly=False):
        raise Reject


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (_finally_over_error, "dead"),
        (_error_over_signal, BY_POLICY),
        (_signal_over_signal, "again in 60"),
        (_passing_a_finally, "dead"),
        (_suppressed, "done"),
        (_error_suppressed_around, "dead"),
        (_all_suppressed, "done"),
        (_callback_fails, BY_POLICY),
        (_callback_rejects, "dead"),
        (_converted_explicitly, "dead"),
        (_converted_implicitly, BY_POLICY),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_leaves_the_handler_last_is_what_counts(block: Callable[[], None], expected: str) -> None:  # SPEC B3
    assert fate(lambda _: block()) == expected


# in tasks


async def _raise(error: BaseException, after: float = 0) -> None:
    await asyncio.sleep(after)
    raise error


async def _until_cancelled(then: BaseException | None = None) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        if then is not None:
            raise then


async def _beside_a_cancelled_sibling() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled())


async def _beside_a_sibling_whose_clean_up_fails() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled(then=Busy()))


async def _beside_a_sibling_whose_clean_up_retries() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled(then=Retry(60)))


async def _in_the_body() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_until_cancelled())
        await _raise(Retry(60))


async def _nested() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_beside_a_cancelled_sibling())
        group.create_task(_until_cancelled())


async def _nested_beside_an_error() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_beside_a_cancelled_sibling())
        group.create_task(_until_cancelled(then=Busy()))


async def _errors_split_off() -> None:
    try:
        await _beside_a_sibling_whose_clean_up_fails()
    except* Busy:
        pass


async def _an_error_raised_while_splitting() -> None:
    try:
        await _beside_a_sibling_whose_clean_up_fails()
    except* Busy:
        raise Busy  # noqa: B904 the implicit context is the point


async def _signal_split_off() -> None:
    try:
        await _beside_a_sibling_whose_clean_up_fails()
    except* Reject:
        pass


async def _gathered() -> None:
    await asyncio.gather(_raise(Reject()), _until_cancelled())


async def _a_task_that_was_cancelled() -> None:
    task = asyncio.create_task(_until_cancelled(then=Reject()))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _in_time_out() -> None:
    async with asyncio.timeout(60):
        await _raise(Retry(60))


async def _after_a_time_out() -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError as error:
        raise Retry(60) from error


async def _in_an_exit_stack() -> None:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_raise, Reject())
        raise Busy


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (_beside_a_cancelled_sibling, "dead"),
        (_beside_a_sibling_whose_clean_up_fails, BY_POLICY),
        (_beside_a_sibling_whose_clean_up_retries, "again in 60"),
        (_in_the_body, "again in 60"),
        (_nested, "dead"),
        (_nested_beside_an_error, BY_POLICY),
        (_errors_split_off, "dead"),
        (_an_error_raised_while_splitting, BY_POLICY),
        (_signal_split_off, BY_POLICY),
        (_gathered, "dead"),
        (_a_task_that_was_cancelled, "dead"),
        (_in_time_out, "again in 60"),
        (_after_a_time_out, "again in 60"),
        (_in_an_exit_stack, "dead"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_verdict_from_tasks_holds_and_the_other_messages_run(
    steps: Callable[[], Awaitable[None]], expected: str
) -> None:  # SPEC B3, A5
    async def handler(message: Message) -> None:
        if message.id == "m0":
            await steps()

    words, _ = fates(handler, count=3)
    assert words == [expected, "done", "done"]


def test_a_group_of_a_verdict_and_a_cancellation_is_a_failure_that_ends_the_batch() -> None:  # SPEC A5, B3
    """No task group raises one; by hand it is a `BaseException` like any other."""
    words, _ = fates(raising(BaseExceptionGroup("x", [Reject(), asyncio.CancelledError()])), count=2)
    assert words == [BY_POLICY, "again in 0"]


# long, nested and round


def chain_of(length: int, end: BaseException) -> BaseException:
    """``length`` errors, each raised from the next; the last from ``end``."""
    for _ in range(length):
        error = Busy()
        error.__cause__ = end
        end = error
    return end


def nested(depth: int, leaf: Exception) -> Exception:
    for _ in range(depth):
        leaf = ExceptionGroup("nested", [leaf])
    return leaf


def group_of(*errors: Exception) -> Exception:
    return ExceptionGroup("several", errors)


def group_in_a_circle(leaf: Exception) -> BaseException:
    """A group of which one error was raised from the group itself."""
    error = Busy()
    error.__cause__ = group_of(leaf, error)
    return error


def causes_in_a_circle() -> Exception:
    one, other = Busy(1), Busy(2)
    one.__cause__, other.__cause__ = other, one
    return one


def widening(levels: int, leaf: BaseException) -> BaseException:
    """Groups of two errors that were both raised from the group below: 2 ** levels ways down."""
    for _ in range(levels):
        leaves = (chain_of(1, leaf), chain_of(1, leaf))
        leaf = BaseExceptionGroup("both", leaves)
    return leaf


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(chain_of(2_000, Reject()), "dead", id="2,000 causes"),
        pytest.param(chain_of(2_000, Busy()), BY_POLICY, id="2,000 causes without one"),
        pytest.param(chain_of(3, group_of(Reject(), chain_of(2, Retry(60)))), "again in 60", id="a group in causes"),
        pytest.param(chain_of(3, group_of(Reject(), Busy())), BY_POLICY, id="a mixture in causes"),
        pytest.param(group_of(chain_of(2, group_of(Reject())), Reject()), "dead", id="a group that a leaf is from"),  # type: ignore[arg-type]
        pytest.param(nested(3_000, Reject()), "dead", id="nested 3,000 deep"),
        pytest.param(nested(3_000, Busy()), BY_POLICY, id="nested 3,000 deep without one"),
        pytest.param(group_of(Reject(), causes_in_a_circle()), BY_POLICY, id="a leaf whose causes go round"),
        pytest.param(group_in_a_circle(Busy()), BY_POLICY, id="a group in a circle without one"),
        pytest.param(widening(60, Retry(60)), "again in 60", id="2**60 ways to one"),
        pytest.param(widening(60, Busy()), BY_POLICY, id="2**60 ways to none"),
    ],
)
def test_a_verdict_is_looked_for_to_the_end_and_no_further(error: BaseException, expected: str) -> None:  # SPEC B3, A2
    assert fate(raising(error)) == expected
