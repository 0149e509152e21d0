"""What the guard reads and changes at AWS: metrics, event source mappings, and its note at each, which is a tag.

A note is written before the change that it tells of, and marked when Lambda has confirmed the change. So after a crash
at any request, the next look finds either the former state, or a note that says what to do.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tarry import world
from tarry.guard.decision import SMALLEST_CONCURRENCY, STEPS, Act, Limits, Minute, Note, Seen, Setting, decide
from tarry.observe.metrics import ATTEMPTS, RUNS_FAILED, dimension
from tarry.sqs.refusals import error_code
from tarry.support.values import queue_arn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TAG = "tarry:guard"
PERIOD = 60
OWN_CONCURRENCY = {SMALLEST_CONCURRENCY, *STEPS}
CLIENT_CONFIG = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 2})
CLOCK_SECONDS = 60
"""A clock that differs more from that of AWS is wrong: the metrics of a minute could be those of another."""
logger = logging.getLogger("tarry.guard")


class Guarded(NamedTuple):
    """A consumer that asks for the guard."""

    consumer: str
    """Its name in metrics."""
    queue: str
    mapping: str
    """The UUID of its event source mapping."""


class CannotGuard(Exception):
    """The guard does nothing for a consumer. The text says why, and what to do."""


class Clients(NamedTuple):
    """The clients of AWS's services."""

    functions: Any
    metrics: Any
    queues: Any


def guard(consumers: Sequence[Guarded], namespace: str, limits: Limits, clients: Clients) -> Iterator[dict[str, Any]]:
    """Look at each consumer once, and suspend or resume it; yield what was done, as the audit has it.

    A consumer for which a request fails stays as it is. The others are not affected.
    """
    if not namespace:
        logger.warning("The guard changes nothing: POWERTOOLS_METRICS_NAMESPACE is not set, so there are no metrics")
        return
    now = world.current().clock.time()
    try:
        minutes = _minutes(consumers, namespace, limits, clients.metrics, now)
    except (BotoCoreError, ClientError, CannotGuard) as error:
        logger.warning("The guard changes nothing: %s", error)
        return
    for each in consumers:
        try:
            mapping, note = _mapping(each, clients.functions)
            seen = _seen(each, mapping, note, minutes[each], clients, now)
            act = decide(seen, limits)
            if act is not None:
                _check(each, mapping, note, clients.functions)
                _carry_out(mapping, act, clients.functions)
                if act.is_told:
                    yield _told(each, act)
        except (BotoCoreError, ClientError, CannotGuard) as error:
            logger.warning("The guard leaves %s as it is: %s", each.consumer, error)


def _minutes(
    consumers: Sequence[Guarded], namespace: str, limits: Limits, client: Any, now: float
) -> dict[Guarded, list[Minute]]:
    """Return the minutes of each consumer that have metrics, in one request."""
    queries = [
        {
            "Id": f"{name}{index}",
            "MetricStat": {
                "Metric": {
                    "Namespace": namespace,
                    "MetricName": metric.name,
                    "Dimensions": [
                        {"Name": "consumer", "Value": dimension(each.consumer)},
                        {"Name": "queue", "Value": dimension(each.queue)},
                    ],
                },
                "Period": PERIOD,
                "Stat": statistic,
            },
        }
        for index, each in enumerate(consumers)
        for name, metric, statistic in [("ended", ATTEMPTS, "SampleCount"), ("failed", RUNS_FAILED, "Sum")]
    ]
    end = datetime.fromtimestamp(now, UTC)
    start = end - timedelta(seconds=limits.before + limits.window + 2 * PERIOD)
    answer = client.get_metric_data(MetricDataQueries=queries, StartTime=start, EndTime=end)
    _check_clock(answer, now)
    values = {
        each["Id"]: dict(zip([time.timestamp() for time in each["Timestamps"]], each["Values"], strict=True))
        for each in answer["MetricDataResults"]
    }
    return {
        each: [
            Minute(begins, int(ended), int(values.get(f"failed{index}", {}).get(begins, 0)))
            for begins, ended in sorted(values.get(f"ended{index}", {}).items())
        ]
        for index, each in enumerate(consumers)
    }


def _check_clock(answer: Any, now: float) -> None:
    date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    if date and abs(parsedate_to_datetime(date).timestamp() - now) > CLOCK_SECONDS:
        raise CannotGuard(f"this clock says {datetime.fromtimestamp(now, UTC):%H:%M:%S} UTC, that of AWS says {date}")


def _mapping(each: Guarded, client: Any) -> tuple[dict[str, Any], Note | None]:
    try:
        mapping = client.get_event_source_mapping(UUID=each.mapping)
    except ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            raise CannotGuard(f"event source mapping {each.mapping} does not exist; deploy the stack again") from error
        raise
    return mapping, note_of(mapping, client)


def _seen(
    each: Guarded, mapping: dict[str, Any], note: Note | None, minutes: list[Minute], clients: Clients, now: float
) -> Seen:
    maximum = setting_of(mapping).maximum
    backlog = (None, None) if note is None else _backlog(each, clients, now)
    return Seen(now, mapping["State"], maximum, note, minutes, *backlog)


def _backlog(each: Guarded, clients: Clients, now: float) -> tuple[float | None, int]:
    """Return the seconds until the queue's oldest message expires, if CloudWatch has its age; and how many are ready."""
    url = clients.queues.get_queue_url(QueueName=each.queue)["QueueUrl"]
    names = ["MessageRetentionPeriod", "ApproximateNumberOfMessages"]
    found = clients.queues.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    kept, waiting = (int(found[name]) for name in names)
    end = datetime.fromtimestamp(now, UTC)
    points = clients.metrics.get_metric_statistics(
        Namespace="AWS/SQS",
        MetricName="ApproximateAgeOfOldestMessage",
        Dimensions=[{"Name": "QueueName", "Value": each.queue}],
        StartTime=end - timedelta(minutes=10),
        EndTime=end,
        Period=PERIOD,
        Statistics=["Maximum"],
    )["Datapoints"]
    if not points:
        return None, waiting
    last: Any = max(points, key=lambda point: point["Timestamp"])
    age: float = float(last["Maximum"]) + now - last["Timestamp"].timestamp()
    return kept - age, waiting


def _check(each: Guarded, mapping: dict[str, Any], note: Note | None, client: Any) -> None:
    """Raise `CannotGuard` if a consumer cannot be suspended; one that is suspended can always be resumed."""
    if note is not None:
        return
    if each.queue.endswith(".fifo"):
        raise CannotGuard(f"{each.queue} is a FIFO queue, whose failed messages hold up their group anyway")
    if mapping.get("ProvisionedPollerConfig"):
        raise CannotGuard("its mapping has provisioned pollers, which have no MaximumConcurrency for a probe")
    of_queue = client.list_event_source_mappings(EventSourceArn=mapping["EventSourceArn"])["EventSourceMappings"]
    if len(of_queue) > 1:
        raise CannotGuard(f"{each.queue} has {len(of_queue)} consumers; the others would get its messages")


def _carry_out(mapping: dict[str, Any], act: Act, client: Any) -> None:
    arn, note = mapping["EventSourceMappingArn"], act.note
    if note is None:
        client.untag_resource(Resource=arn, TagKeys=[TAG])
        return
    client.tag_resource(Resource=arn, Tags={TAG: note.text()})
    maximum = note.setting.maximum
    client.update_event_source_mapping(
        UUID=mapping["UUID"],
        Enabled=note.setting.is_enabled,
        ScalingConfig={} if maximum is None else {"MaximumConcurrency": maximum},
    )
    client.tag_resource(Resource=arn, Tags={TAG: replace(note, is_set=True).text()})


def _told(each: Guarded, act: Act) -> dict[str, Any]:
    phase = "left" if act.note is None else act.note.phase
    return {"consumer": each.consumer, "queue": each.queue, "mapping": each.mapping, "phase": phase, "why": act.why}


def setting_of(mapping: Mapping[str, Any]) -> Setting:
    """Return what a mapping has, or will have when Lambda has changed it."""
    maximum = mapping.get("ScalingConfig", {}).get("MaximumConcurrency")
    return Setting(mapping["State"] not in ("Disabled", "Disabling"), maximum)


def note_of(mapping: Mapping[str, Any], client: Any) -> Note | None:
    """Return the guard's note at a mapping; None if it has none. Raises `ClientError` and `CannotGuard`."""
    arn = mapping.get("EventSourceMappingArn")  # missing in some emulators
    text = client.list_tags(Resource=arn)["Tags"].get(TAG) if arn else None
    try:
        return None if text is None else Note.read(text)
    except ValueError as error:
        raise CannotGuard(f"{text!r} is not a note of the guard; remove the tag {TAG} from {arn}") from error


def hand_back(mapping: dict[str, Any], note: Note, client: Any, *, is_enabled: bool) -> Setting:
    """Ask for the setting that a mapping had before the guard changed it, enabled or not; return the setting.

    Call it again when Lambda has changed the mapping: it removes the note then. If the caller ends after any of the
    requests, the guard does the rest. A MaximumConcurrency that another has set meanwhile stays.
    """
    has = setting_of(mapping)
    wanted = Setting(is_enabled, note.former if has.maximum in OWN_CONCURRENCY else has.maximum)
    asked = replace(note, phase="restoring", setting=wanted, before=has, is_set=False)
    _carry_out(mapping, Act(None if has == wanted else asked, "by hand"), client)
    return wanted


def suspensions(mappings: Iterable[dict[str, Any]], client: Any) -> dict[str, str]:
    """Return what the guard does with consumers, by queue. An error ends the search: its result may be incomplete."""
    found = {}
    with suppress(BotoCoreError, ClientError, CannotGuard):
        for each in mappings:
            queue, has = queue_arn(each.get("EventSourceArn")).name, setting_of(each)
            if queue and (not has.is_enabled or has.maximum in OWN_CONCURRENCY) and (note := note_of(each, client)):
                found[queue] = str(note)
    return found
