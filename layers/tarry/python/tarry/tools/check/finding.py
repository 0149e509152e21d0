"""The findings of rules, the catalog of rules, and the places of findings in a template file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

from tarry.tools.template.document import NODES


class At(NamedTuple):
    """A place in a template: a resource, and the keys below it. ``keys`` may go on where the template ends."""

    resource: str
    keys: tuple[str, ...] = ()


class SafeChange(NamedTuple):
    """A part of the one safe answer to a finding: the place of a property, and its value as YAML that is JSON too."""

    at: At
    value: str


@dataclass(frozen=True)
class Finding:
    """A mistake in a template or in the code of its functions.

    ``text`` is one line: the problem and the remedy. ``snippet`` is what to add to the template, as one line of YAML.
    """

    rule: str
    functions: tuple[str, ...]
    """The logical ids of the functions it is about."""
    text: str
    snippet: str = ""
    file: Path | None = None
    line: int | None = None
    at: At | None = None
    """The place in the template, if it is of a resource there."""
    changes: tuple[SafeChange, ...] = ()
    """The one safe answer: the changes that, made together, leave neither this finding nor another in its place."""


def level_of(rule: str) -> str:
    """Return the level of a rule: ``error`` if messages are certainly lost, or AWS refuses the template."""
    return "error" if rule.startswith("E") else "warning"


def setting(
    rule: str, functions: tuple[str, ...], text: str, at: At, value: object, *, is_safe: bool = True
) -> Finding:
    """Return a finding whose remedy is a value of the property at a place; ``is_safe`` if that is all it takes."""
    changes = (SafeChange(at, str(value)),) if is_safe else ()
    return Finding(rule, functions, text, f"{at.keys[-1]}: {value}", at=at, changes=changes)


def subject(functions: Sequence[str], one: str, several: str) -> str:
    """Return the functions with the verb for one or for several of them."""
    return f"{listed(functions)} {one if len(functions) == 1 else several}"


def listed(names: Iterable[str]) -> str:
    """Return the names as an English list: ``a, b and c``."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


RULES: Mapping[str, str] = {
    "W9001": "The build of a function lacks modules that its code imports.",
    "W9003": "The role of a function lacks permissions that its consumer needs.",
    "W9004": "A queue allows fewer receives than the consumer has attempts.",
    "W9005": "A decorator of Powertools above a consumer makes it fail.",
    "E9010": "Lambda ignores the list of failed messages, and deletes them.",
    "E9011": "The visibility timeout is shorter than the timeout of the function.",
    "W9012": "The visibility timeout is shorter than six times the timeout of the function plus the batching window.",
    "W9014": "A queue with a function has no dead-letter queue.",
    "E9015": "A dead-letter queue has another type than its source queue.",
    "W9016": "A dead-letter queue does not keep messages for longer than its source queue.",
    "E9017": "A queue is its own dead-letter queue.",
    "W9018": "A dead-letter queue has a dead-letter queue.",
    "W9019": "A dead-letter queue takes smaller messages than its source queue.",
    "W9020": "No alarm watches the messages in a dead-letter queue.",
    "W9021": "The alarm of a dead-letter queue is on a metric that misses dead letters.",
    "W9022": "The role of a function allows actions that lose messages, and its code does not use them.",
    "E9023": "The role of a function allows no use of the key that encrypts its queue.",
    "E9024": "Lambda refuses the batch size or the window of a mapping from a FIFO queue.",
    "E9025": "Lambda refuses the batch size or the window of a mapping.",
    "W9027": "The retries of a consumer take longer than its queue keeps messages.",
    "W9028": "The retries of a consumer keep messages in flight for so long that few failures fill the queue.",
    "W9029": "A consumer sends copies to its own queue until Lambda stops it.",
    "W9030": "The last failure step of a consumer does not take every failure.",
    "W9031": "A function reserves less concurrency than its queues use.",
    "E9032": "A consumer has a runtime on which tarry does not run.",
    "W9033": "A message has so many attributes that its dead letter has no failure record.",
    "W9034": "The timeout of a function leaves no time to settle a message whose handler hangs.",
    "W9035": "The outage guard cannot suspend a consumer that it names, or may change another.",
}
"""The rules of `tarry check`. E: messages are certainly lost, or AWS refuses the template. W: the others."""


VARIABLE = re.compile(r"[$&]\{\w+\}")
"""A variable of ``Fn::ForEach``; after ``&``, characters that no logical id may have are left out."""


class Places:
    """The nodes of a template file. Without a file that can be parsed, no place has a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def root(self) -> yaml.Node | None:
        try:
            found: yaml.Node | None = yaml.compose(self._path.read_text(encoding="utf-8-sig"), NODES)
        except (OSError, ValueError, yaml.YAMLError):
            return None
        return found

    def has(self, resource: str) -> bool:
        return value_of(self._resources, resource) is not None

    def line_of(self, at: At) -> int:
        """Return the line of a place, or of the nearest one around it; of what SAM makes, that of its resource."""
        found, line = self._resources, 1
        for key in (self._written(at.resource), *at.keys):
            entry = entry_of(found, key)
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
        for node in (self.root, *(value_of(self._resources, each) for each in resources)):
            for key in ("Metadata", "cfn-lint", "config", "ignore_checks"):
                node = value_of(node, key)  # noqa: PLW2901
            ignored = node.value if isinstance(node, yaml.SequenceNode) else ()
            if any(each.value and rule.startswith(str(each.value)) for each in ignored):
                return True
        return False

    @property
    def _resources(self) -> yaml.Node | None:
        return value_of(self.root, "Resources")


def entry_of(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value of an entry of a map."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), None)


def value_of(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of an entry of a map."""
    entry = entry_of(node, key)
    return entry[1] if entry else None


def _makes(loop: yaml.Node, resource: str) -> bool:
    """Whether a node is the list of an ``Fn::ForEach`` that makes a resource, in itself or in a loop within it."""
    body = loop.value[-1] if isinstance(loop, yaml.SequenceNode) and loop.value else None
    for name, inner in body.value if isinstance(body, yaml.MappingNode) else ():
        pattern = ".+".join(map(re.escape, VARIABLE.split(str(name.value))))
        if _makes(inner, resource) or re.fullmatch(pattern, resource):
            return True
    return False
