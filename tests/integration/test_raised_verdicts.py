"""Verdicts raised among other errors: in `except` and `finally`, in tasks and groups, in long and circular causes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tarry import Discard, Fixed, Message, Reject, Retry, consumer
from tests.records import Context, batch_of, failed
from tests.wire import Queue, Wire

BY_POLICY = "retried in 77"


def fates(handle: Callable[[Message], Any], count: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    """Run the handler for fresh messages; return the fate of each, and the wire."""
    with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}) as wire:
        reported = failed(consumer(backoff=Fixed(77), **settings)(handle)(batch_of(count), Context()))
    dead = {envelope["id"] for envelope in wire.envelopes()}
    visibilities = wire.visibilities()
    found = []
    for name in (f"m{index}" for index in range(count)):
        gone = "dead" if name in dead else "done"
        found.append(f"retried in {visibilities.get(f'handle-{name}')}" if name in reported else gone)
    return found, wire


def fate_of_one(handle: Callable[[Message], Any], **settings: Any) -> str:
    [found], _ = fates(handle, **settings)
    return found


def raising(error: BaseException) -> Callable[[Message], None]:
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


WAYS = pytest.mark.parametrize(
    ("way", "error_type", "shows_error"),
    [(_from_error, "GatewayBusy", True), (_while_handling_error, "Reject", True), (_instead_of_error, "Reject", False)],
    ids=["from error", "implicit context", "from None"],
)


@WAYS
def test_a_verdict_raised_in_an_except_block_holds(way: Any, error_type: str, shows_error: bool) -> None:  # SPEC B3
    assert fate_of_one(lambda _: way(Retry(60))) == "retried in 60"
    assert fate_of_one(lambda _: way(Discard())) == "done"


@WAYS
def test_the_failure_record_describes_the_error_that_the_verdict_was_raised_from(
    way: Any, error_type: str, shows_error: bool
) -> None:  # SPEC F2
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
    def handler(message: Message) -> None:
        error = GatewayBusy("503")
        error.__cause__ = signal
        message.fail(error)

    [found], wire = fates(handler, max_attempts=1)
    failure = wire.envelopes()[0]["failure"]
    assert (found, failure["type"].rpartition(".")[2], failure["message"]) == ("dead", "GatewayBusy", "503")


class FalsyReject(Reject):
    def __len__(self) -> int:
        return 0


def test_a_verdict_may_be_falsy() -> None:  # SPEC B3
    error = GatewayBusy()
    error.__cause__ = FalsyReject()
    assert fate_of_one(raising(error)) == "dead"
    assert fate_of_one(lambda message: message.fail(error)) == "dead"


# in a finally block, and in context managers


def _finally_over_error() -> None:
    try:
        raise GatewayBusy
    finally:
        raise Reject


def _error_over_signal() -> None:
    try:
        raise Reject
    finally:
        raise GatewayBusy


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
    with suppress(GatewayBusy):
        raise Reject


def _all_suppressed() -> None:
    with suppress(Exception):
        raise Retry(60)


def _callback_fails() -> None:
    def fail() -> None:
        raise GatewayBusy

    with ExitStack() as stack:
        stack.callback(fail)
        raise Reject


def _callback_rejects() -> None:
    def reject() -> None:
        raise Reject

    with ExitStack() as stack:
        stack.callback(reject)
        raise GatewayBusy


@contextmanager
def _converting(*, explicitly: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if explicitly:
            raise GatewayBusy from error
        raise GatewayBusy  # noqa: B904 the implicit context is the point


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
        (_signal_over_signal, "retried in 60"),
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
def test_only_the_exception_that_leaves_the_handler_counts(block: Callable[[], None], expected: str) -> None:  # SPEC B3
    assert fate_of_one(lambda _: block()) == expected


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


async def _with_a_cancelled_sibling() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled())


async def _with_a_sibling_whose_clean_up_fails() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled(then=GatewayBusy()))


async def _with_a_sibling_whose_clean_up_retries() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(Reject()))
        group.create_task(_until_cancelled(then=Retry(60)))


async def _in_the_body() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_until_cancelled())
        await _raise(Retry(60))


async def _nested() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_with_a_cancelled_sibling())
        group.create_task(_until_cancelled())


async def _nested_with_an_error() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_with_a_cancelled_sibling())
        group.create_task(_until_cancelled(then=GatewayBusy()))


async def _errors_split_off() -> None:
    try:
        await _with_a_sibling_whose_clean_up_fails()
    except* GatewayBusy:
        pass


async def _an_error_raised_while_splitting() -> None:
    try:
        await _with_a_sibling_whose_clean_up_fails()
    except* GatewayBusy:
        raise GatewayBusy  # noqa: B904 the implicit context is the point


async def _signal_split_off() -> None:
    try:
        await _with_a_sibling_whose_clean_up_fails()
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
        raise GatewayBusy


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (_with_a_cancelled_sibling, "dead"),
        (_with_a_sibling_whose_clean_up_fails, BY_POLICY),
        (_with_a_sibling_whose_clean_up_retries, "retried in 60"),
        (_in_the_body, "retried in 60"),
        (_nested, "dead"),
        (_nested_with_an_error, BY_POLICY),
        (_errors_split_off, "dead"),
        (_an_error_raised_while_splitting, BY_POLICY),
        (_signal_split_off, BY_POLICY),
        (_gathered, "dead"),
        (_a_task_that_was_cancelled, "dead"),
        (_in_time_out, "retried in 60"),
        (_after_a_time_out, "retried in 60"),
        (_in_an_exit_stack, "dead"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_verdict_raised_in_a_task_holds_and_the_other_messages_run(
    steps: Callable[[], Awaitable[None]], expected: str
) -> None:  # SPEC B3, A5
    async def handler(message: Message) -> None:
        if message.id == "m0":
            await steps()

    found, _ = fates(handler, count=3)
    assert found == [expected, "done", "done"]


def test_a_group_of_a_verdict_and_a_cancellation_is_a_failure_that_ends_the_batch() -> None:  # SPEC A5, B3
    """Task groups never raise such a group."""
    found, _ = fates(raising(BaseExceptionGroup("x", [Reject(), asyncio.CancelledError()])), count=2)
    assert found == [BY_POLICY, "retried in 0"]


# long, nested and circular causes


def chain_of(length: int, end: BaseException) -> BaseException:
    """Return a chain of ``length`` errors, each raised from the next and the last from ``end``."""
    for _ in range(length):
        error = GatewayBusy()
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
    """Return a group of which one error was raised from the group itself."""
    error = GatewayBusy()
    error.__cause__ = group_of(leaf, error)
    return error


def causes_in_a_circle() -> Exception:
    one, other = GatewayBusy(1), GatewayBusy(2)
    one.__cause__, other.__cause__ = other, one
    return one


def widening(levels: int, leaf: BaseException) -> BaseException:
    """Return nested groups of two errors, both raised from the next group: 2 ** levels paths to the leaf."""
    for _ in range(levels):
        leaves = (chain_of(1, leaf), chain_of(1, leaf))
        leaf = BaseExceptionGroup("both", leaves)
    return leaf


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(chain_of(2_000, Reject()), "dead", id="2,000 causes"),
        pytest.param(chain_of(2_000, GatewayBusy()), BY_POLICY, id="2,000 causes without a verdict"),
        pytest.param(chain_of(3, group_of(Reject(), chain_of(2, Retry(60)))), "retried in 60", id="a group in causes"),
        pytest.param(chain_of(3, group_of(Reject(), GatewayBusy())), BY_POLICY, id="a mixed group in causes"),
        pytest.param(group_of(chain_of(2, group_of(Reject())), Reject()), "dead", id="a leaf caused by a group"),  # type: ignore[arg-type]
        pytest.param(nested(3_000, Reject()), "dead", id="nested 3,000 deep"),
        pytest.param(nested(3_000, GatewayBusy()), BY_POLICY, id="nested 3,000 deep without a verdict"),
        pytest.param(group_of(Reject(), causes_in_a_circle()), BY_POLICY, id="a leaf with circular causes"),
        pytest.param(group_in_a_circle(GatewayBusy()), BY_POLICY, id="a group in a circle without a verdict"),
        pytest.param(widening(60, Retry(60)), "retried in 60", id="2**60 paths to a verdict"),
        pytest.param(widening(60, GatewayBusy()), BY_POLICY, id="2**60 paths without a verdict"),
    ],
)
def test_a_verdict_is_found_in_long_nested_and_circular_causes(
    error: BaseException, expected: str
) -> None:  # SPEC B3, A2
    assert fate_of_one(raising(error)) == expected
