"""The deletion of a stack: what holds data stays."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from tests.deploy.samples import expect
from tests.deploy.stack import Stack

LOOKS: dict[str, Callable[[Stack, str], Any]] = {
    "AWS::DynamoDB::Table": lambda stack, table: stack.client("dynamodb").scan(TableName=table)["Count"],
    "AWS::S3::Bucket": lambda stack, bucket: (_bucket_policy(stack, bucket), sorted(stack.objects(bucket))),
    "AWS::SQS::Queue": lambda stack, queue: (
        _queue_policy(stack, queue),
        sorted(message.id for message in stack.messages(queue)),
    ),
    "AWS::SecretsManager::Secret": lambda stack, secret: stack.client("secretsmanager").get_secret_value(
        SecretId=secret
    )["SecretString"],
}
"""Functions that look at what a resource of a type holds, and at its policy, for all types that hold data."""


def check(stack: Stack, delete: Callable[[], object]) -> str:
    """Delete the stack; check that what holds data stays with its content and its policy, and that functions go."""
    looks = _looks(stack)
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


def _looks(stack: Stack) -> dict[str, Callable[[], Any]]:
    """Return, by the id of what holds data, a function that looks at what it holds."""
    looks: dict[str, Callable[[], Any]] = {}
    for kind, look in LOOKS.items():
        for name in stack.resources(kind).values():
            looks[name] = partial(look, stack, name)
    return looks


def _found(look: Callable[[], Any]) -> Any:
    """Return what `look` finds, or `None` if there is nothing to look at."""
    try:
        return look()
    except ClientError:
        return None
