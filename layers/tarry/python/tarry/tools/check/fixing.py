"""The changes of a template file that answer findings: only those places are written, all others stay as they are."""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

import yaml

from tarry.tools.check.finding import At, Finding, SafeChange, value_of

INDENTATION = "  "
ANCHOR = re.compile(r"&([^\s,\[\]{}]+)")


class Edit(NamedTuple):
    start: int
    end: int
    text: str


def fixed(text: str, findings: Iterable[Finding]) -> tuple[str, list[Finding]]:
    """Return a template with the changes of these findings, and the findings that it answers.

    A value that is an intrinsic function, or that several places share, is not changed. A finding of which one change
    cannot be made is left as it is.
    """
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    # YAML allows no tabs before a token, JSON does: spaces keep the positions.
    root = yaml.compose(text.replace("\t", " ") if is_json else text, yaml.SafeLoader)
    answered = [
        each for each in findings if each.changes and all(_can_make(text, root, change.at) for change in each.changes)
    ]
    edits: list[Edit] = []
    added: dict[At, tuple[list[yaml.MappingNode], list[str]]] = {}
    """The entries to add to each map, which is the last of the nodes on the way to it."""
    for change in _changes(answered):
        nodes, key = _nodes(text, root, change.at), change.at.keys[-1]
        if (value := value_of(nodes[-1], key)) is not None:
            edits.append(Edit(value.start_mark.index, value.end_mark.index, change.value))
        else:
            entry = f"{json.dumps(key) if is_json else key}: {change.value}"
            added.setdefault(change.at._replace(keys=change.at.keys[:-1]), (nodes, []))[1].append(entry)
    edits += [_insertion(text, at, nodes, entries, is_json=is_json) for at, (nodes, entries) in added.items()]
    for edit in sorted(edits, reverse=True):  # from the end: the positions before an edit stay
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, answered


def _changes(findings: Iterable[Finding]) -> Iterable[SafeChange]:
    """Return one change for each place: of several limits, the highest answers all findings."""
    found: dict[At, SafeChange] = {}
    for change in (change for each in findings for change in each.changes):
        before = found.setdefault(change.at, change)
        if change.value.isdecimal() and before.value.isdecimal() and int(change.value) > int(before.value):
            found[change.at] = change
    return found.values()


def _can_make(text: str, root: yaml.Node | None, at: At) -> bool:
    """Whether the property of a place can be added, or set: a scalar of its own place, no function, alias or block."""
    nodes = _nodes(text, root, at)
    value = value_of(nodes[-1], at.keys[-1]) if nodes else None
    if value is None:
        return bool(nodes)
    is_scalar = isinstance(value, yaml.ScalarNode) and value.style in (None, '"', "'")
    return is_scalar and _is_within(value, nodes[-1]) and text[value.start_mark.index] not in "&!"


def _nodes(text: str, root: yaml.Node | None, at: At) -> list[yaml.MappingNode]:
    """Return the maps on the way to a place; empty if one is shared, or is missing and is not ``Properties``."""
    found: list[yaml.MappingNode] = []
    node = root
    for key in ("Resources", at.resource, *at.keys[:-1]):
        inner = value_of(node, key)
        if inner is None and key == at.keys[-2] == "Properties" and found and value_of(node, "Type") is not None:
            return found  # to be added after the Type
        if not isinstance(inner, yaml.MappingNode) or not _is_within(inner, node) or _is_shared(text, inner):
            return []
        found.append(inner)
        node = inner
    return found


def _insertion(text: str, at: At, nodes: list[yaml.MappingNode], entries: list[str], *, is_json: bool) -> Edit:
    """Return the insertion of entries at the beginning of a map, or of a new map ``Properties`` with them."""
    node, newline = nodes[-1], "\r\n" if "\r\n" in text else "\n"
    if len(nodes) < len(at.keys) + 2:  # without Properties
        return _new_properties(text, node, entries, newline, is_json=is_json)
    first = node.value[0][0].start_mark if node.value else None
    if first is None or (first.line == node.start_mark.line and node.flow_style):
        start = text.index("{", node.start_mark.index) + 1
        return Edit(start, start, ", ".join(entries) + (", " if first else ""))
    comma = "," if node.flow_style else ""
    before = text[first.index - first.column : first.index]
    indentation = before if before.isspace() else " " * first.column
    return Edit(first.index, first.index, "".join(f"{each}{comma}{newline}{indentation}" for each in entries))


def _new_properties(text: str, resource: yaml.MappingNode, entries: list[str], newline: str, *, is_json: bool) -> Edit:
    name, kind = next(pair for pair in resource.value if pair[0].value == "Type")
    end = kind.end_mark.index
    if resource.flow_style:
        key = '"Properties"' if is_json else "Properties"
        return Edit(end, end, f", {key}: {{{', '.join(entries)}}}")
    rest = text[end:].partition("\n")[0].removesuffix("\r")  # a comment
    indentation = " " * name.start_mark.column
    lines = ["Properties:", *(f"{INDENTATION}{each}" for each in entries)]
    return Edit(end + len(rest), end + len(rest), "".join(f"{newline}{indentation}{each}" for each in lines))


def _is_shared(text: str, node: yaml.Node) -> bool:
    """Whether a map is a function, or has an anchor that an alias names, perhaps to merge the map into others."""
    start = text[node.start_mark.index :]
    anchor = ANCHOR.match(start)
    return start.startswith("!") or (anchor is not None and f"*{anchor[1]}" in text)


def _is_within(node: yaml.Node, outer: yaml.Node | None) -> bool:
    """Whether a node is written within another, rather than at an anchor elsewhere."""
    return outer is not None and bool(
        outer.start_mark.index <= node.start_mark.index and node.end_mark.index <= outer.end_mark.index
    )
