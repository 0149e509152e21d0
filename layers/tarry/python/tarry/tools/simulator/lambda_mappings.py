"""Lambda's requests about event source mappings: to describe, disable, enable, scale and tag them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from tarry.tools.simulator.mapping import EventSourceMapping
from tarry.tools.simulator.mapping_settings import MAX_CONCURRENCY, MIN_CONCURRENCY

MOST_CHANGE_SECONDS = 60
"""Lambda takes up to a minute for a change."""

Answer = dict[str, Any]


class LambdaMappings:
    """The methods of boto3's Lambda client for event source mappings. A change takes ``change_seconds()``.

    They raise boto3's `ClientError` for what Lambda refuses.
    """

    def __init__(
        self, mappings: Callable[[], Iterable[EventSourceMapping]], change_seconds: Callable[[], float]
    ) -> None:
        self._mappings = mappings
        self._change_seconds = change_seconds
        self._tags: dict[str, dict[str, str]] = {}
        """By UUID. A mapping that a deployment changes keeps its tags."""

    def get_event_source_mapping(self, **asked: Any) -> Answer:
        return _described(self._found(asked["UUID"]))

    def list_event_source_mappings(self, **asked: Any) -> Answer:
        queue, function = asked.get("EventSourceArn"), asked.get("FunctionName")
        found = [
            each
            for each in map(_described, self._mappings())
            if queue in (None, each["EventSourceArn"])
            and function in (None, each["FunctionArn"], each["FunctionArn"].split(":")[6])
        ]
        return {"EventSourceMappings": found}

    def update_event_source_mapping(self, **asked: Any) -> Answer:
        """Begin to change the state and the ``MaximumConcurrency``; other settings stay as they are."""
        mapping = self._found(asked["UUID"])
        if mapping.state not in ("Enabled", "Disabled"):
            raise _error("ResourceInUseException", "Cannot update the event source mapping because it is in use.")
        maximum = mapping.maximum_concurrency
        if (scaling := asked.get("ScalingConfig")) is not None:
            maximum = scaling.get("MaximumConcurrency")
        if maximum is not None and not MIN_CONCURRENCY <= maximum <= MAX_CONCURRENCY:
            text = f"MaximumConcurrency must be between {MIN_CONCURRENCY} and {MAX_CONCURRENCY}, got {maximum}"
            raise _error("InvalidParameterValueException", text)
        enabled = bool(asked.get("Enabled", mapping.state == "Enabled"))
        mapping.change(self._change_seconds(), enabled=enabled, maximum_concurrency=maximum)
        return _described(mapping)

    def list_tags(self, **asked: Any) -> Answer:
        return {"Tags": dict(self._tags_of(asked))}

    def tag_resource(self, **asked: Any) -> Answer:
        self._tags_of(asked).update(asked["Tags"])
        return {}

    def untag_resource(self, **asked: Any) -> Answer:
        for key in asked["TagKeys"]:
            self._tags_of(asked).pop(key, None)
        return {}

    def answer(self, method: str, path: str, query: Any, body: Mapping[str, Any]) -> tuple[int, Answer]:
        """Answer a request over HTTP with a status and a body. ``query`` may have several values of a name."""
        kind, _, name = path.split("/", 2)[2].partition("/")
        try:
            match method, kind:
                case "GET", "event-source-mappings" if name:
                    return 200, self.get_event_source_mapping(UUID=name)
                case "GET", "event-source-mappings":
                    return 200, self.list_event_source_mappings(**query)
                case "PUT", "event-source-mappings":
                    return 202, self.update_event_source_mapping(**{**body, "UUID": name})
                case "GET", "tags":
                    return 200, self.list_tags(Resource=name)
                case "POST", "tags":
                    return 204, self.tag_resource(Resource=name, Tags=body.get("Tags", {}))
                case "DELETE", "tags":
                    return 204, self.untag_resource(Resource=name, TagKeys=query.getall("tagKeys"))
        except ClientError as error:
            code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
            return 404 if code == NOT_FOUND else 400, {"__type": code, "Type": "User", "Message": text}
        return 501, {"__type": "NotImplemented", "Message": f"{method} {kind} cannot be emulated."}

    def _found(self, uuid: str) -> EventSourceMapping:
        for each in self._mappings():
            if each.mapping.uuid == uuid:
                return each
        raise _error(NOT_FOUND, "The resource you requested does not exist.")

    def _tags_of(self, asked: Mapping[str, Any]) -> dict[str, str]:
        uuid = self._found(asked["Resource"].rpartition(":")[2]).mapping.uuid
        return self._tags.setdefault(uuid, {})


NOT_FOUND = "ResourceNotFoundException"


def _described(each: EventSourceMapping) -> Answer:
    """Return a mapping as Lambda describes it."""
    mapping, maximum = each.mapping, each.maximum_concurrency
    _, partition, _, region, account, _ = mapping.queue_arn.split(":")
    arn = f"arn:{partition}:lambda:{region}:{account}"
    return {
        "UUID": mapping.uuid,
        "EventSourceMappingArn": f"{arn}:event-source-mapping:{mapping.uuid}",
        "EventSourceArn": mapping.queue_arn,
        "FunctionArn": ":".join(filter(None, [f"{arn}:function:{mapping.function}", mapping.qualifier])),
        "State": each.state,
        "BatchSize": mapping.batch_size,
        **({} if maximum is None else {"ScalingConfig": {"MaximumConcurrency": maximum}}),
    }


def _error(code: str, text: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": text}}, "EventSourceMapping")
