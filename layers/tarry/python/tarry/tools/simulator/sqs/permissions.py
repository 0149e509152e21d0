"""AddPermission and RemovePermission: statements in the ``Policy`` of a queue. The simulator does not enforce them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tarry.tools.simulator.sqs.errors import SqsError, invalid
from tarry.tools.simulator.sqs.validation import service_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ACTIONS = 7
_LABEL = re.compile("[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile("[0-9]{12}")


def with_permission(policy: str | None, queue_arn: str, request: Mapping[str, Any]) -> str:
    """Return a queue's policy with the statement of an AddPermission. Raises `SqsError`."""
    label, accounts, actions = request["Label"], request["AWSAccountIds"], request["Actions"]
    if not _LABEL.fullmatch(label):
        reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise invalid(label, "Label", reason)
    _check_principals(accounts)
    _check_actions(actions)
    document = json.loads(policy) if policy else _new_policy(queue_arn)
    statements = _statements(document)
    if any(each.get("Sid") == label for each in statements):
        raise invalid(label, "Label", "Already exists.")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_all([f"SQS:{action}" for action in actions]),
        "Resource": queue_arn,
    }
    return json.dumps({**document, "Statement": [*statements, statement]})


def without_permission(policy: str | None, label: str) -> str:
    """Return a queue's policy without the statement of this label, empty if none is left. Raises `SqsError`."""
    document = json.loads(policy) if policy else {}
    statements = _statements(document)
    left = [each for each in statements if each.get("Sid") != label]
    if len(left) == len(statements):
        raise invalid(label, "Label", "can't find label.")
    return json.dumps({**document, "Statement": left}) if left else ""


def _check_principals(accounts: Sequence[str]) -> None:
    for account in accounts:
        if not _ACCOUNT.fullmatch(account):
            raise invalid(account, "PrincipalId", "Unable to verify.")
    if not accounts:
        raise invalid([], "PrincipalId", "Unable to verify.")


def _check_actions(actions: Sequence[str]) -> None:
    if len(actions) > MAX_ACTIONS:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {MAX_ACTIONS}.")
    known = {"*", *service_model().operation_names}
    for action in actions:
        if action not in known:
            reason = "Please refer to the appropriate WSDL for a list of valid actions. "
            raise invalid(f"SQS:{action}", "ActionName", reason)
    if not actions:
        raise SqsError("MissingParameter", "The request must contain the parameter Actions.")


def _new_policy(queue_arn: str) -> dict[str, Any]:
    return {"Version": "2008-10-17", "Id": f"{queue_arn}/SQSDefaultPolicy"}


def _statements(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the statements of a policy; a policy may have one that is not in a list."""
    statements = document.get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
