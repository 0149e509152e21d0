"""Parsing of queue URLs, ARNs and attributes: names, regions, hosts, counts, redrive policies."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_no_queue
from tarry.support.values import QueueArn, queue_arn


class Redrive(NamedTuple):
    """The redrive policy of a queue: its dead-letter queue, and the receives after which SQS moves a message there."""

    target: QueueArn
    max_receive_count: int | None


class MessageCounts(NamedTuple):
    ready: int
    in_flight: int
    delayed: int


def queue_name(name_url_or_arn: str) -> str:
    """Return the name of a queue, from its name, URL or ARN."""
    arn = queue_arn(name_url_or_arn)
    return arn.name or name_url_or_arn.rpartition("/")[2].rpartition(":")[2]


def existing_queues(name: str, known: Sequence[str]) -> str:
    """Return the names of the existing queues for an error about an unknown one, with the most similar name."""
    if not known:
        return ""
    names = ", ".join(known)
    nearest = get_close_matches(queue_name(name), known, n=1)
    return f"; did you mean {nearest[0]}? Existing queues: {names}" if nearest else f"; existing queues: {names}"


def region_of(arn: str) -> str:
    return arn.split(":")[3]


def endpoint_host(url: str) -> str:
    """Return the host of an endpoint URL. Raises `UsageError` if it is not one."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # a port that is not a number, an unclosed bracket
        pass
    raise UsageError(f"{url!r} is not an endpoint URL; an example is http://127.0.0.1:4576")


def redrive_of(attributes: Mapping[str, str]) -> Redrive | None:
    """Return the redrive policy in the attributes of a queue; None if there is none."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target, count = queue_arn(policy.get("deadLetterTargetArn")), policy.get("maxReceiveCount")
    return Redrive(target, int(count) if count else None) if target.name else None


def counts_of(attributes: Mapping[str, str]) -> MessageCounts:
    ready, in_flight, delayed = (
        int(attributes.get(f"ApproximateNumberOfMessages{kind}", 0)) for kind in ("", "NotVisible", "Delayed")
    )
    return MessageCounts(ready, in_flight, delayed)


DEFAULT_TEMPLATE = Path("template.yaml")
"""The template if no option names one."""
NOT_CREATED = frozenset({"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS"})
"""The statuses of a stack whose first deployment failed, or never began."""


def names_resource(template: Path, name: str) -> bool:
    """Whether a name may be a logical id in a template; a template is not parsed for a name that is not in it."""
    if not name.isalnum():
        return False
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"""^[ \t]+["']?{name}["']?[ \t]*:""", text, re.MULTILINE) is not None


def stack_queues(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the URLs of the queues of a deployed stack, by logical id. Raises as `resources_of`."""
    return stack_resources(cloudformation, stack, "AWS::SQS::Queue")


def stack_resources(cloudformation: Any, stack: str, kind: str) -> dict[str, str]:
    """Return the physical ids of a deployed stack's resources of one type, by logical id. Raises as `resources_of`."""
    found = resources_of(cloudformation, stack)
    return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found if each["ResourceType"] == kind}


def resources_of(cloudformation: Any, stack: str) -> list[dict[str, Any]]:
    """Return the summaries of the resources that a deployed stack has, without deleted ones.

    Raises `UsageError` and `ClientError`.
    """
    found = [
        each
        for each in listed(cloudformation, "list_stack_resources", "StackResourceSummaries", StackName=stack)
        if each.get("PhysicalResourceId") and each.get("ResourceStatus") != "DELETE_COMPLETE"
    ]
    if not found:
        status = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        if status in NOT_CREATED:
            raise UsageError(f"stack {stack} has no resources: its status is {status}; delete it, and deploy it again")
    return found


def listed(client: Any, operation: str, part: str, **parameters: Any) -> Iterator[Any]:
    """Yield what a client lists, of all pages of the answer; ``part`` is its name in a page. Raises `ClientError`."""
    for page in client.get_paginator(operation).paginate(**parameters):
        yield from page.get(part) or []


def existing_url(name: str, sqs: Any) -> str | None:
    """Return the URL of a queue by its name or ARN; None if it does not exist. Raises `ClientError`."""
    arn = queue_arn(name)
    owner = {"QueueOwnerAWSAccountId": arn.account} if arn.account else {}
    try:
        return str(sqs.get_queue_url(QueueName=arn.name or name, **owner)["QueueUrl"])
    except Exception as error:
        if is_no_queue(error_code(error)):
            return None
        raise


def attributes_of(address: str, sqs: Any) -> dict[str, str] | None:
    """Return the attributes of a queue by its URL or name; None if it does not exist. Raises `ClientError`."""
    url = address if "://" in address else existing_url(address, sqs)
    if url is None:
        return None
    try:
        found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    except Exception as error:
        if is_no_queue(error_code(error)):
            return None
        raise
    return found
