"""The user's hooks that hang, recurse or fork: the answer comes in time, and only their own message is affected."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tarry import (
    DeadLetter,
    Failure,
    LocalRetry,
    LogOptions,
    Message,
    Outcome,
    RetryInPlace,
    SendAgain,
    State,
    consumer,
)
from tarry.testing import Sandbox
from tarry.world import current
from tests import handlers
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, failed
from tests.wire import Queue, RunningClock, Wire

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


def work(message: Message) -> None:
    if message.body == "bad":
        raise ValueError("no stock")


async def work_async(message: Message) -> None:
    work(message)
    await current().clock.asleep(0.1)


WAYS = handlers.WAYS | {"tasks": lambda _, **settings: consumer(concurrency=3, **settings)(work_async)}


def is_possible(name: str, way: str, queue: str) -> bool:
    """Return whether a hook exists there: a batch cannot run again in part, and SQS delays no single FIFO message."""
    is_of_batch, is_fifo = way.endswith("batch"), queue.endswith(".fifo")
    return not ((is_of_batch and "local" in name) or (is_fifo and name == "the delay of a re-send"))


def answered(sandbox: Sandbox) -> list[str]:
    return [event.fields["kind"] for event in sandbox.history.events if event.what == "answered"]


PLACES = [*((way, "orders") for way in WAYS if way != "async"), ("one by one", "orders.fifo"), ("tasks", "orders.fifo")]


@pytest.mark.parametrize(
    ("name", "way", "queue"), [(name, *place) for name in HOOKS for place in PLACES if is_possible(name, *place)]
)
def test_a_hook_that_hangs_delays_no_answer_and_affects_only_its_own_message(
    name: str, way: str, queue: str, sandbox: Sandbox
) -> None:  # SPEC I7, C8
    is_fifo = queue.endswith(".fifo")
    hangs = Hang()
    sandbox.queue(queue, dead_letter="orders-dlq" + queue[6:], visibility_timeout=60)
    sandbox.connect(WAYS[way](work, **HOOKS[name](hangs)), queue, batch_size=3, window=0 if is_fifo else 1, timeout=4)
    ids = [sandbox.send(queue, body, group_id=body if is_fifo else None) for body in ("one", "bad", "two")]
    hangs.is_on = True
    one, bad, two = map(sandbox.run(for_=10).state, ids)
    assert set(answered(sandbox)) == {"returned"}
    assert one == two == State.COMMITTED
    assert bad in (State.WAITING_RETRY, State.RESENT, State.DEAD_LETTERED)


def test_async_handlers_have_their_own_time_after_a_hook_that_hung_on_their_event_loop(sandbox: Sandbox) -> None:
    """SPEC I7. Neither the deadline nor ``timeout=`` ends them because they had to wait for the hook."""
    hangs = Hang()

    @consumer(concurrency=3, timeout=2, retry_when=hook(hangs, True))
    async def handler(message: Message) -> None:
        work(message)
        await current().clock.asleep(1)

    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=60)
    sandbox.connect(handler, "orders", batch_size=3, window=1, timeout=12)
    for body in ("one", "bad", "two"):
        sandbox.send("orders", body)
    hangs.is_on = True
    assert (sandbox.run(for_=12).count(State.COMMITTED), answered(sandbox)) == (2, ["returned"])


@pytest.mark.parametrize("name", ["retry_when", "enrich"])
@pytest.mark.parametrize("way", ["threads", "batch"])
def test_hooks_that_hang_for_every_message_of_a_batch_leave_time_to_settle_all(
    way: str, name: str, sandbox: Sandbox
) -> None:  # SPEC I7, C8
    hangs = Hang()
    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=60)
    handler = WAYS[way](work, max_attempts=1, **HOOKS[name](hangs))
    sandbox.connect(handler, "orders", batch_size=100, window=1, timeout=4)
    for _ in range(100):
        sandbox.send("orders", "bad")
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
        with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, clock=RunningClock(lambda: bool(began))):
            answers.append(failed(handler(batch_of(1), Context(0.6))))

    thread = threading.Thread(target=invoke)
    (thread.start(), thread.join()) if in_thread else invoke()
    assert not gate.is_set()
    gate.set()
    assert (answers, began) == ([["m0"]], ["m0"])
    [line] = lines(caplog, "retry_when_failed")
    assert "HookTimeout: retry_when still ran after" in field(line, "error")
