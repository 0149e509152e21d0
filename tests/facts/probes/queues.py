"""Facts 36 to 37b: the attributes of queues, their list, and their permissions."""

import json
from typing import Any

from tests.facts.platforms.platform import Platform, expect, refused
from tests.facts.registry import probe

CHANGING = ("LastModifiedTimestamp", "CreatedTimestamp")
WAIT_SECONDS = 90
"""How long a changed attribute may take to be shown."""


def attributes(platform: Platform, url: str) -> dict[str, str]:
    found = platform.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {name: value for name, value in found.items() if name not in CHANGING}


def policy(platform: Platform, url: str) -> Any:
    return json.loads(attributes(platform, url).get("Policy", "{}"))


@probe("36", "FifoQueue and ContentBasedDeduplication are true in any case")
def booleans_in_any_case(platform: Platform) -> None:
    url = platform.queue(fifo=True, FifoQueue="True", ContentBasedDeduplication="True")
    shown = [platform.attribute(url, name) for name in ("FifoQueue", "ContentBasedDeduplication")]
    expect(shown, ["true", "true"], "shown")


@probe("36a", "A key of KMS turns SqsManagedSseEnabled off; default values undo all changes", cost="minutes")
def default_values(platform: Platform) -> None:
    url = platform.queue()
    before = attributes(platform, url)
    changed = {"KmsMasterKeyId": "alias/aws/sqs", "VisibilityTimeout": "60"}
    platform.sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    platform.until(lambda: attributes(platform, url).get("SqsManagedSseEnabled") == "false", WAIT_SECONDS)
    expect(attributes(platform, url).get("SqsManagedSseEnabled"), "false", "SqsManagedSseEnabled")
    more = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300", "Policy": "", "VisibilityTimeout": "30"}
    platform.sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0", **more})
    platform.until(lambda: attributes(platform, url) == before, WAIT_SECONDS)
    expect(attributes(platform, url), before, "attributes")


@probe("36a", "Both kinds of encryption at once are refused")
def one_kind_of_encryption(platform: Platform) -> None:
    both, text = (
        {"KmsMasterKeyId": "alias/aws/sqs", "SqsManagedSseEnabled": "true"},
        "You can use one type of server-side",
    )
    refused("both", platform.queue, text=text, **both)


@probe("36b", "Refused: a throughput limit per message group without deduplication per message group")
def throughput_per_group(platform: Platform) -> None:
    refused("perMessageGroupId", platform.queue, fifo=True, FifoThroughputLimit="perMessageGroupId")
    platform.queue(fifo=True, FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")


@probe("36b", "Refused: a Policy that is not JSON")
def a_policy_is_json(platform: Platform) -> None:
    refused("a Policy", platform.queue, text="Invalid value for the parameter Policy", Policy="allow all")


@probe("36b", "Refused: a maxReceiveCount that is not a whole number; a text with one is accepted")
def max_receive_count_is_a_whole_number(platform: Platform) -> None:
    dead = platform.arn(platform.queue())
    platform.queue(RedrivePolicy={"deadLetterTargetArn": dead, "maxReceiveCount": "42"})
    for count in (3.5, "many"):
        policy = {"deadLetterTargetArn": dead, "maxReceiveCount": count}
        refused(str(count), platform.queue, text="for parameter RedrivePolicy is invalid", RedrivePolicy=policy)


@probe("36b", "Refused: sourceQueueArns beside allowAll")
def sources_beside_allow_all(platform: Platform) -> None:
    source = platform.arn(platform.queue())
    both = {"redrivePermission": "allowAll", "sourceQueueArns": [source]}
    refused("both", platform.queue, text="RedriveAllowPolicy", RedriveAllowPolicy=both)


@probe("37", "ListQueues with MaxResults, 1 to 1,000, returns pages")
def pages_of_queues(platform: Platform) -> None:
    urls = {platform.queue() for _ in range(3)}

    def listed() -> list[str]:
        asked: dict[str, Any] = {"QueueNamePrefix": platform.prefix, "MaxResults": 2}
        found: list[str] = []
        while True:
            page = platform.sqs.list_queues(**asked)
            assert len(page.get("QueueUrls", [])) <= 2, "more than two on a page"
            found += page.get("QueueUrls", [])
            if "NextToken" not in page:
                return found
            asked["NextToken"] = page["NextToken"]

    platform.until(lambda: urls <= set(listed()), WAIT_SECONDS)
    expect(urls - set(listed()), set(), "not listed")
    for most in (0, 1_001):
        refused(f"{most:,}", platform.sqs.list_queues, MaxResults=most)


@probe("37a", "GetQueueUrl finds no queue of another account without access")
def a_queue_of_another_account(platform: Platform) -> None:
    name = platform.queue().rpartition("/")[2]
    asked, text = (
        {"QueueName": name, "QueueOwnerAWSAccountId": "111122223333"},
        "queue does not exist or you do not have access",
    )
    refused("another owner", platform.sqs.get_queue_url, text=text, **asked)


@probe("37b", "AddPermission and RemovePermission change the Policy")
def permissions(platform: Platform) -> None:
    url = platform.queue()
    arn = platform.arn(url)
    account = arn.split(":")[4]

    def add(label: str, *actions: str) -> None:
        platform.sqs.add_permission(QueueUrl=url, Label=label, AWSAccountIds=[account], Actions=[*actions])

    add("one", "ReceiveMessage")
    add("two", "SendMessage", "DeleteMessage")
    platform.until(lambda: len(policy(platform, url).get("Statement", [])) == 2, WAIT_SECONDS)
    one, two = policy(platform, url)["Statement"]
    principal = {"AWS": f"arn:aws:iam::{account}:root"}
    expected = {"Sid": "one", "Effect": "Allow", "Principal": principal, "Action": "SQS:ReceiveMessage"}
    expect(one, {**expected, "Resource": arn}, "the first statement")
    expect(two["Action"], ["SQS:SendMessage", "SQS:DeleteMessage"], "the actions of the second")
    refused("a label twice", add, "one", "*", text="Already exists")
    for label in ("one", "two"):
        platform.sqs.remove_permission(QueueUrl=url, Label=label)
    platform.until(lambda: "Policy" not in attributes(platform, url), WAIT_SECONDS)
    expect(attributes(platform, url).get("Policy"), None, "the Policy in the end")
    refused("an unknown label", platform.sqs.remove_permission, text="can't find label", QueueUrl=url, Label="one")
