"""`sandbox.faults.add`: checked arguments and repeated faults."""

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Sandbox


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"kind": "thunder"}, "unknown fault 'thunder'; the kinds are throttle, unavailable"),
        ({"kind": "throttle", "operation": "SendMesage"}, "SQS has no operation 'SendMesage'; its names are such as"),
        ({"kind": "throttle", "chance": 2}, "chance is from 0 to 1, got 2"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused(sandbox: Sandbox, fault: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        sandbox.faults.add(**fault)  # type: ignore[arg-type]


def test_a_fault_that_is_added_twice_strikes_twice(sandbox: Sandbox) -> None:
    @consumer(max_attempts=1, backoff=Fixed(60))
    def handler(message: Message) -> None:
        message.reject("no")

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(handler, "orders")
    for _ in range(2):
        sandbox.faults.add("denied", operation="SendMessageBatch")
    sandbox.send("orders", "1")
    report = sandbox.run()
    assert sum(event.what == "fault" for event in report.events) == 2
    assert report.count("DEAD_LETTERED") == 1
