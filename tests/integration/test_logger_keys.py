"""Keys of a message on the lines of Powertools' `Logger`: those of its own message, at any concurrency."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

from tarry import Batch, Exponential, LocalRetry, Message, batch_consumer, consumer
from tarry.observe import logger_keys
from tests.handlers import WAYS
from tests.loglines import Caplog
from tests.records import Context, batch_of, event, failed, record
from tests.settled import fails, settle


class Lines(io.StringIO):
    def read_all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@contextmanager
def registered(name: str, made: Any = None) -> Iterator[None]:
    """Remove a logger in the end, and let tarry look for loggers anew."""
    if made is not None:
        logging.root.manager.loggerDict[name] = made
    try:
        yield
    finally:
        logging.root.manager.loggerDict.pop(name)
        logger_keys._loggers = None


@pytest.fixture
def output() -> Lines:
    return Lines()


@pytest.fixture
def logger(output: Lines, request: pytest.FixtureRequest) -> Iterator[Logger]:
    made = Logger(service=request.node.name, stream=output)
    with registered(made.name):
        yield made
    made.handlers.clear()


def own(line: dict[str, Any]) -> bool:
    return line["message_id"] == line["delivery_id"] == line["own"]


@pytest.mark.parametrize(
    ("appends", "way"),
    [
        *((None, way) for way in ("one by one", "threads", "async", "tasks")),
        *((name, way) for name in ("append_keys", "thread_safe_append_keys") for way in ("threads", "tasks")),
    ],
)
def test_each_of_many_messages_has_its_own_id_on_its_lines_at_any_concurrency(
    way: str, appends: str | None, logger: Logger, output: Lines
) -> None:  # SPEC I1
    def handler(message: Message) -> None:
        for text in ("begins", "ends"):
            if appends is not None:
                getattr(logger, appends)(**message.logger_keys)
            logger.info(text, extra={"own": message.delivery_id})
            if message.json() % 97 == 0:
                raise ValueError

    made = WAYS[way](handler)
    if way in ("threads", "tasks"):
        made = made.replace(concurrency=50)
    settle(made, batch_of(120), remaining=300)
    logger.info("after the batch")
    *of_messages, last = output.read_all()
    assert len(of_messages) == 238
    assert all(map(own, of_messages))
    assert {(line["queue"], line["attempt"]) for line in of_messages} == {("orders", 1)}
    assert not set(logger_keys.KEYS) & set(last)


def test_a_group_id_is_on_the_lines_of_its_message_only(logger: Logger, output: Lines) -> None:
    @consumer
    def handler(message: Message) -> None:
        logger.append_keys(**message.logger_keys)
        logger.info("runs")

    handler(event(record(message_id="m0", group="g1"), record(message_id="m1")), Context())
    assert [line.get("group_id") for line in output.read_all()] == ["g1", None]


def test_all_runs_and_the_hook_have_the_keys_and_a_key_of_the_handler_ends_with_its_run(
    logger: Logger, output: Lines
) -> None:
    logger.thread_safe_append_keys(team="checkout")

    @consumer(on_failure=[LocalRetry(1, 0)], on_outcome=lambda message, _: logger.info("hook"))
    def handler(message: Message) -> None:
        logger.info("run")
        logger.thread_safe_append_keys(order=message.id)
        raise ValueError

    settle(handler, event(record(receives=3)))
    logger.thread_safe_clear_keys()
    found = output.read_all()
    shown = [(line["message"], line["message_id"], line["attempt"]) for line in found]
    assert shown == [("run", "m1", 3), ("run", "m1", 3), ("hook", "m1", 3)]
    assert all(line["team"] == "checkout" and "order" not in line for line in found)


def test_a_stdlib_logger_with_powertools_formatter_has_the_keys_and_a_batch_handler_sets_them_itself(
    output: Lines,
) -> None:
    stdlib, handler_of_lines = logging.getLogger("shop.keys"), logging.StreamHandler(output)
    handler_of_lines.setFormatter(LambdaPowertoolsFormatter())
    stdlib.addHandler(handler_of_lines)

    @batch_consumer
    def in_batches(batch: Batch) -> None:
        stdlib.warning("batch")
        for message in batch:
            with handler_of_lines.formatter.append_context_keys(**message.logger_keys):  # type: ignore[union-attr]
                stdlib.warning("each")

    with registered("shop.keys"):
        consumer(lambda message: stdlib.warning("one"))(batch_of(1), Context())
        in_batches(batch_of(2), Context())
        stdlib.removeHandler(handler_of_lines)
    found = [(line["message"], line.get("message_id")) for line in output.read_all()]
    assert found == [("one", "m0"), ("batch", None), ("each", "m0"), ("each", "m1")]


def test_the_keys_have_the_names_of_the_fields_in_the_lines_of_tarry(caplog: Caplog) -> None:
    keys: dict[str, Any] = {}
    handler = consumer(backoff=Exponential(60))(lambda message: keys.update(message.logger_keys) or fails(message))
    settle(handler, event(record(receives=2)))
    assert keys == {"message_id": "m1", "delivery_id": "m1", "queue": "orders", "attempt": 2}
    assert {name: getattr(caplog.records[-1], name) for name in keys} == keys


def test_a_formatter_that_raises_fails_no_message(logger: Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: object) -> None:
        raise ValueError

    monkeypatch.setattr(logger.registered_formatter, "thread_safe_append_keys", refuses)
    monkeypatch.setattr(logger.registered_formatter, "get_current_keys", refuses)
    handled: list[str] = []
    assert failed(consumer(lambda message: handled.append(message.id))(batch_of(2), Context())) == []
    assert handled == ["m0", "m1"]


class HasNoFormatter:
    """A handler as another library may add it: not one of `logging`."""

    level = logging.NOTSET


class OddLogger(logging.Logger):
    """A logger with such a handler."""

    handlers: Any = property(lambda _: [HasNoFormatter()], lambda *_: None)


class BreaksLogger(logging.Logger):
    handlers: Any = property(lambda _: {}["handlers"], lambda *_: None)


@pytest.mark.parametrize("kind", [OddLogger, BreaksLogger])
def test_a_logger_of_another_library_that_is_odd_or_raises_fails_no_batch(
    kind: Any, logger: Logger, output: Lines
) -> None:
    handler = consumer(lambda message: logger.info("works", extra={"own": message.delivery_id}))
    with registered("test_logger_keys.odd", kind("odd")):
        assert failed(handler(batch_of(2), Context())) == []
    assert [own(line) for line in output.read_all()] == [True, True]


def test_a_handler_that_replaces_the_loggers_fails_no_batch(
    logger: Logger, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I1
    seen: list[str] = []

    @consumer(on_outcome=lambda message, outcome: seen.append(outcome.kind))
    def handler(message: Message) -> None:
        logger.handlers.clear()
        monkeypatch.setitem(logging.root.manager.loggerDict, f"new.{message.id}", logging.PlaceHolder(logging.root))

    assert handler(batch_of(2), Context()) == {"batchItemFailures": []}
    assert seen == ["ack", "ack"]
