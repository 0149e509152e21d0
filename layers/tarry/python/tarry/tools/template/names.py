"""The names and ARNs of queues and functions: the values of Ref and of GetAtt."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.lazy_values import LazyValues
from tarry.tools.template.model import ACCOUNT, TemplateError

QUALIFIED_TYPES = ("AWS::Lambda::Alias", "AWS::Lambda::Version")
FIRST_VERSION = "1"
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


def with_names(
    refs: Mapping[str, Callable[[], Any]],
    resources: Mapping[str, Mapping[str, Any]],
    given: Intrinsics,
    region: str,
    pending: frozenset[str],
    watch: Callable[[str], None],
) -> Intrinsics:
    """Return a scope that also knows the names and ARNs of the queues and functions among the resources.

    Args:
        refs: The values of parameters.
        resources: The resources by logical id.
        given: The scope with the mappings and conditions of the template.
        region: The region of the ARNs.
        pending: The logical ids of all resources.
        watch: Called with the name of each parameter and resource that is referred to.
    """
    refs = dict(refs)
    attributes: dict[str, Callable[[], Any]] = {}
    scope = Intrinsics(LazyValues(refs, watch), LazyValues(attributes), given.mappings, given.conditions, pending)
    names = _Names(scope, region)
    for logical_id, resource in resources.items():
        properties = resource.get("Properties") or {}
        match resource["Type"]:
            case "AWS::SQS::Queue":
                attributes[f"{logical_id}.QueueName"] = partial(names.of_queue, logical_id, properties)
                attributes[f"{logical_id}.Arn"] = partial(names.arn_of_queue, logical_id)
            case "AWS::Lambda::Function":
                refs[logical_id] = partial(names.of_function, logical_id, properties)
                attributes[f"{logical_id}.Arn"] = partial(names.arn_of_function, logical_id)
            case kind if kind in QUALIFIED_TYPES:
                arn = partial(names.qualified_arn, logical_id, properties)
                refs[logical_id] = attributes[f"{logical_id}.AliasArn"] = attributes[f"{logical_id}.FunctionArn"] = arn
    return scope


class _Names:
    """The names and ARNs of resources, whose properties are resolved in a scope that knows these names too."""

    def __init__(self, scope: Intrinsics, region: str) -> None:
        self._scope = scope
        self._region = region

    def of_queue(self, logical_id: str, properties: Mapping[str, Any]) -> str:
        is_fifo = self._settled(logical_id, properties, "FifoQueue", default=False)
        suffix = ".fifo" if str(is_fifo).lower() == "true" else ""
        found = self._settled(logical_id, properties, "QueueName", default=logical_id + suffix)
        if not isinstance(found, str) or not QUEUE_NAME.fullmatch(found):
            raise TemplateError(
                f"{logical_id}.QueueName: {found!r} is not a queue name: use up to 80 letters, digits, hyphens and "
                "underscores (a placeholder of another tool must be filled in first)"
            )
        return found

    def arn_of_queue(self, logical_id: str) -> str:
        return f"arn:aws:sqs:{self._region}:{ACCOUNT}:{self._scope.attributes[f'{logical_id}.QueueName']}"

    def of_function(self, logical_id: str, properties: Mapping[str, Any]) -> Any:
        return self._settled(logical_id, properties, "FunctionName", default=logical_id)

    def arn_of_function(self, logical_id: str) -> str:
        return f"arn:aws:lambda:{self._region}:{ACCOUNT}:function:{self._scope.refs[logical_id]}"

    def qualified_arn(self, logical_id: str, properties: Mapping[str, Any]) -> str:
        """Return the ARN of an alias or a version."""
        function = self._settled(logical_id, properties, "FunctionName", default=None)
        qualifier = self._settled(logical_id, properties, "Name", default=FIRST_VERSION)
        name = re.sub(r"^.*:function:", "", str(function)).partition(":")[0]
        return f"arn:aws:lambda:{self._region}:{ACCOUNT}:function:{name}:{qualifier}"

    def _settled(self, logical_id: str, properties: Mapping[str, Any], key: str, *, default: Any) -> Any:
        return self._scope.settled(properties.get(key, default), f"{logical_id}.{key}")
