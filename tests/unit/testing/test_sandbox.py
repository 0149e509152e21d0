"""The sandbox: queues, functions, time, reports, and errors for wrong use."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tarry import Batch, Exponential, Fixed, LogOptions, Message, Queue, batch_consumer, consumer
from tarry.testing import Realism, Sandbox
from tarry.tools.simulator.actors import SimulationError
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.simulation import RealSleep
from tarry.tools.testing.deliveries import OneEntry
from tarry.world import Interrupted, current
from tests.sandboxes import work

HOUR = 3600


class GatewayDown(Exception): ...


@consumer(max_attempts=3, backoff=Fixed(600))
def fails(message: Message) -> None:
    raise GatewayDown("no answer")


@consumer
def succeeds(message: Message) -> None: ...


# whole runs


def test_an_exhausted_message_ends_in_the_dlq(sandbox: Sandbox) -> None:  # SPEC N4
    settings: dict[str, Any] = {"max_receive_count": 15, "visibility_timeout": 60, "timeout": 30}
    send = {"delay": None, "attributes": None}
    [order] = work(sandbox, fails, "1", batch_size=10, window=0, max_concurrency=None, send=send, **settings)
    report = sandbox.run()
    failure = sandbox.messages("orders-dlq")[0].failure
    assert failure is not None
    assert failure.reason == "exhausted"
    assert 1200 <= sandbox.elapsed <= 1210
    assert [step.state for step in report.story(order)] == [
        "READY", "IN_FLIGHT", "WAITING_RETRY", "IN_FLIGHT", "WAITING_RETRY", "IN_FLIGHT", "DEAD_LETTERED",
    ]  # fmt: skip


def test_ten_messages_with_hours_of_backoff_take_less_than_fifty_milliseconds() -> None:  # SPEC N3, N4
    @consumer(max_attempts=5, backoff=Exponential(600, 3))
    def handler(message: Message) -> None:
        if message.json() % 2:
            raise GatewayDown

    def play(number: int) -> float:
        began = time.thread_time()
        with Sandbox(seed=number) as sandbox:
            work(sandbox, handler, *map(str, range(10)))
            sandbox.run()
            assert sandbox.elapsed > 6 * HOUR
            assert len(sandbox.messages("orders-dlq")) == 5
        return time.thread_time() - began

    assert min(play(number) for number in range(5)) < 0.05


@pytest.mark.parametrize("realism", [Realism(), Realism(reorder=True, partial=True, duplicate=0.2)])
def test_the_same_seed_gives_the_same_history(realism: Realism) -> None:
    def play(seed: int) -> list[str]:
        with Sandbox(seed=seed, realism=realism) as sandbox:
            handler = fails.replace(backoff=Exponential(10, jitter="full"))
            work(sandbox, handler, *({"id": number} for number in range(8)))
            return [str(event) for event in sandbox.run(check=False).events]

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_a_function_that_outlives_its_timeout_is_killed(sandbox: Sandbox) -> None:
    @consumer
    def handler(message: Message) -> None:
        while message.attempt == 1:
            with suppress(Interrupted):
                sandbox.sleep(HOUR)

    [order] = work(sandbox, handler, "1", dead_letter=None, visibility_timeout=60, timeout=30)
    report = sandbox.run()
    step = report.story(order)[2]
    assert (step.state, step.why) == ("WAITING_RETRY", "Task timed out after 30.00 seconds")
    assert report.state(order) == "COMMITTED"


def test_a_redrive_moves_dead_letters_to_their_source_queue(sandbox: Sandbox) -> None:
    gateway = ["down"]

    @consumer(max_attempts=1)
    def handler(message: Message) -> None:
        if gateway:
            raise GatewayDown

    [order] = work(sandbox, handler, "1")
    assert sandbox.run().state(order) == "DEAD_LETTERED"
    gateway.clear()
    sandbox.redrive("orders-dlq")
    states = [step.state for step in sandbox.run().story(order)]
    assert states == ["READY", "IN_FLIGHT", "DEAD_LETTERED", "READY", "IN_FLIGHT", "COMMITTED"]
    assert sandbox.messages("orders-dlq") == []


def test_a_redrive_from_a_dlq_of_several_queues_needs_a_target(sandbox: Sandbox) -> None:
    for name in ("orders", "invoices"):
        sandbox.queue(name, dead_letter="dlq")
    sandbox.send("dlq", "1")
    with pytest.raises(ValueError, match=r"to=\.\.\.\): the source queues of 'dlq' are orders, invoices"):
        sandbox.redrive("dlq")
    sandbox.redrive("dlq", to="invoices")
    assert [message.body for message in sandbox.messages("invoices")] == ["1"]


# handlers


def test_a_consumer_below_a_decorator_or_in_a_lambda_handler_is_observed(sandbox: Sandbox) -> None:
    """Otherwise the checkers would report its deleted messages as lost."""

    def function(message: Message) -> None: ...

    @functools.wraps(succeeds)
    def decorated(event: Any, context: Any) -> Any:
        return succeeds(event, context)

    @functools.wraps(function)
    def named_like_a_function_of_a_message(event: Any, context: Any) -> Any:
        return consumer(function)(event, context)

    def lambda_handler(event: Any, context: Any) -> Any:
        return succeeds(event, context)

    handlers = {"orders": decorated, "returns": named_like_a_function_of_a_message, "invoices": lambda_handler}
    for name, handler in handlers.items():
        work(sandbox, handler, "1", queue=name, dead_letter=None)
    report = sandbox.run()
    assert report.count("COMMITTED") == 3
    assert sum(event.what == "run_started" for event in report.events) == 3


def invoked(sandbox: Sandbox) -> list[dict[str, Any]]:
    return [event.fields for event in sandbox.run().events if event.what == "invoked"]


def test_a_handler_of_two_queues_is_one_function(sandbox: Sandbox) -> None:
    for name in ("orders", "invoices"):
        work(sandbox, succeeds, "1", queue=name, dead_letter=None)
    assert {fields["function"] for fields in invoked(sandbox)} == {"succeeds"}
    with pytest.raises(ValueError, match="the queue 'orders' feeds the function 'succeeds' already"):
        sandbox.connect(succeeds, "orders")
    sandbox.queue("returns")
    with pytest.raises(ValueError, match=r"succeeds is a function with a timeout of 30 s already, .*: got 5 s"):
        sandbox.connect(succeeds, "returns", timeout=5)


def test_two_handlers_with_the_same_name_are_two_functions(sandbox: Sandbox) -> None:
    for name in ("orders", "invoices"):

        @consumer
        def handler(message: Message) -> None: ...

        work(sandbox, handler, "1", queue=name, dead_letter=None)
    found = invoked(sandbox)
    assert [fields["function"] for fields in found] == ["handler", "handler-2"]
    assert len({fields["request_id"] for fields in found}) == 2


def test_a_queue_in_a_handler_or_in_a_test_sends_to_the_sandbox_and_its_requests_are_not_tarrys(
    sandbox: Sandbox,
) -> None:
    """So they do not count towards the budget, in a consumer or in a plain handler."""
    shipments = Queue("shipments")

    @consumer
    def handler(message: Message) -> None:
        for _ in range(3):
            shipments.send_batch([message.json()], delay=timedelta(hours=1))

    sandbox.queue("shipments")
    sandbox.queue("orders")
    order = Queue("orders").send({"id": 1}, delay=60)
    [message] = sandbox.messages("orders")
    assert message.id == order
    assert 59 < message.invisible_seconds <= 60
    sandbox.connect(handler, "orders")
    work(sandbox, lambda event, context: shipments.send_batch([event]) and None, "1", queue="returns", dead_letter=None)
    assert sandbox.run().violations == []
    assert [shipment.json() for shipment in sandbox.messages("shipments")][1:] == [{"id": 1}] * 3


@pytest.mark.parametrize("level", [logging.CRITICAL, logging.NOTSET])
def test_a_disabled_log_changes_no_timeline(sandbox: Sandbox, level: int) -> None:
    [order] = work(sandbox, fails, "1")
    logging.disable(level)
    try:
        assert sandbox.run().state(order) == "DEAD_LETTERED"
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)


def test_the_log_is_recorded_while_the_test_sends(sandbox: Sandbox) -> None:
    """A send takes virtual time, in which handlers run."""
    [order] = work(sandbox, fails.replace(max_attempts=1), "1")
    queue = Queue("orders")
    for _ in range(60):
        queue.send("2", delay=900)
    assert sandbox.report().state(order) == "DEAD_LETTERED"


def test_a_redacted_log_line_gives_the_reason_in_the_timeline(sandbox: Sandbox) -> None:
    redacted = fails.replace(log=LogOptions(redact=lambda fields: {**fields, "error": "***"}))
    [order] = work(sandbox, redacted, "1")
    assert sandbox.run().story(order)[-1].why == "exhausted: ***"


# time


def test_in_an_async_test_an_async_batch_handler_waits_in_virtual_time(sandbox: Sandbox) -> None:
    @batch_consumer
    async def handler(batch: Batch) -> None:
        await asyncio.sleep(20)

    async def test() -> None:
        work(sandbox, handler)
        sandbox.sleep(60)
        sandbox.send("orders", "1")
        assert sandbox.run().count("COMMITTED") == 1

    asyncio.run(test())
    assert 80 < sandbox.elapsed < 81


@pytest.mark.parametrize(
    "sleep", [lambda sandbox: sandbox.sleep, lambda _: current().clock.sleep, lambda _: time.sleep]
)
def test_a_handler_sleeps_in_virtual_time(sandbox: Sandbox, sleep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `time.sleep` if the test has patched it."""

    @consumer
    def handler(message: Message) -> None:
        sleep(sandbox)(20)

    monkeypatch.setattr(time, "sleep", sandbox.sleep)
    [order] = work(sandbox, handler, "1", dead_letter=None)
    assert sandbox.run().state(order) == "COMMITTED"
    assert 20 < sandbox.elapsed < 21


def test_advance_runs_for_exactly_the_given_time(sandbox: Sandbox) -> None:
    [order] = work(sandbox, fails, "1")
    began = sandbox.now
    assert sandbox.advance(599).count("WAITING_RETRY") == 1
    assert sandbox.elapsed == sandbox.now - began == 599
    report = sandbox.advance(2)
    assert not report.settled
    assert [step.attempt for step in report.story(order) if step.state == "IN_FLIGHT"] == [1, 2]
    assert sandbox.run().settled


def test_a_run_ends_as_soon_as_its_condition_holds(sandbox: Sandbox) -> None:
    [order] = work(sandbox, fails, "1")
    sandbox.run(until=lambda: sandbox.elapsed > 500)
    assert 600 < sandbox.elapsed < 601
    assert sandbox.run(until=lambda: False, for_=300).state(order) == "WAITING_RETRY"
    assert 900 < sandbox.elapsed < 901


def test_a_sleep_in_a_test_advances_the_sandbox_and_changes_no_earlier_report(sandbox: Sandbox) -> None:
    [order] = work(sandbox, succeeds, "1")
    before = sandbox.report()
    sandbox.sleep(10)
    assert sandbox.elapsed == 10
    assert sandbox.report().state(order) == "COMMITTED"
    assert before.state(order) == "READY"


@pytest.mark.sandbox(keep_history=False)
def test_without_a_history_a_sandbox_runs_but_neither_checks_nor_reports(sandbox: Sandbox) -> None:
    work(sandbox, consumer(max_attempts=2)(lambda message: message.reject("no")), {"id": 1})
    error = r"the sandbox keeps no history \(keep_history=False\), so no rule can be checked: call run\(check=False\)"
    with pytest.raises(ValueError, match=error):
        sandbox.run()
    report = sandbox.run(check=False)
    assert report.settled
    assert len(sandbox.messages("orders-dlq")) == 1
    with pytest.raises(ValueError, match="there is no report of its messages"):
        str(report)


# errors


def run_again(sandbox: Sandbox) -> None:
    with suppress(Exception):  # as handlers do: an ordinary error would only be a failure of the message
        sandbox.run()


def advance(sandbox: Sandbox) -> None:
    with suppress(Exception):
        sandbox.advance(5)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda _: time.sleep(30), RealSleep, r"test_sandbox\.py:\d+ in <lambda>\(\) calls time\.sleep\(30\)"),
        (run_again, SimulationError, r"a handler calls run\(\) or advance\(\) .*: let it call sandbox\.sleep"),
        (advance, SimulationError, r"a handler calls run\(\) or advance\(\) .*: let it call sandbox\.sleep"),
        (
            lambda _: Queue("orders").send("again"),
            SimulationError,
            "more than 1,000 events in one run: does a function",
        ),
    ],
)
def test_a_handler_that_sleeps_in_real_time_runs_the_sandbox_or_never_ends_is_an_error(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, act: Any, error: type[Exception], text: str
) -> None:
    monkeypatch.setattr("tarry.tools.testing.sandbox.MOST_EVENTS", 1000)
    work(sandbox, consumer(lambda message: act(sandbox)), "1", dead_letter=None)
    with pytest.raises(error, match=text):
        sandbox.run()


def test_the_error_for_an_unknown_queue_lists_the_queues(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="the sandbox has no queue 'orders'; it has none"):
        sandbox.send("orders", "1")
    sandbox.queue("orders", dead_letter="orders-dlq")
    calls: list[Callable[[], object]] = [
        lambda: sandbox.send("oders", "1"),
        lambda: sandbox.connect(succeeds, "oders"),
        lambda: sandbox.messages("oders"),
        lambda: sandbox.redrive("oders"),
        lambda: sandbox.redrive("orders-dlq", to="oders"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the sandbox has no queue 'oders'; it has orders-dlq, orders"):
            call()


TAKES = r"connect takes a handler"
WRONG_CALLS: list[tuple[Callable[[Sandbox], object], type[Exception], str]] = [
    (lambda it: it.connect("app.handler", "orders"), TypeError,
     TAKES + r", got 'app\.handler': a consumer, or a function of \(event, context\)"),
    (lambda it: it.connect(lambda message: None, "orders"), TypeError,
     TAKES + r" of \(event, context\), .*: is its @consumer missing\?"),
    (lambda it: it.connect(GatewayDown("no"), "orders"), TypeError, TAKES + ", got GatewayDown"),
    (lambda it: it.connect(succeeds, "orders", timeout=30), ValueError,
     "visibility timeout: 20 seconds is less than Function timeout: 30 seconds"),
    (lambda it: it.connect(succeeds, "orders", timeout=20, batch_size=0), ValueError,
     "batch size must be between 1 and 10000, got 0"),
    (lambda it: it.queue("other", visibility_timeout=50_000), ValueError,
     "SQS refuses the queue 'other': Invalid value for the parameter Visib"),
    (lambda it: it.queue("other", fifo=True), ValueError,
     "SQS wants the name of a FIFO queue to end in .fifo, got 'other'"),
    (lambda it: it.queue("other", dead_letter="dlq.fifo"), ValueError,
     "Dead-letter queue must be same type of queue as the source"),
    (lambda it: it.send("ledger.fifo", "1"), ValueError, "a message to a FIFO queue needs a group_id"),
    (lambda it: it.send("orders", "x" * 2000), ValueError,
     r"SQS refuses the message to 'orders': .* shorter than 1024 bytes"),
    *[(lambda it, seconds=seconds: it.advance(seconds), ValueError, "for_ is a number of seconds from 0, got")
      for seconds in (-1, float("nan"), float("inf"))],
]  # fmt: skip


def test_calls_that_lambda_or_sqs_would_refuse_are_refused_with_what_is_allowed(sandbox: Sandbox) -> None:
    sandbox.queue("orders", visibility_timeout=20, maximum_message_size=1024)
    sandbox.queue("ledger.fifo")
    for call, error, text in WRONG_CALLS:
        with pytest.raises(error, match=text):
            call(sandbox)


def test_a_closed_sandbox_does_not_run() -> None:
    with Sandbox() as sandbox:
        pass
    with pytest.raises(RuntimeError, match="the sandbox is closed"):
        sandbox.run()


def test_a_run_of_one_message_names_it_as_a_dict_would() -> None:
    messages = OneEntry("id", 7)
    assert (messages["id"], messages.get("other"), "other" in messages, len(messages)) == (7, None, False, 1)
    assert messages == {"id": 7}
    assert str(messages) == "{'id': 7}"


def test_an_event_shows_its_fields_which_a_reader_cannot_change() -> None:
    event = HistoryEvent(5.0, "sent", {"queue": "orders"})
    event.fields["queue"] = "others"
    assert repr(event) == "HistoryEvent(at=5.0, what='sent', fields={'queue': 'orders'})"
