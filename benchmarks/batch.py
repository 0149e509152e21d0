"""Measure the time per message of a batch that succeeds: tarry, Powertools' batch processor, and a bare loop.

python benchmarks/batch.py
"""

import platform
import time
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

from tarry import Message, consumer

SIZES = (1, 10, 1_000, 10_000)
MESSAGES_PER_SIZE = 60_000

Handler = Callable[[Any, Any], Any]


class BenchmarkContext:
    function_name = "bench"
    aws_request_id = "1"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def handle(record: Any) -> None:  # Powertools takes its failing path unless the parameter has this name
    """Do nothing, so that only the framework is measured."""


def bare(event: Any, _: Any) -> Any:
    failures = []
    for record in event["Records"]:
        try:
            handle(record)
        except Exception:  # noqa: BLE001 as a batch loop does
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}


processor = BatchProcessor(event_type=EventType.SQS)


def powertools(event: Any, context: Any) -> Any:
    return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)


@consumer
def tarry(message: Message) -> None:
    """Do nothing, as `handle` does."""


def event_of(size: int) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": f"{index:08}-0000-0000-0000-000000000000",
                "receiptHandle": "h" * 300,
                "body": '{"order": 1}',
                "attributes": {
                    "ApproximateReceiveCount": "1",
                    "SentTimestamp": "1800000000000",
                    "SenderId": "AIDA",
                    "ApproximateFirstReceiveTimestamp": "1800000000000",
                },
                "messageAttributes": {},
                "md5OfBody": "x",
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
                "awsRegion": "us-east-1",
            }
            for index in range(size)
        ]
    }


def best_of(handler: Handler, event: dict[str, Any], size: int) -> float:
    """Return the microseconds per message in the fastest of many runs: other load only makes a run slower."""
    context, best = BenchmarkContext(), float("inf")
    for _ in range(max(10, min(2_000, MESSAGES_PER_SIZE // size))):
        start = time.perf_counter()
        answer = handler(event, context)
        best = min(best, time.perf_counter() - start)
        if answer != {"batchItemFailures": []}:
            raise SystemExit(f"the batch did not succeed: {answer!r:.200}")
    return best / size * 1e6


def main() -> None:
    print(f"Microseconds per message, Python {platform.python_version()}")
    print(f"{'batch':>8} {'bare loop':>10} {'Powertools':>11} {'tarry':>7}")
    for size in SIZES:
        event = event_of(size)
        bare_loop, powertools_, tarry_ = (best_of(handler, event, size) for handler in (bare, powertools, tarry))
        print(f"{size:>8,} {bare_loop:>10.2f} {powertools_:>11.2f} {tarry_:>7.2f}")


if __name__ == "__main__":
    main()
