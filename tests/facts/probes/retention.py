"""Fact 5: the retention period of a message."""

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe

SHORTEST_RETENTION = 60


@probe("5", "Retention is 4 days, at most 14")
def four_days_fourteen_at_most(platform: Platform) -> None:
    expect(platform.attribute(platform.queue(), "MessageRetentionPeriod"), "345600", "by default")
    platform.queue(MessageRetentionPeriod=1_209_600)
    with refused("14 days and a second"):
        platform.queue(MessageRetentionPeriod=1_209_601)


@probe("5", "A message expires while it is invisible", cost="minutes")
def a_message_expires_while_it_is_invisible(platform: Platform) -> None:
    url = platform.queue(MessageRetentionPeriod=SHORTEST_RETENTION, VisibilityTimeout=90)
    platform.send(url)
    platform.receive_one(url)
    platform.wait(100)
    expect(platform.receive(url), [], "received after its time")


@probe("5", "Moved to a dead-letter queue of a standard queue, a message keeps its age", cost="minutes")
def a_dead_letter_keeps_its_age(platform: Platform) -> None:
    expect(_moved_messages(platform), ["young"], "in the dead-letter queue")


@probe("5", "On FIFO, its age restarts", cost="minutes")
def on_fifo_the_age_restarts(platform: Platform) -> None:
    expect(_moved_messages(platform, fifo=True), ["old", "young"], "in the dead-letter queue")


def _moved_messages(platform: Platform, *, fifo: bool = False) -> list[str]:
    """Return what a dead-letter queue keeps of two messages, one older than its retention period and one younger."""
    dead = platform.queue(fifo=fifo, MessageRetentionPeriod=SHORTEST_RETENTION)
    policy = {"deadLetterTargetArn": platform.arn(dead), "maxReceiveCount": 1}
    url = platform.queue(fifo=fifo, RedrivePolicy=policy, VisibilityTimeout=5)
    platform.send(url, "old", **_ids("old", fifo=fifo))
    platform.wait(90)
    platform.send(url, "young", **_ids("young", fifo=fifo))
    expect(len(platform.receive(url, 2)), 2, "received")
    platform.wait(8)
    expect(platform.receive(url), [], "received once more from the source")
    return sorted(each["Body"] for each in [platform.receive_one(dead), *platform.receive(dead)])


def _ids(body: str, *, fifo: bool) -> dict[str, str]:
    return {"MessageGroupId": body, "MessageDeduplicationId": body} if fifo else {}
