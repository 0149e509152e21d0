"""The operators of event patterns. Each makes the test of a rule, or returns None for a value that it cannot have."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Any

from tarry.tools.simulator.pattern_values import Leaf, Number, PatternError, shown

MAX_NUMBER = Decimal(5_000_000_000)
"""The largest number, positive or negative, that ``numeric`` compares."""
_ESCAPED = re.compile(r"(\\[*\\])|([*\\])")

Test = Callable[[Leaf], bool]


def _exists(wanted: Any, unlisted: set[str]) -> Test | None:
    return (lambda value: True) if wanted is True else None


def _text_operator(name: str, matches_text: Callable[[str, str], bool]) -> Callable[[Any, set[str]], Test | None]:
    def make(wanted: Any, unlisted: set[str]) -> Test | None:
        if isinstance(wanted, str):
            return lambda value: isinstance(value, str) and matches_text(value, wanted)
        if name in _IGNORING_CASE and isinstance(wanted, dict) and wanted.keys() == {"equals-ignore-case"}:
            text, ignoring_case = wanted["equals-ignore-case"], _IGNORING_CASE[name]
            if isinstance(text, str):
                unlisted.add(f"{name} with equals-ignore-case")
                return lambda value: isinstance(value, str) and ignoring_case(value, text)
        return None

    return make


def _equals_ignoring_case(value: str, wanted: str) -> bool:
    """Compare character by character, so that one never equals two."""
    return len(value) == len(wanted) and all(
        one == other or one.lower() == other.lower() or one.upper() == other.upper()
        for one, other in zip(value, wanted, strict=True)
    )


_IGNORING_CASE: Mapping[str, Callable[[str, str], bool]] = {
    "prefix": lambda value, wanted: _equals_ignoring_case(value[: len(wanted)], wanted),
    "suffix": lambda value, wanted: _equals_ignoring_case(value[max(0, len(value) - len(wanted)) :], wanted),
}


def _wildcard(wanted: Any, unlisted: set[str]) -> Test | None:
    if not isinstance(wanted, str):
        return None
    expression = _expression_of(wanted)
    return lambda value: isinstance(value, str) and expression.fullmatch(value) is not None


def _expression_of(wanted: str) -> re.Pattern[str]:
    r"""Return the regular expression of a wildcard: ``*`` is any text, ``\*`` an asterisk, ``\\`` a backslash."""
    if "**" in re.sub(r"\\.", "x", wanted):
        raise PatternError(f"the wildcard {shown(wanted)} has two * in a row")
    parts, end = [], 0
    for found in _ESCAPED.finditer(wanted):
        parts.append(re.escape(wanted[end : found.start()]))
        if found[2] == "\\":
            raise PatternError(f"the wildcard {shown(wanted)} has a backslash before neither * nor a backslash")
        parts.append(re.escape(found[1][1]) if found[1] else ".*")
        end = found.end()
    return re.compile("".join([*parts, re.escape(wanted[end:])]), re.DOTALL)


def _cidr(wanted: Any, unlisted: set[str]) -> Test | None:
    try:
        network = ip_network(wanted, strict=False) if isinstance(wanted, str) and "/" in wanted else None
    except ValueError:
        network = None
    if network is None:
        return None

    def is_inside(value: Leaf) -> bool:
        try:
            return isinstance(value, str) and ip_address(value) in network
        except ValueError:
            return False

    return is_inside


def _numeric(wanted: Any, unlisted: set[str]) -> Test | None:
    """Make the test of a range: one comparison, or a lower limit and then a higher one."""
    if not isinstance(wanted, list) or len(wanted) not in {2, 4}:
        return None
    signs, limits = wanted[::2], [limit.value for limit in wanted[1::2] if isinstance(limit, Number)]
    if len(limits) < len(signs) or any(abs(limit) > MAX_NUMBER for limit in limits):
        return None
    is_range = len(signs) == 2 and signs[0] in {">", ">="} and signs[1] in {"<", "<="} and limits[0] < limits[1]
    if not is_range and not (len(signs) == 1 and signs[0] in _COMPARISONS):
        return None
    compared = [(_COMPARISONS[sign], limit) for sign, limit in zip(signs, limits, strict=True)]

    def is_within(value: Leaf) -> bool:
        if not isinstance(value, Number) or abs(value.value) > MAX_NUMBER:
            return False
        return all(compare(value.value, limit) for compare, limit in compared)

    return is_within


_COMPARISONS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "=": Decimal.__eq__,
    "<": Decimal.__lt__,
    "<=": Decimal.__le__,
    ">": Decimal.__gt__,
    ">=": Decimal.__ge__,
}


def _anything_but(wanted: Any, unlisted: set[str]) -> Test | None:
    """Make the test that no excluded value passes. All excluded values are texts, or all are numbers."""
    if isinstance(wanted, dict):
        return _anything_but_operator(wanted, unlisted)
    excluded = wanted if isinstance(wanted, list) else [wanted]
    if excluded and all(isinstance(each, str) for each in excluded):
        return lambda value: value not in excluded
    if excluded and all(isinstance(each, Number) for each in excluded):
        numbers = {each.value for each in excluded}
        return lambda value: not (isinstance(value, Number) and value.value in numbers)
    return None


def _anything_but_operator(wanted: dict[str, Any], unlisted: set[str]) -> Test | None:
    if len(wanted) != 1:
        return None
    [(name, texts)] = wanted.items()
    texts = texts if isinstance(texts, list) else [texts]
    if name not in {"prefix", "suffix", "equals-ignore-case", "wildcard"} or not texts:
        return None
    if not all(isinstance(text, str) and (text or name not in {"prefix", "suffix"}) for text in texts):
        return None
    unlisted.add(f"anything-but with {name}")
    tests = [test for text in texts if (test := OPERATORS[name](text, unlisted)) is not None]
    return lambda value: not any(test(value) for test in tests)


OPERATORS: Mapping[str, Callable[[Any, set[str]], Test | None]] = {
    "exists": _exists,
    "prefix": _text_operator("prefix", str.startswith),
    "suffix": _text_operator("suffix", str.endswith),
    "equals-ignore-case": _text_operator("equals-ignore-case", _equals_ignoring_case),
    "anything-but": _anything_but,
    "numeric": _numeric,
    "wildcard": _wildcard,
    "cidr": _cidr,
}
