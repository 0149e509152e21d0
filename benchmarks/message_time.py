"""Measure the CPU time per message of a batch: tarry, Powertools' batch processors, a backoff by hand, a bare loop.

python -m benchmarks.message_time [--quick]
"""

import importlib.util
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.parser import BaseModel
from aws_lambda_powertools.utilities.parser.models import SqsRecordModel
from pydantic import Json

from benchmarks import contenders as of
from benchmarks.contenders import (
    BARE,
    BY_HAND,
    POWERTOOLS,
    TARRY,
    BenchmarkContext,
    ClientThatAnswers,
    Handler,
    event_of,
)
from benchmarks.measuring import Call, in_turns, ratio
from benchmarks.results import progress, report
from tarry import consumer
from tarry.world import World, use

SIZES = (1, 10, 100, 1_000, 10_000)
QUICK_SIZES = (1, 10, 1_000)
SECONDS, QUICK_SECONDS = 2.0, 0.25
"""The time for one row."""
GROUPS = 100


@dataclass(frozen=True)
class Load:
    """Handlers to compare, by contender, for batches of some sizes."""

    name: str
    handlers: Mapping[str, Handler]
    sizes: tuple[int, ...] = SIZES
    groups: int = 0
    fresh: bool = False
    """Whether each batch has new messages."""


class Order(BaseModel):
    """The payload of all messages."""

    order: int


class OrderRecord(SqsRecordModel):
    body: Json[Order]  # type: ignore[assignment]  # as in the documentation of Powertools


def loads(client: ClientThatAnswers) -> Iterator[Load]:
    """Yield the loads in the order of the table."""
    for name, share, sizes in (("all succeed", 0.0, SIZES), ("10 % fail", 0.1, SIZES[1:]), ("all fail", 1.0, SIZES)):
        handlers = {
            BARE: of.bare_loop(of.fails_at(share)),
            POWERTOOLS: of.powertools(of.fails_at(share)),
            **({BY_HAND: of.by_hand(of.fails_at(share), client.sqs)} if share else {}),
            TARRY: of.tarry(of.fails_at(share)),
        }
        yield Load(name, handlers, sizes)
    fifo = {BARE: of.bare_loop(of.nothing), POWERTOOLS: of.powertools_fifo(of.nothing), TARRY: of.tarry(of.nothing)}
    yield Load(f"FIFO, {GROUPS} groups", fifo, SIZES[1:], groups=GROUPS)
    tasks = {
        BARE: of.bare_async_loop(of.nothing),
        POWERTOOLS: of.powertools_async(of.nothing),
        TARRY: of.tarry_async(of.nothing, concurrency=10),
    }
    yield Load("async, ten at once", tasks)
    yield Load("async, one at a time", {**tasks, TARRY: of.tarry_async(of.nothing)})
    with_model = {
        POWERTOOLS: of.powertools(of.nothing, model=OrderRecord),
        TARRY: consumer(model=Order)(lambda _: None),
    }
    yield Load("with a model", with_model)
    yield Load("with idempotency", idempotent(client), (1, 10, 100), fresh=True)
    os.environ["POWERTOOLS_METRICS_NAMESPACE"] = "benchmark"
    of_batches, of_messages = metered()
    del os.environ["POWERTOOLS_METRICS_NAMESPACE"]
    yield Load("with metrics of each message", of_messages)
    yield Load("with metrics", of_batches)
    if importlib.util.find_spec("tarry.attempts"):
        from tarry import MemoryAttempts

        counting = {TARRY: of.tarry(of.nothing, attempts=MemoryAttempts())}
        yield Load("with exact attempts, all succeed", counting)
        failing = {BY_HAND: of.by_hand(of.fails, client.sqs), TARRY: of.tarry(of.fails, attempts=MemoryAttempts())}
        yield Load("with exact attempts, all fail", failing, (1, 10, 100, 1_000))


def idempotent(client: ClientThatAnswers) -> dict[str, Handler]:
    """Return handlers that keep a record of each message in a table."""
    table, dynamodb = "idempotency", client.dynamodb()
    layer = DynamoDBPersistenceLayer(table_name=table, boto3_client=dynamodb)
    config = IdempotencyConfig(event_key_jmespath="messageId")
    processor = BatchProcessor(event_type=EventType.SQS)

    @idempotent_function(data_keyword_argument="record", config=config, persistence_store=layer)
    def handle(record: Any) -> None:
        """Do nothing."""

    def with_powertools(event: Any, context: Any) -> Any:
        config.register_lambda_context(context)
        return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)

    of_tarry = DynamoDBPersistenceLayer(table_name=table, boto3_client=dynamodb)
    return {POWERTOOLS: with_powertools, TARRY: of.tarry(of.nothing, idempotency=of_tarry)}


def metered() -> tuple[dict[str, Handler], dict[str, Handler]]:
    """Return handlers that write metrics; those with Powertools one value for a batch, or tarry's for each message."""
    from aws_lambda_powertools.metrics import Metrics, MetricUnit

    metrics = Metrics(service="benchmark")
    batch = of.powertools(of.nothing)
    processor = BatchProcessor(event_type=EventType.SQS)

    @metrics.log_metrics
    def with_value_of_batch(event: Any, context: Any) -> Any:
        response = batch(event, context)
        failed = len(response["batchItemFailures"])
        metrics.add_metric("MessagesCommitted", MetricUnit.Count, len(event["Records"]) - failed)
        return response

    def handle(record: SQSRecord) -> None:
        began = time.perf_counter()
        of.nothing()
        attributes = record.attributes
        metrics.add_metric("HandlerTime", MetricUnit.Milliseconds, (time.perf_counter() - began) * 1000)
        metrics.add_metric("Attempts", MetricUnit.Count, int(attributes.approximate_receive_count))
        metrics.add_metric("AgeAtSettlement", MetricUnit.Seconds, time.time() - int(attributes.sent_timestamp) / 1000)

    @metrics.log_metrics
    def with_values_of_messages(event: Any, context: Any) -> Any:
        response = process_partial_response(event=event, record_handler=handle, processor=processor, context=context)
        failed = len(response["batchItemFailures"])
        metrics.add_metric("MessagesCommitted", MetricUnit.Count, len(event["Records"]) - failed)
        return response

    of_tarry = of.tarry(of.nothing)
    return {POWERTOOLS: with_value_of_batch, TARRY: of_tarry}, {POWERTOOLS: with_values_of_messages, TARRY: of_tarry}


def call_of(handler: Handler, load: Load, size: int) -> Call:
    context, event = BenchmarkContext(), event_of(size, groups=load.groups)
    if not load.fresh:
        return partial(handler, event, context)
    numbers = count()

    def with_new_messages() -> None:
        for record in event["Records"]:
            record["messageId"] = f"message-{next(numbers)}"
        handler(event, context)

    return with_new_messages


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the microseconds per message of each load and size, by contender."""
    client = ClientThatAnswers()
    with use(World(client_factory=client.sqs_of_tarry)), output_discarded():
        for load in loads(client):
            for size in load.sizes:
                if quick and size not in QUICK_SIZES:
                    continue
                progress(f"time per message: {load.name}, {size:,}")
                calls = {name: call_of(handler, load, size) for name, handler in load.handlers.items()}
                times = in_turns(calls, QUICK_SECONDS if quick else SECONDS, rounds=3 if quick else 15)
                yield {
                    "load": load.name,
                    "size": size,
                    "us": {name: median(measured) / size * 1e6 for name, measured in times.items()},
                    "ratio": ratio(times, TARRY, POWERTOOLS) if POWERTOOLS in times else None,
                }


@contextmanager
def output_discarded() -> Iterator[None]:
    """Format all log lines, and discard them; discard the lines of metrics, which are printed."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        handler = logging.StreamHandler(nowhere)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        logging.root.addHandler(handler)
        try:
            yield
        finally:
            logging.root.removeHandler(handler)


if __name__ == "__main__":
    report(rows)
