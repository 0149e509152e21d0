"""The deletion of a stack: what holds data stays."""

from collections.abc import Callable
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from tests.deploy.samples import expect
from tests.deploy.stack import Stack

LOOKS: dict[str, Callable[[Stack, str], Any]] = {
    "AWS::DynamoDB::Table": lambda stack, table: stack.client("dynamodb").scan(TableName=table)["Count"],
    "AWS::S3::Bucket": lambda stack, bucket: sorted(stack.objects(bucket)),
    "AWS::SQS::Queue": lambda stack, queue: sorted(message.id for message in stack.messages(queue)),
    "AWS::SecretsManager::Secret": lambda stack, secret: stack.client("secretsmanager").get_secret_value(
        SecretId=secret
    )["SecretString"],
}
"""Functions that look at what a resource of a type holds, for all types that hold data."""


def check(stack: Stack, delete: Callable[[], object]) -> str:
    """Delete the stack; check that tables, buckets, queues and secrets stay with their content, and functions go."""
    looks = _looks(stack)
    before = {name: look() for name, look in looks.items()}
    functions = set(stack.resources("AWS::Lambda::Function").values())
    delete()
    after = {name: _found(look) for name, look in looks.items()}
    expect("what tables, buckets, queues and secrets hold after the deletion", after, before)
    left = {function["FunctionName"] for function in stack.client("lambda").list_functions()["Functions"]}
    expect("functions after the deletion", sorted(functions & left), [])
    return f"{len(before)} tables, buckets, queues and secrets stay; {len(functions)} functions are gone"


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
