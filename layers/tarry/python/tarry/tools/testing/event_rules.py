"""The rules of EventBridge: which events match, and what a target gets."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.pattern_values import PatternError, parse
from tarry.tools.simulator.patterns import compile_pattern, fields_of, matches

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = re.compile(r"<([\w.-]+)>")
STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']+)'\]")


def as_delivered(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of moto as EventBridge delivers it: its time as text, and without moto's own fields."""
    found = {name: value for name, value in event.items() if name not in {"ingestion-time", "replay-name"}}
    if isinstance(time := found.get("time"), int | float):
        found["time"] = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def is_match(pattern: str | None, event: Mapping[str, Any]) -> bool:
    """Return whether an event matches the pattern of a rule; a rule that has only a schedule matches none."""
    if not pattern:
        return False
    try:
        compiled = compile_pattern(parse(pattern))
    except (PatternError, ValueError):
        return False
    fields = fields_of(parse(json.dumps(event)))
    return any(matches(branch, fields) for branch in compiled.branches)


def input_of(target: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """Return what a target gets: the event, or what ``Input``, ``InputPath`` or ``InputTransformer`` make of it."""
    if (text := target.get("Input")) is not None:
        return str(text)
    if (path := target.get("InputPath")) is not None:
        return json.dumps(_at(path, event))
    transformer = target.get("InputTransformer")
    if not transformer:
        return json.dumps(event)
    values = {name: _at(path, event) for name, path in (transformer.get("InputPathsMap") or {}).items()}
    values |= {"aws.events.event": event, "aws.events.event.json": event}
    template = str(transformer.get("InputTemplate", ""))

    def filled(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        text = json.dumps(values[found[1]])
        is_quoted = len(re.findall(r'(?<!\\)"', template[: found.start()])) % 2 == 1
        if not is_quoted:
            return text
        return text[1:-1] if text.startswith('"') else json.dumps(text)[1:-1]

    return VARIABLE.sub(filled, template)


def _at(path: str, event: Mapping[str, Any]) -> Any:
    """Return the value at a JSON path such as ``$.detail.items[0].id``; null if there is none."""
    found: Any = event
    for name, index, quoted in STEP.findall(path.removeprefix("$")):
        try:
            found = found[int(index)] if index else found[name or quoted]
        except (LookupError, TypeError):
            return None
    return found
