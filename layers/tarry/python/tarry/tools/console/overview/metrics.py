"""The last hour of a queue in CloudWatch's metrics of SQS, for all queues in one request or a few."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tarry.tools.console.overview.readings import Series

PERIOD_SECONDS = 60
MAX_QUERIES = 500
"""The most metrics of a GetMetricData request."""


class QueueMetric(NamedTuple):
    """A metric of SQS, and how its values in a minute become one."""

    name: str
    statistic: str


METRICS = {
    "ready": QueueMetric("ApproximateNumberOfMessagesVisible", "Maximum"),
    "age": QueueMetric("ApproximateAgeOfOldestMessage", "Maximum"),
    "arrived": QueueMetric("NumberOfMessagesSent", "Sum"),
    "left": QueueMetric("NumberOfMessagesDeleted", "Sum"),
}


def last_hour(queues: Iterable[str], cloudwatch: Any, now: float) -> dict[str, dict[str, Series]]:
    """Return the series of the last hour, by the name of the queue.

    Raises:
        botocore.exceptions.ClientError: CloudWatch refuses the request.
    """
    asked = [(queue, key) for queue in queues for key in METRICS]
    end = datetime.fromtimestamp(now, UTC)
    found: dict[str, dict[str, Series]] = {}
    for begin in range(0, len(asked), MAX_QUERIES):
        part = asked[begin : begin + MAX_QUERIES]
        queries = [_query(f"m{number}", queue, METRICS[key]) for number, (queue, key) in enumerate(part)]
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries, StartTime=end - timedelta(hours=1), EndTime=end, ScanBy="TimestampAscending"
        )
        for name, series in _series(pages).items():
            queue, key = part[int(name[1:])]
            found.setdefault(queue, {})[key] = series
    return found


def _query(name: str, queue: str, metric: QueueMetric) -> dict[str, Any]:
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {
                "Namespace": "AWS/SQS",
                "MetricName": metric.name,
                "Dimensions": [{"Name": "QueueName", "Value": queue}],
            },
            "Period": PERIOD_SECONDS,
            "Stat": metric.statistic,
        },
    }


def _series(pages: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the series of an answer by their ids; a later page may have more values of the same series."""
    found: dict[str, list[tuple[float, float]]] = {}
    for page in pages:
        for each in page["MetricDataResults"]:
            found.setdefault(each["Id"], []).extend(_values(each))
    return {name: tuple(sorted(values)) for name, values in found.items()}


def _values(result: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    for at, value in zip(result["Timestamps"], result["Values"], strict=True):
        yield at.timestamp(), float(value)
