"""Intake: the records of a batch by id, whether the batch is plain, and whether it is from FIFO."""

from typing import Any

import pytest

from tarry.message.invocation import records_of
from tests.records import event, record

PLAIN = record({}, "m0")
ATTRIBUTES = {"tenant": {"stringValue": "acme", "dataType": "String"}}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in record({}, "m1").items() if key != name}


@pytest.mark.parametrize(
    ("other", "are_plain"),
    [
        (record({}, "m1"), True),
        (record({}, "m1", "payments"), True),
        (record({}, "m1", receives=2), False),
        (record({}, "m1", attributes=ATTRIBUTES), False),
        (record({}, "m1", "orders.fifo", group="g"), True),
        (record({}, "m1", "orders.fifo", group="g", receives=2), False),
        (record({}, "m0", receives=1), False),
        (without("messageAttributes"), False),
        (without("attributes"), False),
        (without("eventSourceARN"), False),
        ({**record({}, "m1"), "attributes": None}, False),
        ({**record({}, "m1"), "eventSourceARN": None}, True),
    ],
    ids=[
        "plain", "of another queue", "redelivered", "with attributes", "fifo", "redelivered on fifo",
        "twice in the batch", "no attributes", "no system attributes", "no queue", "odd", "odd queue",
    ],
)  # fmt: skip
def test_a_batch_is_plain_if_all_its_messages_are(other: Any, are_plain: bool) -> None:
    for batch in ([PLAIN, other], [other, PLAIN]):
        records, found, is_fifo = records_of(event(*batch))
        assert found == are_plain
        assert is_fifo == str(other.get("eventSourceARN")).endswith(".fifo")
        assert set(records) == {"m0", other["messageId"]}
        assert all(records[each["messageId"]]["messageId"] == each["messageId"] for each in batch)
