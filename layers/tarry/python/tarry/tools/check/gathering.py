"""The facts of a template and of the code of its functions."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import yaml

from tarry.settle.planner import RECURSIVE_LOOP_VARIABLE
from tarry.sqs.limits import MAX_ATTRIBUTES, MAX_REQUEST_BYTES
from tarry.tools.check.consumers import is_consumer
from tarry.tools.check.facts import (
    DEFAULT_RETENTION_SECONDS,
    CheckedFunction,
    CheckedMapping,
    CheckedQueue,
    Facts,
    WideSend,
    name_of,
    version_of,
)
from tarry.tools.check.finding import At
from tarry.tools.check.start import TemplateCode
from tarry.tools.template import Template, TemplateFunction, TemplateMapping, TemplateQueue
from tarry.tools.template.code import has_handler, import_path
from tarry.tools.template.document import NODES

VARIABLE = re.compile(r"[$&]\{\w+\}")
"""A variable of ``Fn::ForEach``; after ``&``, characters that no logical id may have are left out."""


class Places:
    """The nodes of a template file. Without a file that can be parsed, no place has a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def root(self) -> yaml.Node | None:
        """The document as a node."""
        try:
            found: yaml.Node | None = yaml.compose(self._path.read_text(encoding="utf-8-sig"), NODES)
        except (OSError, ValueError, yaml.YAMLError):
            return None
        return found

    def has(self, resource: str) -> bool:
        """Whether the file has a resource with this logical id."""
        return _entry(self._resources, resource) is not None

    def line_of(self, at: At) -> int:
        """Return the line of a place, or of the nearest one around it; of what SAM makes, that of its resource."""
        found, line = self._resources, 1
        for key in (self._written(at.resource), *at.keys):
            entry = _entry(found, key)
            if entry is None:
                break
            line, found = entry[0].start_mark.line + 1, entry[1]
        return line

    def _written(self, resource: str) -> str:
        """Return the resource, the loop that makes it, or the resource with the longest name that begins its name."""
        pairs = self._resources.value if isinstance(self._resources, yaml.MappingNode) else []
        names = [str(key.value) for key, _ in pairs if resource.startswith(str(key.value))]
        loops = [str(key.value) for key, loop in pairs if _makes(loop, resource)]
        return resource if resource in names else next(iter(loops), max(names, key=len, default=resource))

    def ignores(self, rule: str, resources: Iterable[str]) -> bool:
        """Whether the metadata of the template, or of one of the resources, names the rule as cfn-lint reads it."""
        nodes = [self.root, *(entry[1] for each in resources if (entry := _entry(self._resources, each)))]
        return any(rule.startswith(each) for node in nodes for each in _ignored(node))

    @property
    def _resources(self) -> yaml.Node | None:
        entry = _entry(self.root, "Resources")
        return entry[1] if entry else None


def _entry(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value of an entry of a map."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), None)


def _makes(loop: yaml.Node, resource: str) -> bool:
    """Whether a node is the list of an ``Fn::ForEach`` that makes a resource, in itself or in a loop within it."""
    body = loop.value[-1] if isinstance(loop, yaml.SequenceNode) and loop.value else None
    pairs = body.value if isinstance(body, yaml.MappingNode) else []
    return any(
        _makes(inner, resource) or re.fullmatch(_pattern(str(name.value)), resource) is not None
        for name, inner in pairs
    )


def _pattern(name: str) -> str:
    """Return the regular expression of the resources that a name with variables, such as ``Queue${Name}``, makes."""
    return ".+".join(map(re.escape, VARIABLE.split(name)))


def _ignored(node: yaml.Node | None) -> list[str]:
    for key in ("Metadata", "cfn-lint", "config", "ignore_checks"):
        entry = _entry(node, key)
        node = entry[1] if entry else None
    return [str(each.value) for each in node.value if each.value] if isinstance(node, yaml.SequenceNode) else []


T = TypeVar("T")

PROPERTIES = "Properties"
PARTIAL_RESPONSES = frozenset(
    "batchItemFailures process_partial_response async_process_partial_response batch_processor "
    "async_batch_processor".split()
)
"""Texts and names in the code of a function that responds with the messages that failed."""
MOST_INVOCATIONS = 1_250
"""The most invocations that a mapping without a limit makes at once."""
INVOCATIONS_OF_POLLER = 10
"""The most invocations of a provisioned event poller at once."""


class Gatherer:
    """The facts of a template."""

    def __init__(self, template: Template, places: Places) -> None:
        self.template = template
        self._places = places
        self.code = TemplateCode(template, list(template.mappings))

    def facts(self) -> Facts:
        """Return the facts."""
        functions = {each.function: None for each in self.template.mappings}
        known = {name: self.function(each) for name in functions if (each := self.template.functions.get(name))}
        return Facts(
            queues={name: self._queue(each) for name, each in self.template.queues.items()},
            mappings=tuple(self._mapping(each, known.get(each.function)) for each in self.template.mappings),
            alarms=self.template.checked.alarms,
            are_alarms_known=self.template.checked.are_alarms_known,
            wide_sends=tuple(send for each in self.template.functions.values() for send in self._wide_sends(each)),
        )

    def unread(self) -> Iterator[str]:
        """Yield why the code of functions cannot be read."""
        for each in self._consumers():
            if version_of(each.runtime) is not None and (why := self._why_not_read(each)):
                yield f"{why}. The rules that need the code of {each.logical_id} are skipped."

    def _why_not_read(self, function: TemplateFunction) -> str:
        if function.code is None:
            return f"The code of {function.logical_id} is not on this machine"
        if not any(has_handler(each, function.handler, function.runtime) for each in import_path(function)):
            return f"The handler {function.handler} of {function.logical_id} is not in {function.code}"
        sources, module = self.code.code(function)
        return sources.why_not_read(module)

    def function(self, function: TemplateFunction) -> CheckedFunction:
        """Return the facts of a function."""
        name = function.logical_id
        known = partial(self._known, name)
        is_here = function.code is not None and version_of(function.runtime) is not None
        words = self._words(function) if is_here else None
        variable = function.environment.get(RECURSIVE_LOOP_VARIABLE)
        return CheckedFunction(
            name=name,
            at=At(name, (PROPERTIES,)),
            timeout_seconds=known("Timeout", function.timeout_seconds),
            memory_mb=known("MemorySize", function.memory_mb),
            reserved_concurrency=known("ReservedConcurrentExecutions", function.reserved_concurrency),
            allows_loops=known("RecursiveLoop", function.recursive_loop == "Allow"),
            tells_of_loops=None if RECURSIVE_LOOP_VARIABLE in function.unresolved else variable == "Allow",
            runtime=function.runtime,
            permissions=function.permissions,
            code=self.code.consumer(function) if is_here else None,
            lists_failures=bool(PARTIAL_RESPONSES & (words or frozenset())) or (is_here and _is_consumer(function)),
            calls=words or None,
            has_dead_letter_config=function.asynchronous.dead_letter_arn is not None,
        )

    def _consumers(self) -> list[TemplateFunction]:
        names = dict.fromkeys(each.function for each in self.template.mappings)
        return [self.template.functions[name] for name in names if name in self.template.functions]

    def _words(self, function: TemplateFunction) -> frozenset[str]:
        """Return the names, attributes and short texts in the own files that a handler loads."""
        found: set[str] = set()
        sources, module = self.code.code(function)
        with suppress(OSError):
            for file in sources.loaded_by(module):
                for node in ast.walk(file.tree):
                    match node:
                        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
                            found.add(name)
        return frozenset(found)

    def _wide_sends(self, function: TemplateFunction) -> Iterator[WideSend]:
        if function.code is None or version_of(function.runtime) is None:
            return
        sources, module = self.code.code(function)
        with suppress(OSError):
            for file in sources.loaded_by(module):
                for node, number in wide_sends(file.tree):
                    yield WideSend(function.logical_id, file.path, node.lineno, number)

    def _queue(self, queue: TemplateQueue) -> CheckedQueue:
        name = queue.logical_id or queue.name
        known, attributes = partial(self._known, name), queue.attributes
        has_redrive = known("RedrivePolicy", queue.dead_letter_arn is not None)
        is_count_unknown = self.template.checked.is_unknown(f"{name}.RedrivePolicy.maxReceiveCount")
        retention = attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS)
        return CheckedQueue(
            name=queue.name,
            at=At(name, (PROPERTIES,)),
            logical_id=queue.logical_id,
            visibility_seconds=known("VisibilityTimeout", queue.visibility_timeout_seconds),
            retention_seconds=known("MessageRetentionPeriod", int(retention)),
            maximum_bytes=known("MaximumMessageSize", int(attributes.get("MaximumMessageSize", MAX_REQUEST_BYTES))),
            has_redrive=has_redrive if has_redrive is not None else (True if is_count_unknown else None),
            dead_letters=name_of(queue.dead_letter_arn),
            max_receive_count=None if is_count_unknown else queue.max_receive_count,
            key=self.template.checked.keys.get(name),
            is_name_fixed=queue.is_name_fixed,
        )

    def _mapping(self, mapping: TemplateMapping, function: CheckedFunction | None) -> CheckedMapping:
        known = partial(self._known, mapping.logical_id)
        return CheckedMapping(
            name=self.template.named(mapping),
            at=self._at(mapping),
            queue=mapping.queue,
            function=function,
            batch_size=known("BatchSize", mapping.batch_size),
            window_seconds=known("MaximumBatchingWindowInSeconds", mapping.window_seconds),
            reports_failures=known("FunctionResponseTypes", mapping.reports_failures),
            most_invocations=self._most_invocations(mapping, known),
        )

    def _most_invocations(self, mapping: TemplateMapping, known: Callable[[str, int], int | None]) -> int | None:
        pollers = self.template.checked.pollers
        if mapping.logical_id in pollers:
            most = pollers[mapping.logical_id]
            return None if most is None else most * INVOCATIONS_OF_POLLER
        if mapping.maximum_concurrency is None:  # on FIFO, the number of groups is a limit, too
            return None if mapping.queue.endswith(".fifo") else known("ScalingConfig", MOST_INVOCATIONS)
        return known("ScalingConfig", mapping.maximum_concurrency)

    def _known(self, name: str, key: str, value: T) -> T | None:
        return None if self.template.checked.is_unknown(f"{name}.{key}") else value

    def _at(self, mapping: TemplateMapping) -> At:
        """Return the place of a mapping: a resource, or the event of a function from which SAM makes it."""
        function = self.template.functions.get(mapping.function)
        if function is None or self._places.has(mapping.logical_id):
            return At(mapping.logical_id, (PROPERTIES,))
        event = mapping.logical_id.removeprefix(function.logical_id)
        return At(function.logical_id, (PROPERTIES, "Events", event, PROPERTIES))


def _is_consumer(function: TemplateFunction) -> bool:
    with suppress(OSError):
        return is_consumer(function)
    return False


def wide_sends(tree: ast.Module) -> Iterator[tuple[ast.Call, int]]:
    """Yield the places of sends with as many attributes as SQS allows, or more, and how many each has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "send_message":
            found = next((each.value for each in node.keywords if each.arg == "MessageAttributes"), None)
            if isinstance(found, ast.Dict) and None not in found.keys and len(found.keys) >= MAX_ATTRIBUTES:
                yield node, len(found.keys)
