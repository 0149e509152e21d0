"""Facts 14 and 20: FIFO queues."""

from collections.abc import Sequence

from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import Message, World, expect


def group(world: World, bodies: Sequence[str], visibility: int = 10) -> tuple[str, dict[str, Message]]:
    """A queue and its messages by body, all received; a body's first letter is its group."""
    url = world.queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout=visibility)
    for body in bodies:
        world.send(url, body, MessageGroupId=body[0])
    received = {each["Body"]: each for each in world.receive(url, len(bodies))}
    expect(sorted(received), sorted(bodies), "received together")
    return url, received


def bodies_of(messages: list[Message]) -> list[str]:
    return [each["Body"] for each in messages]


@probe("14", "One receive may return several groups, each in order")
def several_groups_in_order(world: World) -> None:
    url = world.queue(fifo=True, ContentBasedDeduplication="true")
    for body in ("a1", "b1", "a2", "b2"):
        world.send(url, body, MessageGroupId=body[0])
    bodies = bodies_of(world.receive(url, 4))
    expect([body for body in bodies if body[0] == "a"], ["a1", "a2"], "of one group")
    expect([body for body in bodies if body[0] == "b"], ["b1", "b2"], "of the other")


@probe("14", "While the head of a group is invisible, no message of the group is received")
def an_invisible_head_hides_its_group(world: World) -> None:
    url, received = group(world, ["a1", "a2", "a3"])
    world.hide(url, received["a1"], 60)
    world.wait(14)
    expect(bodies_of(world.receive(url, 3)), [], "received")


@probe("14", "An invisible message hides the messages behind it, not the ones before it; the group then waits for it")
def an_invisible_tail_lets_its_head_go(world: World) -> None:
    url, received = group(world, ["a1", "a2", "a3"])
    world.hide(url, received["a2"], 40)
    world.wait(14)
    head = world.receive(url, 3)
    expect(bodies_of(head), ["a1"], "received first")
    world.delete(url, head[0])
    expect(bodies_of(world.receive(url, 3)), [], "received while the second is invisible")
    world.wait(30)
    expect(bodies_of(world.receive(url, 3)), ["a2", "a3"], "received then")


@probe("14", "A released head is received again although the messages behind it are invisible")
def a_head_given_back_comes_alone(world: World) -> None:
    url, received = group(world, ["a1", "a2"], visibility=60)
    world.hide(url, received["a1"], 0)
    world.wait(1)
    expect(bodies_of(world.receive(url, 2)), ["a1"], "received")


@probe("14", "A group that is released as a whole is received again in order")
def a_group_given_back_keeps_its_order(world: World) -> None:
    url, received = group(world, ["a1", "a2", "a3"], visibility=60)
    for message in received.values():
        world.hide(url, message, 0)
    world.wait(1)
    expect(bodies_of(world.receive(url, 3)), ["a1", "a2", "a3"], "received")


@probe("14", "Other groups are not affected")
def other_groups_go_on(world: World) -> None:
    url, received = group(world, ["a1", "a2", "b1"])
    world.hide(url, received["a1"], 60)
    world.wait(14)
    expect(bodies_of(world.receive(url, 3)), ["b1"], "received")


@probe("14", "An expired handle cannot delete a FIFO message")
def an_expired_handle_cannot_delete(world: World) -> None:
    url, received = group(world, ["a1"], visibility=5)
    world.wait(9)
    with refused("a delete with it", "ReceiptHandle"):
        world.delete(url, received["a1"])
    expect(bodies_of(world.receive(url)), ["a1"], "still there")


@probe("14", "A message of a standard queue may have a MessageGroupId")
def fair_queues(world: World) -> None:
    url = world.queue()
    world.send(url, MessageGroupId="tenant-1")
    expect(world.receive_one(url)["Attributes"].get("MessageGroupId"), "tenant-1", "MessageGroupId")


@probe("20", "A send needs a group id and a deduplication id")
def needs_two_ids(world: World) -> None:
    url = world.queue(fifo=True)
    with refused("no group id"):
        world.send(url, MessageDeduplicationId="1")
    with refused("no deduplication id"):
        world.send(url, MessageGroupId="a")


@probe("20", "Within 5 minutes a send with the same deduplication id succeeds and is dropped, whatever the body")
def a_repeated_id_is_swallowed(world: World) -> None:
    url = world.queue(fifo=True)
    first = world.send(url, "one", MessageGroupId="a", MessageDeduplicationId="1")
    world.wait(30)
    second = world.send(url, "two", MessageGroupId="a", MessageDeduplicationId="1")
    assert second == first, "another id was answered"
    expect(bodies_of(world.receive(url, 2)), ["one"], "received")


@probe("20", "The same if the first message was deleted meanwhile")
def a_repeated_id_is_swallowed_after_a_delete(world: World) -> None:
    url = world.queue(fifo=True)
    world.send(url, "one", MessageGroupId="a", MessageDeduplicationId="1")
    world.delete(url, world.receive_one(url))
    world.send(url, "two", MessageGroupId="a", MessageDeduplicationId="1")
    expect(bodies_of(world.receive(url, 2)), [], "received")


@probe("20", "After 5 minutes it is a new message", cost="minutes")
def after_five_minutes_it_is_new(world: World) -> None:
    url = world.queue(fifo=True)
    world.send(url, "one", MessageGroupId="a", MessageDeduplicationId="1")
    world.delete(url, world.receive_one(url))
    world.wait(310)
    world.send(url, "two", MessageGroupId="a", MessageDeduplicationId="1")
    expect(bodies_of(world.receive(url, 2)), ["two"], "received")
