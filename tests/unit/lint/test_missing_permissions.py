"""Permissions that the failure steps of a consumer need and that the role of its function lacks."""

import pytest

from .conftest import Find

LAYER = "Layers: ['arn:aws:lambda:us-east-1:1:layer:with-tarry:3']\n"
CONSUMER = "from tarry import consumer\n\n@consumer(max_attempts=5)\ndef handler(message): ...\n"
STEPS = """
import tarry
from functools import wraps

RETRY = tarry.RetryInPlace()
GRAVES = "arn:aws:sqs:eu-west-1:1:graves"
STEPS = {"default": [RETRY], "orders": [tarry.SendAgain("later", queue="slow"), tarry.DeadLetter(GRAVES)]}

async def process(message): ...

handler = wraps(process)(tarry.consumer(on_failure=STEPS)(process))
"""
VISIBILITY = (
    "sqs:ChangeMessageVisibility on orders: failed messages come back when the queue's visibility timeout ends, "
    "not after their delay."
)
DEAD_LETTERS = "messages that failed for good stay in their queue until SQS moves them, without a failure record."

POLLER = "- SQSPollerPolicy: {QueueName: !GetAtt OrdersQueue.QueueName}"
SENDER = "- SQSSendMessagePolicy: {QueueName: !GetAtt OrdersDlq.QueueName}"
READER = "- Statement: {Effect: Allow, Action: sqs:GetQueueAttributes, Resource: !GetAtt OrdersDlq.Arn}"
POLICIES = f"Policies: [{POLLER[2:]}, {SENDER[2:]}, {READER[2:]}]"
BOTH = "{Effect: Allow, Action: [sqs:SendMessage, sqs:GetQueueAttributes], Resource: !GetAtt OrdersDlq.Arn}"


def role(statements: str, more: str = "") -> str:
    return f"""
OrdersRole:
  Type: AWS::IAM::Role
  Properties:
    AssumeRolePolicyDocument: {{}}
    {more}
    Policies: [{{PolicyName: own, PolicyDocument: {{Statement: {statements}}}}}]
"""


def attached(kind: str, statement: str, more: str = "") -> str:
    return f"Attached: {{Type: AWS::{kind}, Properties: {{{more}PolicyDocument: {{Statement: {{{statement}}}}}}}}}\n"


ROLE = "Role: !GetAtt OrdersRole.Arn"
ALL, ON_THE_DLQ = "Effect: Allow, Action: sqs:*, Resource: '*'", "Queues: [!Ref OrdersDlq], "
SUFFICIENT = {
    "policy templates": (POLICIES, ""),
    "a managed policy of AWS": ("Policies: AmazonSQSFullAccess", ""),
    "a managed policy that is not known": ("Policies: [CompanyPolicy]", ""),
    "a role from elsewhere": ("Role: arn:aws:iam::123456789012:role/orders", ""),
    "a role of another stack": ("Role: !ImportValue OrdersRole", ""),
    "wildcards": (ROLE, role("{Effect: Allow, Action: 'sqs:*', Resource: '*'}")),
    "an exception, and another account": (
        ROLE, role("[{Effect: Allow, NotAction: iam:*, Resource: !Sub 'arn:aws:sqs:*:999999999999:orders*'}]")),
    "a resource that only AWS knows": (
        ROLE, role("{Effect: Allow, Action: sqs:*, Resource: '{{resolve:ssm:/queues/arn}}'}")),
    "a managed policy of the template": (
        ROLE, role("[]", "ManagedPolicyArns: [!Ref Attached]") + attached("IAM::ManagedPolicy", ALL)),
    "a policy that names the role": (
        ROLE, role("[]") + attached("IAM::Policy", ALL, "PolicyName: x, Roles: [!Ref OrdersRole], ")),
    "the policy of a queue": (f"Policies: [{POLLER[2:]}]", attached(
        "SQS::QueuePolicy",
        "Effect: Allow, Principal: {AWS: !GetAtt OrdersFunctionRole.Arn}, Action: sqs:*, Resource: '*'",
        ON_THE_DLQ)),
}  # fmt: skip


@pytest.mark.parametrize("case", SUFFICIENT)
def test_no_warning_if_the_role_has_all_permissions_or_the_template_does_not_tell(find: Find, case: str) -> None:
    properties, resources = SUFFICIENT[case]
    assert find({"src/app.py": CONSUMER}, LAYER + properties, resources) == []


POLICIES_OF_OTHERS = (
    attached("IAM::Policy", "Effect: Allow, Action: '*', Resource: '*'", "PolicyName: x, Roles: [!Ref OtherRole], ")
    + "OtherRole: {Type: AWS::IAM::Role, Properties: {AssumeRolePolicyDocument: {}}}\n"
    + attached(
        "SQS::QueuePolicy",
        "Effect: Allow, Principal: {Service: sns.amazonaws.com}, Action: sqs:SendMessage, Resource: '*'",
        ON_THE_DLQ,
    ).replace("Attached", "Topic")
)
LACKING: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "no policies: SAM's own lacks these": ("", "", [
        (f"lacks {VISIBILITY} Add to its Policies:", POLLER),
        (f"lacks sqs:SendMessage on orders-dlq: {DEAD_LETTERS} Add to its Policies:", SENDER)]),
    "a role of the template, beside policies of others": (
        ROLE, role("{Effect: Allow, Action: sqs:*, Resource: !GetAtt OrdersQueue.Arn}") + POLICIES_OF_OTHERS, [(
            f"lacks sqs:SendMessage and sqs:GetQueueAttributes on orders-dlq: {DEAD_LETTERS} "
            "Add to the statements of OrdersRole:", f"- {BOTH}")]),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKING)
def test_a_missing_permission_is_named_with_the_lines_to_add(find: Find, case: str) -> None:
    properties, resources, expected = LACKING[case]
    findings = find({"src/app.py": CONSUMER}, LAYER + properties, resources)
    assert [(each.rule, each.text, each.snippet) for each in findings] == [
        ("W9003", f"OrdersFunction (template.yaml:4) {text}", snippet) for text, snippet in expected
    ]


IDEMPOTENT = """
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from tarry import consumer

@consumer(idempotency=DynamoDBPersistenceLayer(table_name="records"))
def handler(message): ...
"""
BREAKER = "from aws_lambda_powertools.utilities.circuit_breaker import circuit_breaker\n"


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        (CONSUMER.replace("...", "message.defer(5)"), True),
        (CONSUMER.replace("(message): ...", "(m: tarry.Message):\n    m.defer(5)"), True),
        ("from tarry import Defer\n" + CONSUMER.replace("...", "raise Defer(5)"), True),
        ("from api import charge\n" + CONSUMER, True),
        ("from tarry import DynamoDBAttempts, Defer\n" + CONSUMER.replace("...", "raise Defer(5)"), False),
        (CONSUMER.replace("...", "task.defer(5)"), False),
    ],
)
def test_a_consumer_that_certainly_defers_needs_to_send_to_its_own_queue(find: Find, code: str, lacks: bool) -> None:
    files = {"src/app.py": code, "src/api.py": BREAKER + "@circuit_breaker('api')\ndef charge(): ..."}
    found = [(each.rule, each.text, each.snippet) for each in find(files, LAYER + POLICIES)]
    text = (
        "OrdersFunction (template.yaml:4) lacks sqs:SendMessage on orders: messages that are deferred or sent again "
        "wait in place, where a deferral counts as an attempt. Add to its Policies:"
    )
    assert found == [("W9003", text, "- SQSSendMessagePolicy: {QueueName: !GetAtt OrdersQueue.QueueName}")] * lacks
    sends = "- SQSSendMessagePolicy: {QueueName: !GetAtt OrdersQueue.QueueName}"
    assert not find(files, f"{LAYER}{POLICIES[:-1]}, {sends[2:]}]")


def test_a_consumer_with_idempotency_records_in_dynamodb_needs_permissions_on_a_table(find: Find) -> None:
    [found] = find({"src/app.py": IDEMPOTENT}, LAYER + POLICIES)
    actions = "dynamodb:PutItem, dynamodb:GetItem, dynamodb:UpdateItem"
    assert found.text.partition(": a message")[0] == (
        f"OrdersFunction (template.yaml:4) lacks {actions} and dynamodb:DeleteItem on the table of its idempotency"
    )
    assert found.snippet.startswith(f"- Statement: {{Effect: Allow, Action: [{actions}, dynamodb:DeleteItem], ")
    assert not find({"src/app.py": IDEMPOTENT}, f"{LAYER}{POLICIES[:-1]}, DynamoDBCrudPolicy: {{TableName: records}}]")
    assert not find({"src/app.py": IDEMPOTENT}, f"{LAYER}{POLICIES[:-1]}, AmazonDynamoDBFullAccess]")
    assert not find({"src/app.py": IDEMPOTENT.replace("idempotency=", "other=")}, LAYER + POLICIES)


def test_the_steps_in_the_code_decide_which_permissions_are_needed(find: Find) -> None:
    findings = find({"src/app.py": "from jobs.main import handler", "src/jobs/main.py": STEPS}, LAYER)
    lacking = {each.text.partition(" lacks ")[2].partition(".")[0]: each.snippet for each in findings}
    statement = "- Statement: {Effect: Allow, Action: sqs:SendMessage, Resource: arn:aws:sqs:eu-west-1:1:graves}"
    assert lacking == {
        "sqs:SendMessage on slow: copies are not sent, and the next failure step decides": (
            "- SQSSendMessagePolicy: {QueueName: slow}"
        ),
        f"sqs:SendMessage on graves: {DEAD_LETTERS[:-1]}": statement,
    }


@pytest.mark.parametrize(
    "code",
    [
        "def handler(event, context): ...",
        "from company import consumer\n@consumer\ndef handler(message): ...",
        "from tarry import consumer\n@consumer\ndef other(message): ...\ndef handler(event, context): ...",
        "from tarry import consumer, DropMessage\n@consumer(on_failure=[DropMessage()])\ndef handler(message): ...",
        "from tarry import consumer\nfrom company import STEPS\n@consumer(on_failure=STEPS)\ndef handler(message): ...",
        "from tarry import consumer\nSETTINGS = {}\n@consumer(**SETTINGS)\ndef handler(message): ...",
    ],
)
def test_no_warning_for_a_handler_whose_steps_need_nothing_or_cannot_be_read(find: Find, code: str) -> None:
    assert find({"src/app.py": code}, LAYER) == []
