"""What a function's answer means to the event source mapping (PLATFORM 10)."""

from typing import Any

import pytest

from tarry.simulator.invocations import WholeBatchFailed, failed_ids

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
def test_all_but_the_named_are_deleted(response: Any, failed: set[str]) -> None:
    assert failed_ids(response, BATCH) == failed


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("ok", "no object"),
        ([], "no object"),
        ({"batchItemFailures": "a"}, "no list"),
        ({"batchItemFailures": ["a"]}, "without itemIdentifier"),
        ({"batchItemFailures": [{"foo": "a"}]}, "without itemIdentifier"),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, "itemIdentifier is ''"),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, "itemIdentifier is None"),
        ({"batchItemFailures": [{"itemIdentifier": 1}]}, "itemIdentifier is 1"),
        ({"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "z"}]}, "no message of the batch: z"),
    ],
)
def test_a_damaged_answer_deletes_nothing(response: Any, why: str) -> None:
    with pytest.raises(WholeBatchFailed, match=why):
        failed_ids(response, BATCH)
