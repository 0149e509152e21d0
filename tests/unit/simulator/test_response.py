"""The meaning of a function's response for the event source mapping (PLATFORM 10)."""

from typing import Any

import pytest

from tarry.tools.simulator.invocations import WholeBatchFailed, failed_ids

BATCH = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("response", "failed"),
    [
        (None, set()),
        ({}, set()),
        ({"batchItemFailures": []}, set()),
        ({"batchItemFailures": None}, set()),
        ({"somethingElse": 1}, set()),
        ({"batchItemFailures": [{"itemIdentifier": "b"}]}, {"b"}),
        ({"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "c"}]}, {"a", "c"}),
        ({"batchItemFailures": [{"itemIdentifier": "b"}, {"itemIdentifier": "b"}]}, {"b"}),
    ],
)
def test_a_valid_response_returns_the_ids_it_reports(response: Any, failed: set[str]) -> None:
    assert failed_ids(response, BATCH) == failed


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("ok", "not an object"),
        ([], "not an object"),
        ({"batchItemFailures": "a"}, "not a list"),
        ({"batchItemFailures": ["a"]}, "without itemIdentifier"),
        ({"batchItemFailures": [{"foo": "a"}]}, "without itemIdentifier"),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, "not a non-empty string: ''"),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, "not a non-empty string: None"),
        ({"batchItemFailures": [{"itemIdentifier": 1}]}, "not a non-empty string: 1"),
        ({"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "z"}]}, "not the id of .* the batch: z"),
    ],
)
def test_an_invalid_response_fails_the_whole_batch(response: Any, why: str) -> None:
    with pytest.raises(WholeBatchFailed, match=why):
        failed_ids(response, BATCH)
