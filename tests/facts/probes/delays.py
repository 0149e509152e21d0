"""Fact 3: parking a message when it is sent."""

from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import World, expect


@probe("3", "A delay is 0 to 900 s")
def range_of_a_delay(world: World) -> None:
    url = world.queue()
    with refused("901 s"):
        world.send(url, DelaySeconds=901)
    with refused("-1 s"):
        world.send(url, DelaySeconds=-1)
    world.send(url, DelaySeconds=900)


@probe("3", "A delay of 0 overrides the queue's own")
def zero_overrides_the_queues_own(world: World) -> None:
    url = world.queue(DelaySeconds=300)
    world.send(url, "parked")
    world.send(url, "at once", DelaySeconds=0)
    expect([each["Body"] for each in world.receive(url, 2)], ["at once"], "received")


@probe("3", "A FIFO queue refuses a delay of a message")
def fifo_refuses_a_delay(world: World) -> None:
    url = world.queue(fifo=True, ContentBasedDeduplication="true")
    with refused("2 s", "DelaySeconds"):
        world.send(url, DelaySeconds=2, MessageGroupId="a")
