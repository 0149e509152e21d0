"""`tarry check --stack`: a deployed stack has no findings, and each drift from the template has one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tarry.tools.cli.app import app
from tests.deploy.aws import KEYS
from tests.deploy.samples import expect
from tests.deploy.stack import Stack

ENVIRONMENT = {**KEYS, "AWS_PROFILE": None, "AWS_ENDPOINT_URL": None}
VISIBILITY_SECONDS = 20
"""Less than the timeout of the function."""
FINDINGS = [("OrdersFunctionOrders", "E9010"), ("OrdersQueue", "E9011")]


def check(stack: Stack, template: Path) -> str:
    """Check the stack with the code of its template, before and after two drifts; return a line about the findings.

    No finding is MiniStack's own: it answers the requests of the check as AWS does.
    """
    expect("findings in the stack as it is deployed", _findings(stack, template), [])
    with _drifted(stack):
        expect("findings after the drifts", _findings(stack, template), FINDINGS)
    found = " and ".join(f"{rule} at {resource}" for resource, rule in FINDINGS)
    return f"no findings as deployed; {found} after two drifts"


def _findings(stack: Stack, template: Path) -> list[tuple[str, str]]:
    """Return the resource and the rule of each finding."""
    arguments = ["check", str(template), "--stack", stack.name, "--endpoint-url", stack.url, "--format", "json"]
    result = CliRunner().invoke(app, arguments, env=ENVIRONMENT)
    if result.exit_code not in (0, 1) or not result.stdout:
        raise AssertionError(f"tarry check --stack ended with code {result.exit_code}: {result.output}")
    report: dict[str, Any] = json.loads(result.stdout)
    expect("parts that tarry check skipped", report["skipped"], [])
    return sorted((each["resource"], each["rule"]) for each in report["findings"])


@contextmanager
def _drifted(stack: Stack) -> Iterator[None]:
    """Let the mapping of orders ignore failed messages, and its queue show messages too early, for the block."""
    function, queue = stack.client("lambda"), {"QueueUrl": stack.outputs["OrdersQueueUrl"]}
    name = stack.resources("AWS::Lambda::Function")["OrdersFunction"]
    (mapping,) = function.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    deployed = stack.client_of_queues.get_queue_attributes(**queue, AttributeNames=["VisibilityTimeout"])["Attributes"]
    function.update_event_source_mapping(UUID=mapping["UUID"], FunctionResponseTypes=[])
    drifted = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
    stack.client_of_queues.set_queue_attributes(**queue, Attributes=drifted)
    try:
        yield
    finally:
        stack.client_of_queues.set_queue_attributes(**queue, Attributes=deployed)
        reported = mapping["FunctionResponseTypes"]
        function.update_event_source_mapping(UUID=mapping["UUID"], FunctionResponseTypes=reported)
