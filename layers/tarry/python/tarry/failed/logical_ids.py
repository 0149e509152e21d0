"""The logical ids of queues: those of a deployed stack, and whether a template has one."""

import re
from pathlib import Path
from typing import Any

from tarry.failed.usage import UsageError

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

    Raises:
        UsageError: it has none, because its creation failed.
        botocore.exceptions.ClientError: AWS refuses a request, or there is no such stack.
    """
    found = [
        each
        for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
        for each in page["StackResourceSummaries"]
        if each.get("PhysicalResourceId") and each.get("ResourceStatus") != "DELETE_COMPLETE"
    ]
    if not found:
        status = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        if status in NOT_CREATED:
            raise UsageError(f"stack {stack} has no resources: its status is {status}; delete it, and deploy it again")
    return found
