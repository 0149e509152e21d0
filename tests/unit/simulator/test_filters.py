"""The filters of an event source mapping (PLATFORM 15c)."""

import json
from typing import Any

import pytest

from tarry.simulator.errors import InvalidParameterValue
from tarry.simulator.filters import Filters


def matches(pattern: Any, body: Any) -> bool:
    """Return whether a body (a str, or a value to send as JSON) matches ``{"body": pattern}``."""
    return Filters([{"body": pattern}]).match(body if isinstance(body, str) else json.dumps(body))


def test_without_filters_everything_matches() -> None:
    assert Filters().match("anything")
    assert Filters([{}]).match("anything")


def test_a_message_passes_if_one_of_the_filters_matches() -> None:
    filters = Filters([{"body": {"kind": ["order"]}}, '{"body": {"kind": ["refund"]}}'])
    assert [filters.match(json.dumps({"kind": kind})) for kind in ("order", "refund", "other")] == [True, True, False]


@pytest.mark.parametrize(
    ("pattern", "body", "expected"),
    [
        (["hello"], "hello", True),
        (["hello"], "hello there", False),
        ([{"prefix": "hello"}], "hello there", True),
        (["hello"], '{"text": "hello"}', False),
        ([{"anything-but": ["hello"]}], '{"text": "hi"}', False),
        ({"text": ["hello"]}, "hello", False),
        ({"text": ["hello"]}, "{not json", False),
        ({"text": ["hello"]}, '"hello"', False),
        ({"text": ["hello"]}, ' {"text": "hello"}', True),
    ],
)
def test_a_text_pattern_matches_only_text_and_a_json_pattern_only_json(pattern: Any, body: str, expected: bool) -> None:
    assert matches(pattern, body) is expected


@pytest.mark.parametrize(
    ("rules", "value", "expected"),
    [
        (["a", "b"], "b", True),
        (["a", "b"], "c", False),
        ([1], 1, True),
        ([1], "1", False),
        ([1], True, False),
        ([True], True, True),
        ([None], None, True),
        ([None], "", False),
        ([""], "", True),
        ([{"prefix": "eu-"}], "eu-west", True),
        ([{"prefix": "eu-"}], "us-east", False),
        ([{"prefix": "1"}], 12, False),
        ([{"suffix": ".png"}], "a.png", True),
        ([{"suffix": ".png"}], "a.jpg", False),
        ([{"equals-ignore-case": "Alice"}], "aLICE", True),
        ([{"equals-ignore-case": "Alice"}], "Bob", False),
        ([{"anything-but": ["a", "b"]}], "c", True),
        ([{"anything-but": ["a", "b"]}], "a", False),
        ([{"anything-but": "a"}], "a", False),
        ([{"anything-but": 5}], 6, True),
        ([{"anything-but": {"prefix": "tmp"}}], "tmp-1", False),
        ([{"anything-but": {"suffix": ".tmp"}}], "a.png", True),
        ([{"numeric": ["=", 100]}], 100, True),
        ([{"numeric": ["=", 100]}], 100.0, True),
        ([{"numeric": [">", 10, "<=", 20]}], 20, True),
        ([{"numeric": [">", 10, "<=", 20]}], 10, False),
        ([{"numeric": ["<", 0]}], -0.5, True),
        ([{"numeric": [">=", 0]}], "5", False),
        ([{"numeric": [">=", 0]}], True, False),
        ([{"exists": True}], None, True),
        ([{"exists": False}], 1, False),
        (["a", {"prefix": "b"}], "bc", True),
        (["a"], ["x", "a"], True),
        (["a"], ["x", "y"], False),
        (["a"], {"a": 1}, False),
    ],
)
def test_rules_of_one_key(rules: Any, value: Any, expected: bool) -> None:
    assert matches({"key": rules}, {"key": value}) is expected


def test_a_missing_key_matches_only_exists_false() -> None:
    assert matches({"key": [{"exists": False}]}, {})
    assert not matches({"key": [{"exists": True}]}, {})
    assert not matches({"key": [{"anything-but": ["a"]}]}, {})
    assert not matches({"key": [None]}, {})


def test_all_keys_must_match_at_any_depth() -> None:
    pattern = {"order": {"total": [{"numeric": [">", 100]}], "customer": {"kind": ["vip"]}}}
    assert matches(pattern, {"order": {"total": 200, "customer": {"kind": "vip"}, "more": 1}})
    assert not matches(pattern, {"order": {"total": 50, "customer": {"kind": "vip"}}})
    assert not matches(pattern, {"order": {"total": 200, "customer": "vip"}})
    assert not matches(pattern, {"order": None})


def test_a_pattern_matches_any_object_of_a_list() -> None:
    pattern = {"items": {"sku": ["a"]}}
    assert matches(pattern, {"items": [{"sku": "b"}, {"sku": "a"}]})
    assert matches(pattern, [{"items": {"sku": "a"}}])
    assert not matches(pattern, {"items": []})


def test_or_matches_if_one_of_its_patterns_does() -> None:
    pattern = {"kind": ["order"], "$or": [{"total": [{"numeric": [">", 100]}]}, {"customer": ["vip"]}]}
    assert matches(pattern, {"kind": "order", "total": 200})
    assert matches(pattern, {"kind": "order", "customer": "vip"})
    assert not matches(pattern, {"kind": "order", "total": 1, "customer": "new"})
    assert not matches(pattern, {"kind": "refund", "total": 200})


@pytest.mark.parametrize(
    "pattern",
    [
        "not json",
        "[]",
        {"body": "text"},
        {"body": {}},
        {"body": []},
        {"body": {"key": "value"}},
        {"body": {"key": []}},
        {"body": {"key": [["a"]]}},
        {"body": {"key": [{"like": "a"}]}},
        {"body": {"key": [{"prefix": 1}]}},
        {"body": {"key": [{"prefix": "a", "suffix": "b"}]}},
        {"body": {"key": [{"exists": "yes"}]}},
        {"body": {"key": [{"numeric": [">"]}]}},
        {"body": {"key": [{"numeric": ["!=", 1]}]}},
        {"body": {"key": [{"numeric": [">", "1"]}]}},
        {"body": {"key": [{"anything-but": []}]}},
        {"body": {"$or": [{"a": ["b"]}]}},
        {"messageAttributes": {"tenant": ["a"]}},
    ],
)
def test_an_invalid_pattern_is_refused_with_the_text_of_lambda(pattern: Any) -> None:
    with pytest.raises(InvalidParameterValue, match=r"^Invalid filter pattern definition\."):
        Filters([pattern])


def test_too_many_filters_are_refused() -> None:
    with pytest.raises(InvalidParameterValue, match="11 filters"):
        Filters([{"body": ["a"]}] * 11)
