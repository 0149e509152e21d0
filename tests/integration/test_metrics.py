"""Metrics in CloudWatch's embedded metric format: what a batch writes, within the format's rules and limits."""

import builtins
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tarry import Batch, Consumer, Fixed, LocalRetry, Message, batch_consumer, consumer, world
from tarry.observe.metrics import METRICS, empty_line
from tarry.record.attribute import body_sum
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.wire import Queue, Wire, client_error

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "emf-schema.json").read_text())
UNITS = {metric.name: metric.unit for metric in METRICS}


@pytest.fixture(autouse=True)
def _namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "shop")


def orders(**more: Any) -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")}, **more)


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the lines on the standard output, each valid by the schema and in its references."""
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in found:
        jsonschema.validate(line, SCHEMA)
        [directive] = line["_aws"]["CloudWatchMetrics"]
        [dimensions] = directive["Dimensions"]
        assert dimensions == ["consumer", "queue"]
        assert all(type(line[name]) is str for name in dimensions)
        names = [metric["Name"] for metric in directive["Metrics"]]
        assert {*line} == {"_aws", *dimensions, *names}
        assert all(metric["Unit"] == UNITS[metric["Name"]] for metric in directive["Metrics"])
    return found


def values(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in line if name in UNITS}


def settles_in_each_way(message: Message) -> None:
    clock = world.current().clock
    clock.sleep(0.25)
    match message.id:
        case "m1" | "m6":
            raise ValueError("no stock")
        case "m2":
            message.reject("no such customer")
        case "m3":
            message.defer(5)
        case "m4":
            message.discard("old")


def test_an_invocation_writes_one_line_with_what_became_of_its_messages(capsys: pytest.CaptureFixture[str]) -> None:
    # SPEC L3
    handler = consumer(backoff=Fixed(60), name="checkout")(settles_in_each_way)
    records = [*batch_of(6)["Records"], record(6, "m6", receives=3, received_at=RECEIVED_AT - 100)]
    with orders() as wire:
        assert failed(handler(event(*records), Context())) == ["m1", "m6"]
    [line] = written(capsys)
    assert (line["consumer"], line["queue"]) == ("checkout", "orders")
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "shop"
    assert line["_aws"]["Timestamp"] == (RECEIVED_AT + 7 * 0.25) * 1000
    assert values(line) == {
        "MessagesCommitted": [2],
        "MessagesWaitingRetry": [2],
        "MessagesDeadLettered": [1],
        "MessagesDeferred": [1],
        "MessagesDiscarded": [1],
        "Attempts": [1, 1, 1, 1, 1, 1, 3],
        "RetryDelay": [59, 60],  # the first one was set a second later
        "WaitsInPlace": [2],
        "HandlerTime": [250.0] * 7,
        "AgeAtSettlement": [1.75] * 6 + [101.75],
        "Requests": [len(wire.requests)],
    }


async def handler_async(message: Message) -> None: ...


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("handler", [lambda message: None, handler_async], ids=["sync", "async"])
def test_a_clean_batch_writes_100_values_in_a_line(
    handler: Any, concurrency: int, capsys: pytest.CaptureFixture[str]
) -> None:  # SPEC L3
    made: Consumer[Any] = consumer(concurrency=concurrency)(handler)
    assert failed(made(batch_of(100), Context())) == []
    [line] = written(capsys)
    assert line["MessagesCommitted"] == [100]
    assert len(line["HandlerTime"]) == len(line["AgeAtSettlement"]) == len(line["Attempts"]) == 100
    assert {*values(line)} == {"MessagesCommitted", "HandlerTime", "AgeAtSettlement", "Attempts"}
    made(batch_of(250), Context())
    found = written(capsys)
    assert len(found) == 3
    totals = Counter({name: sum(len(line.get(name, [])) for line in found) for name in UNITS})
    assert +totals == {"MessagesCommitted": 1, "HandlerTime": 250, "AgeAtSettlement": 250, "Attempts": 250}
    assert sum(line.get("MessagesCommitted", [0])[0] for line in found) == 250


def test_a_batch_handler_has_one_run_and_a_local_retry_has_two(capsys: pytest.CaptureFixture[str]) -> None:
    @batch_consumer
    def in_batches(batch: Batch) -> None: ...

    @consumer(on_failure=[LocalRetry(1, 0)])
    def fails(message: Message) -> None:
        raise ValueError

    in_batches(batch_of(5), Context())
    with orders():
        fails(batch_of(1), Context())
    assert [len(line["HandlerTime"]) for line in written(capsys)] == [1, 2]


def test_settlement_errors_and_messages_that_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:  # SPEC L3
    def handler(message: Message) -> None:
        if message.id == "m0":
            message.reject()
        else:
            raise SystemExit

    with orders(fails={"SendMessageBatch": client_error("AccessDenied", status=403)}):
        consumer(handler)(batch_of(4), Context())
    consumer(handler)(batch_of(2), Context(0.1))  # too little time to run or settle any
    first, second = written(capsys)
    assert (first["SettlementErrors"], first["MessagesReady"], first["Attempts"]) == ([1], [2], [1, 1])
    assert (second["SettlementErrors"], second["MessagesWaitingRetry"]) == ([2], [2])
    assert "RetryDelay" not in second


def test_a_message_that_is_not_due_waits_in_place_without_an_attempt(capsys: pytest.CaptureFixture[str]) -> None:  # J4
    envelope = {"v": 1, "sum": body_sum("{}"), "id": "m0", "sent": "2027-01-15T07:00:00Z", "due": RECEIVED_AT + 500}
    waiting = record(attributes={"Tarry": {"stringValue": json.dumps(envelope), "dataType": "String"}})
    with orders():
        consumer(lambda message: None)(event(waiting), Context())
    [line] = written(capsys)
    expected = {"MessagesDeferred": [1], "WaitsInPlace": [1], "AgeAtSettlement": [3600.0], "Requests": [2]}
    assert values(line) == expected


def test_the_users_own_metrics_are_neither_written_nor_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aws_lambda_powertools import Metrics

    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "payment")
    own = Metrics()
    own.set_default_dimensions(stage="prod")
    try:

        @consumer
        def handler(message: Message) -> None:
            own.add_metric("OrdersPaid", "Count", 1)

        handler(batch_of(2), Context())
        [line] = written(capsys)
        assert "OrdersPaid" not in line
        own.flush_metrics()
        flushed = json.loads(capsys.readouterr().out)
        assert (flushed["OrdersPaid"], flushed["stage"], flushed["service"]) == ([1.0, 1.0], "prod", "payment")
        assert "consumer" not in flushed
    finally:
        own.clear_metrics()
        own.clear_default_dimensions()
        own.clear_metrics()


@pytest.mark.parametrize("namespace", ["AWS/Lambda", "x" * 256, ":shop", "  ", "schäfte", "a\nb", "shop;drop"])
def test_a_namespace_that_is_not_allowed_is_one_warning_and_fails_no_message(
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    caplog: Caplog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC L3
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", namespace)
    with world.use(world.current().afresh()):
        for _ in range(2):
            assert failed(consumer(lambda message: None)(batch_of(2), Context())) == []
    [line] = lines(caplog)
    assert (field(line, "event"), line.levelname) == ("metrics_off", "WARNING")
    assert "POWERTOOLS_METRICS_NAMESPACE is" in field(line, "text")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("namespace", ["shop", "tarry-prod", "a", "Team/Orders_v2 #1:x", "1.2"])
def test_a_namespace_of_cloudwatch_is_allowed(
    namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", namespace)
    consumer(lambda message: None)(batch_of(1), Context())
    assert written(capsys)[0]["_aws"]["CloudWatchMetrics"][0]["Namespace"] == namespace


def test_without_powertools_or_with_a_broken_output_there_is_one_warning(
    caplog: Caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = consumer(lambda message: None)

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError("closed")

    with world.use(world.current().afresh()):
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "print", refuses)
            assert failed(handler(batch_of(1), Context())) == []
        empty_line.cache_clear()
        monkeypatch.setitem(sys.modules, "aws_lambda_powertools.metrics", None)
        assert failed(handler(batch_of(1), Context())) == failed(handler(batch_of(1), Context())) == []
    texts = [field(line, "text") for line in lines(caplog, "metrics_off")]
    assert texts == [
        "No metrics were written: Powertools raised OSError.",
        "No metrics are written: POWERTOOLS_METRICS_NAMESPACE is set, but Powertools is not installed. Add its layer "
        "to the function, or remove the variable.",
    ]


def test_an_empty_namespace_and_powertools_own_switch_turn_metrics_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    consumer(lambda message: None)(batch_of(1), Context())
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "")
    consumer(lambda message: None)(batch_of(1), Context())
    assert capsys.readouterr().out == ""


def test_a_consumer_name_that_cloudwatch_refuses_is_replaced_by_characters_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("Bücher\n", " ", "x" * 2_000):
        consumer(name=name)(lambda message: None)(batch_of(1), Context())
    assert [line["consumer"] for line in written(capsys)] == ["B?cher?", "?", "x" * 1_024]
