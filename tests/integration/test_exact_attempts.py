"""Exact attempts: a table counts the runs of messages that failed (SPEC O)."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from moto import mock_aws

from tarry import (
    AttemptChange,
    Batch,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    DynamoDBAttempts,
    Failure,
    Fixed,
    MemoryAttempts,
    Message,
    Outcome,
    Reject,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tarry.settle import attempts as tracking
from tests.loglines import Caplog, field, lines
from tests.records import RECEIVED_AT, Context, event, failed, record
from tests.settled import tarry_attribute
from tests.tables import Table, made, no_fault
from tests.wire import Queue, Wire, client_error

DAY = 86_400


class OneAtATime(DynamoDBAttempts):
    """A store that makes one request after the other: moto fails if several threads write to a table at once."""

    def __init__(self, table: str, *, client: Any) -> None:
        super().__init__(table, client=client)
        self._one = threading.Lock()

    def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        with self._one:
            return super().read(ids)

    def write(self, changes: Sequence[AttemptChange]) -> None:
        with self._one:
            super().write(changes)


class AttemptsTable(Table):
    """A table of attempts, and the store in it."""

    name = "attempts"

    def __init__(self) -> None:
        super().__init__()
        self.store = OneAtATime(self.name, client=self.client)

    def record(self, key: str) -> dict[str, Any]:
        """Return a record; an empty one if there is none."""
        return dict(DynamoDBAttempts(self.name, client=self.plain).read([key]).get(key, {}))

    def requested(self) -> list[str]:
        """Return the operations since the last call."""
        found = [*self.operations]
        self.operations.clear()
        return found


@pytest.fixture(scope="module")
def shared() -> Iterator[AttemptsTable]:
    """Provide moto with a table that is not made yet; all tests of the module share it, since this takes a while."""
    with mock_aws():
        yield AttemptsTable()


@pytest.fixture
def table(shared: AttemptsTable) -> Iterator[AttemptsTable]:
    with made(shared):
        yield shared


@pytest.fixture
def wire() -> Iterator[Wire]:
    queue = Queue(dead_letter="orders-dlq", max_receive_count=30)
    with Wire(queues={"orders": queue, "orders.fifo": queue, "orders-dlq": Queue()}) as sqs:
        yield sqs


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for moto as long as it takes on a busy machine."""
    for name, seconds in {"SECONDS": 60.0, "READ_SECONDS": 30.0, "SHARE": 2.0}.items():
        monkeypatch.setattr(tracking, name, seconds)


class Handler:
    """A handler that behaves by body, and notes the attempts that it saw."""

    def __init__(self, store: Any, **settings: Any) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.failures: list[Failure] = []
        settings = {"max_attempts": 3, "backoff": Fixed(60), "attempts": store, **settings}
        settings.setdefault("on_failure", [self.note, RetryInPlace(), DeadLetter()])
        self.consumer = consumer(**settings)(self.handle)

    def note(self, failure: Failure, next_step: Any) -> Outcome:
        self.failures.append(failure)
        outcome: Outcome = next_step(failure)
        return outcome

    def handle(self, message: Message) -> None:
        self.attempts.append((message.delivery_id, message.attempt))
        match message.body:
            case "fails":
                raise ValueError("no")
            case "defers":
                message.defer(60)

    def deliver(self, body: str = "fails", receives: int = 1, ids: Sequence[str] = ("m1",), **more: Any) -> list[str]:
        records = (record(body, each, receives=receives, **more) for each in ids)
        return failed(self.consumer(event(*records), Context()))


def of_the_dead_letter(wire: Wire) -> tuple[Any, ...]:
    """Return the reason, attempts and crashes of the last dead letter, and whether its attempts may be too many."""
    failure = wire.envelopes()[-1]["failure"]
    return tuple(failure.get(name) for name in ("reason", "attempts", "crashes", "attempts_at_most"))


# counting


def test_only_runs_that_failed_are_attempts_and_other_deliveries_are_counted_as_crashes(wire: Wire) -> None:
    """SPEC O2. The deliveries 2 and 3 left no trace: the process died, or Lambda throttled the function."""
    handler = Handler(MemoryAttempts())
    for receives, body in [(1, "fails"), (4, "defers"), (5, "fails"), (7, "fails")]:
        handler.deliver(body, receives)
    assert [attempt for _, attempt in handler.attempts] == [1, 2, 2, 3]
    assert [(failure.attempt, failure.crashes) for failure in handler.failures] == [(1, 0), (2, 2), (3, 3)]
    assert of_the_dead_letter(wire) == ("exhausted", 3, 3, None)
    history = wire.envelopes()[-1]["history"]
    assert [(entry["attempt"], entry.get("delay")) for entry in history] == [(1, 60), (2, 60), (3, None)]


def test_a_failed_message_has_a_record_that_says_why_and_when_it_is_tried_again(
    table: AttemptsTable, wire: Wire
) -> None:
    """SPEC F3. `redact` changes it before it is written."""
    Handler(table.store).deliver()
    found = table.record("orders#m1")
    failure, [entry] = found.pop("failure"), found.pop("history")
    assert (failure["message"], failure["type"], "traceback" in failure) == ("no", "ValueError", False)
    assert (len(failure["fingerprint"]), entry["error"]) == (12, "ValueError: no")
    assert found == {
        "id": "orders#m1",
        "queue": "orders",
        "message": "m1",
        "state": "WAITING_RETRY",
        "attempt": 1,
        "runs": [1],
        "deliveries": [1],
        "latest": 1,
        "next_try": int(RECEIVED_AT) + 60,
        "expires": int(RECEIVED_AT) + 4 * DAY + DAY,
    }

    def redact(found: dict[str, Any]) -> dict[str, Any]:
        failure = {**found["failure"], "message": "-"}
        return {**found, "failure": failure, "history": [{**each, "error": "-"} for each in found["history"]]}

    Handler(table.store, on_failure=[RetryInPlace(), DeadLetter(redact=redact)]).deliver(ids=["m2"])
    found = table.record("orders#m2")
    assert (found["failure"]["message"], found["history"][0]["error"]) == ("-", "-")


@pytest.mark.parametrize(
    ("state", "body", "step"),
    [
        ("COMMITTED", "works", RetryInPlace()),
        ("DEAD_LETTERED", "fails", DeadLetter()),
        ("RESENT", "fails", SendAgain("again")),
        ("DISCARDED", "fails", DropMessage()),
    ],
)
def test_a_record_is_closed_when_its_message_ends(state: str, body: str, step: Any, wire: Wire) -> None:
    store = MemoryAttempts()
    Handler(store).deliver()
    Handler(store, on_failure=[step]).deliver(body, receives=2)
    found = store.records["orders#m1"]
    assert (found["state"], found["closed"]) == (state, 2)
    assert not {"next_try", "failure", "history"} & set(found)


def test_a_copy_carries_the_attempts_and_the_history_of_its_message(wire: Wire) -> None:
    """At the last delivery a deferred message is sent again (SPEC C8); its copy has a record of its own."""
    handler = Handler(MemoryAttempts())
    handler.deliver()
    handler.deliver(receives=3)
    wire.queues["orders"].max_receive_count = 9
    with Wire(queues=wire.queues) as later:  # another cold start: the attributes of queues are cached
        handler.deliver("defers", receives=9)
        [copy] = later.envelopes()
        assert (copy["carried"], [entry["attempt"] for entry in copy["history"]]) == (2, [1, 2])
        attributes = tarry_attribute("fails", **{name: copy[name] for name in ("id", "carried", "history", "failure")})
        handler.deliver(ids=("m2",), attributes=attributes)
        assert handler.attempts[-1] == ("m2", 3)
        assert [entry["attempt"] for entry in later.envelopes()[-1]["history"]] == [1, 2, 3]
        assert of_the_dead_letter(later) == ("exhausted", 3, None, None)


def test_the_table_holds_what_the_changes_say_in_any_order(table: AttemptsTable) -> None:
    """`AttemptChange.applied_to`, which stores of users and that in memory use, beside the expressions of DynamoDB."""
    random, memory = Random(0), MemoryAttempts()
    for _ in range(25):
        changes = []
        for key in random.sample("abcd", random.randint(1, 4)):
            kind: Any = random.choice(["run", "run", "seen", "start", "end"])
            fields: dict[str, Any] = {"state": random.choice("xyz"), "attempt": random.randint(1, 9)}
            if kind == "run":
                fields |= {"failure": {"reason": "error"}, "history": [{"attempt": 1}], "next_try": 1.5}
            count = random.randint(1, 6)
            changes.append(AttemptChange(key, count, kind, fields, random.choice([(), (count - 1,)])))
        memory.write(changes)
        table.store.write(changes)
    assert {key: {**found, "id": key} for key, found in memory.records.items()} == {
        key: table.record(key) for key in memory.records
    }


def test_records_are_read_by_the_hundred_and_written_by_25(wire: Wire) -> None:  # SPEC O1
    sizes: dict[str, list[int]] = {"read": [], "write": []}

    class Counting(MemoryAttempts):
        def read(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
            sizes["read"].append(len(ids))
            return super().read(ids)

        def write(self, changes: Sequence[AttemptChange]) -> None:
            sizes["write"].append(len(changes))
            super().write(changes)

    Handler(Counting()).deliver(receives=2, ids=[f"m{index}" for index in range(101)])
    assert (sorted(sizes["read"]), max(sizes["write"])) == ([1, 100], 25)


def test_a_batch_handlers_messages_are_counted_too(wire: Wire) -> None:
    attempts: list[int] = []

    @batch_consumer(max_attempts=3, backoff=Fixed(60), attempts=MemoryAttempts())
    def handler(batch: Batch) -> None:
        attempts.extend(message.attempt for message in batch)
        batch[0].fail(ValueError("no"))

    for receives in (1, 4):
        handler(event(record(1, "m1", receives=receives), record(2, "m2", receives=receives)), Context())
    assert attempts == [1, 1, 2, 1]


# requests


@pytest.mark.parametrize(("count", "writes"), [(1, ["UpdateItem"]), (26, ["TransactWriteItems", "UpdateItem"])])
def test_the_requests_of_a_batch(count: int, writes: list[str], table: AttemptsTable, wire: Wire) -> None:  # SPEC O1
    """A hundred records are read in one request, and 25 written; fresh messages that succeed are neither."""
    ids = tuple(f"m{number}" for number in range(count))
    handler = Handler(table.store)
    assert handler.deliver("works", ids=tuple(f"f{number}" for number in range(10))) == table.requested() == []
    handler.attempts.clear()
    assert len(handler.deliver(ids=ids)) == count
    assert sorted(table.requested()) == writes
    handler.deliver(ids=ids, receives=2)
    assert sorted(table.requested()) == ["BatchGetItem", *writes]
    assert {attempt for _, attempt in handler.attempts[count:]} == {2}
    handler.deliver("works", ids=tuple(f"n{number}" for number in range(101)), receives=2)
    assert table.requested() == ["BatchGetItem"] * 2


def test_a_fifo_message_is_written_before_it_runs_only_if_its_last_delivery_left_no_trace(
    table: AttemptsTable, wire: Wire
) -> None:  # SPEC O1
    """With the write before a message goes the end of the one before it."""
    handler, ids = Handler(table.store), ("m1", "m2", "m3")
    handler.deliver("works", queue="orders.fifo", ids=ids)
    handler.deliver("defers", queue="orders.fifo", ids=ids[:1])
    assert table.requested() == ["UpdateItem"]
    handler.deliver("works", queue="orders.fifo", ids=ids[:1], receives=2)
    assert table.requested() == ["BatchGetItem", "UpdateItem"]
    handler.deliver("works", queue="orders.fifo", ids=ids, receives=4)
    starts = ["UpdateItem", "TransactWriteItems", "TransactWriteItems"]
    assert table.requested() == ["BatchGetItem", *starts, "UpdateItem"]
    assert [table.record(f"orders.fifo#{each}")["closed"] for each in ids] == [4, 4, 4]


def test_after_a_crash_one_fifo_message_runs_at_a_time_and_no_dead_letter_blocks_the_next(wire: Wire) -> None:
    """SPEC I1, O2."""
    store, began, sent, running = MemoryAttempts(), threading.Event(), list[bool](), list[str]()
    store.write([AttemptChange("orders.fifo#m1", 1, "start", {})])
    wire.fails["SendMessageBatch"] = lambda _: sent.append(began.wait(1))

    @consumer(attempts=store, max_attempts=1, concurrency=2)
    async def handler(message: Message) -> None:
        running.append(message.id)
        for _ in range(3):
            await asyncio.sleep(0)
            assert running == [message.id]
        running.clear()
        if message.id == "m2":
            raise Reject
        began.set()

    of_groups = (("m1", 2), ("m2", 3), ("m3", 4))
    batch = event(*(record("{}", each, "orders.fifo", receives, group=each) for each, receives in of_groups))
    assert failed(handler(batch, Context())) == []
    assert sent == [True, True]


def test_the_time_of_writing_a_start_does_not_count_as_that_of_a_message(wire: Wire) -> None:  # SPEC I2, O2
    class SlowStore(MemoryAttempts):
        def write(self, changes: Sequence[AttemptChange]) -> None:
            wire.clock.sleep(9)
            super().write(changes)

    handler = Handler(SlowStore())
    assert handler.deliver("works", 2, ("m1", "m2", "m3"), queue="orders.fifo") == []
    assert len(handler.attempts) == 3


@pytest.mark.parametrize("concurrency", [1, 2])
def test_behind_a_message_that_is_dead_lettered_for_its_crash_the_group_goes_on(concurrency: int, wire: Wire) -> None:
    store = MemoryAttempts()  # SPEC O2
    store.write([AttemptChange("orders.fifo#m1", 1, "start", {})])
    handler = Handler(store, max_attempts=1, concurrency=concurrency)
    assert handler.deliver("works", 2, ("m1", "m2"), queue="orders.fifo") == []
    assert [each for each, _ in handler.attempts] == ["m2"]
    assert of_the_dead_letter(wire)[0] == "exhausted"


@pytest.mark.parametrize("kind", ["start", "run"])
def test_the_queue_of_a_crashed_fifo_message_is_looked_up_before_any_handler_runs(kind: str, wire: Wire) -> None:
    """SPEC O2. Otherwise, the look-up is made while the handlers run."""
    store, began, ended, look_ups = MemoryAttempts(), threading.Event(), threading.Event(), list[bool]()
    store.write([AttemptChange("orders.fifo#m1", 1, kind, {})])

    def look_up(_: Any) -> None:
        look_ups.append(began.wait(0.3 if kind == "start" else 30))
        ended.set()

    def handle(_: Message) -> None:
        began.set()
        ended.wait(30)

    wire.fails["GetQueueAttributes"] = look_up
    handler = consumer(attempts=store)(handle)
    of_groups = (("m1", 2), ("m2", 1))
    batch = event(*(record("{}", each, "orders.fifo", receives, group=each) for each, receives in of_groups))
    assert failed(handler(batch, Context())) == []
    assert look_ups[0] is (kind == "run")


@pytest.mark.parametrize(("queue", "started"), [("orders.fifo", 2), ("orders", 1)])
def test_a_message_has_not_crashed_in_its_current_delivery_nor_on_a_standard_queue(
    queue: str, started: int, wire: Wire
) -> None:  # SPEC O2
    """An event made by hand may be passed twice, or have messages of several queues."""
    store = MemoryAttempts()
    store.write([AttemptChange(f"{queue}#m1", started, "start", {})])
    handler = Handler(store, max_attempts=1)
    batch = event(record("works", "m1", queue, 2), record("works", "m2", "orders.fifo", 2, group="b"))
    assert failed(handler.consumer(batch, Context())) == []
    assert sorted(each for each, _ in handler.attempts) == ["m1", "m2"]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_message_that_crashed_with_attempts_left_runs_again_and_its_crash_is_logged(
    concurrency: int, wire: Wire, caplog: Caplog
) -> None:  # SPEC O2
    store = MemoryAttempts()
    store.write([AttemptChange("orders.fifo#m1", 1, "start", {})])
    handler = Handler(store, concurrency=concurrency)
    assert handler.deliver("works", 2, queue="orders.fifo") == []
    assert handler.attempts == [("m1", 2)]
    [line] = lines(caplog, "run_crashed")
    assert (line.levelname, field(line, "message_id")) == ("WARNING", "m1")
    assert field(line, "text") == (
        "Attempt 1 failed at delivery 1: the process died, or the function timed out, while the message ran. "
        "The message runs again."
    )


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
def test_a_message_is_written_before_it_is_shown_again(queue: str, table: AttemptsTable, wire: Wire) -> None:
    written: list[list[str]] = []
    wire.fails["ChangeMessageVisibilityBatch"] = lambda request: written.append([*table.operations])  # type: ignore[func-returns-value]
    Handler(table.store).deliver(queue=queue, ids=("m1", "m2"))  # on FIFO, the second is released
    assert {*map(tuple, written)} == {("TransactWriteItems",)}
    assert table.record(f"{queue}#m2")["deliveries"] == [1]
    assert ("runs" in table.record(f"{queue}#m2")) == (queue == "orders")


# a store that fails


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (client_error("ResourceNotFoundException", "no table"), "attempts does not exist (An error"),
        (client_error("ValidationException", "The provided key element"), "refuses its records"),
        (client_error("AccessDeniedException", "no"), "Action: [dynamodb:BatchGetItem, dynamodb:UpdateItem]"),
        (client_error("ThrottlingException", "slow down"), "failed (An error occurred (ThrottlingException)"),
        (OSError("no network"), "failed (no network)"),
    ],
    ids=["no table", "another key", "no permission", "throttled", "no network"],
)
def test_a_table_that_cannot_be_used_is_logged_once_and_receives_are_counted(
    error: Exception, says: str, shared: AttemptsTable, wire: Wire, caplog: Caplog, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC O4
    monkeypatch.setattr(shared, "operations", [])
    monkeypatch.setattr(shared, "fault", lambda operation, is_applied: None if is_applied else error)
    handler = Handler(shared.store)
    assert [handler.deliver(receives=receives) for receives in (1, 2, 3)] == [["m1"], ["m1"], []]
    assert [attempt for _, attempt in handler.attempts] == [1, 2, 3]
    assert of_the_dead_letter(wire)[3] is True
    [line] = lines(caplog, "attempts_not_exact")
    assert line.levelname == "WARNING"
    for part in (says, "The attempts table attempts ", "attempts are counted by receives"):
        assert part in field(line, "text")


def test_a_missing_table_and_one_with_another_key_are_named_in_the_log(
    shared: AttemptsTable, wire: Wire, caplog: Caplog
) -> None:
    handler = Handler(shared.store)
    handler.deliver()
    with made(shared, "order_id"), Wire(queues=wire.queues):  # another cold start
        handler.deliver()
    missing, other_key = (field(line, "text") for line in lines(caplog, "attempts_not_exact"))
    assert "does not exist" in missing
    assert "refuses its records" in other_key
    assert "KeySchema: [{AttributeName: id, KeyType: HASH}]" in other_key


def test_a_write_whose_answer_is_lost_counts_once(table: AttemptsTable, wire: Wire) -> None:
    table.fault = lambda operation, is_applied: client_error("InternalServerError") if is_applied else None
    handler = Handler(table.store)
    handler.deliver()
    assert table.requested() == ["UpdateItem", "UpdateItem"]  # written once more at the end
    table.fault = no_fault
    handler.deliver(receives=2)
    assert handler.attempts[-1] == ("m1", 2)


class Odd(MemoryAttempts):
    """A store of a user's that returns something, or raises."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def read(self, ids: Any) -> Any:
        if isinstance(self.answer, type):
            raise self.answer
        return self.answer if isinstance(self.answer, Unreadable) else dict.fromkeys(ids, self.answer)

    def write(self, changes: Any) -> None:
        if isinstance(self.answer, type):
            raise self.answer


class Unreadable(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        raise KeyboardInterrupt


def leave(*_: object) -> Any:
    raise SystemExit


class RaisesAll(Exception):
    response = property(leave)
    __str__ = leave


class HasNoAttributes(Odd):
    _is_loaded = table = _load = property(leave)


@pytest.mark.parametrize(
    "store",
    [
        *map(Odd, [{"runs": 7}, {"runs": ["x"]}, {"failure": {"message": 7}}, "text", None, Unreadable()]),
        *map(Odd, [SystemExit, KeyboardInterrupt, ValueError, RaisesAll]),
        HasNoAttributes(ValueError),
    ],
    ids=lambda store: f"{type(store).__name__} {getattr(store, 'answer', '')!r}",
)
def test_a_store_that_returns_garbage_or_raises_anything_is_not_used_and_fails_no_message(
    store: Any, wire: Wire, caplog: Caplog
) -> None:
    handler = Handler(store)
    assert handler.deliver("works", receives=2, ids=("m1", "m2")) == []
    assert handler.deliver(receives=2) == ["m1"]
    assert handler.attempts == [("m1", 2), ("m2", 2), ("m1", 2)]
    assert len(lines(caplog, "attempts_not_exact")) == 1


def test_a_record_that_another_program_wrote_affects_its_own_message_only(table: AttemptsTable, wire: Wire) -> None:
    """Nor does it make the attempts more than the receives."""
    handler = Handler(table.store)
    handler.deliver(ids=("m1", "m2"))
    keys = {"id": {"S": "orders#m3"}, "runs": {"N": "7"}, "history": {"S": "{"}}
    table.plain.put_item(TableName="attempts", Item=keys)
    handler.attempts.clear()
    handler.deliver(receives=5, ids=("m1", "m2", "m3"))
    assert sorted(handler.attempts) == [("m1", 2), ("m2", 2), ("m3", 5)]
    store = MemoryAttempts()
    store.records["orders#m1"] = {"runs": [1, 2, 3, 40], "deliveries": [1, 2, 3, 40]}
    handler = Handler(store)
    handler.deliver("works", receives=2)
    assert handler.attempts == [("m1", 2)]


class ReadOnly(MemoryAttempts):
    """A store without the permission to write."""

    def write(self, changes: Any) -> None:
        raise client_error("AccessDeniedException", "no")


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("early", [False, True])
def test_a_message_runs_no_more_often_if_its_runs_cannot_be_written(queue: str, early: bool, wire: Wire) -> None:
    """Its record says that it never ran, at each delivery; it would run until maxReceiveCount, or for ever."""
    handler = Handler(ReadOnly(), backoff=Fixed(1 if early else 60))
    left = [handler.deliver(receives=receives, queue=queue) for receives in (1, 2, 3)]
    assert left == [["m1"], ["m1"], []]
    assert of_the_dead_letter(wire)[:2] == ("exhausted", 3)
    assert of_the_dead_letter(wire)[3] is True


def test_a_run_that_cannot_be_written_costs_no_attempt_for_deliveries_that_left_a_trace(wire: Wire) -> None:
    store = ReadOnly()
    store.records["orders#m1"] = {"runs": [1], "deliveries": [1, 2, 3, 4]}
    assert Handler(store).deliver(receives=5) == ["m1"]
    assert wire.envelopes() == []


def test_a_store_that_takes_long_to_load_is_waited_for_once(wire: Wire) -> None:  # SPEC O4
    waited: list[float] = []

    class CannotBeLoaded(MemoryAttempts):
        _is_loaded = False

    class NeverLoads(CannotBeLoaded):
        def _load(self) -> None:
            waited.append(0)

    handler = Handler(NeverLoads())
    handler.deliver(receives=2)
    handler.deliver("works", receives=3)
    assert len(waited) == 1
    assert Handler(CannotBeLoaded()).deliver("works", receives=2, ids=("m1", "m2")) == []


# settings, and without a store


def test_without_a_store_a_dead_letter_says_that_its_attempts_may_be_too_many_unless_it_is_at_its_first_delivery(
    wire: Wire, caplog: Caplog
) -> None:
    handler = Handler(None)
    handler.deliver(receives=3)
    Handler(None, fatal=ValueError).deliver(receives=2)
    Handler(None, fatal=ValueError).deliver()
    Handler(None, max_attempts=1).deliver()
    assert handler.failures[0].crashes is None
    assert [envelope["failure"].get("attempts_at_most") for envelope in wire.envelopes()] == [True, True, None, None]
    shown = [line.getMessage() for line in lines(caplog, "dead_lettered")]
    assert ["at most" in text for text in shown] == [True, False, False, False]
    assert "text='at most 3 attempts'" in shown[0]


ONE_METHOD = [SimpleNamespace(read=print), SimpleNamespace(write=print)]


@pytest.mark.parametrize("store", ["attempts", 5, MemoryAttempts, *ONE_METHOD])
def test_a_store_without_the_two_methods_and_a_table_without_a_name_are_refused(store: Any) -> None:
    text = r'attempts takes a store, such as DynamoDBAttempts\("table"\), got'
    with pytest.raises(ConfigurationError, match=text) as error:
        consumer(attempts=store)
    assert ("; max_attempts limits the number of attempts" in str(error.value)) is isinstance(store, int)
    for name in ("", None, 5):
        with pytest.raises(ConfigurationError, match="DynamoDBAttempts takes the name of a table, got"):
            DynamoDBAttempts(name)
