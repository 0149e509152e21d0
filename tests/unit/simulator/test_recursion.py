"""Lambda's recursive loop detection in the sandbox (PLATFORM 15b)."""

import pytest

from tarry import Message, Queue, consumer
from tarry.simulator.recursion import MOST_INVOCATIONS
from tarry.testing import Realism, Sandbox

runs: list[int] = []


@consumer(max_attempts=1)
def sends_on(message: Message) -> None:
    runs.append(message.json())
    if message.json() < 30:
        Queue("orders").send(str(message.json() + 1))


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


def play(sandbox: Sandbox, **settings: str) -> None:
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=3)
    sandbox.connect(sends_on, "orders", **settings)  # type: ignore[arg-type]
    sandbox.send("orders", "1")
    sandbox.run()


def test_a_function_that_keeps_sending_to_its_queue_is_stopped_and_its_message_moved_bare(sandbox: Sandbox) -> None:
    play(sandbox)
    assert runs == list(range(1, MOST_INVOCATIONS + 1))
    [letter] = sandbox.messages("orders-dlq")
    assert (letter.json(), letter.failure, letter.receive_count) == (MOST_INVOCATIONS + 1, None, 3)
    assert "Lambda refused the invocation: recursive loop" in sandbox.report().timeline(letter.id)


def test_a_function_whose_recursive_loop_is_allowed_goes_on(sandbox: Sandbox) -> None:
    play(sandbox, recursive_loop="Allow")
    assert runs == list(range(1, 31))


@pytest.mark.sandbox(realism=Realism(recursion_is_stopped=False))
def test_recursive_loop_detection_can_be_switched_off(sandbox: Sandbox) -> None:
    play(sandbox)
    assert runs == list(range(1, 31))


def test_retries_in_place_are_no_loop(sandbox: Sandbox) -> None:
    @consumer(max_attempts=25)
    def fails(message: Message) -> None:
        raise ValueError

    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=30)
    sandbox.connect(fails, "orders")
    order = sandbox.send("orders", "1")
    assert sum(step.state == "IN_FLIGHT" for step in sandbox.run().story(order)) == 25


def test_a_chain_counts_for_its_own_messages_alone(sandbox: Sandbox) -> None:
    """A message that shares its batch with copies of another one is not part of their chain."""

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


def test_a_template_says_whether_its_function_may_loop(tmp_path: pytest.TempPathFactory) -> None:
    from tarry.template import read_template

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
