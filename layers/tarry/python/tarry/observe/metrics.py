"""Metrics in CloudWatch's embedded metric format, through Powertools' `Metrics`.

They are on if ``POWERTOOLS_METRICS_NAMESPACE`` is set. An invocation writes one line, and more lines only if a metric
has more than 100 values, the limit of the format.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.message.outcomes import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tarry.observe.reports import FinalOutcome

    Ending = tuple[FinalOutcome, int | None, float | None]
    """The end of a message; the attempt that has ended, None if the handler did not run; the seconds since the message
    was first sent, None if the record does not say."""

NAMESPACE = "POWERTOOLS_METRICS_NAMESPACE"
MAX_VALUES = 100  # the most values of a metric in a line (specification of the embedded metric format)
MAX_NAMESPACE_CHARACTERS = 255
MAX_DIMENSION_CHARACTERS = 1_024


class Metric(NamedTuple):
    """A metric: its name, and its unit at CloudWatch."""

    name: str
    unit: str


OF_STATES = {
    State.COMMITTED: Metric("MessagesCommitted", "Count"),
    State.WAITING_RETRY: Metric("MessagesWaitingRetry", "Count"),
    State.DEAD_LETTERED: Metric("MessagesDeadLettered", "Count"),
    State.DISCARDED: Metric("MessagesDiscarded", "Count"),
    State.DEFERRED: Metric("MessagesDeferred", "Count"),
    State.RESENT: Metric("MessagesResent", "Count"),
    State.READY: Metric("MessagesReady", "Count"),
}
RUNS_FAILED = Metric("RunsFailed", "Count")
FAILING = frozenset({State.WAITING_RETRY, State.DEFERRED, State.RESENT, State.DEAD_LETTERED})
NOT_FATAL = frozenset({"error", "exhausted", "expiring", "circuit_open", None})
"""The reasons of failures that another attempt could mend; None for a deferral or a message that is unhandled."""
ATTEMPTS = Metric("Attempts", "Count")
RETRY_DELAY = Metric("RetryDelay", "Seconds")
HANDLER_TIME = Metric("HandlerTime", "Milliseconds")
AGE = Metric("AgeAtSettlement", "Seconds")
SETTLEMENT_ERRORS = Metric("SettlementErrors", "Count")
REQUESTS = Metric("Requests", "Count")
WAITS_IN_PLACE = Metric("WaitsInPlace", "Count")
METRICS = (
    *OF_STATES.values(), RUNS_FAILED, ATTEMPTS, RETRY_DELAY, HANDLER_TIME, AGE, SETTLEMENT_ERRORS, REQUESTS,
    WAITS_IN_PLACE,
)  # fmt: skip
WITH_EACH_VALUE = frozenset({ATTEMPTS, RETRY_DELAY, HANDLER_TIME, AGE})  # of the others, a line has the sum
DIMENSIONS = ("consumer", "queue")


def values_of(
    plain_ages: Sequence[float | None], endings: Iterable[Ending], runs: Iterable[float], requests: int
) -> dict[Metric, list[float]]:
    """Return the values of the metrics that have one.

    ``plain_ages``: the ages of the messages that simply succeeded in their first delivery, as in `Ending`, which most
    messages do; ``endings``: the ends of the others. ``runs``: the seconds of the handler's runs.
    """
    values: dict[Metric, list[float]] = {}
    if plain_ages:
        values[OF_STATES[State.COMMITTED]] = [len(plain_ages)]
        values[ATTEMPTS] = [1] * len(plain_ages)
        if ages := [_to_thousandths(age) for age in plain_ages if age is not None]:
            values[AGE] = ages
    for metric, value in (pair for ending in endings for pair in _of_message(ending)):
        of_metric = values.setdefault(metric, [])
        if of_metric and metric not in WITH_EACH_VALUE:
            of_metric[0] += value
        else:
            of_metric.append(value)
    if times := [_to_thousandths(seconds * 1000) for seconds in runs]:
        values[HANDLER_TIME] = times
    if requests:
        values[REQUESTS] = [requests]
    return values


def _of_message(ending: Ending) -> Iterator[tuple[Metric, float]]:
    final, attempt, age = ending
    state = final.outcome.state
    yield OF_STATES[state], 1
    if attempt is not None:
        yield ATTEMPTS, attempt
        if state in FAILING and final.outcome.reason in NOT_FATAL:
            yield RUNS_FAILED, 1  # for the outage guard
    if final.delay is not None and state is State.WAITING_RETRY:
        yield RETRY_DELAY, final.delay
    if age is not None:
        yield AGE, _to_thousandths(age)
    if final.is_refused:
        yield SETTLEMENT_ERRORS, 1
    if final.waits_in_place:
        yield WAITS_IN_PLACE, 1


def _to_thousandths(value: float) -> float:
    """Round a positive value; ``round(value, 3)`` takes several times as long, for each message."""
    return int(value * 1000 + 0.5) / 1000


@cache
def refusal_of(namespace: str) -> str | None:
    """Return why CloudWatch refuses a namespace; None if it does not."""
    import re

    if namespace.startswith("AWS/"):
        return "namespaces that begin with AWS/ are for AWS's own metrics"
    if len(namespace) > MAX_NAMESPACE_CHARACTERS:
        return f"it has {len(namespace)} characters; the limit is {MAX_NAMESPACE_CHARACTERS}"
    if (
        re.fullmatch(r"[A-Za-z0-9._/#: -]*[A-Za-z0-9._/#-][A-Za-z0-9._/#: -]*", namespace) is None
        or namespace[0] == ":"
    ):
        return "CloudWatch allows letters, digits, spaces and . - _ / # : in it, and no colon at its beginning"
    return None


def write(namespace: str, consumer: str, queue: str, values: dict[Metric, list[float]], at: float) -> None:
    """Write lines for the time ``at`` (epoch seconds), with metric sets of their own: the user's is not touched."""
    for start in range(0, max(map(len, values.values())), MAX_VALUES):
        metric_set: dict[str, Any] = {
            metric.name: {"Unit": metric.unit, "StorageResolution": 60, "Value": part}
            for metric, of in values.items()
            if (part := of[start : start + MAX_VALUES])
        }
        dimensions = {"consumer": dimension(consumer), "queue": dimension(queue)}
        line = copy(empty_line())
        line.metric_set, line.dimension_set, line.namespace = metric_set, dimensions, namespace
        line.timestamp = int(at * 1000)
        line.flush_metrics()


@cache
def empty_line() -> Any:
    """Return a set of metrics to copy: to make one takes as long as to write it."""
    from aws_lambda_powertools.metrics import EphemeralMetrics

    line = EphemeralMetrics()
    line.service = ""  # the dimension `service` would make these other metrics
    return line


def dimension(value: str) -> str:
    """Return a value that CloudWatch accepts for a dimension: printable ASCII, not empty."""
    text = value[:MAX_DIMENSION_CHARACTERS]
    if not (text.isascii() and text.isprintable()):
        text = "".join(each if " " <= each <= "~" else "?" for each in text)
    return text if text.strip() else "?"
