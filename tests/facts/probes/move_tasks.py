"""Facts 38 to 38b: message move tasks at a rate."""

from typing import Any

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe


def dead_letters(platform: Platform, count: int) -> tuple[str, str]:
    """Make dead letters; return the URLs of their source queue and of the dead-letter queue."""
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    fill(platform, url, count)
    return url, dead


def fill(platform: Platform, url: str, count: int) -> None:
    """Send messages to a queue, and receive them until SQS has moved them to its dead-letter queue."""
    for n in range(count):
        platform.send(url, f"number {n}")
    expect(len(platform.gather(url, count, 30)), count, "received")
    platform.wait(8)
    expect(platform.receive(url), [], "received once more")


def start(platform: Platform, dead: str, **more: Any) -> str:
    handle: str = platform.sqs.start_message_move_task(SourceArn=platform.arn(dead), **more)["TaskHandle"]
    return handle


def task_of(platform: Platform, dead: str) -> dict[str, Any]:
    [task] = platform.sqs.list_message_move_tasks(SourceArn=platform.arn(dead))["Results"]
    return dict(task)


def until_ended(platform: Platform, dead: str) -> dict[str, Any]:
    platform.until(lambda: task_of(platform, dead)["Status"] not in ("RUNNING", "CANCELLING"), 120)
    return task_of(platform, dead)


@probe("38", "A move task with a rate moves so many messages a second", cost="minutes")
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
        with refused(f"{rate} a second"):
            start(platform, dead, MaxNumberOfMessagesPerSecond=rate)


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
    two = platform.queue(
        VisibilityTimeout=5, RedrivePolicy={"deadLetterTargetArn": platform.arn(dead), "maxReceiveCount": 1}
    )
    fill(platform, two, 1)
    start(platform, dead)
    expect([len(platform.gather(url, count, 60)) for url, count in ((one, 2), (two, 1))], [2, 1], "back")


@probe("38b", "The destination has the type of the dead-letter queue")
def the_destination_has_the_same_type(platform: Platform) -> None:
    _, dead = platform.queue_with_dlq(1)
    fifo = platform.arn(platform.queue(fifo=True))
    with refused("a FIFO destination of a standard queue"):
        start(platform, dead, DestinationArn=fifo)
