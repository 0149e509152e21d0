"""Lambda's recursive loop detection in the sandbox (PLATFORM 15b)."""

import pytest

from tarry import Message, Queue, consumer
from tarry.testing import Realism, Sandbox
from tarry.tools.simulator.recursion import MAX_INVOCATIONS

runs: list[int] = []


@consumer(max_attempts=1)
def sends_on(message: Message) -> None:
    runs.append(message.json())
    if message.json() < 30:
        Queue("orders").send(str(message.json() + 1))


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


def run(sandbox: Sandbox, **settings: str) -> None:
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=3)
    sandbox.connect(sends_on, "orders", **settings)  # type: ignore[arg-type]
    sandbox.send("orders", "1")
    sandbox.run()


def test_a_recursive_loop_is_stopped_and_sqs_moves_the_message_to_the_dead_letter_queue(sandbox: Sandbox) -> None:
    run(sandbox)
    assert runs == list(range(1, MAX_INVOCATIONS + 1))
    [dead_letter] = sandbox.messages("orders-dlq")
    assert (dead_letter.json(), dead_letter.failure, dead_letter.receive_count) == (MAX_INVOCATIONS + 1, None, 3)
    assert "Lambda refused the invocation: recursive loop" in sandbox.report().timeline(dead_letter.id)


def test_a_recursive_loop_that_is_allowed_continues(sandbox: Sandbox) -> None:
    run(sandbox, recursive_loop="Allow")
    assert runs == list(range(1, 31))


@pytest.mark.sandbox(realism=Realism(recursion_is_stopped=False))
def test_recursive_loop_detection_can_be_switched_off(sandbox: Sandbox) -> None:
    run(sandbox)
    assert runs == list(range(1, 31))


def test_retries_in_place_are_not_a_recursive_loop(sandbox: Sandbox) -> None:
    @consumer(max_attempts=25)
    def fails(message: Message) -> None:
        raise ValueError

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=30)
    sandbox.connect(fails, "orders")
    order = sandbox.send("orders", "1")
    assert sum(step.state == "IN_FLIGHT" for step in sandbox.run().story(order)) == 25


def test_a_chain_of_sends_includes_only_its_own_messages(sandbox: Sandbox) -> None:
    """A message in the same batch as copies of another message is not part of their chain."""

    @consumer
    def defers(message: Message) -> None:
        runs.append(message.json())
        if runs.count(message.json()) <= 12:
            message.defer(10)

    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(defers, "orders")
    for number in range(2):
        sandbox.send("orders", str(number))
        sandbox.advance(115)
    assert sandbox.run().count("COMMITTED") == 2


def test_recursive_loop_is_read_from_the_template(tmp_path: pytest.TempPathFactory) -> None:
    from tarry.tools.template import read_template

    path = tmp_path / "template.yaml"  # type: ignore[operator]
    path.write_text(
        """
Transform: AWS::Serverless-2016-10-31
Resources:
  Loops: {Type: AWS::Serverless::Function, Properties: {Handler: a.b, Runtime: python3.12, CodeUri: ., \
RecursiveLoop: Allow}}
  Plain: {Type: AWS::Serverless::Function, Properties: {Handler: a.b, Runtime: python3.12, CodeUri: .}}
"""
    )
    functions = read_template(path, {}, "us-east-1").functions.values()
    assert {each.logical_id: each.recursive_loop for each in functions} == {"Loops": "Allow", "Plain": "Terminate"}
