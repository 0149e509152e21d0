"""The changes of a template file that answer findings: only those places are written, all others stay as they are."""

import json
from collections.abc import Iterable
from typing import NamedTuple

import yaml

from tarry.lint.finding import Finding, SafeChange


class Edit(NamedTuple):
    """The replacement of a part of a text, by positions."""

    start: int
    end: int
    text: str


def fixed(text: str, findings: Iterable[Finding]) -> tuple[str, list[Finding]]:
    """Return a template with the changes of these findings, and the findings that it answers.

    A value that is an intrinsic function, or that several places share, is not changed.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    is_json = text.lstrip().startswith("{")
    edits: dict[int, Edit] = {}
    answered = []
    for each in findings:
        edit = each.change and _edit(text, root, each.change, is_json=is_json)
        if edit and edits.setdefault(edit.start, edit) == edit:
            answered.append(each)
    for edit in sorted(edits.values(), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, answered


def _edit(text: str, root: yaml.Node | None, change: SafeChange, *, is_json: bool) -> Edit | None:
    node = root
    last = change.at.keys[-1]
    for key in ("Resources", change.at.resource, *change.at.keys[:-1]):
        outer, node = node, _value(node, key)
        if outer is None or node is None or not _is_within(node, outer):
            return None
    if not isinstance(node, yaml.MappingNode):
        return None
    if (value := _value(node, last)) is not None:
        return _replaced(text, node, value, change)
    return _inserted(text, node, json.dumps(last) if is_json else last, change)


def _replaced(text: str, node: yaml.Node, value: yaml.Node, change: SafeChange) -> Edit | None:
    start, end = value.start_mark.index, value.end_mark.index
    is_plain = isinstance(value, yaml.ScalarNode) and value.style in (None, '"', "'") and value.tag.startswith("tag:")
    if not is_plain or not _is_within(value, node) or text[start : start + 1] in ("&", "!"):
        return None
    return Edit(start, end, change.value)


def _inserted(text: str, node: yaml.MappingNode, key: str, change: SafeChange) -> Edit | None:
    first = node.value[0][0].start_mark if node.value else None
    comma = "," if node.flow_style else ""
    if first is None or (first.line == node.start_mark.line and node.flow_style):
        at = text.index("{", node.start_mark.index) + 1
        return Edit(at, at, f"{key}: {change.value}{', ' if first else ''}")
    return Edit(first.index, first.index, f"{key}: {change.value}{comma}\n{' ' * first.column}")


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _is_within(node: yaml.Node, outer: yaml.Node) -> bool:
    """Whether a node is written within another, rather than at an anchor elsewhere."""
    return bool(outer.start_mark.index <= node.start_mark.index and node.end_mark.index <= outer.end_mark.index)
