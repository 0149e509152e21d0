"""Pruning: the parts of a SAM template that are not played are left out before it is translated."""

from typing import Any

from tarry.tools.template.document import properties_of
from tarry.tools.template.translation import FUNCTION, SERVERLESS

PLAYED = frozenset({"Function", "LayerVersion", "SimpleTable", "Connector"})
"""The SAM types that affect queues and functions here. APIs, state machines and nested applications are not played."""


def pruned(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the document without the parts of SAM that are not played, such as APIs, and what was left out."""
    resources: dict[str, Any] = {}
    left_out: list[str] = []
    for name, each in document["Resources"].items():
        kind = str(each["Type"]) if isinstance(each, dict) and "Type" in each else ""
        if not kind or (kind.startswith(SERVERLESS) and kind.removeprefix(SERVERLESS) not in PLAYED):
            left_out.append(f"{name} ({kind})" if kind else name)
        elif kind == FUNCTION:
            resources[name] = _pruned_function(each)
            if others := _other_events(each):
                left_out.append(f"{name} ({', '.join(others)} events)")
        else:
            resources[name] = each
    shared = {name: each for name, each in properties_of(document, "Globals").items() if name in PLAYED}
    if "Function" in shared:
        shared["Function"] = _without_deployment(properties_of(shared, "Function"))
    return {**document, "Resources": resources, "Globals": shared}, left_out


def _pruned_function(function: dict[str, Any]) -> dict[str, Any]:
    """Return a function with only the events of queues."""
    properties = _without_deployment(properties_of(function))
    if isinstance(events := properties.get("Events"), dict):
        properties["Events"] = {name: each for name, each in events.items() if _is_of_queue(each)}
    return {**function, "Properties": properties}


def _other_events(function: dict[str, Any]) -> list[str]:
    """Return the types of the events of a function that are not of queues, each once."""
    events = properties_of(function).get("Events")
    found = events.values() if isinstance(events, dict) else ()
    return list(
        dict.fromkeys(str(each.get("Type")) for each in found if isinstance(each, dict) and not _is_of_queue(each))
    )


def _without_deployment(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in properties.items() if name != "DeploymentPreference"}


def _is_of_queue(event: Any) -> bool:
    """Whether an event is of an SQS queue; an SNS event may make one (``SqsSubscription``)."""
    if not isinstance(event, dict):
        return False
    return event.get("Type") == "SQS" or (
        event.get("Type") == "SNS" and bool(properties_of(event).get("SqsSubscription"))
    )
