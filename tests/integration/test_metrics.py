"""Metrics in CloudWatch's embedded metric format: what a batch writes, within the format's rules and limits."""

import builtins
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tarry import Batch, Fixed, LocalRetry, Message, Outcome, SendAgain, batch_consumer, consumer, world
from tarry.observe.metrics import METRICS, empty_line
from tests.handlers import WAYS
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, batch_of, event, failed, record
from tests.settled import fails, orders, settle, tarry_attribute
from tests.wire import client_error

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "emf-schema.json").read_text())
UNITS = {metric.name: metric.unit for metric in METRICS}
NAMESPACE = "POWERTOOLS_METRICS_NAMESPACE"
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _only_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn metrics on in a process that has not loaded Powertools' Logger."""
    monkeypatch.setenv(NAMESPACE, "shop")
    monkeypatch.delitem(sys.modules, "aws_lambda_powertools.logging.formatter", raising=False)


def written(capsys: Capsys) -> list[dict[str, Any]]:
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


def acknowledge(count: int = 1, **settings: Any) -> None:
    """Run a consumer that acknowledges its messages."""
    assert failed(consumer(**settings)(lambda message: None)(batch_of(count), Context())) == []


def settles_in_each_way(message: Message) -> None:
    world.current().clock.sleep(0.25)
    match message.id:
        case "m1" | "m6":
            raise ValueError("no stock")
        case "m2":
            message.reject("no such customer")
        case "m3":
            message.defer(5)
        case "m4":
            message.discard("old")


def test_an_invocation_writes_one_line_with_what_became_of_its_messages(capsys: Capsys) -> None:  # SPEC L3
    handler = consumer(backoff=Fixed(60), name="checkout")(settles_in_each_way)
    records = [*batch_of(6)["Records"], record(6, "m6", receives=3, received_at=RECEIVED_AT - 100)]
    reported, wire = settle(handler, event(*records))
    [line] = written(capsys)
    assert (reported, line["consumer"], line["queue"]) == (["m1", "m6"], "checkout", "orders")
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "shop"
    assert line["_aws"]["Timestamp"] == (RECEIVED_AT + 7 * 0.25) * 1000
    assert values(line) == {
        "MessagesCommitted": [2],
        "MessagesWaitingRetry": [2],
        "MessagesDeadLettered": [1],
        "MessagesDeferred": [1],
        "MessagesDiscarded": [1],
        "Attempts": [1, 1, 1, 1, 1, 1, 3],
        "RunsFailed": [3],  # not the rejected message, which would fail again
        "RetryDelay": [59, 60],  # the first one was set a second later
        "WaitsInPlace": [2],
        "HandlerTime": [250.0] * 7,
        "AgeAtSettlement": [1.75] * 6 + [101.75],
        "Requests": [len(wire.requests)],
    }


@pytest.mark.parametrize("way", ["one by one", "threads", "async", "tasks"])
def test_a_clean_batch_writes_100_values_in_a_line(way: str, capsys: Capsys) -> None:  # SPEC L3
    handler = WAYS[way](lambda message: None)
    for count, expected in ((100, 1), (250, 3)):
        assert failed(handler(batch_of(count), Context())) == []
        found = written(capsys)
        totals = Counter({name: sum(len(line.get(name, [])) for line in found) for name in UNITS})
        each = {"HandlerTime": count, "AgeAtSettlement": count, "Attempts": count}
        assert (len(found), +totals) == (expected, {"MessagesCommitted": 1, **each})
        assert max(len(line["HandlerTime"]) for line in found) == 100
        assert sum(line.get("MessagesCommitted", [0])[0] for line in found) == count


def test_a_batch_handler_has_one_run_and_a_local_retry_has_two(capsys: Capsys) -> None:
    @batch_consumer
    async def in_batches(batch: Batch) -> None:
        wire.clock.now += 2

    settle(in_batches, batch_of(5), wire := orders())
    settle(consumer(on_failure=[LocalRetry(1, 0)])(fails))
    assert [line["HandlerTime"] for line in written(capsys)] == [[2_000], [0, 0]]


@pytest.mark.parametrize("way", ["one by one", "async"])
def test_the_time_of_a_run_ends_with_it_whatever_it_returns_or_raises(way: str, capsys: Capsys) -> None:
    def handle(message: Message) -> dict[str, int]:
        wire.clock.now += 2
        if message.id == "m2":
            raise ValueError
        return {"statusCode": 200}

    wire = orders()
    assert settle(WAYS[way](handle), batch_of(4), wire)[0] == ["m2"]
    assert written(capsys)[0]["HandlerTime"] == [2_000] * 4


def test_each_queue_of_an_event_made_by_hand_has_a_line(capsys: Capsys) -> None:
    """The requests are those of the invocation, and are counted once."""
    batch = event(record(), record(message_id="m2"), record(message_id="m3", queue="bills"))
    _, wire = settle(consumer(fails), batch)
    found = {line["queue"]: values(line) for line in written(capsys)}
    failed_runs = [(name, one["RunsFailed"], len(one["HandlerTime"])) for name, one in found.items()]
    assert failed_runs == [("orders", [2], 2), ("bills", [1], 1)]
    assert [one.get("Requests") for one in found.values()] == [[len(wire.requests)], None]


ODD = (None, 7, {}, {"SentTimestamp": "soon"}, {"ApproximateReceiveCount": "1"})
COPY = tarry_attribute(sent="2027-01-15T07:00:00Z", carried=2)


@pytest.mark.parametrize("handle", [fails, lambda message: None], ids=["fails", "succeeds"])
@pytest.mark.parametrize(
    ("received", "age", "attempt"),
    [
        *((record() | {"attributes": odd}, None, 1) for odd in ODD),
        *((record(attributes=COPY, receives=receives), [3600.0], 2 + receives) for receives in (1, 2)),
        (record(receives=2), [0], 2),
        (record(received_at=RECEIVED_AT + 5), [0], 1),  # a clock is ahead
    ],
)
def test_attempts_and_age_are_those_that_the_record_says_and_count_from_the_first_copy(
    received: Any, age: Any, attempt: int, handle: Any, capsys: Capsys
) -> None:
    settle(consumer(handle), event(received))
    [line] = written(capsys)
    assert (line.get("AgeAtSettlement"), line["Attempts"]) == (age, [attempt])
    assert ("SettlementErrors" in line, "WaitsInPlace" in line) == (False, handle is fails)


def test_a_message_that_a_step_sends_on_with_a_delay_does_not_wait_in_place(capsys: Capsys) -> None:
    settle(consumer(on_failure=[SendAgain("later", delay=60)])(fails))
    settle(consumer(on_failure=[lambda *_: Outcome("dead_letter", delay=60)])(fails))
    for line, state in zip(written(capsys), ("MessagesResent", "MessagesDeadLettered"), strict=True):
        assert (line[state], line["RunsFailed"], "WaitsInPlace" in line, "RetryDelay" in line) == (
            [1],
            [1],
            False,
            False,
        )


def test_settlement_errors_and_messages_that_did_not_run(capsys: Capsys) -> None:  # SPEC L3
    def handler(message: Message) -> None:
        if message.id == "m0":
            message.reject()
        else:
            raise SystemExit

    wire = orders()
    wire.fails["SendMessageBatch"] = client_error("AccessDenied", status=403)
    settle(consumer(handler), batch_of(4), wire)
    for receives in (1, 2):
        consumer(handler)(batch_of(2, receives=receives), Context(0.1))  # too little time to run or settle any
    first, second, third = written(capsys)
    assert (first["SettlementErrors"], first["MessagesReady"], first["Attempts"]) == ([1], [2], [1, 1])
    assert (second["SettlementErrors"], second["MessagesWaitingRetry"]) == ([2], [2])
    assert not {"RetryDelay", "Attempts", "RunsFailed", "HandlerTime"} & (second.keys() | third.keys())


def test_a_message_that_is_not_due_waits_in_place_without_an_attempt(capsys: Capsys) -> None:  # SPEC J4
    waiting = record(attributes=tarry_attribute(sent="2027-01-15T07:00:00Z", due=RECEIVED_AT + 500))
    settle(consumer(lambda message: None), event(waiting))
    [line] = written(capsys)
    expected = {"MessagesDeferred": [1], "WaitsInPlace": [1], "AgeAtSettlement": [3600.0], "Requests": [2]}
    assert values(line) == expected


def test_the_users_own_metrics_are_neither_written_nor_changed(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from aws_lambda_powertools import Metrics

    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "payment")
    own = Metrics()
    own.set_default_dimensions(stage="prod")
    try:
        consumer(lambda message: own.add_metric("OrdersPaid", "Count", 1))(batch_of(2), Context())
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
    namespace: str, capsys: Capsys, caplog: Caplog, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC L3
    monkeypatch.setenv(NAMESPACE, namespace)
    with world.use(world.current().afresh()):
        for _ in range(2):
            acknowledge(2)
    [line] = lines(caplog)
    assert (field(line, "event"), line.levelname, capsys.readouterr().out) == ("metrics_off", "WARNING", "")
    assert "POWERTOOLS_METRICS_NAMESPACE is" in field(line, "text")


def test_namespaces_of_cloudwatch_are_allowed_and_none_or_powertools_own_switch_turn_metrics_off(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for namespace in ("shop", "tarry-prod", "a", "Team/Orders_v2 #1:x", "1.2", "x" * 255):
        monkeypatch.setenv(NAMESPACE, namespace)
        acknowledge()
        assert written(capsys)[0]["_aws"]["CloudWatchMetrics"][0]["Namespace"] == namespace
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    acknowledge()
    monkeypatch.setenv(NAMESPACE, "")
    acknowledge()
    assert capsys.readouterr().out == ""


def test_without_powertools_or_with_a_broken_output_there_is_one_warning(
    caplog: Caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise OSError("closed")

    with world.use(world.current().afresh()):
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "print", refuses)
            acknowledge()
        empty_line.cache_clear()
        monkeypatch.setitem(sys.modules, "aws_lambda_powertools.metrics", None)
        acknowledge()
        acknowledge()
    assert [field(line, "text") for line in lines(caplog, "metrics_off")] == [
        "No metrics were written: Powertools raised OSError.",
        "No metrics are written: POWERTOOLS_METRICS_NAMESPACE is set, but Powertools is not installed. Add its layer "
        "to the function, or remove the variable.",
    ]


def test_a_consumer_name_that_cloudwatch_refuses_is_replaced_by_characters_it_takes(capsys: Capsys) -> None:
    for name in ("Bücher ~", "a\n", " ", "x" * 2_000):
        acknowledge(name=name)
    assert [line["consumer"] for line in written(capsys)] == ["B?cher ~", "a?", "?", "x" * 1_024]
