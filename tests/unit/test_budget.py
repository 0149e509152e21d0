"""The cost of tarry: the modules it loads, the calls and requests it makes."""

import _signal
import gc
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from tarry import Batch, Fixed, Message, Reject, batch_consumer, consumer, world
from tests.handlers import behave, plain
from tests.records import Context, batch_of, event, record
from tests.settled import orders, settle

HEAVY = """
boto3 botocore asyncio pydantic aws_lambda_powertools dataclasses inspect logging traceback uuid concurrent.futures
opentelemetry aws_xray_sdk tarry.observe.tracing
""".split()

# modules


def heavy_modules_after(program: str) -> list[str]:
    """Return the modules of `HEAVY` that ``program`` loads in a fresh interpreter."""
    script = f"import sys; before = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = result.stdout.split()
    assert "tarry" in loaded
    return [name for name in HEAVY if name in loaded]


CLEAN_BATCH = """
import json
from tarry import *
def no_client():
    raise SystemExit("a client was made")
import tarry.world
tarry.world.current().client_factory = no_client
handled = []
"""


def clean_batches(*batches: tuple[str, dict[str, Any]]) -> str:
    """Return a program in which each of these handlers handles its batch."""
    runs = (
        f"""
{handler}
handled.clear()
answer = handler(json.loads({json.dumps(batch)!r}), None)
assert answer == {{"batchItemFailures": []}}, answer
assert len(handled) == {len(batch["Records"])}, handled
"""
        for handler, batch in batches
    )
    return "".join([CLEAN_BATCH, *runs])


def test_importing_every_public_name_and_making_a_consumer_loads_nothing_heavy() -> None:  # DESIGN 5, SPEC K2
    """Public names are loaded lazily, and a function imports the ones it uses. Texts as annotations name no model."""
    settings = 'max_attempts=4, backoff=Exponential(2, 3, jitter="full"), fatal=KeyError, on_failure=[RetryInPlace()]'
    plain = f"@consumer({settings})\ndef handler(message): pass"
    annotated = "@consumer\ndef handler(message: 'Message', times: 'int' = 1) -> 'None': pass"
    assert heavy_modules_after(f"from tarry import *\n{plain}\n{annotated}") == []


def test_making_a_consumer_with_a_model_loads_pydantic_and_powertools_but_not_boto3() -> None:  # DESIGN 5, SPEC K2
    order = "import typing_extensions\nclass Order(typing_extensions.TypedDict): id: int"
    handler = "@consumer(model=Order)\ndef handler(message): pass"
    loaded = heavy_modules_after(f"from tarry import *\n{order}\n{handler}")
    assert {"pydantic", "aws_lambda_powertools"} <= set(loaded)
    assert "boto3" not in loaded


STANDARD = event(*(record({"id": index}, f"m{index}") for index in range(10)))
FIFO = event(*(record({"id": index}, f"m{index}", "orders.fifo", group=f"g{index % 2}") for index in range(10)))
WITH_ATTRIBUTES = event(record(attributes={"tenant": {"stringValue": "acme", "dataType": "String"}}))

SYNC = "@consumer\ndef handler(message): handled.append(message.json())"
VERDICT = "@consumer\ndef handler(message): handled.append((message.id, message.attempt, message.queue)); message.ack()"
BATCH = "@batch_consumer\ndef handler(batch): handled.extend(batch)"
ATTRIBUTES = "@consumer\ndef handler(message): handled.append(message.attributes)"

WITH_A_STORE = '@consumer(attempts=DynamoDBAttempts("attempts"))\ndef handler(message): handled.append(message.json())'


def test_a_clean_batch_loads_nothing_heavy_and_makes_no_client() -> None:  # SPEC G2, O1
    """With an attempt store, it loads nothing more."""
    batches = [(SYNC, STANDARD), (VERDICT, STANDARD), (BATCH, STANDARD), (SYNC, FIFO), (BATCH, FIFO)]
    batches += [(ATTRIBUTES, WITH_ATTRIBUTES), (WITH_A_STORE, STANDARD)]
    unused = "assert 'tarry.settle.attempts' not in sys.modules, 'nothing was to be tracked'"
    assert heavy_modules_after(f"{clean_batches(*batches)}\n{unused}") == []


def test_a_clean_batch_of_an_async_handler_loads_asyncio_and_no_boto3() -> None:  # SPEC G2
    handler = "@consumer\nasync def handler(message): handled.append(message)"
    loaded = heavy_modules_after(clean_batches((handler, STANDARD)))
    assert {"boto3", "botocore", "pydantic", "aws_lambda_powertools"}.isdisjoint(loaded)


FIRST_BATCH = """
import sys
from types import SimpleNamespace
before = set(sys.modules)
from tarry import Exponential, Message, consumer, world
answer = SimpleNamespace(register=lambda *args, **names: None)
sqs = SimpleNamespace(
    meta=SimpleNamespace(events=answer, endpoint_url="http://sqs"),
    get_queue_attributes=lambda **names: {"Attributes": {"VisibilityTimeout": "30"}},
    change_message_visibility_batch=lambda Entries, **names: {"Successful": [{"Id": each["Id"]} for each in Entries]},
)
world.current().client_factory = lambda: sqs
@consumer(max_attempts=4, backoff=Exponential(30, 3))
def handler(message: Message) -> None:
    if message.body == "fail":
        raise ValueError("declined")
def from_batch(event):
    from tarry import Batch, batch_consumer
    @batch_consumer
    def takes_all(batch: Batch) -> None: ...
    return takes_all(event)
"""
OF_A_CLEAN_BATCH = """
tarry tarry.consumer tarry.decide tarry.decide.retry_policy tarry.decide.steps tarry.errors tarry.message
tarry.message.invocation tarry.message.message tarry.message.outcomes tarry.observe tarry.observe.logs tarry.run
tarry.run.deadline tarry.run.handlers tarry.run.run tarry.run.sequential tarry.settings tarry.support
tarry.support.guards tarry.support.values tarry.world
"""
OF_A_FAILURE = """
tarry.decide.decision tarry.message.delivery tarry.message.diagnosis tarry.message.failure_record tarry.record
tarry.record.attribute tarry.run.outcomes tarry.run.verdicts tarry.settle tarry.settle.executor tarry.settle.planner
tarry.settle.requests tarry.settle.settlement tarry.sqs tarry.sqs.client tarry.sqs.refusals
"""


def modules_of_first_batch(
    batch: dict[str, Any], failed: Sequence[dict[str, str]] = (), handler: str = "handler"
) -> set[str]:
    """Return the modules that a function loads for its first batch, in an interpreter without installed packages."""
    run = f"assert {handler}({batch!r}) == {{'batchItemFailures': {list(failed)}}}"
    script = f"{FIRST_BATCH}\n{run}\nprint(*(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-c", script]
    environment = {"PYTHONPATH": str(Path(world.__file__).parents[1])}
    return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())


def of_tarry(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "tarry"}


@pytest.mark.parametrize(
    ("handler", "batch", "more"),
    [
        ("handler", event(record()), ""),
        ("handler", STANDARD, ""),
        ("handler", FIFO, ""),
        ("handler", WITH_ATTRIBUTES, "tarry.record tarry.record.attribute"),
        ("from_batch", STANDARD, "tarry.message.batch tarry.run.whole_batch"),
    ],
)
def test_a_clean_batch_loads_22_modules_of_tarry_and_neither_typing_nor_threading(
    handler: str, batch: dict[str, Any], more: str
) -> None:  # DESIGN 5
    """docs/decisions/0001-cold-start.md. Deliveries, with attempts and groups, are made once a message has failed."""
    loaded = modules_of_first_batch(batch, handler=handler)
    assert of_tarry(loaded) == {*OF_A_CLEAN_BATCH.split(), *more.split()}
    assert not {"contextlib", "datetime", "threading", "typing"} & loaded


def test_the_first_failure_loads_16_modules_of_tarry_more() -> None:
    """Beside the client, which it gets here; docs/decisions/0015-loading-boto3.md."""
    loaded = modules_of_first_batch(event(record("fail")), [{"itemIdentifier": record()["messageId"]}])
    assert of_tarry(loaded) == {*OF_A_CLEAN_BATCH.split(), *OF_A_FAILURE.split()}
    assert not {"asyncio", "concurrent.futures", "uuid"} & loaded


def test_importing_tarry_compiles_no_text() -> None:  # DESIGN 5
    """Compiling the first string costs 2 ms. `functools`, which Lambda's runtime loads, compiles one too."""
    script = """
import functools, sys
compiled = []
sys.addaudithook(lambda event, args: event == "compile" and args[1] == "<string>" and compiled.append(args[0]))
from tarry import Exponential, LocalRetry, Message, RetryInPlace, consumer
@consumer(max_attempts=4, backoff=Exponential(2, 3), timeout=5, on_failure=[LocalRetry(2), RetryInPlace()])
def handler(message: Message) -> None: ...
assert not compiled, compiled
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# an invocation


@consumer
def does_nothing(message: Message) -> None: ...


@pytest.fixture
def _only_tarry(monkeypatch: pytest.MonkeyPatch, without_tracers: None) -> None:
    # An earlier test of this process may have made a Powertools Logger, whose keys take calls.
    monkeypatch.delitem(sys.modules, "aws_lambda_powertools.logging.formatter", raising=False)


def calls_of(handler: Any, batch: dict[str, Any], is_counted: Callable[[CodeType], bool]) -> Counter[str]:
    """Return the calls of an invocation in Python, by function, in all its threads.

    They are counted: time differs between machines.
    """
    calls = Counter[str]()

    def count(frame: Any, kind: str, _: Any) -> None:
        if kind == "call" and is_counted(frame.f_code):
            calls[frame.f_code.co_qualname] += 1

    handler(batch, Context())  # loads what is loaded once
    before = sys.getprofile()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        handler(batch, Context())
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return calls


def is_call(code: CodeType) -> bool:
    """Return whether code is called as a function: up to Python 3.11, a comprehension is code with a frame as well."""
    return not code.co_name.startswith("<") or code.co_name == "<lambda>"


def calls_for_50(handler: Any) -> Counter[str]:
    few, more = (calls_of(handler, batch_of(size), lambda _: True) for size in (10, 60))
    return more - few


@pytest.mark.usefixtures("_only_tarry")
def test_an_invocation_with_one_plain_message_makes_few_calls() -> None:
    """Calls in Python are half the cost of an invocation."""
    calls = calls_of(does_nothing, event(record()), is_call)
    assert calls.total() <= 32, calls


@pytest.mark.usefixtures("_only_tarry")
def test_a_plain_message_takes_no_call_but_those_of_its_handler_and_its_object() -> None:
    """A batch that takes long looks at the clock more closely each millisecond."""
    few, more = (calls_of(does_nothing, batch_of(size), is_call) for size in (10, 60))
    calls = Counter({name: more[name] - few[name] for name in ("does_nothing", "Message.__init__")})
    assert calls == {"does_nothing": 50, "Message.__init__": 50}
    each_millisecond = {"Deadline.check", "Deadline.took", "Deadline.may_start", "Alarm.renew"}
    assert set(more - few) - each_millisecond == set(calls), more - few


@pytest.mark.usefixtures("without_loggers", "without_tracers")
def test_the_keys_for_powertools_logger_take_few_calls_for_a_message() -> None:
    """For the handler and its message two, for its keys four, and Powertools' own three."""
    from aws_lambda_powertools import Logger

    _ = Logger(service="budget")
    calls = calls_for_50(does_nothing)
    assert calls.total() <= 50 * 10, calls
    assert calls["Message.logger_keys"] == 50


@pytest.mark.usefixtures("_only_tarry", "without_loggers")
def test_metrics_take_few_calls_for_a_message_that_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the handler and its message two, for its time three, for its age two, and one to round each."""
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "shop")
    calls = calls_for_50(consumer(lambda message: None))
    assert calls.total() <= 50 * 10, calls
    assert capsys.readouterr().out.count("MessagesCommitted") == 8


OURS = str(Path(world.__file__).parent)


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS) and is_call(code)


@pytest.mark.usefixtures("_only_tarry")
@pytest.mark.parametrize(
    ("error", "most", "of_a_failure"),
    [
        (ValueError("declined"), 335, {"_stack_of": 1, "Failure.__init__": 1, "Log._write": 1}),
        (
            Reject("no such account"),
            390,
            {"_stack_of": 1, "Failure.__init__": 1, "Log._write": 1, "dump": 1, "body_sum": 1, "timestamp": 2},
        ),
    ],
    ids=["a delayed retry", "a dead letter"],
)
def test_a_failure_is_settled_with_few_calls_and_nothing_is_written_twice(
    error: Exception, most: int, of_a_failure: dict[str, int]
) -> None:
    """Deciding, logging and settling cost more than the requests, of which ten messages share one."""

    @consumer(backoff=Fixed(60))
    def fails(message: Message) -> None:
        raise error.with_traceback(None)

    with orders():
        few, many = (calls_of(fails, batch_of(count), is_ours) for count in (100, 200))
    assert {name: (many[name] - few[name]) / 100 for name in of_a_failure} == of_a_failure
    assert (many.total() - few.total()) / 100 <= most, many


def test_an_invocation_sets_its_alarm_with_four_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/decisions/0009-an-alarm-for-each-invocation.md."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(name)
            return getattr(_signal, name)(*args)

        return call

    counting = {name: counted(name) for name in ("signal", "setitimer", "getitimer")}
    monkeypatch.setattr(world, "_signal", SimpleNamespace(**{**vars(_signal), **counting}))
    for size in (1, 10):
        calls.clear()
        does_nothing(batch_of(size), Context())
        assert calls == ["signal", "setitimer", "setitimer", "signal"]


async def does_nothing_async(message: Message) -> None: ...


async def does_nothing_async_with_batch(batch: Batch) -> None: ...


@pytest.mark.parametrize(
    ("handler", "batch"),
    [
        (does_nothing, STANDARD),
        (does_nothing, FIFO),
        (does_nothing.replace(concurrency=4), STANDARD),
        (consumer(does_nothing_async), STANDARD),
        (consumer(concurrency=4)(does_nothing_async), FIFO),
        (batch_consumer(lambda batch: None), STANDARD),
        (batch_consumer(does_nothing_async_with_batch), STANDARD),
        (does_nothing.replace(on_outcome=lambda message, outcome: message.attempt), STANDARD),
    ],
    ids=[
        "one by one",
        "fifo",
        "in threads",
        "async",
        "async on fifo",
        "with the batch",
        "async with the batch",
        "with on_outcome",
    ],
)
def test_a_clean_batch_leaves_nothing_for_the_garbage_collector(handler: Any, batch: dict[str, Any]) -> None:
    """Otherwise the bodies of some batches would stay in memory until it runs."""
    handler(batch, Context())
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            handler(batch, Context())
        assert gc.collect() == 0
    finally:
        gc.enable()


# requests

OPERATIONS = ("GetQueueAttributes", "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")


def tens(count: int) -> int:
    return -(-count // 10)


@pytest.mark.parametrize(
    ("batch", "look_ups", "sends", "changes"),
    [
        *(({"ok": 10_000}, 0, 0, 0), ({"discard": 25}, 0, 0, 0)),
        *(({"retry": count}, 1, 0, tens(count)) for count in (1, 10, 11, 1_000)),
        *(({"defer": count}, 1, tens(count), 0) for count in (1, 25)),
        *(({"dead": count}, 2, tens(count), 0) for count in (1, 10, 95)),
        *(({"retry": 5, "defer": 5}, 1, 1, 1), ({"ok": 5, "retry": 5, "dead": 5}, 2, 1, 1)),
        ({"exit": 1, "ok": 25}, 1, 0, 4),  # three requests release those that did not run
    ],
)
def test_a_settlement_makes_as_few_requests_as_sqs_allows(
    batch: dict[str, int], look_ups: int, sends: int, changes: int
) -> None:  # SPEC G1
    @consumer(backoff=Fixed(60))
    def handler(message: Message) -> None:
        match message.delivery_id.partition("-")[0]:
            case "defer":
                message.defer(60)
            case "discard":
                message.discard()
        behave(message)

    records = [record("{}", f"{kind}-{index}") for kind, count in batch.items() for index in range(count)]
    _, wire = settle(handler, event(*records))
    assert Counter(wire.operations) == Counter(dict(zip(OPERATIONS, (look_ups, sends, sends, changes), strict=True)))


def test_a_second_batch_makes_no_further_look_ups() -> None:  # SPEC F1
    _, wire = settle(plain(), event(record("{}", "dead-1")))
    wire.requests.clear()
    settle(plain(), event(record("{}", "dead-1")), wire)
    assert wire.operations == ["SendMessageBatch", "DeleteMessageBatch"]
