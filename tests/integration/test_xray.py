"""Subsegments of X-Ray for runs of the handler, where Powertools' Tracer is on."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aws_lambda_powertools import Tracer
from aws_xray_sdk import global_sdk_config
from aws_xray_sdk.core import xray_recorder
from aws_xray_sdk.core.lambda_launcher import LambdaContext
from pydantic import BaseModel

from tarry import Batch, Consumer, Defer, LogOptions, Message, Reject, batch_consumer, consumer
from tarry.world import Interrupted
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.settled import orders, settle

global_sdk_config.set_sdk_enabled(False)  # for other tests of this process


SAMPLED = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


class Emitter:
    """Keeps subsegments instead of sending them to X-Ray's daemon."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_entity(self, entity: Any) -> None:
        self.sent.append(entity)

    def named(self, name: str) -> list[Any]:
        return [found for entity in self.sent for found in _all(entity) if found.name == name]


def _all(entity: Any) -> Iterator[Any]:
    yield entity
    for below in entity.subsegments:
        yield from _all(below)


@pytest.fixture(autouse=True)
def emitter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emitter]:
    """Switch X-Ray on as in an invocation of Lambda that is sampled."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", SAMPLED)
    monkeypatch.setattr(Tracer, "_config", {**Tracer._default_config, "auto_patch": False})
    monkeypatch.setattr(xray_recorder, "_context", LambdaContext())
    monkeypatch.setattr(xray_recorder, "_emitter", emitter := Emitter())
    threshold = xray_recorder.streaming_threshold
    xray_recorder.streaming_threshold = 0
    global_sdk_config.set_sdk_enabled(True)
    with orders():
        yield emitter
    global_sdk_config.set_sdk_enabled(False)
    xray_recorder.streaming_threshold = threshold


def traced(handler: Consumer[Any], batch: dict[str, Any]) -> list[str]:
    """Call a consumer within the subsegment of Powertools' decorator; return the ids that it reports as failed."""
    traced_handler = Tracer(disabled=False, auto_patch=False).capture_lambda_handler(handler)
    return failed(traced_handler(batch, Context()))


def test_each_run_is_a_subsegment_with_the_id_queue_and_attempt_of_its_message(emitter: Emitter) -> None:
    @consumer
    def handler(message: Message) -> None:
        with xray_recorder.in_subsegment("charge"):
            pass
        if message.id == "b":
            raise ValueError("no stock")
        if message.id == "c":
            raise Defer(30)

    assert traced(handler, event(*(record(message_id=each) for each in "abc"))) == ["b"]
    runs = emitter.named("## process orders")
    assert [run.annotations for run in runs] == [
        {"queue": "orders", "message_id": message_id, "attempt": 1} for message_id in "abc"
    ]
    [invocation] = emitter.named("## handler")
    assert {run.parent_id for run in runs} == {invocation.id}
    assert [charge.parent_id for charge in emitter.named("charge")] == [run.id for run in runs]
    assert [getattr(run, "fault", False) for run in runs] == [False, True, False]
    [exception] = runs[1].cause["exceptions"]
    assert (exception.type, exception.message) == ("ValueError", "no stock")


def test_runs_in_threads_have_subsegments_of_their_own_below_that_of_the_invocation(emitter: Emitter) -> None:
    @consumer(concurrency=20)
    def handler(message: Message) -> None:
        with xray_recorder.in_subsegment("charge") as charge:
            charge.put_annotation("message_id", message.id)

    left = list[Any]()
    look = consumer(concurrency=20)(lambda _: left.extend(getattr(xray_recorder.context._local, "entities", ())))
    assert [traced(handler, batch_of(size)) for size in (200, 5)] == [[], []]  # the worker threads are used again
    global_sdk_config.set_sdk_enabled(False)
    look(batch_of(20), Context())
    assert left == []
    runs = emitter.named("## process orders")
    expected = [f"m{number}" for number in (*range(200), *range(5))]
    assert sorted(run.annotations["message_id"] for run in runs) == sorted(expected)
    charges = {charge.parent_id: charge.annotations["message_id"] for charge in emitter.named("charge")}
    assert charges == {run.id: run.annotations["message_id"] for run in runs}
    assert {run.parent_id for run in runs} == {invocation.id for invocation in emitter.named("## handler")}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_async_runs_have_subsegments_one_at_a_time_only(concurrency: int, emitter: Emitter) -> None:
    @consumer(concurrency=concurrency)
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        if message.id == "m2":
            raise Reject  # which ends the run of the handler, and is not reported

    assert traced(handler, batch_of(4)) == []
    assert len(emitter.named("## process orders")) == (4 if concurrency == 1 else 0)


def test_a_batch_is_one_subsegment_and_with_redact_its_error_has_no_text(emitter: Emitter) -> None:
    @batch_consumer(log=LogOptions(redact=lambda fields: fields))
    def handler(batch: Batch) -> None:
        raise ValueError(batch[0].body)

    assert traced(handler, event(record("card 4111"), record("card 4111", "m2"))) == ["m1", "m2"]
    [run] = emitter.named("## process orders")
    assert run.annotations == {"queue": "orders", "message_count": 2}
    assert run.fault
    assert not run.cause


class Order(BaseModel):
    number: int


def test_the_error_of_a_pydantic_model_is_recorded_without_its_input(emitter: Emitter) -> None:
    handler = consumer(lambda message: Order.model_validate_json(message.body))
    assert traced(handler, event(record({"number": "card 4111"}))) == ["m1"]
    [cause] = emitter.named("## process orders")[0].cause["exceptions"]
    assert cause.type == "ValidationError"
    assert cause.message.startswith("1 validation error for Order: number: Input should be a valid integer")
    assert "4111" not in cause.message


@pytest.mark.parametrize(
    ("name", "error", "ended"),
    [
        ("begin_subsegment", RuntimeError("broken"), 0),
        ("end_subsegment", RuntimeError("broken"), 3),
        ("end_subsegment", Interrupted("broken"), 3),  # the handler has returned before
    ],
)
def test_an_sdk_that_raises_changes_nothing_and_is_logged_once(
    name: str, error: BaseException, ended: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = list[str]()

    def broken(*_: object) -> Any:
        ends.append("ends")
        raise error

    monkeypatch.setattr(xray_recorder, "end_subsegment", broken)
    monkeypatch.setattr(xray_recorder, name, broken if ended else lambda _: raises(error))
    handled: list[str] = []
    with caplog.at_level(logging.WARNING, "tarry"):
        assert settle(consumer(lambda message: handled.append(message.id)), batch_of(3))[0] == []
    assert (handled, len(ends)) == (["m0", "m1", "m2"], ended)
    [line] = lines(caplog, "tracing_failed")
    assert field(line, "error").endswith(f"{type(error).__name__}: broken")


def raises(error: BaseException) -> None:
    raise error


NOT_SAMPLED = SAMPLED.replace("Sampled=1", "Sampled=0")


@pytest.mark.parametrize(
    ("is_enabled", "has_tracer", "trace_id"),
    [(False, True, SAMPLED), (True, False, SAMPLED), (True, True, NOT_SAMPLED), (True, True, None)],
    ids=["disabled", "without the Tracer", "not sampled", "no invocation"],
)
def test_where_xray_is_off_no_subsegment_is_made(
    is_enabled: bool, has_tracer: bool, trace_id: str | None, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    made = list[str]()
    monkeypatch.setattr(xray_recorder, "_context", LambdaContext())
    monkeypatch.setattr(xray_recorder, "begin_subsegment", made.append)
    global_sdk_config.set_sdk_enabled(is_enabled)
    if trace_id is None:
        monkeypatch.delenv("_X_AMZN_TRACE_ID")
    else:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", trace_id)
    if not has_tracer:
        monkeypatch.delitem(sys.modules, "aws_lambda_powertools.tracing")
    settle(consumer(lambda message: None))
    assert (made, lines(caplog)) == ([], [])
