"""Conditions: which letters are meant."""

import subprocess
import sys
from typing import Any

import pytest

from tarry.failed import BadFilter, condition, matches
from tests.unit.failed.letters import dead, letter

BODY = '{"id": 7, "paid": true, "customer": {"name": "Ada", "tags": ["vip", "eu"]}, "none": null}'
ATTRIBUTES: dict[str, Any] = {
    "tenant": {"DataType": "String", "StringValue": "acme"},
    "weight": {"DataType": "Number", "StringValue": "1.5"},
    "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("type = app.CardDeclined", True),
        ("type != app.CardDeclined", False),
        ("type == app.CardDeclined", True),
        ("reason = fatal", False),
        ("attempts = 5", True),
        ("attempts > 5", False),
        ("attempts >= 5", True),
        ("attempts < 10", True),  # numbers, not texts
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
        ("failed_at <= 2026-11-21T09:21:41+01:00", True),  # moments, whatever their zone
        ("body.id = 7", True),
        ("body.id ~ 7", True),
        ("body.customer.name = Ada", True),
        ("body.customer.tags[0] = vip", True),
        ("body.paid = true", True),
        ("body.paid = 1", False),
        ('body.customer.tags = ["vip", "eu"]', True),
        ("contains(body.customer.tags, 'eu') = true", True),
        ("length(body.customer.tags) > 1", True),
        ("body.customer.tags[?@ == 'eu'] | [0] = eu", True),  # operators within brackets are JMESPath's own
        ("length(body.id) > 1", False),  # it has none
        ('attributes.tenant = "acme"', True),
        ("attributes.weight < 2", True),
        ("attributes.blob = AP8=", True),
        ("attributes.weight < acme", False),  # nothing is less than what is not alike
    ],
)
def test_a_condition_is_a_field_an_operator_and_a_value(text: str, holds: bool) -> None:  # SPEC M2
    assert matches(dead(BODY, ATTRIBUTES), [condition(text)]) is holds


@pytest.mark.parametrize("text", ["body.missing = 1", "body.missing != 1", "body.none != 1", "attributes.x ~ ."])
def test_what_a_letter_lacks_matches_nothing(text: str) -> None:  # SPEC M2
    assert not matches(dead(BODY), [condition(text)])


def test_a_letter_without_a_record_has_no_error_to_match() -> None:  # SPEC M2
    assert not matches(letter("{}"), [condition("reason != fatal")])


def test_a_body_that_is_no_json_is_a_text() -> None:  # SPEC M2
    assert matches(dead("plain text"), [condition("body ~ ^plain")])


def test_all_conditions_must_hold() -> None:  # SPEC M2
    conditions = [condition("attempts = 5"), condition("body.id = 8")]
    assert matches(dead(BODY), conditions[:1])
    assert not matches(dead(BODY), conditions)
    assert matches(dead(BODY), [])


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("type", 5, "there is no operator"),
        ("= 5", 1, "no field stands before ="),
        ("body.[ = 5", 11, "a bracket is not closed"),
        ("body.'x = 5", 12, "a ' is not closed"),
        ("body.^ = 5", 6, "'body.^' is no JMESPath expression"),
        ("  body.a b = 5", 10, "'body.a b' is no JMESPath expression"),
        ("kind = 5", 1, "there is no field 'kind'; there are type, reason"),
        ("message ~ a(b", 12, "'a(b' is no regular expression"),
    ],
)
def test_a_condition_that_does_not_parse_says_where(text: str, column: int, why: str) -> None:
    with pytest.raises(BadFilter) as caught:
        condition(text)
    assert caught.value.column == column
    assert why in str(caught.value)
    assert f"at column {column}" in str(caught.value)


def test_without_conditions_no_jmespath_is_wanted() -> None:
    code = "import sys; sys.modules['jmespath'] = None; from tarry import failed; failed.select(['a'])"
    subprocess.run([sys.executable, "-c", code], check=True)
