"""Reading the parts of a template that no run plays, and that only `tarry check` looks at."""

from collections.abc import Iterator, Mapping
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import Checked, TemplateAlarm, TemplateError
from tarry.tools.template.reading.values import Resources, of_type, optional_integer

NESTED = ("AWS::CloudFormation::Stack", "AWS::Serverless::Application")
"""Resources whose templates may contain the alarms of this one."""
KNOWN_TRANSFORMS = frozenset({"AWS::Serverless-2016-10-31", "AWS::LanguageExtensions"})


def read_checked(document: Mapping[str, Any], translated: Resources, scope: Intrinsics) -> Checked:
    """Return these parts.

    Args:
        document: The template as written.
        translated: All resources of its translation, also those whose condition does not hold.
        scope: The resolver of intrinsics.
    """
    alarms: list[TemplateAlarm] = []
    are_known = not any(each.get("Type") in NESTED for each in document["Resources"].values() if isinstance(each, dict))
    for logical_id, properties in of_type(translated, "AWS::CloudWatch::Alarm"):
        for metric in _metrics(properties):
            found = _alarm(logical_id, metric, scope)
            are_known = are_known and found is not None
            alarms += [found] if found else []
    transforms = document.get("Transform")
    unknown = [each for each in (transforms if isinstance(transforms, list) else [transforms]) if each is not None]
    macros = tuple(
        str(each.get("Name") if isinstance(each, dict) else each)
        for each in unknown
        if not (isinstance(each, str) and each in KNOWN_TRANSFORMS)
    )
    return Checked(
        alarms=tuple(alarms),
        are_alarms_known=are_known and not macros,
        keys=dict(_keys(translated, scope)),
        pollers=dict(_pollers(translated, scope)),
        macros=macros,
    )


def _metrics(properties: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the metrics of an alarm: its own, and those that its expressions use."""
    if "MetricName" in properties:
        yield properties
    several = properties.get("Metrics")
    for each in several if isinstance(several, list) else []:
        match each:
            case {"MetricStat": {"Metric": dict(metric)}}:
                yield metric


def _alarm(logical_id: str, metric: Mapping[str, Any], scope: Intrinsics) -> TemplateAlarm | None:
    """Return an alarm with one of its metrics; None if it cannot be told which metric that is."""
    try:
        namespace = scope.resolve(metric.get("Namespace"), logical_id)
        if namespace != "AWS/SQS":
            return (
                TemplateAlarm(logical_id, str(metric.get("MetricName")), None) if isinstance(namespace, str) else None
            )
        name = scope.settled(metric.get("MetricName"), logical_id)
        dimensions = scope.settled(metric.get("Dimensions") or [], logical_id)
        return TemplateAlarm(
            logical_id, name, next((each["Value"] for each in dimensions if each["Name"] == "QueueName"), None)
        )
    except (TemplateError, LookupError, TypeError, AttributeError):
        return None


def _keys(resources: Resources, scope: Intrinsics) -> Iterator[tuple[str, str]]:
    """Yield the logical ids of the keys that encrypt queues, by the logical id of the queue."""
    for logical_id, properties in of_type(resources, "AWS::SQS::Queue"):
        try:
            found = references(scope.resolve(properties.get("KmsMasterKeyId"), logical_id))
        except TemplateError:
            continue
        if len(found) == 1 and (resources.get(found[0].name) or {}).get("Type") == "AWS::KMS::Key":
            policy = (resources[found[0].name].get("Properties") or {}).get("KeyPolicy")
            if _is_only_for_the_account(policy):
                yield logical_id, found[0].name


def _is_only_for_the_account(policy: Any) -> bool:
    """Whether a key policy leaves the permissions to IAM: its principals are the account and services only."""
    statements = policy.get("Statement") if isinstance(policy, dict) else None
    for each in statements if isinstance(statements, list) else [statements]:
        principal = each.get("Principal") if isinstance(each, dict) else None
        if not isinstance(principal, dict):
            return False
        accounts = principal.get("AWS", [])
        for one in accounts if isinstance(accounts, list) else [accounts]:
            if ":root" not in str(one):
                return False
    return True


def _pollers(resources: Resources, scope: Intrinsics) -> Iterator[tuple[str, int | None]]:
    """Yield the most event pollers of the mappings that have provisioned ones; None if that is not known."""
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping"):
        try:
            config = scope.settled({"it": properties.get("ProvisionedPollerConfig")}, logical_id).get("it")
            if config is not None:
                yield logical_id, optional_integer(config, "MaximumPollers", logical_id)
        except (TemplateError, AttributeError):
            yield logical_id, None
