"""Lambda's API of event source mappings, for those that `tarry local` runs: list, disable and enable them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.local.cloud import LocalCloud

Answer = tuple[int, dict[str, Any]]
"""A status of HTTP, and the body."""


def answer(cloud: LocalCloud, method: str, uuid: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
    """Answer a request for ``/2015-03-31/event-source-mappings/UUID``, on the loop of the cloud.

    A mapping changes at once, and only its state: batches that its function already has run to their end.
    """
    if method == "GET" and not uuid:
        wanted = query.get("EventSourceArn"), query.get("FunctionName")
        return 200, {"EventSourceMappings": [each for each in _all(cloud).values() if _is_of(each, *wanted, cloud)]}
    logical_id = next((name for name, each in _all(cloud).items() if each["UUID"] == uuid), None)
    if logical_id is None:
        return 404, {"Type": "User", "Message": "The resource you requested does not exist."}
    if method == "PUT" and "Enabled" in body:
        cloud.enable(logical_id, enabled=bool(body["Enabled"]))
    return 202 if method == "PUT" else 200, _all(cloud)[logical_id]


def _all(cloud: LocalCloud) -> dict[str, dict[str, Any]]:
    """Return the mappings as Lambda describes them, by their logical ids."""
    functions = cloud.plan.template.functions
    return {
        logical_id: {
            "UUID": str(uuid5(NAMESPACE_URL, logical_id)),
            "EventSourceArn": each.settings.queue_arn,
            "FunctionArn": ":".join(filter(None, [functions[each.settings.function].arn, each.settings.qualifier])),
            "State": "Disabled" if logical_id in cloud.paused else "Enabled",
            "BatchSize": each.settings.batch_size,
        }
        for logical_id, each in cloud.mappings.items()
    }


def _is_of(described: Mapping[str, Any], queue_arn: str | None, function: str | None, cloud: LocalCloud) -> bool:
    """Whether a mapping is of a queue and a function; the function is named by name, ARN or logical id."""
    name = str(described["FunctionArn"]).split(":")[6]
    found = cloud.plan.template.functions[name]
    return queue_arn in {None, described["EventSourceArn"]} and function in {None, name, found.arn, found.logical_id}
