"""Conditions: the dead letters that they select."""

import subprocess
import sys
from typing import Any

import pytest

from tarry.failed import BadFilter, condition, matches
from tests.unit.failed.dead_letters import dead_letter, recorded_dead_letter

BODY = '{"id": 7, "paid": true, "customer": {"name": "Ada", "tags": ["vip", "eu"]}, "none": null}'
ATTRIBUTES: dict[str, Any] = {
    "tenant": {"DataType": "String", "StringValue": "acme"},
    "weight": {"DataType": "Number", "StringValue": "1.5"},
    "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = app.CardDeclined", True),
        ("type != app.CardDeclined", False),
        ("type == app.CardDeclined", True),
        ("reason = fatal", False),
        ("attempts = 5", True),
        ("attempts > 5", False),
        ("attempts >= 5", True),
        ("attempts < 10", True),  # compared as numbers, not as texts
        ('attempts = "5"', False),
        ("fingerprint = 9f2c61d0a4be", True),
        ("message ~ ^n", True),
        ("message ~ N", False),
        ("message ~ (?i)N", True),
        ("origin = orders", True),
        ("origin = arn:aws:sqs:us-east-1:123456789012:orders", True),
        ("origin != ledger", True),
        ("failed_at > 2026-11-21", True),
        ("failed_at < 2026-11-21T09:21:40+01:00", False),
        ("failed_at <= 2026-11-21T09:21:41+01:00", True),  # compared as times, in any time zone
        ("body.id = 7", True),
        ("body.id ~ 7", True),
        ("body.customer.name = Ada", True),
        ("body.customer.tags[0] = vip", True),
        ("body.paid = true", True),
        ("body.paid = 1", False),
        ('body.customer.tags = ["vip", "eu"]', True),
        ("contains(body.customer.tags, 'eu') = true", True),
        ("length(body.customer.tags) > 1", True),
        ("body.customer.tags[?@ == 'eu'] | [0] = eu", True),  # operators within brackets belong to JMESPath
        ("length(body.id) > 1", False),  # a number has no length
        ('attributes.tenant = "acme"', True),
        ("attributes.weight < 2", True),
        ("attributes.blob = AP8=", True),
        ("attributes.weight < acme", False),  # values of different types have no order
    ],
)
def test_a_condition_is_a_field_an_operator_and_a_value(text: str, expected: bool) -> None:  # SPEC M2
    assert matches(recorded_dead_letter(BODY, ATTRIBUTES), [condition(text)]) is expected


@pytest.mark.parametrize("field", ["body.missing", "body.none", "attributes.x", "extra"])
def test_a_missing_field_matches_only_null(field: str) -> None:  # SPEC M2
    one = recorded_dead_letter(BODY)
    assert matches(one, [condition(f"{field} = null")])
    for other in ("= 1", "!= 1", "!= null", "<= null", "~ .", '= "null"'):
        assert not matches(one, [condition(f"{field} {other}")])
    assert not matches(one, [condition("body.id = null")])
    assert matches(one, [condition("body.id != null")])


def test_dead_letters_without_a_failure_record_are_selected_by_a_reason_of_null() -> None:  # SPEC M2
    assert matches(dead_letter("{}"), [condition("reason = null"), condition("type = null")])
    assert not matches(dead_letter("{}"), [condition("reason != fatal")])
    assert not matches(recorded_dead_letter(BODY), [condition("reason = null")])


def test_a_body_that_is_not_json_is_compared_as_text() -> None:  # SPEC M2
    assert matches(recorded_dead_letter("plain text"), [condition("body ~ ^plain")])


def test_all_conditions_must_match() -> None:  # SPEC M2
    conditions = [condition("attempts = 5"), condition("body.id = 8")]
    assert matches(recorded_dead_letter(BODY), conditions[:1])
    assert not matches(recorded_dead_letter(BODY), conditions)
    assert matches(recorded_dead_letter(BODY), [])


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("type", 5, "there is no operator"),
        ("= 5", 1, "there is no field before ="),
        ("body.[ = 5", 11, "unclosed bracket"),
        ("body.'x = 5", 12, "unclosed '"),
        ("body.^ = 5", 6, "'body.^' is not a valid JMESPath expression"),
        ("  body.a b = 5", 10, "'body.a b' is not a valid JMESPath expression"),
        ("kind = 5", 1, "unknown field 'kind'; the fields are type, reason"),
        ("attempts >>> oops (", 10, "unknown operator >>>; the operators are = != < <= > >= ~"),
        ("message =~ oops", 9, "unknown operator =~"),
        ("attempts > many", 12, "attempts is a number, 'many' is not"),
        ("message ~ a(b", 12, "'a(b' is not a valid regular expression"),
    ],
)
def test_the_error_of_a_condition_has_the_column(text: str, column: int, why: str) -> None:
    with pytest.raises(BadFilter) as caught:
        condition(text)
    assert caught.value.column == column
    assert why in str(caught.value)
    assert f"at column {column}" in str(caught.value)


def test_jmespath_is_imported_only_for_conditions() -> None:
    code = "import sys; sys.modules['jmespath'] = None; from tarry import failed; failed.select(['a'])"
    subprocess.run([sys.executable, "-c", code], check=True)
