"""Lambda's requests about event source mappings: to describe, disable, enable, scale and tag them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.invocations import qualified_arn
from tarry.tools.simulator.mapping import EventSourceMapping

MOST_CHANGE_SECONDS = 60
"""Lambda takes up to a minute for a change."""
NOT_FOUND = "ResourceNotFoundException"

Answer = dict[str, Any]


class LambdaMappings:
    """The methods of boto3's Lambda client for event source mappings. A change takes ``change_seconds()``."""

    def __init__(
        self, mappings: Callable[[], Iterable[EventSourceMapping]], change_seconds: Callable[[], float]
    ) -> None:
        self._mappings = mappings
        self._change_seconds = change_seconds
        self.tags = defaultdict[str, dict[str, str]](dict)
        """By UUID. A mapping that a deployment changes keeps its tags."""

    def get_event_source_mapping(self, **asked: Any) -> Answer:
        return _described(self._found(asked["UUID"]))

    def list_event_source_mappings(self, **asked: Any) -> Answer:
        queue, function = asked.get("EventSourceArn"), asked.get("FunctionName", "").rpartition(":")[2]
        found = [each for each in self._mappings() if function in ("", each.mapping.function)]
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
        return {"Tags": dict(self._tags_of(asked["Resource"]))}

    def tag_resource(self, **asked: Any) -> Answer:
        self._tags_of(asked["Resource"]).update(asked["Tags"])
        return {}

    def untag_resource(self, **asked: Any) -> Answer:
        for key in asked["TagKeys"]:
            self._tags_of(asked["Resource"]).pop(key, None)
        return {}

    def answer(self, method: str, path: str, query: Any, body: Mapping[str, Any]) -> tuple[int, Answer]:
        """Answer a request over HTTP with a status and a body. ``query`` may have several values of a name."""
        kind, _, name = path.split("/", 2)[2].partition("/")
        asked = {**query, **body, "UUID": name, "Resource": name, "TagKeys": query.getall("tagKeys", [])}
        try:
            match method, kind:
                case "GET", "tags":
                    return 200, self.list_tags(**asked)
                case "POST", "tags":
                    return 204, self.tag_resource(**asked)
                case "DELETE", "tags":
                    return 204, self.untag_resource(**asked)
                case "PUT", _:
                    return 202, self.update_event_source_mapping(**asked)
            return 200, self.get_event_source_mapping(**asked) if name else self.list_event_source_mappings(**asked)
        except ClientError as error:
            code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
            return 404 if code == NOT_FOUND else 400, {"__type": code, "Type": "User", "Message": text}

    def _found(self, uuid: str) -> EventSourceMapping:
        if found := [each for each in self._mappings() if each.mapping.uuid == uuid]:
            return found[0]
        raise _error(NOT_FOUND, "The resource you requested does not exist.")

    def _tags_of(self, arn: str) -> dict[str, str]:
        return self.tags[self._found(arn.rpartition(":")[2]).mapping.uuid]


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
