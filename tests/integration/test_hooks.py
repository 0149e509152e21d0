"""The user's hooks: those that hang affect only their own message; `on_outcome`, which affects none."""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tarry import (
    ConfigurationError,
    DeadLetter,
    Failure,
    Fixed,
    LocalRetry,
    LogOptions,
    Message,
    Outcome,
    RetryInPlace,
    SendAgain,
    State,
    batch_consumer,
    consumer,
    world,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests import handlers
from tests.handlers import timed
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, failed
from tests.sandboxes import work
from tests.settled import orders, settle
from tests.wire import RunningClock, client_error

Does = Callable[[], None]


class Hang:
    """A hook that hangs, from the moment it is on, for longer than any function may run."""

    def __init__(self) -> None:
        self.is_on = False

    def __call__(self) -> None:
        if self.is_on:
            current().clock.sleep(20_000)


def hook(does: Does, answer: Any = None) -> Callable[..., Any]:
    """Return a function that does something, then returns ``answer`` or, if that is None, its argument."""

    def called(given: Any, *_: Any) -> Any:
        does()
        return given if answer is None else answer

    return called


class Asks:
    """A backoff, and a failure step that leaves the decision to the next one."""

    def __init__(self, does: Does) -> None:
        self._does = does

    def delay(self, attempt: int, rng: Any = None) -> float:
        self._does()
        return 10

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        self._does()
        return next_step(failure)


HOOKS: dict[str, Callable[[Does], dict[str, Any]]] = {
    "retry_when": lambda does: {"retry_when": hook(does, True)},
    "a backoff": lambda does: {"backoff": Asks(does)},
    "a step": lambda does: {"on_failure": [Asks(does), RetryInPlace()]},
    "a function as a step": lambda does: {"on_failure": [hook(does, Outcome.discard()), RetryInPlace()]},
    "the queue of a re-send": lambda does: {"on_failure": [SendAgain("again", queue=hook(does, "orders"))]},
    "the delay of a re-send": lambda does: {"on_failure": [SendAgain("again", delay=Asks(does))]},
    "the delay of a local retry": lambda does: {"on_failure": [LocalRetry(1, delay=Asks(does)), RetryInPlace()]},
    "the queue of a dead letter": lambda does: {"on_failure": [DeadLetter(queue=hook(does, "orders-dlq"))]},
    "enrich": lambda does: {"on_failure": [DeadLetter(enrich=hook(does, {}))]},
    "redact": lambda does: {"on_failure": [DeadLetter(redact=hook(does))]},
    "redact of the log": lambda does: {"log": LogOptions(redact=hook(does))},
    "on_outcome": lambda does: {"on_outcome": hook(does)},
}


SHORT: dict[str, Any] = {"visibility_timeout": 60, "timeout": 4}


def handle(message: Message) -> None:
    if message.body == "bad":
        raise ValueError("no stock")


def at_once(seconds: float, **settings: Any) -> Any:
    """Return a consumer of three tasks, each of which works, then waits."""
    return timed("async", lambda message: handle(message) or seconds, concurrency=3, **settings)


WAYS = handlers.WAYS | {"tasks": lambda _, **settings: at_once(0.1, **settings)}


def is_possible(name: str, way: str, queue: str) -> bool:
    """Return whether a hook exists there: a batch cannot run again in part, and SQS delays no single FIFO message."""
    is_of_batch, is_fifo = way.endswith("batch"), queue.endswith(".fifo")
    return not ((is_of_batch and "local" in name) or (is_fifo and name == "the delay of a re-send"))


def answered(sandbox: Sandbox) -> list[str]:
    return [event.fields["kind"] for event in sandbox.history.events if event.what == "answered"]


PLACES = [*((way, "orders") for way in WAYS if way != "async"), ("one by one", "orders.fifo"), ("tasks", "orders.fifo")]


@pytest.mark.parametrize(("way", "queue"), PLACES)
def test_a_hook_that_hangs_affects_only_its_own_message(way: str, queue: str) -> None:  # SPEC I7, C8
    for name in [name for name in HOOKS if is_possible(name, way, queue)]:
        hangs, is_fifo = Hang(), queue.endswith(".fifo")
        made, window = WAYS[way](handle, **HOOKS[name](hangs)), 0 if is_fifo else 1
        with Sandbox() as one:
            ids = work(one, made, "one", "bad", "two", queue=queue, groups="obt", batch_size=3, window=window, **SHORT)
            hangs.is_on = True
            first, bad, second = map(one.run(for_=10).state, ids)
        assert set(answered(one)) == {"returned"}, name
        assert first == second == State.COMMITTED, name
        assert bad in (State.WAITING_RETRY, State.RESENT, State.DEAD_LETTERED), name


def test_async_handlers_have_their_own_time_after_a_hook_that_hung_on_their_event_loop(sandbox: Sandbox) -> None:
    """SPEC I7. Neither the deadline nor ``timeout=`` ends them because they had to wait for the hook."""
    hangs = Hang()
    handler = at_once(1, timeout=2, retry_when=hook(hangs, True))
    work(sandbox, handler, "one", "bad", "two", batch_size=3, window=1, **(SHORT | {"timeout": 12}))
    hangs.is_on = True
    assert (sandbox.run(for_=12).count(State.COMMITTED), answered(sandbox)) == (2, ["returned"])


@pytest.mark.parametrize("name", ["retry_when", "enrich"])
@pytest.mark.parametrize("way", ["threads", "batch"])
def test_hooks_that_hang_for_every_message_leave_time_to_settle_all(way: str, name: str, sandbox: Sandbox) -> None:
    # SPEC I7, C8
    hangs = Hang()
    handler = WAYS[way](handle, max_attempts=1, **HOOKS[name](hangs))
    work(sandbox, handler, *["bad"] * 100, batch_size=100, window=1, **SHORT)
    hangs.is_on = True
    assert sandbox.run(for_=10).count(State.DEAD_LETTERED) == 100
    assert {message.failure is None for message in sandbox.messages("orders-dlq")} == {False}


@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "another thread"])
def test_a_hook_is_interrupted_on_the_main_thread_and_abandoned_in_another(in_thread: bool, caplog: Caplog) -> None:
    # SPEC I7
    gate, answers, began = threading.Event(), list[Any](), list[str]()

    def retry_when(failure: Failure) -> bool:
        began.append(failure.message.id)
        return gate.wait(30)

    handler = consumer(retry_when=retry_when)(lambda message: 1 / 0)

    def invoke() -> None:
        wire = orders(clock=RunningClock(lambda: bool(began)))
        answers.append(settle(handler, batch_of(1), wire, remaining=0.4)[0])

    thread = threading.Thread(target=invoke)
    (thread.start(), thread.join()) if in_thread else invoke()
    assert not gate.is_set()
    gate.set()
    assert (answers, began) == ([["m0"]], ["m0"])
    [line] = lines(caplog, "retry_when_failed")
    assert "HookTimeout: retry_when still ran after" in field(line, "error")


# on_outcome


def gives_verdicts(message: Message) -> None:
    match message.id:
        case "m1":
            raise ValueError("no stock")
        case "m2":
            message.reject("no such customer")
        case "m3":
            message.defer(5)
        case "m4":
            message.discard("old")


@pytest.mark.parametrize("way", handlers.WAYS)
def test_on_outcome_is_called_once_for_each_message_in_order_when_all_are_settled(way: str) -> None:  # SPEC L5
    seen: list[tuple[str, int, str, str | None]] = []
    failures, requests = dict[str, Any](), set[int]()

    def hook(message: Message, outcome: Outcome) -> None:
        seen.append((message.body, message.attempt, outcome.kind, outcome.reason))
        assert message.outcome is outcome
        requests.add(len(wire.requests))
        if message.failure is not None:
            failures[message.id] = message.failure

    wire = orders()
    handler = handlers.WAYS[way](gives_verdicts, on_outcome=hook, backoff=Fixed(60))
    assert settle(handler, batch_of(6, receives=2), wire)[0] == ["m1"]
    assert seen == [
        ("0", 2, "ack", None),
        ("1", 2, "retry", "error"),
        ("2", 2, "dead_letter", "rejected"),
        ("3", 2, "defer", None),
        ("4", 2, "discard", "old"),
        ("5", 2, "ack", None),
    ]
    assert requests == {len(wire.requests)}, "no request follows"
    assert failures.keys() == {"m1", "m2"}
    failed_now = failures["m1"]
    assert (failed_now.reason, failed_now.type, failed_now.message) == ("error", "ValueError", "no stock")
    assert (failed_now.attempts, failed_now.history[-1]["error"]) == (2, "ValueError: no stock")
    assert "gives_verdicts" in failed_now.traceback
    [written] = [envelope["failure"] for envelope in wire.envelopes() if "failure" in envelope]
    assert {name: getattr(failures["m2"], name) for name in written} == written


def test_a_message_that_was_only_reported_as_failed_counts_as_unhandled_and_released_ones_as_released() -> None:
    # SPEC L5, F4
    seen: list[tuple[str, str, str | None]] = []

    def hook(message: Message, outcome: Outcome) -> None:
        reason = None if message.failure is None else f"{outcome.reason} {message.failure.type}"
        assert message.failure is None or message.failure.reason == outcome.reason
        seen.append((message.id, outcome.kind, reason))

    @consumer(on_outcome=hook, backoff=Fixed(60))
    def handler(message: Message) -> None:
        raise SystemExit

    settle(handler, batch_of(2))
    settle(handler, batch_of(1), remaining=0.1)  # too little time to run or to settle a message
    wire = orders()
    wire.fails["SendMessageBatch"] = client_error("AccessDenied", status=403)
    assert settle(consumer(max_attempts=1, on_outcome=hook)(lambda _: 1 / 0), batch_of(1), wire)[0] == ["m0"]
    assert seen == [
        ("m0", "retry", "error SystemExit"),
        ("m1", "release", None),
        ("m0", "unhandled", None),
        ("m0", "unhandled", "exhausted ZeroDivisionError"),
    ]


def test_a_failure_that_cannot_be_recorded_is_no_failure_for_on_outcome() -> None:
    """Its record has the name of the function, which a context in a test may not have as text."""
    context, seen = Context(), list[Any]()
    context.function_name = object()  # type: ignore[assignment]
    with orders():
        consumer(lambda _: 1 / 0, on_outcome=lambda message, _: seen.append(message.failure))(batch_of(1), context)
    assert seen == [None]


class Broken(BaseException):
    """Not even an `Exception`."""


@pytest.mark.parametrize("error", [ValueError, SystemExit, Broken])
def test_on_outcome_that_raises_changes_nothing_and_is_logged_once(error: type[BaseException], caplog: Caplog) -> None:
    # SPEC L5, A2
    called = []

    def hook(message: Message, outcome: Outcome) -> None:
        called.append(message.id)
        message.reject()  # too late
        raise error("from the hook")

    handler = consumer(on_outcome=hook, backoff=Fixed(60))(gives_verdicts)
    caplog.set_level(logging.DEBUG, "tarry")
    with orders() as wire, world.use(world.current().afresh()):
        for _ in range(2):
            assert failed(handler(batch_of(2), Context())) == ["m1"]
    assert called == ["m0", "m1"] * 2
    assert [field(line, "message_id") for line in lines(caplog, "ignored")] == called
    assert set(wire.operations) == {"GetQueueAttributes", "ChangeMessageVisibilityBatch"}
    [line] = lines(caplog, "on_outcome_failed")
    assert (line.levelname, field(line, "message_id")) == ("WARNING", "m0")
    assert "from the hook" in line.exc_text
    assert not lines(caplog, "runtime_failed")


def test_a_slow_on_outcome_is_interrupted_before_the_deadline(caplog: Caplog) -> None:  # SPEC L5, I2
    called = []

    def hook(message: Message, outcome: Outcome) -> None:
        called.append(message.id)
        time.sleep(60)

    handler = consumer(on_outcome=hook)(lambda message: None)
    assert failed(handler(batch_of(2), Context(0.3))) == []
    [line] = lines(caplog, "on_outcome_stopped")
    assert "called for 1 of 2 messages" in field(line, "text")
    assert called == ["m0"]


def test_on_outcome_is_called_until_no_time_is_left(caplog: Caplog) -> None:  # SPEC L5, I7
    wire, called = orders(), list[str]()
    handler = consumer(on_outcome=lambda message, _: (called.append(message.id), wire.clock.sleep(9.75)))
    assert settle(handler(lambda message: None), batch_of(9), wire)[0] == []
    [line] = lines(caplog, "on_outcome_stopped")
    assert (called, "called for 4 of 9 messages" in field(line, "text")) == (["m0", "m1", "m2", "m3"], True)
    assert "on_outcome was not called: no time was left" in field(line, "error")


async def is_async(message: Message, outcome: Outcome) -> None: ...


class CallsAsync:
    async def __call__(self, message: Message, outcome: Outcome) -> None: ...


def test_only_a_plain_function_can_be_on_outcome() -> None:
    for hook in (is_async, functools.partial(is_async), CallsAsync()):
        with pytest.raises(ConfigurationError, match=r"on_outcome cannot be async, got .*Make it a plain function"):
            consumer(on_outcome=hook)
    with pytest.raises(ConfigurationError, match="on_outcome takes a function of a message and its outcome, got 'x'"):
        batch_consumer(on_outcome="x")
