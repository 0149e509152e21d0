"""Checks of a deployed stack: `tarry check --stack` finds each drift from the template, and what holds data stays."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from typer.testing import CliRunner

from tarry.tools.cli.app import app
from tests.deploy.aws import KEYS
from tests.deploy.samples import expect
from tests.deploy.stack import Stack

ENVIRONMENT = {**KEYS, "AWS_PROFILE": None, "AWS_ENDPOINT_URL": None}
VISIBILITY_SECONDS = 20
"""Less than the timeout of the function."""
FINDINGS = [("OrdersFunctionOrders", "E9010"), ("OrdersQueue", "E9011")]


def check_drift(stack: Stack, template: Path) -> str:
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


# deletion

LOOKS: dict[str, Callable[[Stack, str], Any]] = {
    "AWS::DynamoDB::Table": lambda stack, table: stack.client("dynamodb").scan(TableName=table)["Count"],
    "AWS::S3::Bucket": lambda stack, bucket: (_bucket_policy(stack, bucket), sorted(stack.objects(bucket))),
    "AWS::SQS::Queue": lambda stack, queue: (
        _queue_policy(stack, queue),
        sorted(each.id for each in stack.messages(queue)),
    ),
    "AWS::SecretsManager::Secret": lambda stack, secret: stack.secret(secret),
}
"""Functions that look at what a resource of a type holds, and at its policy, for all types that hold data."""


def check_deletion(stack: Stack, delete: Callable[[], object]) -> str:
    """Delete the stack; check that what holds data stays with its content and its policy, and that functions go."""
    looks = {
        name: partial(look, stack, name) for kind, look in LOOKS.items() for name in stack.resources(kind).values()
    }
    before = {name: look() for name, look in looks.items()}
    protected = [*stack.resources("AWS::SQS::Queue").values(), *stack.resources("AWS::S3::Bucket").values()]
    expect("queues and buckets without a policy", [name for name in protected if before[name][0] != ["OnlyTls"]], [])
    functions = set(stack.resources("AWS::Lambda::Function").values())
    delete()
    after = {name: _found(look) for name, look in looks.items()}
    expect("what tables, buckets, queues and secrets hold after the deletion", after, before)
    left = {function["FunctionName"] for function in stack.client("lambda").list_functions()["Functions"]}
    expect("functions after the deletion", sorted(functions & left), [])
    stay = f"{len(before)} tables, buckets, queues and secrets stay, and the policies of {len(protected)}"
    return f"{stay}; {len(functions)} functions are gone"


def _queue_policy(stack: Stack, queue: str) -> list[str]:
    found = stack.client_of_queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
    return _statements(found.get("Attributes", {}).get("Policy"))


def _bucket_policy(stack: Stack, bucket: str) -> list[str]:
    try:
        return _statements(stack.client("s3").get_bucket_policy(Bucket=bucket)["Policy"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchBucketPolicy":
            raise
        return []


def _statements(policy: str | None) -> list[str]:
    return [statement["Sid"] for statement in json.loads(policy)["Statement"]] if policy else []


def _found(look: Callable[[], Any]) -> Any:
    """Return what `look` finds, or `None` if there is nothing to look at."""
    try:
        return look()
    except ClientError:
        return None
