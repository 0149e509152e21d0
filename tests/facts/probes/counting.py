"""Facts 6 to 9: receive counts, redrive, and new messages."""

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import not_probed, probe


def received_count(message: dict[str, dict[str, str]]) -> int:
    return int(message["Attributes"]["ApproximateReceiveCount"])


@probe("6", "The receive count is 1 at first, and rises with every receive")
def the_count_rises(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    counts = []
    for _ in range(3):
        counts.append(received_count(platform.receive_one(url)))
        platform.wait(8)
    expect(counts, [1, 2, 3], "counts")


@probe("6", "It rises for a FIFO message that is received behind another one of its group")
def the_count_rises_behind_a_head(platform: Platform) -> None:
    url = platform.queue(fifo=True, VisibilityTimeout=10, ContentBasedDeduplication="true")
    for body in ("head", "tail"):
        platform.send(url, body, MessageGroupId="a")
    expect(len(platform.receive(url, 2)), 2, "received together")
    platform.wait(13)
    counts = {each["Body"]: received_count(each) for each in platform.receive(url, 2)}
    expect(counts, {"head": 2, "tail": 2}, "counts")


@probe("7", "A message is moved at the receive after maxReceiveCount, with its id, body and attributes")
def a_message_is_moved_after_its_last_receive(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(2, VisibilityTimeout=5)
    tenant = {"tenant": {"DataType": "String", "StringValue": "acme"}}
    message_id = platform.send(url, "a body", MessageAttributes=tenant)
    counts = []
    for _ in range(2):
        counts.append(received_count(platform.receive_one(url)))
        platform.wait(8)
    expect(counts, [1, 2], "counts")
    expect(platform.receive(dead), [], "in the dead-letter queue before the third receive")
    expect(platform.receive(url), [], "at the third receive")
    dead_letter = platform.receive_one(dead)
    expect((dead_letter["MessageId"], dead_letter["Body"]), (message_id, "a body"), "the dead letter")
    expect(dead_letter["MessageAttributes"]["tenant"]["StringValue"], "acme", "its attribute")


@probe("7", "The moved message keeps its receive count, and names its source queue")
def a_dead_letter_keeps_its_receive_count(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    platform.send(url)
    platform.receive_one(url)
    platform.wait(8)
    platform.receive(url)
    dead_letter = platform.receive_one(dead)
    expect(received_count(dead_letter), 2, "the receive count")
    expect(dead_letter["Attributes"].get("DeadLetterQueueSourceArn"), platform.arn(url), "DeadLetterQueueSourceArn")


@probe("7", "maxReceiveCount is 1 to 1,000")
def range_of_max_receive_count(platform: Platform) -> None:
    platform.queue_with_dlq(1_000)
    for count in (0, 1_001):
        with refused(f"{count:,}"):
            platform.queue_with_dlq(count)


@probe("8", "A message that is sent again is a new message: new id, new sent time, count 1")
def a_resent_message_is_new(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    before = platform.receive_one(url)
    platform.wait(2)
    platform.send(url, before["Body"], MessageAttributes=before.get("MessageAttributes", {}))
    platform.delete(url, before)
    after = platform.receive_one(url)
    assert after["MessageId"] != before["MessageId"], "the same id"
    expect(received_count(after), 1, "the receive count")
    times = [int(each["Attributes"]["SentTimestamp"]) for each in (before, after)]
    assert times[1] > times[0], "no later sent time"


not_probed("9", "no request of SQS changes a message")
