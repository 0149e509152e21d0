"""Lambda's Invoke: answers, and the end of asynchronous invocations."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, Invoker, InvokeTarget, UnknownFunction
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.template.model import TemplateAsync

ARN = "arn:aws:lambda:us-east-1:123456789012:function:"
RETURNED, FAILED = InvocationResult("returned", {"a": 1}), InvocationResult("error", {"errorType": "E"}, "E: why")
THROTTLED = InvocationResult("throttled")


class Host:
    """A function that ends as told, one result per invocation; then it returns."""

    def __init__(self, *results: InvocationResult) -> None:
        self.results = list(results)
        self.events: list[Any] = []
        self.qualifiers: list[str] = []

    def invoke(self, event: Any, done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        self.events.append(event)
        self.qualifiers.append(qualifier)
        done(self.results.pop(0) if self.results else RETURNED)


class World:
    """Functions by name, and what is sent to queues."""

    def __init__(self, **targets: InvokeTarget) -> None:
        self.scheduler = Scheduler(0)
        self.targets = targets
        self.sent: list[tuple[str, Any]] = []
        self.notes: list[str] = []
        self.invoker = Invoker(self.scheduler, self.find, self.sqs, lambda: "id", self.notes.append)

    def find(self, name: str) -> InvokeTarget:
        if name not in self.targets:
            raise UnknownFunction(f"no {name}")
        return self.targets[name]

    def sqs(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "GetQueueUrl":
            return {"QueueUrl": parameters["QueueName"]}
        self.sent.append((parameters["QueueUrl"], json.loads(parameters["MessageBody"])))
        return {}

    def invoke(self, function: str, kind: str = "RequestResponse", payload: bytes = b"{}") -> InvokeAnswer:
        answers: list[InvokeAnswer] = []
        self.invoker.invoke(function, kind, payload, answers.append)
        self.scheduler.run()
        [answer] = answers
        return answer


@pytest.mark.parametrize("name", ["f", "f:live", f"{ARN}f", f"{ARN}f:1", "123456789012:function:f"])
def test_a_function_is_found_by_its_name_or_arn_with_or_without_a_qualifier(name: str) -> None:
    host = Host()
    answer = World(f=InvokeTarget(host, f"{ARN}f")).invoke(name)
    assert host.qualifiers == [name.removeprefix(ARN).removeprefix("123456789012:function:")[2:]]
    assert (answer.status, json.loads(answer.body), "X-Amz-Function-Error" in answer.headers) == (200, {"a": 1}, False)


def test_the_answer_tells_how_an_invocation_ended() -> None:
    world = World(f=InvokeTarget(Host(FAILED, THROTTLED), f"{ARN}f"))
    failed = world.invoke("f")
    assert (failed.status, failed.headers["X-Amz-Function-Error"]) == (200, "Unhandled")
    errors = [world.invoke("f"), world.invoke("f", payload=b"{"), world.invoke("g"), world.invoke("f", "DryRun")]
    assert [(each.status, each.headers.get("x-amzn-ErrorType")) for each in errors] == [
        (429, "TooManyRequestsException"),
        (400, "InvalidRequestContentException"),
        (404, "ResourceNotFoundException"),
        (204, None),
    ]


def test_an_asynchronous_invocation_is_retried_and_its_end_goes_to_a_destination() -> None:
    queue = "arn:aws:sqs:us-east-1:123456789012:failures"
    settings = TemplateAsync(on_failure=queue, dead_letter_arn=f"{queue}-dlq")
    f = InvokeTarget(Host(FAILED, THROTTLED, FAILED, FAILED), f"{ARN}f", settings)
    world = World(f=f)
    answer = world.invoke("f", "Event", b'{"n": 1}')
    assert (answer.status, world.scheduler.now, world.invoker.pending) == (202, 181.0, [])  # 60 s, throttled 1 s, 120 s
    assert world.notes == [
        f"Asynchronous invocation of f: attempt {number} of 3 failed; Lambda runs the next one in {seconds} s."
        for number, seconds in ((1, 60), (2, 120))
    ]
    (name, record), dead = world.sent
    context = record["requestContext"]
    assert (name, context["condition"], context["approximateInvokeCount"]) == ("failures", "RetriesExhausted", 3)
    assert (record["requestPayload"], record["responsePayload"], dead[1]) == ({"n": 1}, {"errorType": "E"}, {"n": 1})

    after, topic = Host(), "arn:aws:sns:us-east-1:123456789012:topic"
    world = World(
        f=InvokeTarget(Host(), f"{ARN}f", TemplateAsync(on_success=f"{ARN}after")),
        after=InvokeTarget(after, f"{ARN}after", TemplateAsync(on_success=topic)),
    )
    world.invoke("f", "Event")
    assert after.events[0]["requestContext"]["condition"] == "Success"
    assert world.notes == [
        f"{topic} does not get a record: destinations other than queues and functions are not emulated."
    ]
