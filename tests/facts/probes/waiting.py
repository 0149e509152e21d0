"""Facts 1 to 5, 33 and 33a: the visibility, the delay and the retention of a message."""

from tests.facts.platforms.platform import Platform, expect, refused
from tests.facts.registry import probe

SHORTEST_RETENTION = 60


@probe("1", "A visibility is 0 to 43,200 s")
def range_of_a_visibility(platform: Platform) -> None:
    url, message = platform.received(60)
    refused("43,201 s", platform.change_visibility, url, message, 43_201)
    refused("-1 s", platform.change_visibility, url, message, -1)
    platform.change_visibility(url, message, 0)


@probe("1", "A total beyond 43,200 s is refused, not cut, with the quoted text")
def refusal_of_a_total(platform: Platform) -> None:
    url, message = platform.received(60)
    platform.wait(10)
    text = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    refused("43,195 s after 10 s", platform.change_visibility, url, message, 43_195, text=text)
    platform.change_visibility(url, message, 43_150)


@probe("1", "The total counts from this receive, not from the send or the first receive")
def total_counts_from_this_receive(platform: Platform) -> None:
    url, _ = platform.received(5)
    platform.wait(60)
    platform.change_visibility(url, platform.receive_one(url), 43_200 - 30)


@probe("1", "Extending a visibility does not restart the total", cost="hours")
def an_extension_does_not_restart_the_total(platform: Platform) -> None:
    url, message = platform.received(60)
    platform.change_visibility(url, message, 21_600)
    platform.wait(21_000)
    refused("22,300 s after 21,000 s", platform.change_visibility, url, message, 22_300)
    platform.change_visibility(url, message, 22_100)


@probe("1", "ApproximateFirstReceiveTimestamp is the time of the first receive")
def first_receive_timestamp(platform: Platform) -> None:
    url, first = platform.received(5)
    platform.wait(8)
    times = [each["Attributes"]["ApproximateFirstReceiveTimestamp"] for each in (first, platform.receive_one(url))]
    assert times[1] == times[0], "another at the second receive"


@probe("2", "A changed visibility applies to one receive; the next one gets the queue's timeout")
def a_changed_visibility_applies_to_one_receive(platform: Platform) -> None:
    url, message = platform.received(30)
    platform.change_visibility(url, message, 1)
    platform.wait(4)
    platform.receive_one(url)
    platform.wait(8)
    expect(platform.receive(url), [], "received while invisible")


@probe("3", "A delay is 0 to 900 s")
def range_of_a_delay(platform: Platform) -> None:
    url = platform.queue()
    refused("901 s", platform.send, url, DelaySeconds=901)
    refused("-1 s", platform.send, url, DelaySeconds=-1)
    platform.send(url, DelaySeconds=900)


@probe("3", "A delay of 0 overrides the queue's own")
def zero_overrides_the_queues_own(platform: Platform) -> None:
    url = platform.queue(DelaySeconds=300)
    platform.send(url, "parked")
    platform.send(url, "at once", DelaySeconds=0)
    expect([each["Body"] for each in platform.receive(url, 2)], ["at once"], "received")


@probe("3", "A FIFO queue refuses a delay of a message")
def fifo_refuses_a_delay(platform: Platform) -> None:
    url = platform.queue(fifo=True, ContentBasedDeduplication="true")
    refused("2 s", platform.send, url, text="DelaySeconds", DelaySeconds=2, MessageGroupId="a")


@probe("4", "An invisible message is in flight, a delayed one is not")
def an_invisible_message_is_in_flight(platform: Platform) -> None:
    url, _ = platform.received(300)
    platform.send(url, DelaySeconds=300)
    platform.expect_depth(url, in_flight=1, delayed=1)


@probe("4", "With all places taken, a receive is refused: OverLimit", cost="hours", needs=("in-flight limit",))
def over_limit(platform: Platform) -> None:
    url = _full(platform)
    refused("one receive more", platform.sqs.receive_message, text="OverLimit", QueueUrl=url, WaitTimeSeconds=0)


@probe("4", "On FIFO, a receive returns nothing instead", cost="hours", needs=("in-flight limit",))
def over_limit_on_fifo(platform: Platform) -> None:
    answer = platform.sqs.receive_message(QueueUrl=_full(platform, fifo=True), WaitTimeSeconds=0)
    expect(answer.get("Messages", []), [], "received")


def _full(platform: Platform, *, fifo: bool = False) -> str:
    """Return a queue with as many messages in flight as its limit, and one message more."""
    url, numbers = platform.queue(fifo=fifo, VisibilityTimeout=3_600), range(platform.in_flight_limit + 1)
    for ten in (numbers[start : start + 10] for start in range(0, len(numbers), 10)):
        entries = [{"Id": str(number), "MessageBody": "x", **_ids(str(number), fifo=fifo)} for number in ten]
        answer = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        expect(answer.get("Failed", []), [], "not sent")
    expect(len(platform.receive(url, platform.in_flight_limit)), platform.in_flight_limit, "in flight")
    return url


def _ids(name: str, *, fifo: bool) -> dict[str, str]:
    return {"MessageGroupId": name, "MessageDeduplicationId": name} if fifo else {}


@probe("5", "Retention is 4 days, at most 14")
def four_days_fourteen_at_most(platform: Platform) -> None:
    expect(platform.attribute(platform.queue(), "MessageRetentionPeriod"), "345600", "by default")
    platform.queue(MessageRetentionPeriod=1_209_600)
    refused("14 days and a second", platform.queue, MessageRetentionPeriod=1_209_601)


@probe("5", "A message expires while it is invisible", cost="minutes")
def a_message_expires_while_it_is_invisible(platform: Platform) -> None:
    url, _ = platform.received(90, MessageRetentionPeriod=SHORTEST_RETENTION)
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


@probe("33", "On a standard queue the handle of an earlier receive changes the visibility of the current one")
def an_older_handle_acts(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    [first] = platform.gather(url, 1, platform.patience_seconds, VisibilityTimeout=0)
    platform.receive_one(url)
    platform.change_visibility(url, first, 0)
    platform.wait(1)
    found = platform.gather(url, 1, platform.patience_seconds)
    expect(len(found), 1, "received after the older handle ended the newer visibility")


@probe("33a", "On a standard queue a visibility change after the visibility timeout succeeds and has no effect")
def a_late_change_has_no_effect(platform: Platform) -> None:
    url, message = platform.received(5)
    platform.wait(8)
    platform.change_visibility(url, message, 300)
    expect(len(platform.gather(url, 1, platform.patience_seconds)), 1, "received after the late change")
