"""Facts 6 to 9, 22 to 24, and 38 to 38b: receive counts, dead-letter queues, and message move tasks."""

from typing import Any

from tests.facts.platforms.platform import Platform, expect, refused
from tests.facts.registry import not_probed, probe


def received_count(message: dict[str, dict[str, str]]) -> int:
    return int(message["Attributes"]["ApproximateReceiveCount"])


def counts_of(platform: Platform, url: str, receives: int) -> list[int]:
    """Receive the message of a queue a number of times, each after its visibility timeout; return its counts."""
    counts = []
    for _ in range(receives):
        counts.append(received_count(platform.receive_one(url)))
        platform.wait(8)
    return counts


@probe("6", "The receive count is 1 at first, and rises with every receive")
def the_count_rises(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    expect(counts_of(platform, url, 3), [1, 2, 3], "counts")


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
    expect(counts_of(platform, url, 2), [1, 2], "counts")
    expect(platform.receive(dead), [], "in the dead-letter queue before the third receive")
    expect(platform.receive(url), [], "at the third receive")
    dead_letter = platform.receive_one(dead)
    expect((dead_letter["MessageId"], dead_letter["Body"]), (message_id, "a body"), "the dead letter")
    expect(dead_letter["MessageAttributes"]["tenant"]["StringValue"], "acme", "its attribute")


@probe("7", "The moved message keeps its receive count, and names its source queue")
def a_dead_letter_keeps_its_receive_count(platform: Platform) -> None:
    url, dead = dead_letters(platform, 1)
    dead_letter = platform.receive_one(dead)
    expect(received_count(dead_letter), 2, "the receive count")
    expect(dead_letter["Attributes"].get("DeadLetterQueueSourceArn"), platform.arn(url), "DeadLetterQueueSourceArn")


@probe("7", "maxReceiveCount is 1 to 1,000")
def range_of_max_receive_count(platform: Platform) -> None:
    platform.queue_with_dlq(1_000)
    for count in (0, 1_001):
        refused(f"{count:,}", platform.queue_with_dlq, count)


@probe("8", "A message that is sent again is a new message: new id, new sent time, count 1")
def a_resent_message_is_new(platform: Platform) -> None:
    url, before = platform.received(60)
    platform.wait(2)
    platform.send(url, before["Body"], MessageAttributes=before.get("MessageAttributes", {}))
    platform.delete(url, before)
    after = platform.receive_one(url)
    assert after["MessageId"] != before["MessageId"], "the same id"
    expect(received_count(after), 1, "the receive count")
    times = [int(each["Attributes"]["SentTimestamp"]) for each in (before, after)]
    assert times[1] > times[0], "no later sent time"


not_probed("9", "no request of SQS changes a message")


@probe("22", "A receive makes a message invisible and raises its count")
def inspecting_is_receiving(platform: Platform) -> None:
    url, first = platform.received(6)
    expect(platform.receive(url), [], "at a second receive")
    platform.wait(8)
    expect(received_count(platform.receive_one(url)) - received_count(first), 1, "counts more")


def policy_for(platform: Platform, dead: str, count: int = 3) -> dict[str, Any]:
    return {"deadLetterTargetArn": platform.arn(dead), "maxReceiveCount": count}


@probe("23", "A FIFO queue's dead-letter queue is FIFO, a standard queue's standard")
def a_dead_letter_queue_has_the_type_of_its_source(platform: Platform) -> None:
    standard, fifo = (policy_for(platform, platform.queue(fifo=fifo)) for fifo in (False, True))
    refused("a FIFO one for a standard queue", platform.queue, RedrivePolicy=fifo)
    refused("a standard one for a FIFO queue", platform.queue, fifo=True, RedrivePolicy=standard)


@probe("23", "RedriveAllowPolicy says which queues may use it")
def redrive_allow_policy(platform: Platform) -> None:
    dead = platform.queue(RedriveAllowPolicy={"redrivePermission": "denyAll"})
    refused("a source that is not allowed", platform.queue, RedrivePolicy=policy_for(platform, dead))


# move tasks


def dead_letters(platform: Platform, count: int) -> tuple[str, str]:
    """Make dead letters; return the URLs of their source queue and of the dead-letter queue."""
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    fill(platform, url, count)
    return url, dead


def fill(platform: Platform, url: str, count: int) -> set[str]:
    """Send messages, and receive them until SQS has moved them to the dead-letter queue; return their ids."""
    ids = {platform.send(url, f"number {n}") for n in range(count)}
    expect(len(platform.gather(url, count, 30)), count, "received")
    platform.wait(8)
    expect(platform.receive(url), [], "received once more")
    return ids


def start(platform: Platform, dead: str, **more: Any) -> str:
    handle: str = platform.sqs.start_message_move_task(SourceArn=platform.arn(dead), **more)["TaskHandle"]
    return handle


def task_of(platform: Platform, dead: str) -> dict[str, Any]:
    [task] = platform.sqs.list_message_move_tasks(SourceArn=platform.arn(dead))["Results"]
    return dict(task)


def until_ended(platform: Platform, dead: str) -> dict[str, Any]:
    platform.until(lambda: task_of(platform, dead)["Status"] not in ("RUNNING", "CANCELLING"), 120)
    return task_of(platform, dead)


@probe("24", "StartMessageMoveTask moves everything back, with new ids and new counts", cost="minutes")
def a_move_task_moves_everything(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    ids = fill(platform, url, 3)
    start(platform, dead)
    back = platform.gather(url, 3, 120)
    expect(sorted(each["Body"] for each in back), [f"number {n}" for n in range(3)], "back")
    expect([each["MessageId"] for each in back if each["MessageId"] in ids], [], "ids that are as before")
    expect({received_count(each) for each in back}, {1}, "receive counts")
    expect(platform.receive(dead), [], "left in the dead-letter queue")


@probe("24", "It takes a dead-letter queue only")
def a_move_task_takes_a_dead_letter_queue(platform: Platform) -> None:
    refused("an ordinary queue", start, platform, platform.queue())


@probe("24", "One task per queue at a time", cost="minutes")
def one_move_task_per_queue(platform: Platform) -> None:
    _, dead = dead_letters(platform, 9)
    start(platform, dead, MaxNumberOfMessagesPerSecond=1)
    refused("a second task while the first runs", start, platform, dead, text="Only one active task")


@probe("38", "A move task with a rate moves that many messages a second", cost="minutes")
def a_move_task_has_a_rate(platform: Platform) -> None:
    url, dead = dead_letters(platform, 4)
    began = platform.now()
    start(platform, dead, MaxNumberOfMessagesPerSecond=1)
    expect(len(platform.gather(url, 4, 120, VisibilityTimeout=600)), 4, "back")
    assert platform.now() - began >= 3, f"4 messages were moved in {platform.now() - began:.1f} s"


@probe("38", "The rate is 1 to 500")
def range_of_the_rate(platform: Platform) -> None:
    _, dead = platform.queue_with_dlq(1)
    for rate in (0, 501):
        refused(f"{rate} a second", start, platform, dead, MaxNumberOfMessagesPerSecond=rate)


@probe("38", "Cancelled, it leaves what it has not moved; its handle is shown only while it runs", cost="minutes")
def a_move_task_can_be_cancelled(platform: Platform) -> None:
    url, dead = dead_letters(platform, 9)
    handle = start(platform, dead, MaxNumberOfMessagesPerSecond=1)
    expect(task_of(platform, dead)["TaskHandle"], handle, "the handle of the running task")
    platform.wait(3)
    platform.sqs.cancel_message_move_task(TaskHandle=handle)
    task = until_ended(platform, dead)
    expect((task["Status"], "TaskHandle" in task), ("CANCELLED", False), "the task")
    back, left = (len(platform.gather(each, 9, 15, VisibilityTimeout=600)) for each in (url, dead))
    assert 0 < left < 9, f"{left} of 9 messages are left"
    expect(back + left, 9, "messages in all")


@probe("38a", "A task whose destination is deleted fails: AWS.SimpleQueueService.NonExistentQueue", cost="minutes")
def a_deleted_destination(platform: Platform) -> None:
    _, dead = dead_letters(platform, 9)
    destination = platform.queue()
    start(platform, dead, DestinationArn=platform.arn(destination), MaxNumberOfMessagesPerSecond=1)
    platform.sqs.delete_queue(QueueUrl=destination)
    task = until_ended(platform, dead)
    expected = ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    expect((task["Status"], task.get("FailureReason")), expected, "the task")


@probe("38b", "Without a destination, each message returns to the queue that it comes from", cost="minutes")
def several_sources(platform: Platform) -> None:
    one, dead = dead_letters(platform, 2)
    two = platform.queue(VisibilityTimeout=5, RedrivePolicy=policy_for(platform, dead, 1))
    fill(platform, two, 1)
    start(platform, dead)
    expect([len(platform.gather(url, count, 60)) for url, count in ((one, 2), (two, 1))], [2, 1], "back")


@probe("38b", "The destination has the type of the dead-letter queue")
def the_destination_has_the_same_type(platform: Platform) -> None:
    _, dead = platform.queue_with_dlq(1)
    fifo = platform.arn(platform.queue(fifo=True))
    refused("a FIFO destination of a standard queue", start, platform, dead, DestinationArn=fifo)
