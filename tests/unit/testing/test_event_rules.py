"""Rules of EventBridge: patterns, and the input of their targets."""

import json
from typing import Any

import pytest

from tarry.tools.testing.moto_relay import as_delivered, input_of, is_match

EVENT: dict[str, Any] = {
    "source": "shop",
    "time": 1_800_000_000,
    "detail": {"id": 'o-"1"', "total": 12, "items": [{"sku": "a"}]},
    "ingestion-time": 1,
}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('{"source": ["shop"]}', True),
        ('{"detail": {"total": [{"numeric": [">", 12]}]}}', False),
        ('{"detail": {"items": {"sku": [{"prefix": "a"}]}}}', True),
        (None, False),
        ("{", False),
    ],
)
def test_an_event_matches_the_pattern_of_a_rule(pattern: str | None, expected: bool) -> None:
    assert is_match(pattern, EVENT) is expected


def test_a_target_gets_the_event_or_what_its_input_makes_of_it() -> None:
    event = as_delivered(EVENT)
    assert (event["time"], "ingestion-time" in event) == ("2027-01-15T08:00:00Z", False)
    assert json.loads(input_of({}, event)) == event
    assert input_of({"Input": '{"a": 1}'}, event) == '{"a": 1}'
    assert input_of({"InputPath": "$.detail.items[0].sku"}, event) == '"a"'
    assert input_of({"InputPath": "$.detail.none"}, event) == "null"
    transformer = {
        "InputPathsMap": {"id": "$.detail.id", "items": "$.detail.items"},
        "InputTemplate": '{"id": <id>, "text": "order <id> of <nobody>", "items": <items>}',
    }
    found = json.loads(input_of({"InputTransformer": transformer}, event))
    assert found == {"id": 'o-"1"', "text": 'order o-"1" of <nobody>', "items": [{"sku": "a"}]}
