"""`sandbox.faults.add`: checked arguments and repeated faults."""

import pytest

from tarry import Fixed, Message, consumer
from tarry.testing import Sandbox
from tests.sandboxes import work


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

    work(sandbox, handler)
    for _ in range(2):
        sandbox.faults.add("denied", operation="SendMessageBatch")
    sandbox.send("orders", "1")
    report = sandbox.run()
    assert sum(event.what == "fault" for event in report.events) == 2
    assert report.count("DEAD_LETTERED") == 1


def test_a_crash_after_the_end_of_an_invocation_strikes_the_next_one_that_lasts_longer(sandbox: Sandbox) -> None:
    """The first handler takes no virtual time, so there is no process to kill after 0.05 s."""

    @consumer
    def handler(message: Message) -> None:
        if message.body == "slow":
            sandbox.sleep(1)

    work(sandbox, handler)
    sandbox.faults.add("crash", seconds=0.05)
    sandbox.send("orders", "fast")
    with pytest.raises(AssertionError, match=r"the fault 'crash' never struck: .* seconds="):
        sandbox.run()
    assert "crash" not in str(sandbox.report())

    sandbox.send("orders", "slow")
    report = sandbox.run()
    assert [event.fields["kind"] for event in report.events if event.what == "answered"] == [
        "returned",
        "crash",
        "returned",
    ]
    assert sum(event.what == "fault" for event in report.events) == 1
