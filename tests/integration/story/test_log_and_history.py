"""The log tells the same story as the history: every line of tarry, in each format of a log, beside the sandbox.

# SPEC L6
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields

import pytest
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from awslambdaric.lambda_runtime_log_utils import JsonFormatter

from tarry import DeadLetter, Discard, Exponential, Message, Reject, RetryInPlace, SendAgain, State, consumer, failed
from tarry.testing import Sandbox
from tarry.tools.simulator.functions import current_call
from tarry.tools.story.events import Story, StoryEvent
from tarry.tools.story.lines import NO_LINE, LogEntry, story_of_log
from tarry.tools.testing.report import stories_of

TEXT = logging.Formatter("[%(levelname)s]\t2026-11-22T03:00:00.000Z\t%(aws_request_id)s\t%(message)s\n")
FORMATS: dict[str, Callable[[], logging.Formatter]] = {
    "Lambda's JSON": JsonFormatter,
    "Powertools": LambdaPowertoolsFormatter,
    "Lambda's text": lambda: TEXT,
}
ENDS_IN = {
    "retried": "COMMITTED",
    "deferred": "COMMITTED",
    "rejected": "DEAD_LETTERED",
    "exhausted": "DEAD_LETTERED",
    "discarded": "DISCARDED",
}


@consumer(
    max_attempts=3,
    backoff=Exponential(30, 3, jitter=None),
    on_failure=[RetryInPlace(), SendAgain("slow", queue="slow"), DeadLetter()],
)
def orders(message: Message) -> None:
    wish = message.body
    if wish == "deferred" and message.queue == "orders" and not message.attributes:
        deferred.append(wish)
        if len(deferred) == 1:
            message.defer(120)
    if wish == "rejected":
        raise Reject("no lines") from ValueError("an 'odd' \"text\" = x=1\nin two lines \x1b[31m")
    if wish == "discarded" and message.attempt == 2:
        raise Discard("not needed")
    if (wish in ("retried", "discarded") and message.attempt == 1) or wish == "exhausted":
        raise TimeoutError("the gateway does not answer")


deferred: list[str] = []


@consumer(max_attempts=5, backoff=Exponential(60, 2, jitter=None))
def slow(message: Message) -> None:
    raise KeyError("no such tenant")


@contextmanager
def captured(sandbox: Sandbox, formatter: logging.Formatter) -> Iterator[list[LogEntry]]:
    """Collect the lines that a function's log would have."""
    entries: list[LogEntry] = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            call = current_call()
            if call is None:
                return
            line = copy(record)  # the runtime client sets the request id, and changes what it formats
            line.aws_request_id = call.request_id
            group = f"/aws/lambda/{call.environment.function.settings.name}"
            entries.append(LogEntry(sandbox.now, formatter.format(line), group, call.request_id))

    tarry, handler = logging.getLogger("tarry"), Capture()
    tarry.addHandler(handler)
    try:
        yield entries
    finally:
        tarry.removeHandler(handler)


def in_text(event: StoryEvent) -> StoryEvent:
    """Return an event without what a text line leaves out."""
    values = {each.name: getattr(event, each.name) for each in fields(StoryEvent)}
    return StoryEvent(**{**values, "consumer": ""})


@pytest.fixture
def system(sandbox: Sandbox) -> Sandbox:
    deferred.clear()
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=20)
    sandbox.queue("slow", dead_letter="slow-dlq", max_receive_count=20)
    sandbox.connect(orders, "orders")
    sandbox.connect(slow, "slow")
    return sandbox


def in_log(story: Story) -> list[StoryEvent]:
    """Return the events that a log of tarry tells: all but plain successes, deliveries and sends."""
    logged = (event for event in story.events if event.event and event.is_seen)
    return [event for event in logged if event.state not in (None, State.IN_FLIGHT)]


@pytest.mark.parametrize("format_", FORMATS)
def test_the_log_tells_each_transition_that_the_history_has(system: Sandbox, format_: str) -> None:
    with captured(system, FORMATS[format_]()) as entries:
        ids = {wish: system.send("orders", wish) for wish in ENDS_IN}
        system.run()
        system.redrive("orders-dlq", to="orders")
        report = system.run()
        with failed.opened("slow-dlq") as inspection:
            [_] = failed.retry(inspection, failed.select(everything=True), failed.Routes(inspection.queue, to="slow"))
        report = system.run()
    stories = {story.id: story for story in stories_of(report)}
    logged: dict[str, Story] = {}
    for wish, message_id in ids.items():
        found = story_of_log(entries, message_id, system.now)
        assert found is not None
        logged[wish] = found
        assert [in_text(each) for each in in_log(found)] == [in_text(each) for each in in_log(stories[message_id])], (
            wish
        )
        assert stories[message_id].last.state == ENDS_IN[wish]
    assert [event.state for event in in_log(logged["retried"])] == ["WAITING_RETRY"]
    assert logged["retried"].events[-1].text == NO_LINE
    assert "no line since (a success writes none)" in logged["retried"].summary
    assert {event.state for event in in_log(logged["deferred"])} == {"DEFERRED"}
    assert [event.state for event in in_log(logged["rejected"])] == ["DEAD_LETTERED"] * 2
    assert "Dead-lettered 2 times." in logged["rejected"].summary
    assert any("sent back from orders-dlq" in event.text for event in logged["rejected"].events if not event.is_seen)
    assert logged["rejected"].last.error == stories[ids["rejected"]].last.error != ""
    chain = logged["exhausted"]
    assert chain.queues == ["orders", "slow", "slow-dlq"]
    assert {event.function for event in in_log(chain)} == {"orders", "slow"}
    assert [event.attempt for event in in_log(chain)][:5] == [1, 2, 3, 4, 5]
    assert sum(event.state == "DEAD_LETTERED" for event in in_log(chain)) == 2, "it was retried"
    assert len({event.delivery_id for event in in_log(chain)}) >= 3
