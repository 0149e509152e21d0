"""Retry or remove dead letters, on a schedule or by hand: `tarry failed` as a Lambda function.

    {"queue": "orders-dlq", "action": "retry", "where": ["attempts < 20"], "limit": 500, "rate": 10}

A retried message starts over in its queue. If it fails again, it comes back with a higher total of attempts: limit that
total by a condition, or a schedule retries the same messages forever.

Removed dead letters are written to a bucket before they are deleted. The function ends before its time runs out, and
the next invocation continues. Its result goes to the log and to a topic.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tarry import failed, world

BUCKET = os.environ["ARCHIVE_BUCKET"]
TOPIC = os.environ.get("REPORT_TOPIC", "")
RESERVE_MS = 30_000  # to finish the requests in progress, release all messages, and report
AT_ONCE = 10
MAX_IDS, MAX_ERRORS = 100, 10
FIELDS = ("queue", "action", "where", "limit", "rate", "to")
ACTIONS = ("retry", "remove")
MOST = 100_000
RATES = (0.1, 1_000)

logger = logging.getLogger(__name__)
s3 = boto3.client("s3")
sns = boto3.client("sns")


class BadRequest(Exception):
    """The event is wrong. The text is one line: the field, its value, and what it must be. Nothing was changed."""


@dataclass(frozen=True)
class RedriveRequest:
    """A request to retry or remove dead letters: which ones, how many at most, and how many a second."""

    queue: str
    action: str
    selection: failed.Selection
    limit: int
    limits: failed.Limits
    to: str | None


def handler(event: Any, context: Any) -> dict[str, Any]:
    request = read(event)
    done = Report(request, context)
    try:
        redrive(request, context, done)
    except Exception as error:
        done.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        done.write()
    return done.fields()


def redrive(request: RedriveRequest, context: Any, done: "Report") -> None:
    """Retry or remove dead letters, until the limit or the end of the time."""

    def is_late() -> bool:
        done.is_cut_short = done.is_cut_short or context.get_remaining_time_in_millis() < RESERVE_MS
        return done.is_cut_short

    queue, today = failed.find(request.queue), datetime.fromtimestamp(world.current().clock.time(), UTC)
    with failed.opened(queue, stop=is_late, before_change=done.begin) as inspection:
        failed.check_may_delete(inspection)
        routes = failed.Routes(queue, request.to) if request.action == "retry" else None
        archive = failed.ArchiveBucket(s3, BUCKET, f"removed/{today:%Y/%m/%d}/{queue.name}/{context.aws_request_id}")
        pace = failed.Pace(request.limits.rate, is_late)
        for chosen in batches(inspection, request):
            if not pace.wait(len(chosen), (context.get_remaining_time_in_millis() - RESERVE_MS) / 1000):
                done.is_cut_short = True
                return
            if routes is not None:
                results = failed.retry_dead_letters(inspection, chosen, routes, by_id=False)
            else:
                results = failed.remove_dead_letters(inspection, chosen, archive)
                done.archive = archive.place if archive.count else None
            done.add(results)
            if all(result.hindrance == "denied" for result in results):
                return  # the others would be denied as well


def batches(inspection: failed.Inspection, request: RedriveRequest) -> Iterator[list[failed.DeadLetterMessage]]:
    """Yield the selected dead letters, ten at a time, up to the limit; those that come meanwhile are left."""
    left, selection = request.limit, request.selection.as_previewed(inspection.queue, is_shown=False)
    for dead_letters in inspection.polls(AT_ONCE):
        chosen = [each for each in dead_letters if inspection.chooses(each, selection)][:left]
        left -= len(chosen)
        if chosen:
            yield chosen
        if not left:
            return


class Report:
    """The result of an invocation: for the log, the topic, and the caller."""

    def __init__(self, request: RedriveRequest, context: Any) -> None:
        self._request = request
        self._context = context
        self._counts: Counter[str] = Counter()
        self._ids: list[str] = []
        self._errors: list[str] = []
        self._has_begun = False
        self.archive: str | None = None
        self.error: str | None = None
        self.is_cut_short = False

    def begin(self) -> None:
        """Write to the log what was asked for, before the first change: a function may be killed before its report."""
        if not self._has_begun:
            self._has_begun = True
            logger.info("redrive of %s begins", self._request.queue, extra={"audit": self.fields()})

    def add(self, results: list[failed.Result]) -> None:
        for result in results:
            self._counts[result.outcome] += 1
            if result.outcome != "skipped" and len(self._ids) < MAX_IDS:
                self._ids.append(result.id)
            if result.error and len(self._errors) < MAX_ERRORS:
                self._errors.append(f"{result.id}: {result.error}")

    def fields(self) -> dict[str, Any]:
        request = self._request
        return {
            "queue": request.queue,
            "action": request.action,
            "where": [each.text for each in request.selection.conditions],
            "function": self._context.invoked_function_arn,
            "request_id": self._context.aws_request_id,
            "outcomes": dict(self._counts),
            "ids": self._ids,
            "errors": self._errors,
            "archive": self.archive,
            "error": self.error,
            "is_cut_short": self.is_cut_short,
        }

    def write(self) -> None:
        """Write the audit line to the log, and send the report to the topic if something was done or went wrong."""
        counts = ", ".join(f"{outcome} {count}" for outcome, count in self._counts.items()) or "no dead letters"
        text = f"redrive of {self._request.queue}: {counts}"
        logger.info(text, extra={"audit": self.fields()})
        if not TOPIC or not (self._counts or self.error):
            return
        try:
            sns.publish(
                TopicArn=TOPIC,
                Subject=text.encode("ascii", "replace").decode()[:100],
                Message=json.dumps(self.fields(), indent=1),
            )
        except (BotoCoreError, ClientError):
            logger.exception("The report was not sent to %s.", TOPIC)


def read(event: Any) -> RedriveRequest:
    """Return the request in an event. Raises `BadRequest`."""
    if not isinstance(event, dict):
        raise BadRequest(f"the event must be a JSON object, got {event!r:.100}")
    if unknown := [name for name in event if name not in FIELDS]:
        raise BadRequest(f"the event has an unknown field {unknown[0]!r}; the fields are {', '.join(FIELDS)}")
    queue, action, to = event.get("queue"), event.get("action"), event.get("to")
    if not isinstance(queue, str) or not queue:
        raise BadRequest(f"queue must be the name or URL of a dead-letter queue, got {queue!r}")
    if action not in ACTIONS:
        raise BadRequest(f"action must be retry or remove, got {action!r}")
    if to is not None and (action != "retry" or not isinstance(to, str) or not to):
        raise BadRequest(f"to must be the name or URL of a queue, and goes with the action retry, got {to!r}")
    return RedriveRequest(queue, action, _selection(event, action), _limit(event), failed.Limits(_rate(event)), to)


def _selection(event: dict[str, Any], action: str) -> failed.Selection:
    where = event.get("where", [])
    if not isinstance(where, list) or not all(isinstance(each, str) for each in where):
        raise BadRequest(f"where must be a list of conditions such as 'attempts < 20', got {where!r:.200}")
    if action == "remove" and not where:
        raise BadRequest("where must have a condition if the action is remove: this function empties no queue")
    try:
        return failed.select(where=where, everything=not where)
    except failed.BadFilter as error:
        raise BadRequest(f"where: {error}") from error


def _limit(event: dict[str, Any]) -> int:
    limit = event.get("limit", 1_000)
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise BadRequest(f"limit must be a whole number from 1 to {MOST}, got {limit!r}")
    return limit


def _rate(event: dict[str, Any]) -> float:
    rate, (least, most) = event.get("rate", 10.0), RATES
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not least <= rate <= most:
        raise BadRequest(f"rate must be a number of dead letters a second from {least} to {most}, got {rate!r}")
    return rate
