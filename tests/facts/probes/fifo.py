"""Facts 14, 20 and 34 to 34d: FIFO queues."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.facts.platforms.platform import Message, Platform, expect, refused
from tests.facts.registry import not_probed, probe


def groups(platform: Platform, *bodies: str, **attributes: Any) -> str:
    """Make a queue with messages whose group is the first character of the body."""
    url = platform.queue(fifo=True, ContentBasedDeduplication="true", **attributes)
    for body in bodies:
        platform.send(url, body, MessageGroupId=body[0])
    return url


def received_groups(platform: Platform, *bodies: str, visibility: int = 10) -> tuple[str, dict[str, Message]]:
    """Send and receive messages; return them by body."""
    url = groups(platform, *bodies, VisibilityTimeout=visibility)
    received = {each["Body"]: each for each in platform.receive(url, len(bodies))}
    expect(sorted(received), sorted(bodies), "received together")
    return url, received


def bodies_of(messages: list[Message]) -> list[str]:
    return [each["Body"] for each in messages]


@probe("14", "One receive may return several groups, each in order")
def several_groups_in_order(platform: Platform) -> None:
    bodies = bodies_of(platform.receive(groups(platform, "a1", "b1", "a2", "b2"), 4))
    expect([body for body in bodies if body[0] == "a"], ["a1", "a2"], "of one group")
    expect([body for body in bodies if body[0] == "b"], ["b1", "b2"], "of the other")


@probe("14", "While the head of a group is invisible, no message of the group is received")
def an_invisible_head_blocks_its_group(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", "a2", "a3")
    platform.change_visibility(url, received["a1"], 60)
    platform.wait(14)
    expect(bodies_of(platform.receive(url, 3)), [], "received")


@probe("14", "An invisible message blocks the messages behind it, not the ones before it; the group then waits for it")
def an_invisible_tail_does_not_block_its_head(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", "a2", "a3")
    platform.change_visibility(url, received["a2"], 40)
    platform.wait(14)
    head = platform.receive(url, 3)
    expect(bodies_of(head), ["a1"], "received first")
    platform.delete(url, head[0])
    expect(bodies_of(platform.receive(url, 3)), [], "received while the second is invisible")
    platform.wait(30)
    expect(bodies_of(platform.receive(url, 3)), ["a2", "a3"], "received then")


@probe("14", "A released head is received again although the messages behind it are invisible")
def a_released_head_is_received_alone(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", "a2", visibility=60)
    platform.change_visibility(url, received["a1"], 0)
    platform.wait(1)
    expect(bodies_of(platform.receive(url, 2)), ["a1"], "received")


@probe("14", "A group that is released as a whole is received again in order")
def a_released_group_keeps_its_order(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", "a2", "a3", visibility=60)
    for message in received.values():
        platform.change_visibility(url, message, 0)
    platform.wait(1)
    expect(bodies_of(platform.receive(url, 3)), ["a1", "a2", "a3"], "received")


@probe("14", "Other groups are not affected")
def other_groups_are_not_affected(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", "a2", "b1")
    platform.change_visibility(url, received["a1"], 60)
    platform.wait(14)
    expect(bodies_of(platform.receive(url, 3)), ["b1"], "received")


@probe("14", "An expired handle cannot delete a FIFO message")
def an_expired_handle_cannot_delete(platform: Platform) -> None:
    url, received = received_groups(platform, "a1", visibility=5)
    platform.wait(9)
    refused("a delete with it", platform.delete, url, received["a1"], text="ReceiptHandle")
    expect(bodies_of(platform.receive(url)), ["a1"], "still there")


@probe("14", "A message of a standard queue may have a MessageGroupId")
def fair_queues(platform: Platform) -> None:
    url = platform.queue()
    platform.send(url, MessageGroupId="tenant-1")
    expect(platform.receive_one(url)["Attributes"].get("MessageGroupId"), "tenant-1", "MessageGroupId")


@probe("20", "A send needs a group id and a deduplication id")
def needs_two_ids(platform: Platform) -> None:
    url = platform.queue(fifo=True)
    refused("no group id", platform.send, url, MessageDeduplicationId="1")
    refused("no deduplication id", platform.send, url, MessageGroupId="a")


def send_twice(platform: Platform, between: Callable[[str], object]) -> list[str]:
    """Send a message, do something with its queue, send another with the same deduplication id; return the ids."""
    url = platform.queue(fifo=True)
    ids = {"MessageGroupId": "a", "MessageDeduplicationId": "1"}
    first = platform.send(url, "one", **ids)
    between(url)
    return [url, first, platform.send(url, "two", **ids)]


@probe("20", "Within 5 minutes a send with the same deduplication id succeeds and is dropped, whatever the body")
def a_repeated_deduplication_id_is_dropped(platform: Platform) -> None:
    url, first, second = send_twice(platform, lambda _: platform.wait(30))
    assert second == first, "another id was answered"
    expect(bodies_of(platform.receive(url, 2)), ["one"], "received")


@probe("20", "The same if the first message was deleted meanwhile")
def a_repeated_deduplication_id_is_dropped_after_a_delete(platform: Platform) -> None:
    url, *_ = send_twice(platform, lambda url: platform.delete(url, platform.receive_one(url)))
    expect(bodies_of(platform.receive(url, 2)), [], "received")


@probe("20", "After 5 minutes it is a new message", cost="minutes")
def after_five_minutes_it_is_new(platform: Platform) -> None:
    def delete_and_wait(url: str) -> None:
        platform.delete(url, platform.receive_one(url))
        platform.wait(310)

    url, *_ = send_twice(platform, delete_and_wait)
    expect(bodies_of(platform.receive(url, 2)), ["two"], "received")


@probe("20", "An empty deduplication id is refused")
def an_empty_deduplication_id(platform: Platform) -> None:
    url = platform.queue(fifo=True, ContentBasedDeduplication="true")
    ids = {"MessageGroupId": "a", "MessageDeduplicationId": ""}
    refused("an empty one", platform.send, url, text="MessageDeduplicationId", **ids)


@probe("20", "A purge forgets deduplication ids", cost="minutes")
def a_purge_forgets_deduplication_ids(platform: Platform) -> None:
    def purge(url: str) -> None:
        platform.sqs.purge_queue(QueueUrl=url)
        platform.wait(65)

    url, *_ = send_twice(platform, purge)
    expect(bodies_of(platform.receive(url, 2)), ["two"], "received")


not_probed("34", "it takes two requests at once; a test of the local SQS shows it over HTTP")


@probe("34a", "A receive begins with the group whose head has been visible longest")
def order_of_the_groups(platform: Platform) -> None:
    url = groups(platform, "a1", "a2", "a3", "b1", "c1", VisibilityTimeout=10)
    expect(bodies_of(platform.receive(url, 2)), ["a1", "a2"], "received first")
    platform.wait(1)
    expect(bodies_of(platform.receive(url, 1)), ["b1"], "received next")
    platform.wait(14)
    expect(bodies_of(platform.receive(url, 5)), ["c1", "a1", "a2", "a3", "b1"], "received then")


@probe("34a", "A group whose received messages are deleted keeps the place of its next message")
def order_after_deletes(platform: Platform) -> None:
    url = platform.queue(fifo=True, ContentBasedDeduplication="true")
    for body in ("a1", "b1", "a2", "b2", "a3", "c1"):
        platform.send(url, body, MessageGroupId=body[0])
        platform.wait(0.1)
    for message in platform.receive(url, 2):
        platform.delete(url, message)
    expect(bodies_of(platform.receive(url, 4)), ["b1", "b2", "a3", "c1"], "received")


@probe("34b", "The scope of deduplication stays that of the creation of the queue", cost="minutes")
def scope_of_deduplication(platform: Platform) -> None:
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    low = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
    urls = [platform.queue(fifo=True, ContentBasedDeduplication="true", **created) for created in (low, high)]
    for url, changed in zip(urls, (high, low), strict=True):
        platform.sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    platform.wait(70)
    for url in urls:
        for name in "ab":
            platform.send(url, "the same", MessageGroupId=name)
    expect([len(platform.receive(url, 2)) for url in urls], [1, 2], "received")


@probe("34c", "A receive with the same ReceiveRequestAttemptId returns the same messages and handles")
def a_repeated_receive(platform: Platform) -> None:
    url = groups(platform, "a1", "a2", VisibilityTimeout=30)
    receive = partial(platform.receive, url, 2, ReceiveRequestAttemptId="attempt")
    first, second = receive(), receive()
    expect(bodies_of(first), ["a1", "a2"], "received")
    expect(bodies_of(second), bodies_of(first), "received again")
    handles = [{each["ReceiptHandle"] for each in received} for received in (first, second)]
    assert handles[0] == handles[1], "other receipt handles"
    platform.delete(url, first[0])
    refused("a repetition after a delete", receive, text="not valid anymore")


@probe("34d", "Only received messages of a group count as not visible", cost="minutes")
def not_visible_messages_of_a_group(platform: Platform) -> None:
    url, _ = received_groups(platform, "a1", "a2", visibility=600)
    platform.send(url, "a3", MessageGroupId="a")
    platform.expect_depth(url, ready=1, in_flight=2)
