"""The places of a template file: the lines of resources and properties, and the rules that are ignored there."""

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import yaml

from tarry.tools.check.finding import At
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
