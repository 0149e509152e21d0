"""Event patterns, the language of EventBridge rules and Lambda filters: rules for the fields of a JSON object.

A pattern is compiled into branches, one for each combination of the alternatives in its ``$or`` lists. A branch has a
rule for each field, by the field's path (``body.order.total``), and matches if all its rules do. Two fields in the same
array must come from the same element of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tarry.tools.simulator.pattern_operators import OPERATORS, Test
from tarry.tools.simulator.pattern_values import Leaf, PatternError, shown

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
    found = [_found(rule, fields.get(path, ())) for path, rule in sorted(branch.items())]
    return all(each.passing or each.may_be_absent for each in found) and _are_consistent(found, {})


class _Found(NamedTuple):
    """Where the values of a field are in arrays: those that pass its rule, and all of them."""

    passing: list[Membership]
    present: list[Membership]
    may_be_absent: bool


def _found(rule: FieldRule, values: Sequence[tuple[Leaf, Membership]]) -> _Found:
    passing = (membership for value, membership in values if any(test(value) for test in rule.tests))
    present = (membership for _, membership in values)
    return _Found(_different(passing), _different(present), rule.may_be_absent)


def _different(memberships: Iterable[Membership]) -> list[Membership]:
    """Return each membership once: all values of one list have the same."""
    return list({tuple(each.items()): each for each in memberships}.values())


def _are_consistent(found: Sequence[_Found], membership: Membership) -> bool:
    """Return whether one value of each field can be chosen, so that all are in the same elements of arrays.

    A field is absent if no value of it is in those elements.
    """
    if not found:
        return True
    first, rest = found[0], found[1:]
    for own in first.passing:
        both = _joined(membership, own)
        if both is not None and _are_consistent(rest, both):
            return True
    is_absent = first.may_be_absent and all(_joined(membership, own) is None for own in first.present)
    return is_absent and _are_consistent(rest, membership)


def _joined(one: Membership, other: Membership) -> Membership | None:
    """Return both memberships; None if they name different elements of an array."""
    if any(one.get(array, index) != index for array, index in other.items()):
        return None
    return {**one, **other}


# compiling


def compile_pattern(pattern: Any) -> CompiledPattern:
    """Compile a parsed pattern.

    Raises:
        PatternError: EventBridge would refuse it.
    """
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
        make = OPERATORS.get(name)
        test = make(wanted, unlisted) if make is not None else None
        if test is not None:
            if name not in LISTED:
                unlisted.add(name)
            return test
    elif not isinstance(rule, (dict, list)):
        return partial(_is_same, rule)
    raise PatternError(f"{shown(rule)} is not a rule")


def _is_same(wanted: Leaf, value: Leaf) -> bool:
    """Compare two values as they were written: 1 is neither true nor 1.0 nor "1"."""
    return type(wanted) is type(value) and wanted == value
