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
    ("pattern", "matching", "others"),
    [
        (["hello"], ["hello"], ["hello there", '{"text": "hello"}']),
        ([{"prefix": "hello"}], ["hello there"], []),
        ([{"anything-but": ["hello"]}], ["bye"], ['{"text": "hi"}']),
        ({"text": ["hello"]}, [' {"text": "hello"}'], ["hello", "{not json", '"hello"']),
        ({"coupon": [{"exists": False}]}, ['{"total": 1}'], ["hello", '{"total": NaN}', "[" * 100_000]),
    ],
)
def test_a_text_pattern_matches_only_text_and_a_json_pattern_only_json(
    pattern: Any, matching: list[str], others: list[str]
) -> None:
    assert [matches(pattern, body) for body in (*matching, *others)] == [True] * len(matching) + [False] * len(others)


@pytest.mark.parametrize(
    ("rules", "matching", "others"),
    [
        (["a", "b"], '"b" ["x","a"]', '"c" ["x","y"] {"a":1}'),
        ([1], "1", '"1" true'),
        ([True], "true", "1"),
        ([None], "null", '""'),
        ([""], '""', "null"),
        ([5], "[[1,2],[5]]", "[[1,2],[6]]"),
        # numbers are compared as they are written, unless the rule is numeric or anything-but
        ([300], "300", "300.0 3.0e2"),
        ([300.0], "300.0", "300"),
        ([123456789012], "123456789012", "123456789013"),
        ([{"numeric": ["=", 300]}], "300 300.0 3.0e2", '"300" true'),
        ([{"numeric": ["=", 0.3]}], "0.3", "0.31"),
        ([{"numeric": [">", 10, "<=", 20]}], "20", "10 null"),
        ([{"numeric": [">=", 99.999, "<=", 100]}], "100", "99.99"),
        ([{"numeric": [">=", 100.00001, "<=", 1001]}], "1001", "100"),
        ([{"numeric": [">", 0]}], "1", "6e9 1e99999999999999999999"),
        ([{"numeric": ["<=", 5e9]}], "5000000000", "5000000001"),
        ([{"anything-but": 1}], "1e99999999999999999999", "1.0"),
        ([{"anything-but": [100, 200]}], '300 "100"', "1e2"),
        ([{"anything-but": "a"}], 'null true "b" ["a","b"]', '"a" ["a"]'),
        ([{"anything-but": {"prefix": "a"}}], '5 "b"', '"ab"'),
        ([{"anything-but": {"suffix": [".tmp", ".bak"]}}], '"a.png"', '"a.bak"'),
        ([{"anything-but": {"equals-ignore-case": ["YES", "No"]}}], '"maybe"', '"no"'),
        ([{"anything-but": {"wildcard": "*/lib/*"}}], '"src/a"', '"src/lib/a"'),
        ([{"prefix": ""}], '"anything"', "5"),
        ([{"prefix": "1"}], '"12"', "12"),
        ([{"prefix": {"equals-ignore-case": "EU-"}}], '"eu-west"', '"us-west"'),
        ([{"suffix": ".png"}], '"a.png"', '"a.jpg"'),
        ([{"suffix": {"equals-ignore-case": ".PNG"}}], '"a.png"', '"g"'),
        ([{"equals-ignore-case": "strasse"}], '"Strasse"', '"stra\u00dfe"'),
        ([{"equals-ignore-case": "\u00c9T\u00c9"}], '"\u00e9t\u00e9"', '"ete"'),
        ([{"wildcard": "a*c*"}], '"abcd"', '"bcd"'),
        ([{"wildcard": "a*c"}], '"abc"', '"abcd"'),
        ([{"wildcard": "a\\*b\\\\"}], '"a*b\\\\"', '"axb\\\\"'),
        ([{"cidr": "10.0.0.0/24"}], '"10.0.0.33"', '"10.0.1.33" "nowhere"'),
        ([{"cidr": "2001:db8::/32"}], '"2001:db8::1"', '"2001:db9::1"'),
        ([{"exists": True}], "null 1", "[] {}"),
        ([{"exists": False}], '[] {"inside":1}', "1 null"),
        ([{"exists": False}, "a"], '"a"', '"b"'),
        (["a", {"prefix": "b"}], '"a" "bc"', '"c"'),
    ],
)
def test_rules_match_values_as_in_eventbridge(rules: Any, matching: str, others: str) -> None:
    """The rows follow the tests of EventBridge's own matcher, as far as Lambda documents them."""
    for values, expected in ((matching, True), (others, False)):
        for value in values.split():
            assert matches({"key": rules}, f'{{"key": {value}}}') is expected, value


ORDER = {"order": {"total": [{"numeric": [">", 100]}], "customer": {"kind": ["vip"]}}}
EITHER = {"kind": ["order"], "$or": [{"total": [{"numeric": [">", 100]}]}, {"customer": ["vip"]}]}
NESTED = {"kind": ["a"], "$or": [{"x": [1]}, {"y": [2], "$or": [{"p": [3]}, {"q": {"r": [4]}}]}]}
PARALLEL = {"$or": [{"x": [1]}, {"y": [2]}], "inside": {"$or": [{"p": [3]}, {"q": [4]}]}}
NO_COUPON = {"order": {"coupon": [{"exists": False}]}}


@pytest.mark.parametrize(
    ("pattern", "body", "expected"),
    [
        # a missing key matches only exists false, whatever is missing above it
        ({"key": [{"exists": False}]}, {}, True),
        *[({"key": [rule]}, {}, False) for rule in ({"exists": True}, {"anything-but": ["a"]}, None)],
        *[(NO_COUPON, body, True) for body in ({}, {"order": "text"}, {"order": {"total": 1}})],
        *[(NO_COUPON, {"order": body}, False) for body in ({"coupon": None}, [{"total": 1}, {"coupon": "a"}])],
        # all keys must match, at any depth
        (ORDER, {"order": {"total": 200, "customer": {"kind": "vip"}, "more": 1}}, True),
        (ORDER, {"order": {"total": 50, "customer": {"kind": "vip"}}}, False),
        (ORDER, {"order": {"total": 200, "customer": "vip"}}, False),
        (ORDER, {"order": None}, False),
        ({"tags": ["b"], "sizes": [1]}, {"tags": ["a", "b"], "sizes": [1, 2]}, True),
        # a name with dots is a path
        ({"a.b": ["c"]}, {"a": {"b": "c"}}, True),
        ({"a": {"b": ["c"]}}, {"a.b": "c"}, True),
        # any object of a list
        ({"items": {"sku": ["a"]}}, {"items": [{"sku": "b"}, {"sku": "a"}]}, True),
        ({"items": {"sku": ["a"]}}, [{"items": {"sku": "a"}}], True),
        ({"items": {"sku": ["a"]}}, {"items": []}, False),
        # one of the patterns of $or, which may be nested, in parallel and at any depth
        (EITHER, {"kind": "order", "total": 200}, True),
        (EITHER, {"kind": "order", "customer": "vip"}, True),
        (EITHER, {"kind": "order", "total": 1, "customer": "new"}, False),
        (EITHER, {"kind": "refund", "total": 200}, False),
        *[(NESTED, {"kind": "a", **more}, True) for more in ({"x": 1}, {"y": 2, "q": {"r": 4}})],
        *[(NESTED, body, False) for body in ({"kind": "a", "y": 2}, {"kind": "b", "x": 1})],
        *[(PARALLEL, {"y": 2, "inside": {"p": p}}, p == 3) for p in (3, 4)],
    ],
)
def test_a_pattern_matches_the_fields_of_an_object(pattern: Any, body: Any, expected: bool) -> None:
    assert matches(pattern, body) is expected


BOTH, TAGGED, UNTAGGED = {"sku": ["a"], "count": [2]}, {"sku": ["a"], "tags": ["x"]}, {"sku": ["a"]}
UNTAGGED |= {"tags": [{"exists": False}]}
PART = {"part": {"k": ["c"], "v": ["d"]}}


@pytest.mark.parametrize(
    ("pattern", "lines", "expected"),
    [
        (BOTH, [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}], False),
        (BOTH, [{"sku": "b", "count": 2}, {"sku": "a", "count": 2}], True),
        (BOTH, [[{"sku": "a"}, {"sku": "b"}], [{"sku": "a", "count": 2}]], True),
        (TAGGED, [{"sku": "a", "tags": ["y", "x"]}], True),
        (TAGGED, [{"sku": "a", "tags": ["y"]}, {"sku": "b", "tags": ["x"]}], False),
        (UNTAGGED, [{"sku": "a"}, {"sku": "b", "tags": ["x"]}], True),
        (UNTAGGED, [{"sku": "a", "tags": ["x"]}], False),
        (PART, [{"part": [{"k": "c"}, {"v": "d"}]}], False),
        (PART, [{"part": [{"k": "c", "v": "d"}]}], True),
    ],
)
def test_two_fields_in_an_array_must_come_from_the_same_element(pattern: Any, lines: Any, expected: bool) -> None:
    assert matches({"lines": pattern}, {"lines": lines}) is expected


INVALID_RULES: list[Any] = [
    "value", [], [["a"]], ["x" * 4_096], [{"like": "a"}],
    [{"prefix": 1}], [{"prefix": "a", "suffix": "b"}], [{"prefix": {"equals-ignore-case": 1}}], [{"suffix": ["a"]}],
    [{"equals-ignore-case": ["a"]}], [{"exists": "yes"}], [{"exists": 1}], [{"exists": True, "prefix": "a"}],
    *([{"anything-but": each}] for each in ([], ["a", 1], None, True, {"prefix": ""}, {"prefix": [1]})),
    *([{"anything-but": each}] for each in ({"numeric": [1]}, {"prefix": "a", "suffix": "b"})),
    *([{"numeric": each}] for each in ([">"], ["!=", 1], [">", "1"], ["=", 1, "<", 2], ["<", 5, ">", 1])),
    *([{"numeric": each}] for each in ([">", 5, "<", 5], [">", 1, "<", 2, "=", 3], ["<", True], ["<", 6e9])),
    *([{"wildcard": each}] for each in ("a**", "a\\b")), *([{"cidr": each}] for each in ("10.0.0.1", "somewhere/8")),
]  # fmt: skip
INVALID_ALTERNATIVES: list[Any] = [
    [{"a": ["b"]}], {"a": ["b"]}, [{"a": ["b"]}, ["c"]], [{"prefix": ["b"]}, {"a": ["c"]}],
    [{"k": [n]} for n in range(1_001)],
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["not json", "[]", *({"body": each} for each in ("text", {}, [], None))]
    + [{"body": {"key": rules}} for rules in INVALID_RULES]
    + [{"body": {"$or": each}} for each in INVALID_ALTERNATIVES],
)
def test_an_invalid_pattern_is_refused_with_the_text_of_lambda(pattern: Any) -> None:
    with pytest.raises(InvalidParameterValue, match=r"^Invalid filter pattern definition\."):
        Filters([pattern])


def test_other_keys_and_operators_and_more_filters_are_played_with_a_warning_and_too_many_refused() -> None:
    tenant = {"messageAttributes": {"tenant": {"stringValue": [{"wildcard": "acme-*"}]}}}
    filters = Filters(
        [tenant, {"body": {"ip": [{"cidr": "10.0.0.0/8"}]}}, {"$or": [{"body": {"x": [1]}}, {"body": ["t"]}]}]
    )
    sent_by = {"tenant": {"stringValue": "acme-1", "dataType": "String"}}
    assert filters.match(record("any text", messageAttributes=sent_by))
    played = [filters.match(record(body)) for body in ({"ip": "10.1.2.3"}, {"x": 1}, "t", {"x": 2}, "any text")]
    assert played == [True, True, True, False, False]
    operators, keys = filters.warnings
    assert "its filters use cidr, wildcard, which Lambda does not list" in operators
    assert "its filters name messageAttributes; Lambda documents only body for SQS" in keys
    assert "name Body, which no SQS record has" in Filters([{"Body": ["x"]}]).warnings[0]
    assert "it has 6 filters; Lambda allows 5" in Filters([{"body": ["a"]}] * 6).warnings[0]
    with pytest.raises(InvalidParameterValue, match="11 filters"):
        Filters([{"body": ["a"]}] * 11)
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
