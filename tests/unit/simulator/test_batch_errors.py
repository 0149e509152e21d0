"""The error of a batch of Powertools is shown as the errors of its messages."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import (
    AsyncBatchProcessor,
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    async_process_partial_response,
    process_partial_response,
)
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError

from tarry.tools.simulator.batch_errors import batch_error
from tarry.tools.simulator.record_errors import RecordErrors

IDS = ["aaaaaaaa-1", "bbbbbbbb-2"]
BODIES = ["slow", "quick"]


def failed(process: Callable[..., Any], processor: Any, handler: Any, **more: Any) -> dict[str, str]:
    """Return the fields of the error with which a batch fails."""
    records = [
        {"messageId": message_id, "body": body, "attributes": {"MessageGroupId": body}, "eventSource": "aws:sqs"}
        for message_id, body in zip(IDS, BODIES, strict=True)
    ]
    with pytest.raises(BatchProcessingError) as caught:
        process({"Records": records}, handler, processor, **more)
    return {"errorType": "BatchProcessingError", "errorMessage": str(caught.value)}


def refuse(record: Any) -> None:
    if record.body == "slow":
        try:
            {}["x"]
        except KeyError as error:
            raise ValueError("no luck,\n\nreally") from error
    raise LookupError(record.body)


async def refuse_later(record: Any) -> None:
    await asyncio.sleep(0.01 if record.body == "slow" else 0)
    raise LookupError(record.body)


def place(function: Callable[..., Any], line: int) -> str:
    return f"[{__name__.rpartition('.')[2]}.py:{function.__code__.co_firstlineno + line}]"


def test_each_message_has_its_own_error_without_a_traceback() -> None:
    error = failed(process_partial_response, BatchProcessor(EventType.SQS), refuse)
    found = batch_error(error, IDS)
    assert found is not None
    assert found.by_id == {
        IDS[0]: f"ValueError: no luck,; really {place(refuse, 5)}",
        IDS[1]: f"LookupError: quick {place(refuse, 6)}",
    }
    assert found.text.splitlines() == [
        "BatchProcessingError: all 2 messages failed",
        f"  aaaaaaaa  ValueError: no luck,; really {place(refuse, 5)}",
        f"  bbbbbbbb  LookupError: quick {place(refuse, 6)}",
    ]


def test_the_errors_of_messages_that_ran_concurrently_belong_to_no_certain_message() -> None:
    error = failed(async_process_partial_response, AsyncBatchProcessor(EventType.SQS), refuse_later)
    found = batch_error(error, IDS)
    assert found is not None
    assert found.by_id == {}
    errors = [f"LookupError: {each} {place(refuse_later, 2)}" for each in ("quick", "slow")]
    assert found.summary == f"BatchProcessingError: {'; '.join(errors)}"
    assert found.text.splitlines()[1:] == [f"  {each}" for each in errors]


def test_a_message_of_a_fifo_queue_behind_a_failed_one_has_an_error_of_its_own() -> None:
    found = batch_error(failed(process_partial_response, SqsFifoPartialProcessor(), refuse), IDS)
    assert found is not None
    assert [text.partition(":")[0] for text in found.by_id.values()] == ["ValueError", "SQSFifoCircuitBreakerError"]


@pytest.mark.parametrize("text", ["All records failed processing. 2 individual errors logged separately below.", ""])
def test_an_error_that_cannot_be_taken_apart_is_left_as_it_is(text: str) -> None:
    assert batch_error({"errorType": "BatchProcessingError", "errorMessage": text}, IDS) is None
    assert batch_error({"errorType": "ValueError", "errorMessage": text}, IDS) is None
    assert batch_error("an answer", IDS) is None


def test_a_long_error_of_a_message_is_cut() -> None:
    errors, record = list[str](), {"messageId": "1"}
    log = logging.LogRecord("batch", logging.DEBUG, "", 0, "Record processing exception", (), None)
    try:
        raise ValueError("x" * 3_000)
    except ValueError:
        RecordErrors(lambda message_id, text: errors.extend((message_id, text))).emit(log)
    assert (errors[0], len(errors[1].partition(" [")[0])) == (record["messageId"], 2_000)
