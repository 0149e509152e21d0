"""``FIELD OP VALUE``: conditions that select dead letters, as pure functions.

FIELD is a JMESPath expression over the `document` of a dead letter. OP is one of ``= != < <= > >= ~``; ``~`` searches
the text for a regular expression. VALUE is JSON if it parses, otherwise text. A field that the dead letter does not
have matches only ``= null``, not even ``!=`` another value.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tarry.failed.dead_letters import decoded, plain
from tarry.failed.queue_names import queue_name
from tarry.failed.requests import BadFilter
from tarry.failed.text import seconds_of
from tarry.support.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.failed.dead_letters import DeadLetterMessage

FIELDS = (
    "type", "reason", "attempts", "failed_at", "origin", "fingerprint", "message", "said", "body", "attributes",
    "extra",
)  # fmt: skip
OPERATORS = ("!=", "<=", ">=", "==", "=", "<", ">", "~")
OPENING, CLOSING, QUOTES = "([{", ")]}", "\"'`"


class Condition(Value):
    """A parsed ``FIELD OP VALUE``. Made by `condition`."""

    text: str
    field: str
    operator: str
    value: Any
    _path: Any
    _pattern: re.Pattern[str] | None

    @property
    def needs_body(self) -> bool:
        """Whether it may compare the body, an attribute or ``extra``: a JMESPath function can ask for all fields."""
        return re.fullmatch(r"[A-Za-z_]\w*", self.field) is None or self.field in ("body", "attributes", "extra")

    def matches(self, about: Mapping[str, Any]) -> bool:
        """Whether the `document` of a dead letter meets the condition."""
        from jmespath.exceptions import JMESPathError

        try:
            found = self._path.search(about)
        except JMESPathError:  # a JMESPath function called on a wrong type
            return False
        if found is None:
            return self.operator == "=" and self.value is None
        if self.field == "origin" and not str(self.value).startswith("arn:"):
            found = queue_name(str(found))
        if self._pattern is not None:
            return self._pattern.search(found if isinstance(found, str) else json.dumps(found)) is not None
        if self.operator in ("=", "!="):
            is_equal = found == self.value and isinstance(found, bool) == isinstance(self.value, bool)  # True == 1
            return is_equal == (self.operator == "=")
        return _ordered(self.operator, found, self.value)


def condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        BadFilter: the text is not a valid condition.
        ModuleNotFoundError: jmespath is not installed.
    """
    import jmespath
    from jmespath.exceptions import JMESPathError

    start, operator = _operator(text)
    field = text[:start].strip()
    before = len(text[:start]) - len(text[:start].lstrip())
    if not field:
        raise BadFilter(text, start + 1, f"there is no field before {operator}")
    first = re.match(r"([A-Za-z_]\w*)\s*(\(?)", field)
    if first and not first[2] and first[1] not in FIELDS:
        raise BadFilter(text, before + 1, f"unknown field {first[1]!r}; the fields are {', '.join(FIELDS)}")
    try:
        path = jmespath.compile(field)
    except JMESPathError as error:
        position = getattr(error, "lex_position", None) or 0
        column = before + position + 1
        raise BadFilter(text, column, f"{field!r} is not a valid JMESPath expression") from error
    value = text[start + len(operator) :].strip()
    rest = text[start:]
    if (signs := rest[: len(rest) - len(rest.lstrip("!=<>~"))]) != operator:
        raise BadFilter(text, start + 1, f"unknown operator {signs}; the operators are = != < <= > >= ~")
    if operator != "~":
        read = decoded(value)
        if field == "attempts" and operator[0] in "<>" and not _is_number(read):
            raise BadFilter(text, len(text) - len(value) + 1, f"attempts is a number, {value!r} is not")
        return Condition(text, field, operator.replace("==", "="), read, path, None)
    try:
        return Condition(text, field, operator, value, path, re.compile(value))
    except re.error as error:
        column = len(text) - len(text[start + 1 :].lstrip()) + (error.pos or 0) + 1
        raise BadFilter(text, column, f"{value!r} is not a valid regular expression: {error.msg}") from error


def matches(dead_letter: DeadLetterMessage, conditions: Iterable[Condition]) -> bool:
    """Whether the dead letter meets all conditions."""
    conditions = list(conditions)
    if not conditions:
        return True
    about = document(dead_letter) if any(each.needs_body for each in conditions) else _failure_fields(dead_letter)
    return all(each.matches(about) for each in conditions)


def document(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """Return the fields that conditions can select by. The body is decoded if it is JSON."""
    return {
        **_failure_fields(dead_letter),
        "body": decoded(dead_letter.body),
        "attributes": plain(dead_letter.attributes),
    }


def _failure_fields(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    failure = dead_letter.failure
    fields = {name: getattr(failure, name) for name in FIELDS if hasattr(failure, name)}
    return {**fields, "origin": dead_letter.origin}


def _operator(text: str) -> tuple[int, str]:
    """Return the position of the first operator outside quotes and brackets, and the operator."""
    depth, quote, index = 0, "", 0
    while index < len(text):
        character = text[index]
        if quote:
            index += character == "\\"
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif depth == 0 and (found := next((each for each in OPERATORS if text.startswith(each, index)), None)):
            return index, found
        index += 1
    problem = f"unclosed {quote}" if quote else "unclosed bracket" if depth > 0 else "there is no operator"
    raise BadFilter(
        text, len(text) + 1, f"{problem}; a condition is FIELD OP VALUE, such as 'type = orders.CardDeclined'"
    )


def _ordered(operator: str, found: Any, value: Any) -> bool:
    """Compare two numbers, two texts, or two times; values of other or different types match nothing."""
    if isinstance(found, str) and isinstance(value, str):
        times = _time(found), _time(value)
        found, value = times if None not in times else (found, value)
    elif not (_is_number(found) and _is_number(value)):
        return False
    less, equal = bool(found < value), bool(found == value)
    return {"<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[operator]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _time(text: str) -> float | None:
    """Return a date or time in epoch seconds; None for any other text, also such as ``20261121``."""
    return seconds_of(text) if re.match(r"\d{4}-\d\d-\d\d", text) else None
