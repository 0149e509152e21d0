"""``on_outcome``: called once for each message with what became of it, without an effect on the messages."""

import functools
import time
from typing import Any

import pytest

from tarry import ConfigurationError, Fixed, Message, Outcome, batch_consumer, consumer, world
from tests.handlers import WAYS
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, client_error


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


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


SETTINGS: dict[str, Any] = {"backoff": Fixed(60)}


@pytest.mark.parametrize("way", WAYS)
def test_the_hook_is_called_once_for_each_message_in_order_with_what_became_of_it_when_all_are_settled(
    way: str,
) -> None:  # SPEC L5
    seen: list[tuple[str, str, str | None]] = []
    failures: dict[str, Any] = {}
    requests: set[int] = set()

    def hook(message: Message, outcome: Outcome) -> None:
        seen.append((message.id, outcome.kind, outcome.reason))
        assert message.outcome is outcome
        requests.add(len(wire.requests))
        if message.failure is not None:
            failures[message.id] = message.failure

    with orders() as wire:
        assert failed(WAYS[way](gives_verdicts, on_outcome=hook, **SETTINGS)(batch_of(6, receives=2), Context())) == [
            "m1"
        ]
    assert seen == [
        ("m0", "ack", None),
        ("m1", "retry", "error"),
        ("m2", "dead_letter", "rejected"),
        ("m3", "defer", None),
        ("m4", "discard", "old"),
        ("m5", "ack", None),
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

    with orders():
        handler(batch_of(2), Context())
        handler(batch_of(1), Context(0.1))  # too little time to run or to settle a message
    with orders(fails={"SendMessageBatch": client_error("AccessDenied", status=403)}):
        assert failed(consumer(max_attempts=1, on_outcome=hook)(lambda _: 1 / 0)(batch_of(1), Context())) == ["m0"]
    assert seen == [
        ("m0", "retry", "error SystemExit"),
        ("m1", "release", None),
        ("m0", "unhandled", None),
        ("m0", "unhandled", "exhausted ZeroDivisionError"),
    ]


class Broken(BaseException):
    """Not even an `Exception`."""


@pytest.mark.parametrize("error", [ValueError, SystemExit, Broken])
def test_a_hook_that_raises_changes_nothing_and_is_logged_once_per_cold_start(
    error: type[BaseException], caplog: Caplog
) -> None:  # SPEC L5, A2
    called = []

    def hook(message: Message, outcome: Outcome) -> None:
        called.append(message.id)
        message.reject()  # too late
        raise error("from the hook")

    handler = consumer(on_outcome=hook, **SETTINGS)(gives_verdicts)
    with orders() as wire, world.use(world.current().afresh()):
        for _ in range(2):
            assert failed(handler(batch_of(2), Context())) == ["m1"]
    assert called == ["m0", "m1"] * 2
    assert set(wire.operations) == {"GetQueueAttributes", "ChangeMessageVisibilityBatch"}
    [line] = lines(caplog, "on_outcome_failed")
    assert (line.levelname, field(line, "message_id")) == ("WARNING", "m0")
    assert "from the hook" in line.exc_text
    assert not lines(caplog, "runtime_failed")


def test_a_slow_hook_is_interrupted_before_the_deadline_and_the_response_holds(caplog: Caplog) -> None:  # SPEC L5, I2
    called = []

    def hook(message: Message, outcome: Outcome) -> None:
        called.append(message.id)
        time.sleep(60)

    handler = consumer(on_outcome=hook)(lambda message: None)
    assert failed(handler(batch_of(2), Context(0.3))) == []
    [line] = lines(caplog, "on_outcome_stopped")
    assert "called for 1 of 2 messages" in field(line, "text")
    assert called == ["m0"]


def test_the_hook_sees_the_message_with_its_body_and_its_context_variables_do_not_leak() -> None:  # SPEC L5, I1
    seen = []
    handler = consumer(on_outcome=lambda message, outcome: seen.append((message.body, message.attempt)))(lambda m: None)
    handler(event(record('{"a": 1}', "m0"), record("{}", "m1", receives=3)), Context())
    assert seen == [('{"a": 1}', 1), ("{}", 3)]


async def is_async(message: Message, outcome: Outcome) -> None: ...


class CallsAsync:
    async def __call__(self, message: Message, outcome: Outcome) -> None: ...


@pytest.mark.parametrize("hook", [is_async, functools.partial(is_async), CallsAsync()])
def test_an_async_hook_is_refused(hook: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"on_outcome cannot be async, got .*Make it a plain function"):
        consumer(on_outcome=hook)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_outcome takes a function of a message and its outcome, got 'x'"):
        batch_consumer(on_outcome="x")  # type: ignore[call-overload]
