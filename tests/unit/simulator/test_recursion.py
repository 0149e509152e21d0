"""Lambda's recursive loop detection in the sandbox (PLATFORM 15b)."""

from pathlib import Path
from typing import Any

import pytest

from tarry import Message, Queue, consumer
from tarry.testing import Realism, Sandbox
from tarry.tools.simulator.recursion import MAX_INVOCATIONS
from tarry.tools.template import read_template
from tests.sandboxes import work


def loops(sandbox: Sandbox, **settings: Any) -> list[int]:
    """Run a consumer that sends its messages on, thirty times if it is not stopped; return what ran."""
    runs: list[int] = []

    @consumer(max_attempts=1)
    def sends_on(message: Message) -> None:
        runs.append(message.json())
        if message.json() < 30:
            Queue("orders").send(str(message.json() + 1))

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=3)
    sandbox.connect(sends_on, "orders", **settings)
    sandbox.send("orders", "1")
    sandbox.run()
    return runs


def test_a_recursive_loop_is_stopped_and_sqs_moves_the_message_to_the_dead_letter_queue(sandbox: Sandbox) -> None:
    assert loops(sandbox) == list(range(1, MAX_INVOCATIONS + 1))
    [dead_letter] = sandbox.messages("orders-dlq")
    assert (dead_letter.json(), dead_letter.failure, dead_letter.receive_count) == (MAX_INVOCATIONS + 1, None, 3)
    assert "Lambda refused the invocation: recursive loop" in sandbox.report().timeline(dead_letter.id)


@pytest.mark.parametrize(
    ("realism", "settings"), [({}, {"recursive_loop": "Allow"}), ({"recursion_is_stopped": False}, {})]
)
def test_a_recursive_loop_that_is_allowed_continues(realism: dict[str, bool], settings: dict[str, str]) -> None:
    with Sandbox(realism=Realism(**realism)) as sandbox:
        assert loops(sandbox, **settings) == list(range(1, 31))


def test_retries_in_place_are_not_a_recursive_loop_nor_is_a_batch_of_copies_of_several_messages(
    sandbox: Sandbox,
) -> None:
    """A message in the same batch as copies of another message is not part of their chain."""
    runs: list[int] = []

    @consumer(max_attempts=25)
    def handler(message: Message) -> None:
        runs.append(message.json())
        if message.body == "0":
            raise ValueError
        if runs.count(message.json()) <= 12:
            message.defer(10)

    [retried] = work(sandbox, handler, "0", max_receive_count=30)
    for number in (1, 2):
        sandbox.send("orders", str(number))
        sandbox.advance(115)
    report = sandbox.run()
    assert report.count("COMMITTED") == 2
    assert sum(step.state == "IN_FLIGHT" for step in report.story(retried)) == 25


def test_recursive_loop_is_read_from_the_template(tmp_path: Path) -> None:
    function = "{Type: AWS::Serverless::Function, Properties: {Handler: a.b, Runtime: python3.12, CodeUri: ."
    (tmp_path / "template.yaml").write_text(
        "Transform: AWS::Serverless-2016-10-31\nResources:\n"
        f"  Loops: {function}, RecursiveLoop: Allow}}}}\n  Plain: {function}}}}}\n"
    )
    functions = read_template(tmp_path / "template.yaml", {}, "us-east-1").functions.values()
    assert {each.logical_id: each.recursive_loop for each in functions} == {"Loops": "Allow", "Plain": "Terminate"}
