"""Lambda's requests about event source mappings: to describe, disable, enable, scale and tag them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.invocations import qualified_arn
from tarry.tools.simulator.mapping import EventSourceMapping

NOT_FOUND = "ResourceNotFoundException"

Answer = dict[str, Any]


class LambdaMappings:
    """The methods of boto3's Lambda client for event source mappings. A change takes ``change_seconds()``."""

    def __init__(self, mappings: Collection[EventSourceMapping], change_seconds: Callable[[], float]) -> None:
        self.mappings = mappings
        self._change_seconds = change_seconds

    def get_event_source_mapping(self, **asked: Any) -> Answer:
        return _described(self._found(asked["UUID"]))

    def list_event_source_mappings(self, **asked: Any) -> Answer:
        queue, function = asked.get("EventSourceArn"), asked.get("FunctionName", "").rpartition(":")[2]
        found = [each for each in self.mappings if function in ("", each.mapping.function)]
        return {"EventSourceMappings": [_described(each) for each in found if queue in (None, each.mapping.queue_arn)]}

    def update_event_source_mapping(self, **asked: Any) -> Answer:
        """Begin to change the state and the ``MaximumConcurrency``; other settings stay as they are."""
        mapping = self._found(asked["UUID"])
        if mapping.state not in ("Enabled", "Disabled"):
            raise _error("ResourceInUseException", "Cannot update the event source mapping because it is in use.")
        scaling = asked.get("ScalingConfig", {"MaximumConcurrency": mapping.maximum_concurrency})
        enabled, maximum = asked.get("Enabled", mapping.state == "Enabled"), scaling.get("MaximumConcurrency")
        mapping.change(self._change_seconds(), enabled=enabled, maximum_concurrency=maximum)
        return _described(mapping)

    def list_tags(self, **asked: Any) -> Answer:
        return {"Tags": dict(self._found(asked["Resource"]).tags)}

    def tag_resource(self, **asked: Any) -> Answer:
        self._found(asked["Resource"]).tags.update(asked["Tags"])
        return {}

    def untag_resource(self, **asked: Any) -> Answer:
        for key in asked["TagKeys"]:
            self._found(asked["Resource"]).tags.pop(key, None)
        return {}

    def answer(self, method: str, path: str, query: Any, body: Mapping[str, Any]) -> tuple[int, Answer]:
        """Answer a request over HTTP with a status and a body. ``query`` may have several values of a name."""
        kind, _, name = path.split("/", 2)[2].partition("/")
        asked = {**query, **body, "UUID": name, "Resource": name, "TagKeys": query.getall("tagKeys", [])}
        read = self.get_event_source_mapping if name else self.list_event_source_mappings
        answers = {
            "PUT event-source-mappings": (202, self.update_event_source_mapping),
            "GET tags": (200, self.list_tags),
            "POST tags": (204, self.tag_resource),
            "DELETE tags": (204, self.untag_resource),
        }
        status, answer = answers.get(f"{method} {kind}", (200, read))
        try:
            return status, answer(**asked)
        except ClientError as error:
            code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
            return 404 if code == NOT_FOUND else 400, {"__type": code, "Type": "User", "Message": text}

    def _found(self, uuid_or_arn: str) -> EventSourceMapping:
        if found := [each for each in self.mappings if each.mapping.uuid == uuid_or_arn.rpartition(":")[2]]:
            return found[0]
        raise _error(NOT_FOUND, "The resource you requested does not exist.")


def _described(each: EventSourceMapping) -> Answer:
    """Return a mapping as Lambda describes it."""
    mapping, maximum = each.mapping, each.maximum_concurrency
    arn = mapping.queue_arn.rpartition(":")[0].replace(":sqs:", ":lambda:")
    return {
        "UUID": mapping.uuid,
        "EventSourceMappingArn": f"{arn}:event-source-mapping:{mapping.uuid}",
        "EventSourceArn": mapping.queue_arn,
        "FunctionArn": qualified_arn(f"{arn}:function:{mapping.function}", mapping.qualifier),
        "State": each.state,
        "BatchSize": mapping.batch_size,
        **({} if maximum is None else {"ScalingConfig": {"MaximumConcurrency": maximum}}),
    }


def _error(code: str, text: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": text}}, "EventSourceMapping")
