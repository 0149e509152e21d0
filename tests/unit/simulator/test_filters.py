"""The filters of an event source mapping (PLATFORM 15c)."""

import json
import operator
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.tools.simulator.mapping_settings import Filters, InvalidParameterValue


def matches(pattern: Any, body: Any) -> bool:
    """Return whether a body (a str, or a value to send as JSON) matches ``{"body": pattern}``."""
    return Filters([{"body": pattern}]).match(record(body))


def record(body: Any, **more: Any) -> dict[str, Any]:
    """Return an event record with a body (a str, or a value to send as JSON)."""
    return {"messageId": "m", "body": body if isinstance(body, str) else json.dumps(body), **more}


def test_without_filters_everything_matches() -> None:
    assert Filters().match(record("anything"))
    assert Filters([{}]).match(record("anything"))


def test_a_message_passes_if_one_of_the_filters_matches() -> None:
    filters = Filters([{"body": {"kind": ["order"]}}, '{"body": {"kind": ["refund"]}}'])
    assert [filters.match(record({"kind": kind})) for kind in ("order", "refund", "other")] == [True, True, False]


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
        {"body": {"key": [{"prefix": {"equals-ignore-case": 1}}]}},
        {"body": {"key": [{"suffix": ["a"]}]}},
        {"body": {"key": [{"equals-ignore-case": ["a"]}]}},
        {"body": {"key": [{"exists": True, "prefix": "a"}]}},
        {"body": {"key": [{"exists": 1}]}},
        {"body": {"key": [{"anything-but": ["a", 1]}]}},
        {"body": {"key": [{"anything-but": None}]}},
        {"body": {"key": [{"anything-but": True}]}},
        {"body": {"key": [{"anything-but": {"prefix": ""}}]}},
        {"body": {"key": [{"anything-but": {"prefix": [1]}}]}},
        {"body": {"key": [{"anything-but": {"numeric": [1]}}]}},
        {"body": {"key": [{"anything-but": {"prefix": "a", "suffix": "b"}}]}},
        {"body": {"key": [{"numeric": ["=", 1, "<", 2]}]}},
        {"body": {"key": [{"numeric": ["<", 5, ">", 1]}]}},
        {"body": {"key": [{"numeric": [">", 5, "<", 5]}]}},
        {"body": {"key": [{"numeric": [">", 1, "<", 2, "=", 3]}]}},
        {"body": {"key": [{"numeric": ["<", True]}]}},
        {"body": {"key": [{"numeric": ["<", 6e9]}]}},
        {"body": {"key": [{"wildcard": "a**"}]}},
        {"body": {"key": [{"wildcard": "a\\b"}]}},
        {"body": {"key": [{"cidr": "10.0.0.1"}]}},
        {"body": {"key": [{"cidr": "somewhere/8"}]}},
        {"body": {"$or": {"a": ["b"]}}},
        {"body": {"$or": [{"a": ["b"]}, ["c"]]}},
        {"body": {"$or": [{"prefix": ["b"]}, {"a": ["c"]}]}},
        {"body": {"$or": [{"k": [n]} for n in range(1_001)]}},
        {"body": None},
        {"body": {"key": ["x" * 4_096]}},
    ],
)
def test_an_invalid_pattern_is_refused_with_the_text_of_lambda(pattern: Any) -> None:
    with pytest.raises(InvalidParameterValue, match=r"^Invalid filter pattern definition\."):
        Filters([pattern])


def test_too_many_filters_are_refused() -> None:
    with pytest.raises(InvalidParameterValue, match="11 filters"):
        Filters([{"body": ["a"]}] * 11)


# the cases below follow the tests of EventBridge's own matcher, as far as Lambda documents them


@pytest.mark.parametrize(
    ("rules", "value", "expected"),
    [
        # numbers are compared as they are written, unless the rule is numeric or anything-but
        ([300], "300", True),
        ([300], "300.0", False),
        ([300], "3.0e2", False),
        ([300.0], "300.0", True),
        ([123456789012], "123456789012", True),
        ([{"numeric": ["=", 300]}], "3.0e2", True),
        ([{"numeric": ["=", 0.3]}], "0.3", True),
        ([{"numeric": [">=", 99.999, "<=", 100]}], "100", True),
        ([{"numeric": [">=", 100.00001, "<=", 1001]}], "100", False),
        ([{"numeric": [">", 0]}], "6e9", False),
        ([{"numeric": ["<=", 5e9]}], "5000000000", True),
        ([{"numeric": ["<", 10]}], "null", False),
        ([{"numeric": [">", 0]}], "1e99999999999999999999", False),
        ([{"anything-but": 1}], "1e99999999999999999999", True),
        ([{"anything-but": [100, 200]}], "1e2", False),
        ([{"anything-but": [100, 200]}], "300", True),
        ([{"anything-but": [100, 200]}], '"100"', True),
        ([{"anything-but": "a"}], "null", True),
        ([{"anything-but": "a"}], "true", True),
        ([{"anything-but": {"suffix": [".tmp", ".bak"]}}], '"a.bak"', False),
        ([{"anything-but": {"suffix": [".tmp", ".bak"]}}], '"a.png"', True),
        ([{"anything-but": {"equals-ignore-case": ["YES", "No"]}}], '"no"', False),
        ([{"anything-but": {"wildcard": "*/lib/*"}}], '"src/lib/a"', False),
        ([{"anything-but": {"prefix": "a"}}], "5", True),
        ([{"prefix": ""}], '"anything"', True),
        ([{"prefix": ""}], "5", False),
        ([{"prefix": {"equals-ignore-case": "EU-"}}], '"eu-west"', True),
        ([{"suffix": {"equals-ignore-case": ".PNG"}}], '"a.png"', True),
        ([{"suffix": {"equals-ignore-case": ".PNG"}}], '"g"', False),
        ([{"equals-ignore-case": "strasse"}], '"stra\u00dfe"', False),
        ([{"equals-ignore-case": "\u00c9T\u00c9"}], '"\u00e9t\u00e9"', True),
        ([{"wildcard": "a*c*"}], '"abcd"', True),
        ([{"wildcard": "a*c"}], '"abcd"', False),
        ([{"wildcard": "a\\*b\\\\"}], '"a*b\\\\"', True),
        ([{"wildcard": "a\\*b"}], '"axb"', False),
        ([{"cidr": "10.0.0.0/24"}], '"10.0.0.33"', True),
        ([{"cidr": "10.0.0.0/24"}], '"10.0.1.33"', False),
        ([{"cidr": "2001:db8::/32"}], '"2001:db8::1"', True),
        ([{"cidr": "10.0.0.0/24"}], '"nowhere"', False),
        ([{"exists": True}], "[]", False),
        ([{"exists": True}], "{}", False),
        ([{"exists": False}], "[]", True),
        ([{"exists": False}], '{"inside": 1}', True),
        ([{"exists": False}, "a"], '"a"', True),
        ([{"exists": False}, "a"], '"b"', False),
        ([{"anything-but": "a"}], '["a", "b"]', True),
        ([{"anything-but": "a"}], '["a"]', False),
        ([5], "[[1, 2], [5]]", True),
    ],
)
def test_rules_match_values_as_in_eventbridge(rules: Any, value: str, expected: bool) -> None:
    assert matches({"key": rules}, f'{{"key": {value}}}') is expected


def test_a_field_is_absent_whatever_is_missing_above_it() -> None:
    pattern = {"order": {"coupon": [{"exists": False}]}}
    assert matches(pattern, {})
    assert matches(pattern, {"order": "text"})
    assert matches(pattern, {"order": {"total": 1}})
    assert not matches(pattern, {"order": {"coupon": None}})
    assert not matches(pattern, {"order": [{"total": 1}, {"coupon": "a"}]})


@pytest.mark.parametrize(
    ("pattern", "lines", "expected"),
    [
        ({"sku": ["a"], "count": [2]}, [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}], False),
        ({"sku": ["a"], "count": [2]}, [{"sku": "b", "count": 2}, {"sku": "a", "count": 2}], True),
        ({"sku": ["a"], "count": [2]}, [[{"sku": "a"}, {"sku": "b"}], [{"sku": "a", "count": 2}]], True),
        ({"sku": ["a"], "tags": ["x"]}, [{"sku": "a", "tags": ["y", "x"]}], True),
        ({"sku": ["a"], "tags": ["x"]}, [{"sku": "a", "tags": ["y"]}, {"sku": "b", "tags": ["x"]}], False),
        ({"sku": ["a"], "tags": [{"exists": False}]}, [{"sku": "a"}, {"sku": "b", "tags": ["x"]}], True),
        ({"sku": ["a"], "tags": [{"exists": False}]}, [{"sku": "a", "tags": ["x"]}], False),
        ({"part": {"k": ["c"], "v": ["d"]}}, [{"part": [{"k": "c"}, {"v": "d"}]}], False),
        ({"part": {"k": ["c"], "v": ["d"]}}, [{"part": [{"k": "c", "v": "d"}]}], True),
    ],
)
def test_two_fields_in_an_array_must_come_from_the_same_element(pattern: Any, lines: Any, expected: bool) -> None:
    assert matches({"lines": pattern}, {"lines": lines}) is expected


def test_two_lists_of_values_are_matched_independently() -> None:
    assert matches({"tags": ["b"], "sizes": [1]}, {"tags": ["a", "b"], "sizes": [1, 2]})


def test_or_may_be_nested_in_parallel_and_at_any_depth() -> None:
    nested = {"kind": ["a"], "$or": [{"x": [1]}, {"y": [2], "$or": [{"p": [3]}, {"q": {"r": [4]}}]}]}
    assert matches(nested, {"kind": "a", "x": 1})
    assert matches(nested, {"kind": "a", "y": 2, "q": {"r": 4}})
    assert not matches(nested, {"kind": "a", "y": 2})
    assert not matches(nested, {"kind": "b", "x": 1})
    parallel = {"$or": [{"x": [1]}, {"y": [2]}], "inside": {"$or": [{"p": [3]}, {"q": [4]}]}}
    assert matches(parallel, {"y": 2, "inside": {"p": 3}})
    assert not matches(parallel, {"y": 2, "inside": {"p": 4}})
    top = Filters([{"$or": [{"body": {"x": [1]}}, {"body": ["text"]}]}])
    assert [top.match(record(body)) for body in ({"x": 1}, "text", {"x": 2}, "other")] == [True, True, False, False]


def test_a_name_with_dots_is_a_path() -> None:
    assert matches({"a.b": ["c"]}, {"a": {"b": "c"}})
    assert matches({"a": {"b": ["c"]}}, {"a.b": "c"})


def test_a_body_that_is_not_json_never_matches_a_pattern_for_json_even_for_an_absent_field() -> None:
    assert not matches({"coupon": [{"exists": False}]}, "hello")
    assert not matches({"coupon": [{"exists": False}]}, '{"total": NaN}')
    assert matches({"coupon": [{"exists": False}]}, '{"total": 1}')
    assert not matches({"key": ["a"]}, "[" * 100_000)


def test_other_keys_and_operators_are_played_with_a_warning() -> None:
    tenant = {"messageAttributes": {"tenant": {"stringValue": [{"wildcard": "acme-*"}]}}}
    filters = Filters([tenant, {"body": {"ip": [{"cidr": "10.0.0.0/8"}]}}])
    sent_by = {"tenant": {"stringValue": "acme-1", "dataType": "String"}}
    assert filters.match(record("any text", messageAttributes=sent_by))
    assert filters.match(record({"ip": "10.1.2.3"}, messageAttributes={}))
    assert not filters.match(record("any text", messageAttributes={}))
    operators, keys = filters.warnings
    assert "its filters use cidr, wildcard, which Lambda does not list" in operators
    assert "its filters name messageAttributes; Lambda documents only body for SQS" in keys
    assert "name Body, which no SQS record has" in Filters([{"Body": ["x"]}]).warnings[0]
    assert "it has 6 filters; Lambda allows 5" in Filters([{"body": ["a"]}] * 6).warnings[0]
    documented = [
        {"prefix": "a"},
        {"suffix": "b"},
        {"equals-ignore-case": "c"},
        {"anything-but": ["d"]},
        {"exists": True},
    ]
    assert Filters([{"body": {"key": documented}}]).warnings == []


TEXTS = st.text("abAB.", max_size=4)
COMPARISONS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}


@given(TEXTS, TEXTS, st.text("ab", max_size=2))
def test_rules_of_texts_match_as_they_say(value: str, part: str, end: str) -> None:
    expected = {
        "prefix": value.startswith(part),
        "suffix": value.endswith(part),
        "equals-ignore-case": value.lower() == part.lower(),
        "anything-but": value != part,
        "wildcard": re.fullmatch(f"{re.escape(part)}.*{re.escape(end)}", value) is not None,
    }
    found = {
        rule: matches({"kind": [{rule: part + "*" + end if rule == "wildcard" else part}]}, {"kind": value})
        for rule in expected
    }
    assert found == expected


@given(st.integers(-9, 9), st.sampled_from([*COMPARISONS]), st.integers(-9, 9))
def test_numbers_match_as_they_compare(value: int, sign: str, limit: int) -> None:
    expected = COMPARISONS[sign](value / 2, limit)
    assert matches({"size": [{"numeric": [sign, limit]}]}, {"size": value / 2}) == expected
