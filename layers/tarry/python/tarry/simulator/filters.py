"""The filters of an event source mapping: EventBridge patterns for the body of a message.

The mapping deletes a message that matches none of its filters, without invoking the function.
"""

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tarry.simulator.errors import InvalidParameterValue

BODY = "body"
MAX_FILTERS = 10

Pattern = Any
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Filters:
    """The filters of one mapping. Without any, everything matches.

    Args:
        patterns: Patterns such as ``{"body": {"type": ["order"]}}``, as dicts or as JSON texts.

    Raises:
        InvalidParameterValue: A pattern is invalid, or has a key other than ``body``.
    """

    def __init__(self, patterns: Iterable[str | Mapping[str, Any]] = ()) -> None:
        self._patterns = [_body_pattern(pattern) for pattern in patterns]
        if len(self._patterns) > MAX_FILTERS:
            raise _invalid(f"{len(self._patterns)} filters exceed the limit of {MAX_FILTERS}")

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, body: str) -> bool:
        """Return whether a message with this body goes to the function."""
        if not self._patterns:
            return True
        document = _document(body)
        return any(_body_matches(pattern, body, document) for pattern in self._patterns)


def _body_matches(pattern: Pattern, body: str, document: Any) -> bool:
    """Match the body as text or as JSON, according to the pattern; a pattern for one never matches the other."""
    if pattern is None:
        return True
    if isinstance(pattern, list):
        return document is None and _any_rule(pattern, [body])
    return document is not None and _matches(pattern, [document])


def _document(body: str) -> Any:
    """Parse a body that is a JSON object or list; None for any other text."""
    if not body.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(body)
    except ValueError:
        return None


def _matches(pattern: Pattern, found: list[Any]) -> bool:
    """Return whether an object among the values at a path matches; a list stands for each of its items."""
    return any(_object_matches(pattern, each) for each in _flat(found) if isinstance(each, dict))


def _object_matches(pattern: dict[str, Any], found: dict[str, Any]) -> bool:
    for key, wanted in pattern.items():
        if key == "$or":
            fits = any(_object_matches(one, found) for one in wanted)
        else:
            values = [found[key]] if key in found else []
            fits = _any_rule(wanted, values) if isinstance(wanted, list) else _matches(wanted, values)
        if not fits:
            return False
    return True


def _flat(values: Iterable[Any]) -> list[Any]:
    return [item for value in values for item in (_flat(value) if isinstance(value, list) else [value])]


def _any_rule(rules: list[Any], values: list[Any]) -> bool:
    """Return whether a rule matches one of the values at a path; ``values`` is empty if the key is missing."""
    leaves = [value for value in _flat(values) if not isinstance(value, dict)]
    for rule in rules:
        if isinstance(rule, dict) and "exists" in rule:
            if rule["exists"] == bool(leaves):
                return True
        elif any(_rule_matches(rule, value) for value in leaves):
            return True
    return False


def _rule_matches(rule: Any, value: Any) -> bool:
    if not isinstance(rule, dict):
        return _same(rule, value)
    [(name, wanted)] = rule.items()
    match name:
        case "prefix":
            return isinstance(value, str) and value.startswith(wanted)
        case "suffix":
            return isinstance(value, str) and value.endswith(wanted)
        case "equals-ignore-case":
            return isinstance(value, str) and value.lower() == wanted.lower()
        case "anything-but":
            several = wanted if isinstance(wanted, list) else [wanted]
            return not any(_rule_matches(each, value) for each in several)
        case _:  # numeric
            pairs = zip(wanted[::2], wanted[1::2], strict=True)
            return _is_number(value) and all(_OPERATORS[sign](value, limit) for sign, limit in pairs)


def _same(wanted: Any, value: Any) -> bool:
    """Compare two JSON values: 1 equals neither true nor 1.0 nor "1"."""
    return type(wanted) is type(value) and bool(wanted == value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# validation of patterns


def _body_pattern(given: str | Mapping[str, Any]) -> Pattern:
    try:
        pattern = json.loads(given) if isinstance(given, str) else json.loads(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise _invalid(f"{given!r} is not JSON") from error
    if not isinstance(pattern, dict):
        raise _invalid(f"{given!r} is not a JSON object")
    if other := sorted(set(pattern) - {BODY}):
        raise _invalid(f"only the body of a message can be filtered, got {', '.join(other)}")
    body = pattern.get(BODY)
    if isinstance(body, list):
        _check_rules(body)
    elif body is not None:
        _check_object(body)
    return body


def _check_object(pattern: Any) -> None:
    if not isinstance(pattern, dict) or not pattern:
        raise _invalid(f"{json.dumps(pattern)} is neither an object nor a list of values")
    for key, wanted in pattern.items():
        if key == "$or":
            if not isinstance(wanted, list) or len(wanted) < 2:
                raise _invalid("$or takes a list of two patterns or more")
            for one in wanted:
                _check_object(one)
        elif isinstance(wanted, list):
            _check_rules(wanted)
        else:
            _check_object(wanted)


def _check_rules(rules: list[Any]) -> None:
    if not rules:
        raise _invalid("an empty list matches nothing")
    for rule in rules:
        if isinstance(rule, list) or (isinstance(rule, dict) and not _is_rule(rule)):
            raise _invalid(f"{json.dumps(rule)} is not a rule")


def _is_rule(rule: dict[str, Any]) -> bool:
    if len(rule) != 1:
        return False
    [(name, wanted)] = rule.items()
    match name:
        case "prefix" | "suffix" | "equals-ignore-case":
            return isinstance(wanted, str)
        case "exists":
            return isinstance(wanted, bool)
        case "anything-but":
            return _is_excluded(wanted)
        case "numeric":
            return _is_range(wanted)
        case _:
            return False


def _is_excluded(wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return wanted.keys() <= {"prefix", "suffix", "equals-ignore-case"} and _is_rule(wanted)
    several = wanted if isinstance(wanted, list) else [wanted]
    return bool(several) and all(isinstance(each, str) or _is_number(each) for each in several)


def _is_range(wanted: Any) -> bool:
    if not isinstance(wanted, list) or len(wanted) not in {2, 4}:
        return False
    return all(sign in _OPERATORS for sign in wanted[::2]) and all(_is_number(limit) for limit in wanted[1::2])


def _invalid(why: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Invalid filter pattern definition. ({why})")
