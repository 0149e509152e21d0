"""The filters of an event source mapping: patterns for the record of a message.

The mapping deletes a message that matches none of its filters, without invoking the function. Lambda documents filters
on the body alone for SQS; other keys of the record are matched too, with a warning, because templates have them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tarry.tools.simulator.errors import InvalidParameterValue
from tarry.tools.simulator.pattern_values import PatternError, parse
from tarry.tools.simulator.patterns import Branch, CompiledPattern, compile_pattern, fields_of, matches

BODY = "body"
MAX_FILTERS, DEFAULT_FILTERS = 10, 5
MAX_PATTERN_CHARACTERS = 4_096
RECORD_KEYS = frozenset(
    "messageId receiptHandle body attributes messageAttributes md5OfBody md5OfMessageAttributes eventSource "
    "eventSourceARN awsRegion".split()
)


class Filters:
    """The filters of one mapping. Without any, everything matches.

    Args:
        patterns: Patterns such as ``{"body": {"type": ["order"]}}``, as dicts or as JSON texts.

    Raises:
        InvalidParameterValue: Lambda would refuse a pattern, or their number.
    """

    def __init__(self, patterns: Iterable[str | Mapping[str, Any]] = ()) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]
        if len(self._patterns) > MAX_FILTERS:
            raise _invalid(f"{len(self._patterns)} filters exceed the limit of {MAX_FILTERS}")

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, record: Mapping[str, Any]) -> bool:
        """Return whether the message with this event record goes to the function."""
        if not self._patterns:
            return True
        document = _document(record[BODY])
        fields = fields_of({**record, BODY: record[BODY] if document is None else document})
        return any(
            _suits_body(branch, is_json=document is not None) and matches(branch, fields)
            for pattern in self._patterns
            for branch in pattern.branches
        )

    @property
    def warnings(self) -> list[str]:
        """The points that AWS may treat differently, each as the end of a sentence about the mapping."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        operators = sorted(set().union(*(pattern.unlisted for pattern in self._patterns)))
        if operators:
            yield (
                f"its filters use {', '.join(operators)}, which Lambda does not list for filters; evaluated as in "
                "EventBridge, but Lambda may refuse the mapping"
            )
        keys = {path.partition(".")[0] for pattern in self._patterns for branch in pattern.branches for path in branch}
        if unknown := sorted(keys - RECORD_KEYS):
            yield f"its filters name {', '.join(unknown)}, which no SQS record has: no message has a value for it"
        if others := sorted((keys & RECORD_KEYS) - {BODY}):
            yield (
                f"its filters name {', '.join(others)}; Lambda documents only body for SQS, and may match nothing else"
            )
        if len(self._patterns) > DEFAULT_FILTERS:
            yield f"it has {len(self._patterns)} filters; Lambda allows {DEFAULT_FILTERS} unless your quota is higher"


def _suits_body(branch: Branch, *, is_json: bool) -> bool:
    """Return whether the rules on the body are for its format: text or JSON. Rules for one never match the other."""
    if is_json:
        return BODY not in branch
    return not any(path.startswith(f"{BODY}.") for path in branch)


def _document(body: str) -> Any:
    """Parse a body that is a JSON object or list; None for any other text."""
    if not body.lstrip().startswith(("{", "[")):
        return None
    try:
        return parse(body)
    except ValueError:
        return None


def _compiled(given: str | Mapping[str, Any]) -> CompiledPattern:
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        pattern = parse(text)
    except (TypeError, ValueError) as error:
        raise _invalid(f"{given!r:.80} is not JSON") from error
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise _invalid(f"a pattern has {len(text):,} characters, and at most {MAX_PATTERN_CHARACTERS:,} are allowed")
    if pattern == {}:
        return CompiledPattern([{}], frozenset())
    try:
        return compile_pattern(pattern)
    except PatternError as error:
        raise _invalid(str(error)) from error


def _invalid(why: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Invalid filter pattern definition. ({why})")
