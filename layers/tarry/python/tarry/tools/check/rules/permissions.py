"""Permissions that a consumer needs and that the role of its function lacks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tarry.sqs.client import MISSING, POLLER, SEND_TO_ITSELF, SENDER, TARGET_LIMIT
from tarry.support.values import QueueArn, named_queue, queue_arn
from tarry.tools.check.consumers import Step
from tarry.tools.check.facts import Facts, resource_of
from tarry.tools.check.finding import At, Finding, listed
from tarry.tools.template import TemplateFunction, TemplateMapping, TemplateQueue
from tarry.tools.template.model import ACCOUNT


class Need(NamedTuple):
    """A permission that a failure step needs on a queue, and what happens without it."""

    permission: str
    queue: QueueArn
    consequence: str


def missing_permissions(mapping: TemplateMapping, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find permissions that the failure steps and the deferrals of a consumer need and its role lacks."""
    permissions = function.permissions
    if permissions is None or facts.consumer(function) is None:
        return
    source, consumed = queue_arn(mapping.queue_arn), facts.queues.get(mapping.queue)
    dead_letters = queue_arn(consumed.dead_letter_arn) if consumed and consumed.dead_letter_arn else None
    lacking: dict[QueueArn, list[Need]] = {}
    needed = [*_needs(source, dead_letters, facts.steps(function, mapping.queue))]
    uses = facts.uses(function)
    if not source.is_fifo and "defers" in uses and "attempts" not in uses:  # otherwise it waits in place
        needed.append(_need(SEND_TO_ITSELF, source))
    for need in needed:
        if need.queue.name and not permissions.allow(need.permission, need.queue.name):
            lacking.setdefault(need.queue, []).append(need)
    for queue, needs in lacking.items():
        actions = list(dict.fromkeys(need.permission for need in needs))
        known = facts.queues.get(queue.name)
        on = known.title if known else queue.name
        lacks = f"{function.logical_id}{facts.where(function)} lacks {listed(actions)} on {on}"
        remedy, snippet = _remedy(actions, queue, known, permissions.role, is_source=queue == source)
        text = f"{lacks}: {needs[0].consequence}. {remedy}"
        yield Finding("W9003", (function.logical_id,), text, snippet, at=At(resource_of(function)))


IDEMPOTENCY_ACTIONS = ("dynamodb:PutItem", "dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem")


def missing_table_permissions(function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find actions that the role of a function allows on no table, though its idempotency records are in one."""
    permissions = function.permissions
    if permissions is None or facts.consumer(function) is None:
        return
    if not facts.uses(function) >= {"table", "idempotency"}:
        return
    actions = [each for each in IDEMPOTENCY_ACTIONS if not permissions.allow(each)]
    if actions:
        where = f"the statements of {permissions.role}" if permissions.role else "its Policies"
        text = (
            f"{function.logical_id}{facts.where(function)} lacks {listed(actions)} on the table of its idempotency: a "
            f"message that is delivered twice may run twice. Add to {where}, with the ARN of the table:"
        )
        snippet = statement(actions, "!GetAtt IdempotencyTable.Arn", permissions.role)
        yield Finding("W9003", (function.logical_id,), text, snippet, at=At(resource_of(function)))


def _needs(source: QueueArn, dead_letters: QueueArn | None, steps: Iterable[Step]) -> Iterator[Need]:
    for step in steps:
        target = named_queue(step.queue, source) if step.queue else None
        match step.leads_to:
            case "retry":
                yield _need("change_message_visibility_batch", source)
            case "dead_letter" if target or dead_letters:
                if target is None:
                    yield _need("get_queue_attributes", source)
                yield _need("send_message_batch", target or dead_letters or source)
                yield _need(TARGET_LIMIT, target or dead_letters or source)
            case "resend" if target:
                consequence = "copies are not sent, and the next failure step decides"
                yield Need("sqs:SendMessage", target, consequence)
                yield _need(TARGET_LIMIT, target)
            case "resend":
                yield _need(SEND_TO_ITSELF, source)


def _need(operation: str, queue: QueueArn) -> Need:
    permission, consequence, _ = MISSING[operation]
    return Need(permission, queue, consequence)


def _remedy(
    actions: Sequence[str], queue: QueueArn, known: TemplateQueue | None, role: str | None, *, is_source: bool
) -> tuple[str, str]:
    """Return what to do, and the YAML to add."""
    logical_id = known.logical_id if known else None
    name = f"!GetAtt {logical_id}.QueueName" if logical_id else queue.name
    is_of_stack = queue.account == ACCOUNT  # the account of the stack, which is not known here
    arn = f"!Sub 'arn:${{AWS::Partition}}:sqs:${{AWS::Region}}:${{AWS::AccountId}}:{queue.name}'"
    if logical_id or not is_of_stack:
        arn = f"!GetAtt {logical_id}.Arn" if logical_id else queue.text
    if role is not None:
        return f"Add to the statements of {role}:", statement(actions, arn, role)
    if is_of_stack and is_source and "sqs:SendMessage" not in actions:
        line = f"- {POLLER.format(queue=name)}"  # policy templates take the name of a queue in the stack's account
    elif is_of_stack and actions == ["sqs:SendMessage"]:
        line = f"- {SENDER.format(queue=name)}"
    else:
        line = statement(actions, arn)
    return "Add to its Policies:", line


def statement(actions: Sequence[str], arn: str, role: str | None = None) -> str:
    """Return the YAML that allows actions on a resource, for the statements of a role or the Policies of a function."""
    action = actions[0] if len(actions) == 1 else f"[{', '.join(actions)}]"
    return f"- {'' if role else 'Statement: '}{{Effect: Allow, Action: {action}, Resource: {arn}}}"


def key_permissions(queue: TemplateQueue, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find a function whose role allows no use of the key that encrypts its queue."""
    key = facts.template.checked.keys.get(queue.logical_id or "")
    if key is None or function.permissions is None or function.permissions.allow("kms:Decrypt"):
        return
    text = (
        f"{function.logical_id} lacks kms:Decrypt for {key}, the key of {queue.title}: Lambda cannot receive its "
        "messages. Add to its permissions, the second action for dead letters:"
    )
    statement = "{Effect: Allow, Action: [kms:Decrypt, kms:GenerateDataKey], Resource: "
    yield Finding("E9023", (function.logical_id,), text, f"{statement}!GetAtt {key}.Arn}}", at=facts.at(function))


DESTRUCTIVE = {
    "sqs:PurgeQueue": "purge_queue",
    "sqs:DeleteQueue": "delete_queue",
    "sqs:SetQueueAttributes": "set_queue_attributes",
}
"""The actions that lose messages, and the methods of boto3 that need them."""


def wide_permissions(queue: TemplateQueue, function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find destructive actions that a role allows on a queue, and that the code of the function does not call."""
    permissions, calls = function.permissions, facts.words(function)
    if permissions is None or not calls:
        return
    allowed = [
        action
        for action, method in DESTRUCTIVE.items()
        if method not in calls and permissions.allow(action, queue.name, certainly=True)
    ]
    if allowed:
        text = (
            f"The role of {function.logical_id} allows {listed(allowed)} on {queue.title}, which its code does not "
            "call. Instead of all actions, allow those that a consumer needs:"
        )
        snippet = "[sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility, sqs:GetQueueAttributes]"
        yield Finding("W9022", (function.logical_id,), text, f"Action: {snippet}", at=facts.at(function))
