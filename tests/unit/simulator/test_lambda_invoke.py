"""Lambda's Invoke: answers, and the end of asynchronous invocations."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.lambda_invoke import InvokeAnswer, Invoker, InvokeTarget, UnknownFunction
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.template.model import TemplateAsync

ARN, QUEUE = "arn:aws:lambda:us-east-1:123456789012:function:", "arn:aws:sqs:us-east-1:123456789012:failures"
TOPIC = "arn:aws:sns:us-east-1:123456789012:topic"
RETURNED, FAILED = InvocationResult("returned", {"a": 1}), InvocationResult("error", {"errorType": "E"}, "E: why")
THROTTLED = InvocationResult("throttled")


class Cloud:
    """The functions f and after, and what is sent to queues. The results are those of f, which then returns."""

    def __init__(self, *results: InvocationResult, f: TemplateAsync, after: TemplateAsync) -> None:
        self.scheduler = Scheduler(0)
        self.results = list(results)
        self.targets = {name: InvokeTarget(self, f"{ARN}{name}", each) for name, each in (("f", f), ("after", after))}
        self.invoked: list[tuple[Any, str]] = []
        self.sent: list[tuple[str, Any]] = []
        self.notes: list[str] = []
        self.invoker = Invoker(self.scheduler, self.find, self.sqs, lambda: "id", self.notes.append)

    def invoke(self, event: Any, done: Callable[[InvocationResult], None], qualifier: str = "") -> None:
        self.invoked.append((event, qualifier))
        done(self.results.pop(0) if self.results else RETURNED)

    def find(self, name: str) -> InvokeTarget:
        if name not in self.targets:
            raise UnknownFunction(f"no {name}")
        return self.targets[name]

    def sqs(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if operation == "GetQueueUrl":
            return {"QueueUrl": parameters["QueueName"]}
        self.sent.append((parameters["QueueUrl"], json.loads(parameters["MessageBody"])))
        return {}

    def answer(self, function: str, kind: str = "RequestResponse", payload: bytes = b"{}") -> InvokeAnswer:
        answers: list[InvokeAnswer] = []
        self.invoker.invoke(function, kind, payload, answers.append)
        self.scheduler.run()
        [answer] = answers
        return answer


def cloud(*results: InvocationResult, after: Any = None, **f: Any) -> Cloud:
    return Cloud(*results, f=TemplateAsync(**f), after=TemplateAsync(on_success=after))


@pytest.mark.parametrize("name", ["f", "f:live", f"{ARN}f", f"{ARN}f:1", "123456789012:function:f"])
def test_a_function_is_found_by_its_name_or_arn_with_or_without_a_qualifier(name: str) -> None:
    found = cloud()
    answer = found.answer(name)
    assert found.invoked == [({}, name.removeprefix(ARN).removeprefix("123456789012:function:")[2:])]
    assert (answer.status, json.loads(answer.body), "X-Amz-Function-Error" in answer.headers) == (200, {"a": 1}, False)


def test_the_answer_tells_how_an_invocation_ended() -> None:
    found = cloud(FAILED, THROTTLED)
    failed = found.answer("f")
    assert (failed.status, failed.headers["X-Amz-Function-Error"]) == (200, "Unhandled")
    errors = [found.answer("f"), found.answer("f", payload=b"{"), found.answer("g"), found.answer("f", "DryRun")]
    assert [(each.status, each.headers.get("x-amzn-ErrorType")) for each in errors] == [
        (429, "TooManyRequestsException"),
        (400, "InvalidRequestContentException"),
        (404, "ResourceNotFoundException"),
        (204, None),
    ]


def test_an_asynchronous_invocation_is_retried_and_its_end_goes_to_a_destination() -> None:
    failing = cloud(FAILED, THROTTLED, FAILED, FAILED, on_failure=QUEUE, dead_letter_arn=f"{QUEUE}-dlq")
    answer = failing.answer("f", "Event", b'{"n": 1}')
    assert (answer.status, failing.scheduler.now, failing.invoker.pending) == (202, 181, [])  # 60 s, 1 s, 120 s
    assert failing.notes == [
        f"Asynchronous invocation of f: attempt {number} of 3 failed; Lambda runs the next one in {seconds} s."
        for number, seconds in ((1, 60), (2, 120))
    ]
    (name, record), dead = failing.sent
    context = record["requestContext"]
    assert (name, context["condition"], context["approximateInvokeCount"]) == ("failures", "RetriesExhausted", 3)
    assert (record["requestPayload"], record["responsePayload"], dead[1]) == ({"n": 1}, {"errorType": "E"}, {"n": 1})
    chain = cloud(on_success=f"{ARN}after", after=TOPIC)
    chain.answer("f", "Event")
    assert chain.invoked[1][0]["requestContext"]["condition"] == "Success"
    assert chain.notes == [
        f"{TOPIC} does not get a record: destinations other than queues and functions are not emulated."
    ]
