"""Idempotency: a message that is done does not run again, and no two deliveries of it run at once (SPEC K4)."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyItemAlreadyExistsError
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
from botocore.config import Config
from moto import mock_aws

from tarry import (
    Batch,
    BatchError,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    Fixed,
    LocalRetry,
    Message,
    RetryInPlace,
    batch_consumer,
    consumer,
)
from tarry.message.message import delivery_of
from tarry.record.attribute import body_sum
from tarry.run.idempotency_layer import Records
from tarry.settle.requests import lose_lease
from tarry.tools.testing.hosting import give_powertools_the_time
from tarry.world import RealThreads
from tests.handlers import WAYS
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.tables import TABLE, IdempotencyTable, SlowTable, made
from tests.wire import Queue, Wire, client_error

DAY = 86_400


@pytest.fixture(scope="module")
def shared() -> Iterator[IdempotencyTable]:
    """Provide moto with a table that is not made yet; all tests of the module share it, since this takes a while."""
    with mock_aws():
        give_powertools_the_time()
        yield IdempotencyTable()


@pytest.fixture
def dynamodb(shared: IdempotencyTable) -> Iterator[IdempotencyTable]:
    with made(shared):
        yield shared


class Memory(SlowTable):
    """A layer that does not say which record it has found, as that for Redis."""

    def _put_record(self, data_record: DataRecord) -> None:
        try:
            super()._put_record(data_record)
        except IdempotencyItemAlreadyExistsError:
            raise IdempotencyItemAlreadyExistsError from None


class TableInMemory:
    """A table in memory, with what the tests need of `IdempotencyTable`; its requests are much faster."""

    def __init__(self) -> None:
        self._layer = Memory(self._requested)
        self.requests: list[tuple[str, str]] = []
        """The requests (``put``, ``get``, ``update``, ``delete``), each with the key of its record."""
        self._refused: dict[str, str] = {}

    def layer(self, **config: Any) -> Memory:
        if config:
            self._layer.configure(IdempotencyConfig(**config))
        return self._layer

    def statuses(self) -> dict[str, str]:
        return {key: item.status for key, item in self._layer.items.items()}

    def put(self, key: str, in_progress_until: float) -> None:
        """Write the record of another delivery that runs."""
        until = int(in_progress_until * 1000)
        self._layer.items[key] = DataRecord(key, "INPROGRESS", in_progress_expiry_timestamp=until)

    def refuses(self, code: str, *operations: str) -> None:
        self._refused = dict.fromkeys(operations or ("put", "get", "update", "delete"), code)

    def _requested(self, operation: str, key: str) -> float:
        self.requests.append((operation, key))
        if operation in self._refused:
            raise client_error(self._refused[operation], "refused")
        return 0


@pytest.fixture
def records() -> TableInMemory:
    return TableInMemory()


@pytest.fixture(autouse=True)
def wire() -> Iterator[Wire]:
    queue = Queue(dead_letter="orders-dlq")
    with Wire(queues={"orders": queue, "orders.fifo": queue}) as sqs:
        yield sqs


class Handler:
    """A consumer of some kind whose handler calls ``do``, or behaves by message id."""

    def __init__(
        self, layer: Any, kind: str = "one by one", do: Callable[[Message], Any] | None = None, **settings: Any
    ) -> None:
        self.ran: list[str] = []
        self._do = do or behave
        settings = {"name": "orders", "backoff": Fixed(60), "idempotency": layer, **settings}
        self.consumer = WAYS[kind](self.one, **settings)

    def of(self, *records: str | dict[str, Any], remaining: float = 30) -> list[str]:
        """Deliver messages, by their ids or as records; return the ids that are reported as failed."""
        made = [record({}, each) if isinstance(each, str) else each for each in records]
        return failed(self.consumer(event(*made), Context(remaining)))

    def one(self, message: Message) -> None:
        self.ran.append(message.delivery_id)
        self._do(message)


def behave(message: Message) -> None:
    match message.delivery_id.partition("-")[0]:
        case "fails":
            raise ValueError("no")
        case "exits":
            raise SystemExit(1)
        case "retries":
            message.retry(60)
        case "defers":
            message.defer(60)
        case "rejects":
            message.reject("no")
        case "discards":
            message.discard()


def on_fifo(name: str, group: str = "a") -> dict[str, Any]:
    return record({}, name, "orders.fifo", group=group)


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize(("table", "kind"), [("dynamodb", "tasks"), *(("records", kind) for kind in WAYS)])
def test_only_an_acknowledged_or_discarded_message_never_runs_again(
    table: str, kind: str, queue: str, request: pytest.FixtureRequest
) -> None:  # SPEC K4
    records = request.getfixturevalue(table)
    orders = Handler(records.layer(), kind)
    ids = ["acks", "fails", "retries", "defers", "rejects", "discards"]
    batch = [record({}, each, queue, group=each if queue != "orders" else None) for each in ids]
    for ran in (ids, ["defers", "fails", "rejects", "retries"]):
        orders.ran.clear()
        orders.of(*batch)
        assert sorted(orders.ran) == sorted(ran)
        assert records.statuses() == {"orders#acks": "COMPLETED", "orders#discards": "COMPLETED"}


@pytest.mark.parametrize("kind", WAYS)
def test_a_message_that_runs_elsewhere_waits_in_place_until_that_function_must_have_ended(
    kind: str, records: TableInMemory, wire: Wire, caplog: Caplog
) -> None:  # SPEC K4, C8
    """Also at the last delivery, and without a copy: the other delivery has the message."""
    caplog.set_level("INFO")
    orders = Handler(records.layer(), kind)
    records.put("orders#elsewhere", RECEIVED_AT + 20)
    batch = [record({}, "elsewhere", receives=15), record({}, "fresh")]
    assert orders.of(*batch) == ["elsewhere"]
    assert (orders.ran, wire.sent_entries()) == (["fresh"], [])
    assert wire.visibilities()["handle-elsewhere"] == 20
    [line] = lines(caplog, "deferred")
    assert (field(line, "message_id"), field(line, "reason"), field(line, "delay")) == ("elsewhere", "in_progress", 20)
    assert records.statuses()["orders#elsewhere"] == "INPROGRESS"

    wire.clock.now += 21  # the other function was killed: its record counts no more
    orders.of(*batch)
    assert orders.ran == ["fresh", "elsewhere"]
    assert records.statuses()["orders#elsewhere"] == "COMPLETED"


@pytest.mark.parametrize("kind", ["one by one", "tasks", "batch"])
def test_a_message_of_fifo_that_runs_elsewhere_stops_its_group(kind: str, records: TableInMemory) -> None:
    # SPEC H1, K4
    orders = Handler(records.layer(), kind)
    records.put("orders#head", RECEIVED_AT + 20)
    assert (orders.of(on_fifo("head"), on_fifo("next")), orders.ran) == (["head", "next"], [])


@pytest.mark.parametrize("kind", ["one by one", "threads", "async", "tasks"])
def test_the_messages_of_a_fifo_group_run_one_after_the_other_each_claim_ended(
    kind: str, records: TableInMemory
) -> None:
    # SPEC H1, K4
    """The claim on a message is ended, and its dead letter sent, before the next message of its group is claimed."""
    orders = Handler(records.layer(), kind)
    ids = ["acks-1", "rejects-1", "acks-2", "fails-1", "acks-3"]
    groups = {"a": ids, "b": [f"{each}b" for each in ids]}
    batch = [on_fifo(each, group) for group in groups for each in groups[group]]
    assert orders.of(*batch) == ["fails-1", "acks-3", "fails-1b", "acks-3b"]
    for group in groups.values():
        assert [each for each in orders.ran if each in group] == group[:4]
        requests = [(operation, key.partition("#")[2]) for operation, key in records.requests]
        ends = {each: ["update"] if each.startswith("acks") else ["get", "delete"] for each in group[:4]}
        expected = [(request, each) for each, end in ends.items() for request in ["put", *end]]
        assert [request for request in requests if request[1] in group] == expected
    assert {key.partition("#")[2] for key in records.statuses()} == {"acks-1", "acks-2", "acks-1b", "acks-2b"}


@pytest.mark.parametrize("kind", WAYS)
def test_a_failed_message_does_not_remove_the_record_of_another_delivery(
    kind: str, records: TableInMemory
) -> None:  # SPEC K4
    """After the deadline another delivery may take the key over, and one without a record may complete it."""

    def taken_over(message: Message) -> None:
        if message.id == "fails-1":
            records.put("orders#fails-1", RECEIVED_AT + 2_000)
        else:
            Records(records.layer()).complete("orders#fails-2", int(RECEIVED_AT + 2_000))
        raise ValueError("no")

    assert Handler(records.layer(), kind, taken_over).of("fails-1", "fails-2") == ["fails-1", "fails-2"]
    assert records.statuses() == {"orders#fails-1": "INPROGRESS", "orders#fails-2": "COMPLETED"}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_rerun_that_a_system_exit_cancels_is_dead_lettered_in_the_same_invocation(
    is_claimed: bool, kind: str, records: TableInMemory, wire: Wire
) -> None:  # SPEC A5, C8
    """Otherwise, at its last delivery, SQS would move it without a failure record."""
    layer = records.layer() if is_claimed else None
    orders = Handler(layer, kind, backoff=None, on_failure=[LocalRetry(3, 0.5), DeadLetter()])
    assert orders.of(*(on_fifo(each, each) for each in ["fails", "exits"])) == []
    assert (len(wire.sent_entries()), records.statuses()) == (2, {})


def test_a_message_that_is_only_reported_since_its_groups_lease_is_lost_keeps_no_claim(records: TableInMemory) -> None:
    # SPEC I6, K4
    @batch_consumer(idempotency=records.layer(), name="orders")
    def handler(batch: Batch) -> None:
        lose_lease(delivery_of(batch[0]))
        raise BatchError(index=0)

    batch = event(*(record({}, each, "orders.fifo", group="a") for each in ["first", "second"]))
    assert failed(handler(batch, Context())) == ["first", "second"]
    assert records.statuses() == {}


def test_a_message_that_is_retried_within_its_delivery_keeps_its_claim(records: TableInMemory) -> None:
    statuses: list[str] = []

    def run(message: Message) -> None:
        statuses.extend(records.statuses().values())
        if len(statuses) < 3:
            raise ValueError("again")

    steps = [LocalRetry(3, 0), RetryInPlace()]
    assert Handler(records.layer(), do=run, backoff=None, on_failure=steps).of("m1") == []
    assert statuses == ["INPROGRESS"] * 3
    assert [operation for operation, _ in records.requests] == ["put", "update"]


def test_the_requests_of_a_batch_run_in_a_few_kept_threads(
    records: TableInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start a thread for each would take half as long as boto3 takes for a request."""
    started: list[object] = []
    start = RealThreads.start

    def counted(self: RealThreads, work: Callable[[], None]) -> Any:
        started.append(work)
        return start(self, work)

    monkeypatch.setattr(RealThreads, "start", counted)
    orders = Handler(records.layer())
    for number in range(2):
        orders.of(*(f"m{number}-{index}" for index in range(5)))
    assert len(records.requests) == 20
    assert len(started) <= 5  # a thread may not be free again yet when the next request comes


def test_a_failed_message_that_a_failure_step_drops_is_done(records: TableInMemory) -> None:  # SPEC K4
    orders = Handler(records.layer(), backoff=None, on_failure=[DropMessage()])
    assert (orders.of("fails"), records.statuses()) == ([], {"orders#fails": "COMPLETED"})


# keys


def of_tarry(body: str = "{}", **fields: Any) -> dict[str, Any]:
    """Return a record that tarry sent under the stable id ``stable``."""
    envelope = json.dumps({"v": 1, "sum": body_sum(body), "id": "stable", **fields})
    return record(body, "copy", attributes={"Tarry": {"stringValue": envelope, "dataType": "String"}})


EDITED = "2026-01-01T00:00:00Z"


def test_the_key_is_the_consumers_name_and_the_stable_id_and_another_one_for_an_edited_copy(
    records: TableInMemory,
) -> None:
    # SPEC K4
    orders = Handler(records.layer(), do=lambda _: None, name=None)
    assert orders.of(of_tarry(hops=1)) == orders.of(of_tarry(edited=EDITED)) == []
    # A function without a name of its own, such as handler, shares the table with those of other functions.
    name = f"orders-function.{Handler.__module__}.Handler.one"
    assert set(records.statuses()) == {f"{name}#stable", f"{name}#stable#{EDITED}"}


@pytest.mark.parametrize("kind", WAYS)
def test_messages_with_the_same_value_in_their_bodies_run_once(
    kind: str, records: TableInMemory, caplog: Caplog
) -> None:
    """SPEC K4. An expression that finds no key fails that message alone, and says so."""
    layer = records.layer(event_key_jmespath="[order, version]", expires_after_seconds=30 * DAY)
    orders = Handler(layer, kind)
    body = {"order": 1, "version": 1}
    batch = [record(body, "a"), record({**body, "note": "again"}, "b"), record({"id": 1}, "no key"), record("<", "x")]
    assert "no key" in orders.of(*batch)  # and a or b, if the other one runs at that time
    assert orders.of(record(body, "c")) == []
    assert len(orders.ran) == 1
    [line] = lines(caplog, "waiting_retry")
    assert field(line, "error_type").endswith("IdempotencyKeyError")
    assert "event_key_jmespath '[order, version]' finds no key in the body" in field(line, "error")
    [line] = lines(caplog, "dead_lettered")
    assert field(line, "reason") == "undecodable"


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize(("receives", "seconds"), [(1, 5), (3, 20)])
def test_the_second_message_of_a_key_in_a_batch_waits_only_briefly(
    receives: int, seconds: int, queue: str, records: TableInMemory, wire: Wire
) -> None:  # SPEC K4
    """Not for the rest of the function's 15 minutes: the first has ended when this invocation has."""
    orders = Handler(records.layer(event_key_jmespath="order"), "batch")
    batch = [record({"order": 1}, each, queue, receives, group="a") for each in ("fails", "again")]
    assert (orders.of(*batch, remaining=900), orders.ran) == (["fails", "again"], ["fails"])
    assert wire.visibilities()["handle-again"] == seconds


@pytest.mark.parametrize(
    ("expression", "body"),
    [
        ("[order, version]", {"version": 1}),
        ("[order, version]", {"order": "", "version": 1}),
        ("[[order, version]]", {"version": 1}),
        ("{o: order, v: version}", {"order": 7}),
        ("event.[order, version]", {"event": {"order": 7}}),
        ("event | [order]", {"event": {"order": []}}),
        ("length(order)", {"order": 4111}),
    ],
)
def test_a_message_of_whose_key_a_part_is_missing_fails_and_is_never_taken_for_another(
    expression: str, body: dict[str, Any], records: TableInMemory, caplog: Caplog
) -> None:
    """Otherwise all messages without that part would have one key, and all but the first would not run."""
    orders = Handler(records.layer(event_key_jmespath=expression))
    assert orders.of(record({**body, "x": 1}, "a"), record({**body, "x": 2}, "b")) == ["a", "b"]
    assert (orders.ran, records.statuses()) == ([], {})
    for line in lines(caplog, "waiting_retry"):
        assert field(line, "error_type").endswith("IdempotencyKeyError")
        assert "4111" not in field(line, "error")


def test_nulls_within_the_value_of_a_key_are_part_of_it_and_so_is_an_edit(records: TableInMemory) -> None:
    # SPEC K4
    orders = Handler(records.layer(event_key_jmespath="order"))
    bodies = [{"order": {"id": number, "note": None}} for number in (1, 2)]
    edited = of_tarry(json.dumps(bodies[1]), edited=EDITED)
    same = {"order": {"note": None, "id": 1}}
    for each in (record(bodies[0], "a"), record(bodies[1], "b"), record(same, "a in another order"), edited):
        orders.of(each)
    assert orders.ran == ["a", "b", "copy"]


def test_a_layer_that_is_configured_later_keeps_its_key_and_finds_its_records(dynamodb: IdempotencyTable) -> None:
    """Powertools' error of a payload that differs says that there is a record, not that the table has failed."""
    layer = dynamodb.layer()
    orders = Handler(layer)
    dynamodb.put("orders#elsewhere", RECEIVED_AT + 20)
    orders.of("done")
    layer.configure(IdempotencyConfig(event_key_jmespath="customer", payload_validation_jmespath="total"))
    assert orders.of("elsewhere", "done") == ["elsewhere"]
    other = orders.consumer.replace(max_attempts=3)
    other(event(record({"customer": 1}, "a"), record({"customer": 1}, "b")), Context())
    assert orders.ran == ["done", "a", "b"]


def test_an_idempotent_function_of_the_handler_shares_the_layer(dynamodb: IdempotencyTable) -> None:
    """Powertools configures the layer at the function's first call; the consumer has read its own setting before."""
    layer, paid, config = dynamodb.layer(), list[Any](), IdempotencyConfig(event_key_jmespath="id")

    @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
    def pay(order: Any) -> None:
        paid.append(order)

    @consumer(idempotency=layer, name="orders")
    def handler(message: Message) -> None:
        config.register_lambda_context(message.context)
        pay(order=message.json())

    handler(event(record({"id": 1}, "a"), record({"id": 1}, "b")), Context())
    assert paid == [{"id": 1}]
    assert {"orders#a", "orders#b"} < set(dynamodb.statuses())


# faults


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "AccessDeniedException"])
def test_a_table_that_refuses_loses_no_message_and_is_logged(
    kind: str, code: str, records: TableInMemory, caplog: Caplog
) -> None:
    caplog.set_level("INFO")
    orders = Handler(records.layer(), kind)
    records.refuses(code)
    assert orders.of("a", "fails") == ["fails"]
    assert sorted(orders.ran) == ["a", "fails"]
    unprotected = lines(caplog, "unprotected")
    assert {field(line, "message_id") for line in unprotected} == {"a", "fails"}
    assert sorted(line.levelname for line in unprotected) == ["INFO", "WARNING"]  # one WARNING an invocation
    assert f"The idempotency store could not be asked (An error occurred ({code})" in field(unprotected[0], "text")
    [line] = lines(caplog, "completion_not_stored")
    assert f"record could not be completed (An error occurred ({code})" in field(line, "text")
    assert (field(line, "message_id"), field(line, "key")) == ("a", "orders#a")
    assert not lines(caplog, "claim_not_removed")  # there may be no record
    is_denied = code == "AccessDeniedException"
    assert len(lines(caplog, "idempotency_denied")) == is_denied


@pytest.mark.parametrize("operation", ["put", "update", "delete"])
def test_a_single_operation_that_is_denied_is_named_once(
    operation: str, records: TableInMemory, caplog: Caplog
) -> None:
    orders = Handler(records.layer())
    records.refuses("AccessDeniedException", operation)
    for _ in range(2):
        orders.of("a", "fails")
    [line] = lines(caplog, "idempotency_denied")
    assert "The idempotency store may not be used: An error occurred (AccessDenied" in field(line, "text")
    assert "Grant dynamodb:GetItem, PutItem, UpdateItem and DeleteItem on the table" in field(line, "text")


def test_a_claim_whose_answer_is_lost_is_removed_when_the_message_fails(dynamodb: IdempotencyTable) -> None:
    """It is only removed if it is this delivery's own; that of another delivery stays."""
    orders = Handler(dynamodb.layer())
    dynamodb.fault = lambda operation, is_applied: (
        client_error("InternalServerError", status=500) if is_applied and operation == "PutItem" else None
    )
    dynamodb.put("orders#fails-2", RECEIVED_AT + 20)
    orders.of("fails-1", "fails-2")
    assert dynamodb.statuses() == {"orders#fails-2": "INPROGRESS"}


def test_the_clients_own_repetition_of_a_claim_is_not_another_delivery(dynamodb: IdempotencyTable) -> None:
    login = {"region_name": "us-east-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 2}), **login)  # type: ignore[call-overload]
    calls: list[str] = []

    def lose(**_: Any) -> Any:
        calls.append("PutItem")
        return 0 if len(calls) == 1 else None  # botocore repeats the request at once

    client.meta.events.register_first("needs-retry.dynamodb.PutItem", lose)
    orders = Handler(DynamoDBPersistenceLayer(table_name=TABLE, boto3_client=client))
    assert (orders.of("a"), len(calls), orders.ran) == ([], 2, ["a"])
    assert dynamodb.statuses() == {"orders#a": "COMPLETED"}


@pytest.mark.parametrize("kind", WAYS)
def test_a_record_that_cannot_be_removed_defers_the_message(kind: str, records: TableInMemory, caplog: Caplog) -> None:
    orders = Handler(records.layer(), kind)
    records.refuses("ThrottlingException", "delete")
    assert orders.of("fails") == ["fails"]
    [line] = lines(caplog, "claim_not_removed")
    assert "could not be removed (An error occurred (ThrottlingException)" in field(line, "text")
    assert "It counts for another 30 seconds, the time left of this invocation" in field(line, "text")
    assert (field(line, "message_id"), field(line, "key")) == ("fails", "orders#fails")


# mistakes


@pytest.mark.parametrize(
    ("key", "table", "expected"),
    [("id", "nowhere", "table nowhere does not exist"), ("order", TABLE, "idempotency refuses its records")],
)
def test_a_table_that_is_missing_or_has_another_key_fails_the_message_and_says_so(
    key: str, table: str, expected: str, shared: IdempotencyTable, caplog: Caplog
) -> None:
    with made(shared, key):
        layer = shared.layer()
        layer.table_name = table
        for kind in WAYS:
            orders = Handler(layer, kind)
            assert (orders.of("a"), orders.ran) == (["a"], [])
    assert [expected in field(line, "error") for line in lines(caplog, "waiting_retry")] == [True] * len(WAYS)


@pytest.mark.parametrize(
    ("seconds", "asked", "warnings"),
    [(3_600, 1, 1), (345_599, 1, 1), (345_600, 1, 0), (14 * DAY - 1, 1, 0), (14 * DAY, 0, 0), (None, 0, 0)],
)
def test_records_that_live_shorter_than_the_queues_messages_are_warned_of_once(
    seconds: int | None, asked: int, warnings: int, records: TableInMemory, wire: Wire, caplog: Caplog
) -> None:
    """Messages of no queue live longer than 14 days, as records do by default."""
    orders = Handler(records.layer(**({"expires_after_seconds": seconds} if seconds else {})))
    for each in ["a", "b"]:
        orders.of(each)
    texts = [field(line, "text") for line in lines(caplog, "records_too_short")]
    assert [f"live {seconds} seconds, and orders keeps messages for 345600" in text for text in texts] == [
        True
    ] * warnings
    assert wire.operations == ["GetQueueAttributes"] * asked


def test_records_are_not_compared_with_a_retention_that_is_unknown(
    records: TableInMemory, wire: Wire, caplog: Caplog
) -> None:
    wire.fails["GetQueueAttributes"] = client_error("AccessDenied")
    Handler(records.layer(expires_after_seconds=60)).of("a")
    assert not lines(caplog, "records_too_short")


def test_what_is_not_a_layer_or_asks_for_validation_is_refused_at_import(records: TableInMemory) -> None:
    with pytest.raises(ConfigurationError, match=r"idempotency takes a persistence layer of Powertools.*got 'table'"):
        Handler("table")
    with pytest.raises(ConfigurationError, match="remove payload_validation_jmespath"):
        Handler(records.layer(payload_validation_jmespath="total"))


# layers that raise, handlers that do not end, and the records themselves


class BrokenError(Exception):
    @property
    def response(self) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *((kind, SystemExit) for kind in ("one by one", "threads", "async", "batch", "async batch")),
        *((kind, BrokenError) for kind in ("one by one", "async batch")),
    ],
)
def test_whatever_a_layer_raises_no_message_that_is_done_is_reported_as_failed(
    kind: str, error: type[BaseException], caplog: Caplog
) -> None:
    def broken(*_: Any) -> None:
        raise error

    caplog.set_level("INFO", "tarry")
    for method in ("_put_record", "_get_record", "_update_record", "_delete_record"):
        setattr(layer := Memory(), method, broken)
        orders = Handler(layer, kind)
        assert orders.of("a", "fails", "rejects", "b") == ["fails"], method
        assert sorted(orders.ran) == ["a", "b", "fails", "rejects"], method
    assert not lines(caplog, "runtime_failed")


def test_only_the_record_of_a_delivery_itself_is_removed_or_shortened() -> None:  # SPEC K4
    layer = Memory()
    records, own, other = Records(layer), ("key", 5_000, 70), ("key", 6_000, 70)
    assert records.begin(*own) is None
    assert not records.remove(*other)
    records.shorten(*other, 1_000)
    assert layer.items["key"].in_progress_expiry_timestamp == 5_000
    records.shorten(*own, 1_000)
    assert layer.items["key"].in_progress_expiry_timestamp == 1_000
    assert records.remove("key", 1_000, 70)
    assert not layer.items
    assert not records.remove(*own)
