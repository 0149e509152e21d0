"""The names and ARNs of queues and functions: the values of Ref and of GetAtt, resolved on first use."""

import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

from tarry.template.intrinsics import Intrinsics
from tarry.template.model import ACCOUNT, TemplateError

QUALIFIED_TYPES = ("AWS::Lambda::Alias", "AWS::Lambda::Version")
FIRST_VERSION = "1"
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


class LazyValues(Mapping[str, Any]):
    """Values made on first use. A value that needs itself raises `TemplateError`.

    ``watch`` is called with the name of each value that is used.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]], watch: Callable[[str], None] | None = None) -> None:
        self._makers = makers
        self._watch = watch
        self._made: dict[str, Any] = {}
        self._open: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        if self._watch is not None:
            self._watch(key)
        if key not in self._made:
            if key in self._open:
                cycle = [*self._open][list(self._open).index(key) :]
                raise TemplateError(
                    f"the names of {', '.join(cycle)} refer to each other: give one of them a plain name"
                )
            self._open[key] = None
            try:
                self._made[key] = self._makers[key]()
            finally:
                del self._open[key]
        return self._made[key]

    def unwatched(self) -> "LazyValues":
        """Return the same values, whose use is not watched."""
        found = copy(self)
        found._watch = None
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def unwatched(scope: Intrinsics) -> Intrinsics:
    """Return a scope for values that do not matter to what is played."""
    refs = scope.refs.unwatched() if isinstance(scope.refs, LazyValues) else scope.refs
    found = Intrinsics(refs, scope.attributes, scope.mappings, scope.conditions, scope.pending)
    found.fill = scope.fill
    return found


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

    def queue(logical_id: str, properties: Mapping[str, Any]) -> None:
        where = f"{logical_id}.QueueName"

        def name() -> str:
            is_fifo = (
                str(scope.settled(properties.get("FifoQueue", False), f"{logical_id}.FifoQueue")).lower() == "true"
            )
            found = scope.settled(properties.get("QueueName", logical_id + (".fifo" if is_fifo else "")), where)
            if not isinstance(found, str) or not QUEUE_NAME.fullmatch(found):
                raise TemplateError(
                    f"{where}: {found!r} is not a queue name: use up to 80 letters, digits, hyphens and underscores "
                    "(a placeholder of another tool must be filled in first)"
                )
            return found

        attributes[where] = name
        attributes[f"{logical_id}.Arn"] = lambda: f"arn:aws:sqs:{region}:{ACCOUNT}:{scope.attributes[where]}"

    def function(logical_id: str, properties: Mapping[str, Any]) -> None:
        refs[logical_id] = lambda: scope.settled(
            properties.get("FunctionName", logical_id), f"{logical_id}.FunctionName"
        )
        attributes[f"{logical_id}.Arn"] = lambda: f"arn:aws:lambda:{region}:{ACCOUNT}:function:{scope.refs[logical_id]}"

    def qualified(logical_id: str, properties: Mapping[str, Any]) -> None:
        def arn() -> str:
            function = scope.settled(properties.get("FunctionName"), f"{logical_id}.FunctionName")
            qualifier = scope.settled(properties.get("Name", FIRST_VERSION), f"{logical_id}.Name")
            name = re.sub(r"^.*:function:", "", str(function)).partition(":")[0]
            return f"arn:aws:lambda:{region}:{ACCOUNT}:function:{name}:{qualifier}"

        refs[logical_id] = attributes[f"{logical_id}.AliasArn"] = attributes[f"{logical_id}.FunctionArn"] = arn

    kinds = {
        "AWS::SQS::Queue": queue,
        "AWS::Lambda::Function": function,
        **dict.fromkeys(QUALIFIED_TYPES, qualified),
    }
    for logical_id, resource in resources.items():
        if (add := kinds.get(resource["Type"])) is not None:
            add(logical_id, resource.get("Properties") or {})
    return scope
