"""Metrics, which the guard reads, event source mappings, which it changes, and its note at each, which is a tag.

A note is written before the change that it tells of, and marked when Lambda has confirmed the change. So after a crash
at any request, the next look finds either the former state, or a note that says what to do. Two looks at once decide
the same on the same facts.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tarry import world
from tarry.guard.decision import OWN_CONCURRENCY, Act, GuardLimits, Minute, Note, Seen, Setting, decide, expiring, unfit
from tarry.observe.metrics import ATTEMPTS, DIMENSIONS, RUNS_FAILED, dimension
from tarry.record.attribute import timestamp
from tarry.support.values import queue_arn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TAG = "tarry:guard"
PERIOD = 60
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


def guard(
    consumers: Sequence[Guarded], namespace: str, limits: GuardLimits, clients: Clients
) -> Iterator[dict[str, Any]]:
    """Look at each consumer once, and suspend or resume it; yield what was done, as the audit has it.

    A consumer for which a request fails stays as it is. The others are not affected.

    Raises:
        CannotGuard: At the beginning, or at the end: a consumer was left alone that the guard should have looked at. A
            run of the function then counts as an error, and after three in a row its alarm tells.
    """
    if not namespace:
        raise CannotGuard("POWERTOOLS_METRICS_NAMESPACE is not set. Set it to the namespace of the consumers' metrics")
    now, left = world.current().clock.time(), list[str]()
    try:
        minutes = _minutes(consumers, namespace, limits, clients.metrics, now)
    except (BotoCoreError, ClientError) as error:
        raise CannotGuard(f"The guard changes nothing, because it has no metrics: {error}") from error
    for each in consumers:
        try:
            yield from _look(each, minutes[each], limits, clients, now)
        except (BotoCoreError, ClientError, CannotGuard) as error:
            logger.error("The guard leaves %s as it is: %s (mapping %s)", each.consumer, error, each.mapping)
            left.append(each.consumer)
    if left:
        raise CannotGuard(f"The guard left {', '.join(left)} as they are; the lines before tell why")


def _look(
    each: Guarded, minutes: list[Minute], limits: GuardLimits, clients: Clients, now: float
) -> Iterator[dict[str, Any]]:
    """Look at a consumer; yield what was done, if that is reported."""
    mapping = clients.functions.get_event_source_mapping(UUID=each.mapping)
    note = note_of(mapping, clients.functions)
    seen = Seen(now, _settled(mapping), note, minutes)
    hindrance, waiting = unfit(each.queue, 1, has_pollers=bool(mapping.get("ProvisionedPollerConfig"))), None
    is_over = note is not None and note.phase in ("resumed", "left")
    if hindrance is None and not is_over and (note is not None or decide(seen, limits) is not None):
        hindrance, waiting = _backlog(each, mapping, clients, now)
    if note is None and hindrance is not None:
        raise CannotGuard(hindrance)
    act = decide(seen._replace(hindrance=hindrance, waiting=waiting), limits)
    if act is not None:
        if _settled(clients.functions.get_event_source_mapping(UUID=each.mapping)) != seen.setting:
            return  # another changes it at this moment
        text, audit = _line(each, act)
        logger.info("Asked of Lambda: %s", text, extra={"audit": audit})
        _carry_out(mapping, act, clients.functions)
        is_small = act.note is None or act.note.phase == "judging"
        logger.log(logging.INFO if is_small else logging.WARNING, text, extra={"audit": audit})
        if not is_small:
            yield audit | {"text": text}
    elif note is None and not any(each.begins >= now - limits.window - 2 * PERIOD for each in minutes):
        since = f"since {datetime.fromtimestamp(minutes[-1].begins, UTC):%H:%M} UTC" if minutes else "in the last hour"
        text = "The guard leaves %s as it is: it has no metrics %s, so it is idle, or they come late; its mapping is %s"
        logger.info(text, each.consumer, since, seen.setting)


def _minutes(
    consumers: Sequence[Guarded], namespace: str, limits: GuardLimits, client: Any, now: float
) -> dict[Guarded, list[Minute]]:
    """Return the minutes of each consumer that have metrics. Raises `CannotGuard` if not all of them are known."""
    queries = []
    for index, each in enumerate(consumers):
        values_of = zip(DIMENSIONS, (each.consumer, each.queue), strict=True)
        dimensions = [{"Name": name, "Value": dimension(value)} for name, value in values_of]
        for name, metric, statistic in [("ended", ATTEMPTS, "SampleCount"), ("failed", RUNS_FAILED, "Sum")]:
            of = {"Namespace": namespace, "MetricName": metric.name, "Dimensions": dimensions}
            queries.append({"Id": f"{name}{index}", "MetricStat": {"Metric": of, "Period": PERIOD, "Stat": statistic}})
    end = datetime.fromtimestamp(now, UTC)
    start = end - timedelta(seconds=limits.before + limits.window + 2 * PERIOD)
    values: defaultdict[str, dict[float, float]] = defaultdict(dict)
    more: dict[str, str] | None = {}
    while more is not None:
        answer = client.get_metric_data(MetricDataQueries=queries, StartTime=start, EndTime=end, **more)
        _check_clock(answer, now)
        more = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else None
        for found in answer["MetricDataResults"]:
            if found["StatusCode"] not in ("Complete", "PartialData" if more else "Complete"):
                raise CannotGuard(f"The guard changes nothing: CloudWatch's answer is {found['StatusCode']}")
            values[found["Id"]] |= zip([time.timestamp() for time in found["Timestamps"]], found["Values"], strict=True)
    return {
        each: [
            Minute(begins, int(ended), int(values[f"failed{index}"].get(begins, 0)))
            for begins, ended in sorted(values[f"ended{index}"].items())
        ]
        for index, each in enumerate(consumers)
    }


def _check_clock(answer: Any, now: float) -> None:
    date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    if date and abs(parsedate_to_datetime(date).timestamp() - now) > CLOCK_SECONDS:
        here = f"{datetime.fromtimestamp(now, UTC):%H:%M:%S} UTC"
        raise CannotGuard(f"The guard changes nothing: this clock says {here}, that of AWS says {date}")


def _backlog(each: Guarded, mapping: dict[str, Any], clients: Clients, now: float) -> tuple[str | None, int]:
    """Return why a consumer must not be suspended now, None if it may; and how many messages are ready in its queue."""
    url = clients.queues.get_queue_url(QueueName=each.queue)["QueueUrl"]
    names = ["MessageRetentionPeriod", "ApproximateNumberOfMessages"]
    found = clients.queues.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    kept, waiting = (int(found[name]) for name in names)
    found = clients.functions.list_event_source_mappings(EventSourceArn=mapping["EventSourceArn"])
    if why := unfit(each.queue, len(found["EventSourceMappings"]), has_pollers=False):
        return why, waiting
    end = datetime.fromtimestamp(now, UTC)
    points = clients.metrics.get_metric_statistics(
        Namespace="AWS/SQS", MetricName="ApproximateAgeOfOldestMessage", Period=PERIOD, Statistics=["Maximum"],
        Dimensions=[{"Name": "QueueName", "Value": each.queue}], StartTime=end - timedelta(minutes=10), EndTime=end,
    )["Datapoints"]  # fmt: skip
    if not points:
        return "CloudWatch does not tell the age of its oldest message, which could expire", waiting
    last: Any = max(points, key=lambda point: point["Timestamp"])
    return expiring(kept - last["Maximum"] - (now - last["Timestamp"].timestamp())), waiting


def _carry_out(mapping: dict[str, Any], act: Act, client: Any) -> None:
    arn, note = mapping["EventSourceMappingArn"], act.note
    if note is None:
        client.untag_resource(Resource=arn, TagKeys=[TAG])
        return
    if (setting := note.setting) != note.before:
        client.tag_resource(Resource=arn, Tags={TAG: note.text()})
        scaling = {} if setting.maximum is None else {"MaximumConcurrency": setting.maximum}
        changed = {} if setting.maximum == note.before.maximum else {"ScalingConfig": scaling}
        client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=setting.is_enabled, **changed)
    client.tag_resource(Resource=arn, Tags={TAG: note._replace(before=note.setting).text()})


def _line(each: Guarded, act: Act) -> tuple[str, dict[str, Any]]:
    """Return the text of an act, and its fields for the audit."""
    audit, note = {"consumer": each.consumer, "queue": each.queue, "mapping": each.mapping, "why": act.why}, act.note
    if note is None:
        return f"{each.consumer} guarded again: {act.why}", audit | {"phase": "guarded"}
    settings = {"before": str(note.before), "after": str(note.setting), "suspended_at": timestamp(note.since)}
    return f"{each.consumer} {note.phase}: {act.why}", audit | {"phase": note.phase} | settings


def _settled(mapping: Mapping[str, Any]) -> Setting | None:
    return setting_of(mapping) if mapping["State"] in ("Enabled", "Disabled") else None


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
    asked = note._replace(phase="resumed", setting=wanted, before=has)
    _carry_out(mapping, Act(None if has == wanted else asked, "by hand"), client)
    return wanted


def suspensions(mappings: Iterable[dict[str, Any]], client: Any) -> dict[str, str]:
    """Return what the guard does with consumers, by queue. An error ends the search: its result may be incomplete."""
    found = {}
    with suppress(BotoCoreError, ClientError, CannotGuard):
        for each in mappings:
            queue, has = queue_arn(each.get("EventSourceArn")).name, setting_of(each)
            may_be = queue and (not has.is_enabled or has.maximum in OWN_CONCURRENCY)
            if may_be and (note := note_of(each, client)) and note.phase != "left":
                found[queue] = str(note)
    return found
