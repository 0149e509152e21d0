"""``FIELD OP VALUE``: conditions that select dead letters, as pure functions.

FIELD is a JMESPath expression over what `document` makes of a letter; OP one of ``= != < <= > >= ~`` (a regular
expression that is found somewhere in the text); VALUE is JSON if it parses, else the text. What a letter lacks matches
nothing, ``!=`` included.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tarry.failed.dead_letters import plain
from tarry.failed.errors import BadFilter
from tarry.support.value import Value
from tarry.tooling.queues import queue_name

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
    """One ``FIELD OP VALUE``. Made by `condition`."""

    text: str
    field: str
    operator: str
    value: Any
    _found_by: Any
    _pattern: re.Pattern[str] | None

    def __init__(
        self, text: str, field: str, operator: str, value: Any, found_by: Any, pattern: re.Pattern[str] | None
    ) -> None:
        self._freeze(text=text, field=field, operator=operator, value=value, _found_by=found_by, _pattern=pattern)

    def holds(self, about: Mapping[str, Any]) -> bool:
        """Whether it does of a letter's `document`."""
        from jmespath.exceptions import JMESPathError

        try:
            found = self._found_by.search(about)
        except JMESPathError:  # a function that wants another type
            return False
        if found is None:
            return False
        if self.field == "origin" and not str(self.value).startswith("arn:"):
            found = queue_name(str(found))
        if self._pattern is not None:
            return self._pattern.search(found if isinstance(found, str) else json.dumps(found)) is not None
        if self.operator in ("=", "!="):
            return _equal(found, self.value) == (self.operator == "=")
        return _ordered(self.operator, found, self.value)


def condition(text: str) -> Condition:
    """The condition that a text says. Raises `BadFilter`, and `ModuleNotFoundError` where jmespath is not installed."""
    import jmespath
    from jmespath.exceptions import JMESPathError

    start, operator = _operator(text)
    field = text[:start].strip()
    before = len(text[:start]) - len(text[:start].lstrip())
    if not field:
        raise BadFilter(text, start + 1, f"no field stands before {operator}")
    first = re.match(r"([A-Za-z_]\w*)\s*(\(?)", field)
    if first and not first[2] and first[1] not in FIELDS:
        raise BadFilter(text, before + 1, f"there is no field {first[1]!r}; there are {', '.join(FIELDS)}")
    try:
        found_by = jmespath.compile(field)
    except JMESPathError as error:
        column = before + (getattr(error, "lex_position", None) or 0) + 1
        raise BadFilter(text, column, f"{field!r} is no JMESPath expression") from error
    given = text[start + len(operator) :].strip()
    if operator != "~":
        return Condition(text, field, operator.replace("==", "="), _value(given), found_by, None)
    try:
        return Condition(text, field, operator, given, found_by, re.compile(given))
    except re.error as error:
        column = len(text) - len(text[start + 1 :].lstrip()) + (error.pos or 0) + 1
        raise BadFilter(text, column, f"{given!r} is no regular expression: {error.msg}") from error


def matches(dead_letter: DeadLetterMessage, conditions: Iterable[Condition]) -> bool:
    """Whether all of them hold."""
    conditions = list(conditions)
    if not conditions:
        return True
    about = document(dead_letter)
    return all(each.holds(about) for each in conditions)


def document(dead_letter: DeadLetterMessage) -> dict[str, Any]:
    """What conditions see of a letter; the body decoded if it is JSON."""
    failure = dead_letter.failure
    told = {name: getattr(failure, name) for name in FIELDS if hasattr(failure, name)}
    return {
        **told,
        "origin": dead_letter.origin,
        "body": _decoded(dead_letter.body),
        "attributes": plain(dead_letter.attributes),
    }


def _decoded(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _operator(text: str) -> tuple[int, str]:
    """Where the first operator stands that is not within quotes or brackets, and which it is."""
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
    what = f"a {quote} is not closed" if quote else "a bracket is not closed" if depth > 0 else "there is no operator"
    raise BadFilter(text, len(text) + 1, f"{what}: it is FIELD OP VALUE, such as 'type = orders.CardDeclined'")


def _value(given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError:
        return given


def _equal(found: Any, value: Any) -> bool:
    if isinstance(found, bool) != isinstance(value, bool):
        return False  # True is no 1
    return bool(found == value)


def _ordered(operator: str, found: Any, value: Any) -> bool:
    """Numbers with numbers, texts with texts, moments by when they are; nothing else has an order."""
    if isinstance(found, str) and isinstance(value, str):
        moments = _moment(found), _moment(value)
        left, right = moments if None not in moments else (found, value)
    elif _is_number(found) and _is_number(value):
        left, right = found, value
    else:
        return False
    less, equal = left < right, left == right
    return {"<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[operator]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _moment(text: str) -> Any:
    """A date or time, in UTC unless it says otherwise; None if it is none."""
    from datetime import UTC, datetime

    if not re.match(r"\d{4}-\d\d-\d\d", text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
