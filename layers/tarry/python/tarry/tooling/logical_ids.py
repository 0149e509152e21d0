"""The logical ids of queues: those of a deployed stack, and whether a template has one."""

import re
from pathlib import Path
from typing import Any

DEFAULT_TEMPLATE = Path("template.yaml")
"""The template if no option names one."""


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
    """Return the URLs of the queues of a deployed stack, by logical id. Raises the errors of boto3."""
    return stack_resources(cloudformation, stack, "AWS::SQS::Queue")


def stack_resources(cloudformation: Any, stack: str, kind: str) -> dict[str, str]:
    """Return the physical ids of a deployed stack's resources of one type, by logical id."""
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    return {
        each["LogicalResourceId"]: each["PhysicalResourceId"]
        for page in pages
        for each in page["StackResourceSummaries"]
        if each["ResourceType"] == kind and each.get("PhysicalResourceId")
    }
