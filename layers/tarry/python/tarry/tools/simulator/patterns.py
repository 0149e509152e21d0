"""Event patterns, the language of EventBridge rules and Lambda filters: rules for the fields of a JSON object.

A pattern is compiled into branches, one for each combination of the alternatives in its ``$or`` lists. A branch has a
rule for each field, by the field's path (``body.order.total``), and matches if all its rules do. Two fields in the same
array must come from the same element of it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any


class PatternError(Exception):
    """The pattern is invalid; the text says why."""


@dataclass(frozen=True)
class Number:
    """A JSON number as it was written: ``1``, ``1.0`` and ``1e0`` are different values, but the same number."""

    text: str

    @property
    def value(self) -> Decimal:
        """The number; infinite if its exponent is beyond all limits."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            return Decimal("Infinity")


Leaf = str | bool | Number | None


def parse(text: str) -> Any:
    """Parse JSON with numbers as `Number`. Raises `ValueError` for text that is not JSON."""
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def shown(value: Any) -> str:
    """Return a parsed value as JSON, for an error text."""
    text = json.dumps(value, default=lambda number: float(number.value), ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


MAX_NUMBER = Decimal(5_000_000_000)
"""The largest number, positive or negative, that ``numeric`` compares."""
_ESCAPED = re.compile(r"(\\[*\\])|([*\\])")

Test = Callable[[Leaf], bool]
Maker = Callable[[Any], Test | None]
"""Makes the test of an operator; None if what it compares with is not valid."""


def _exists(wanted: Any) -> Test | None:
    return (lambda value: True) if wanted is True else None


def _text_operator(
    matches_text: Callable[[str, str], bool], ignoring_case: Callable[[str, str], bool] | None = None
) -> Maker:
    def make(wanted: Any) -> Test | None:
        compare = matches_text
        if ignoring_case is not None and isinstance(wanted, dict) and wanted.keys() == {"equals-ignore-case"}:
            wanted, compare = wanted["equals-ignore-case"], ignoring_case
        if not isinstance(wanted, str):
            return None
        return lambda value: isinstance(value, str) and compare(value, wanted)

    return make


def _equals_ignoring_case(value: str, wanted: str) -> bool:
    """Compare character by character, so that one never equals two."""
    return len(value) == len(wanted) and all(
        one == other or one.lower() == other.lower() or one.upper() == other.upper()
        for one, other in zip(value, wanted, strict=True)
    )


def _starts_ignoring_case(value: str, wanted: str) -> bool:
    return _equals_ignoring_case(value[: len(wanted)], wanted)


def _ends_ignoring_case(value: str, wanted: str) -> bool:
    return _equals_ignoring_case(value[max(0, len(value) - len(wanted)) :], wanted)


def _wildcard(wanted: Any) -> Test | None:
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


def _cidr(wanted: Any) -> Test | None:
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


def _numeric(wanted: Any) -> Test | None:
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


def _anything_but(wanted: Any) -> Test | None:
    """Make the test that no excluded value passes. All excluded values are texts, or all are numbers."""
    if isinstance(wanted, dict):
        return _anything_but_operator(wanted)
    excluded = wanted if isinstance(wanted, list) else [wanted]
    if excluded and all(isinstance(each, str) for each in excluded):
        return lambda value: value not in excluded
    if excluded and all(isinstance(each, Number) for each in excluded):
        numbers = {each.value for each in excluded}
        return lambda value: not (isinstance(value, Number) and value.value in numbers)
    return None


def _anything_but_operator(wanted: dict[str, Any]) -> Test | None:
    if len(wanted) != 1:
        return None
    [(name, texts)] = wanted.items()
    texts = texts if isinstance(texts, list) else [texts]
    if name not in {"prefix", "suffix", "equals-ignore-case", "wildcard"} or not texts:
        return None
    if not all(isinstance(text, str) and (text or name not in {"prefix", "suffix"}) for text in texts):
        return None
    tests = [test for text in texts if (test := OPERATORS[name](text)) is not None]
    return lambda value: not any(test(value) for test in tests)


OPERATORS: Mapping[str, Maker] = {
    "exists": _exists,
    "prefix": _text_operator(str.startswith, _starts_ignoring_case),
    "suffix": _text_operator(str.endswith, _ends_ignoring_case),
    "equals-ignore-case": _text_operator(_equals_ignoring_case),
    "anything-but": _anything_but,
    "numeric": _numeric,
    "wildcard": _wildcard,
    "cidr": _cidr,
}


OR = "$or"
MAX_BRANCHES = 1_000
LISTED = frozenset({"prefix", "suffix", "equals-ignore-case", "anything-but", "numeric", "exists"})
"""The operators that Lambda lists for its filters; EventBridge has more."""
RESERVED = LISTED | {"exactly", "wildcard", "cidr", "=", "<", "<=", ">", ">="}
"""Names that a field in ``$or`` cannot have."""

Membership = Mapping[int, int]
"""The array elements that a value is in: the index of the element, by the number of the array."""
Fields = Mapping[str, Sequence[tuple[Leaf, Membership]]]
"""The values of each field, by its path."""


@dataclass(frozen=True)
class FieldRule:
    """The rule for one field: a value passes one of the tests, or there is none and it ``may_be_absent``."""

    tests: tuple[Test, ...]
    may_be_absent: bool


Branch = Mapping[str, FieldRule]


@dataclass(frozen=True)
class CompiledPattern:
    """A compiled pattern. ``unlisted`` are its operators that Lambda does not list."""

    branches: Sequence[Branch]
    unlisted: frozenset[str]


def fields_of(document: Mapping[str, Any]) -> Fields:
    """Return the fields of a parsed document. Empty objects and arrays have none."""
    fields: dict[str, list[tuple[Leaf, Membership]]] = {}
    arrays = 0
    left: list[tuple[str, Any, Membership]] = [("", document, {})]
    while left:
        path, value, membership = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{name}" if path else name, each, membership) for name, each in value.items()]
        elif isinstance(value, list):
            arrays += 1
            left += [
                (path, each, {**membership, arrays: index} if isinstance(each, (dict, list)) else membership)
                for index, each in enumerate(value)
            ]
        else:
            fields.setdefault(path, []).append((value, membership))
    return fields


def matches(branch: Branch, fields: Fields) -> bool:
    """Return whether a document with these fields matches all rules of a branch."""
    found: list[_Found] = []
    for path, rule in sorted(branch.items()):
        values = fields.get(path, ())
        passing = _different(membership for value, membership in values if any(test(value) for test in rule.tests))
        if not passing and not rule.may_be_absent:
            return False
        found.append((passing, _different(membership for _, membership in values), rule.may_be_absent))
    return _are_consistent(found, {})


_Found = tuple[list[Membership], list[Membership], bool]
"""Where the values of a field are in arrays: those that pass its rule, and all of them; and if it may be absent."""


def _different(memberships: Iterable[Membership]) -> list[Membership]:
    """Return each membership once: all values of one list have the same."""
    return list({tuple(each.items()): each for each in memberships}.values())


def _are_consistent(found: Sequence[_Found], membership: Membership) -> bool:
    """Return whether one value of each field can be chosen, so that all are in the same elements of arrays.

    A field is absent if no value of it is in those elements.
    """
    if not found:
        return True
    (passing, present, may_be_absent), *rest = found
    for own in passing:
        both = _joined(membership, own)
        if both is not None and _are_consistent(rest, both):
            return True
    is_absent = may_be_absent and all(_joined(membership, own) is None for own in present)
    return is_absent and _are_consistent(rest, membership)


def _joined(one: Membership, other: Membership) -> Membership | None:
    """Return both memberships; None if they name different elements of an array."""
    if any(one.get(array, index) != index for array, index in other.items()):
        return None
    return {**one, **other}


# compiling


def compile_pattern(pattern: Any) -> CompiledPattern:
    """Compile a parsed pattern. Raises `PatternError` if EventBridge would refuse it."""
    if not isinstance(pattern, dict):
        raise PatternError(f"{shown(pattern)} is not a JSON object")
    unlisted: set[str] = set()
    branches = _branches(pattern, "", [{}], unlisted, in_or=False)
    return CompiledPattern(branches, frozenset(unlisted))


def _branches(
    pattern: Mapping[str, Any], path: str, before: list[dict[str, FieldRule]], unlisted: set[str], *, in_or: bool
) -> list[dict[str, FieldRule]]:
    """Return the branches ``before``, each with the rules of a pattern for an object at a path."""
    if not pattern:
        raise PatternError(f"{path or 'the pattern'} is an empty object")
    branches = before
    for name, wanted in pattern.items():
        own = f"{path}.{name}" if path else name
        if name == OR:
            branches = list(_alternatives(wanted, path, branches, unlisted))
        elif in_or and name in RESERVED:
            raise PatternError(f"{name} cannot be the name of a field in {OR}")
        elif isinstance(wanted, list):
            rule = _field_rule(wanted, own, unlisted)
            for branch in branches:
                branch[own] = rule
        elif isinstance(wanted, dict):
            branches = _branches(wanted, own, branches, unlisted, in_or=in_or)
        else:
            raise PatternError(f"{own} must have a list of rules or an object, got {shown(wanted)}")
        if len(branches) > MAX_BRANCHES:
            raise PatternError(f"{OR} has more than {MAX_BRANCHES:,} combinations")
    return branches


def _alternatives(
    wanted: Any, path: str, before: list[dict[str, FieldRule]], unlisted: set[str]
) -> Iterator[dict[str, FieldRule]]:
    if not isinstance(wanted, list) or len(wanted) < 2 or not all(isinstance(one, dict) for one in wanted):
        raise PatternError(f"{OR} takes a list of two objects or more")
    for one in wanted:
        yield from _branches(one, path, [dict(branch) for branch in before], unlisted, in_or=True)


def _field_rule(rules: list[Any], path: str, unlisted: set[str]) -> FieldRule:
    if not rules:
        raise PatternError(f"the list of {path} is empty, so nothing would match")
    tests, may_be_absent = [], False
    for rule in rules:
        if rule == {"exists": False}:
            may_be_absent = True
        else:
            tests.append(_test_of(rule, unlisted))
    return FieldRule(tuple(tests), may_be_absent)


def _test_of(rule: Any, unlisted: set[str]) -> Test:
    if isinstance(rule, dict) and len(rule) == 1:
        [(name, wanted)] = rule.items()
        test = OPERATORS[name](wanted) if name in OPERATORS else None
        if test is not None:
            if name not in LISTED:
                unlisted.add(name)
            elif isinstance(wanted, dict):  # an operator within another
                unlisted.add(f"{name} with {next(iter(wanted))}")
            return test
    elif not isinstance(rule, (dict, list)):
        return partial(_is_same, rule)
    raise PatternError(f"{shown(rule)} is not a rule")


def _is_same(wanted: Leaf, value: Leaf) -> bool:
    """Compare two values as they were written: 1 is neither true nor 1.0 nor "1"."""
    return type(wanted) is type(value) and wanted == value
