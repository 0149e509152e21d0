"""Fact 3: the delay of a message at its send."""

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe


@probe("3", "A delay is 0 to 900 s")
def range_of_a_delay(platform: Platform) -> None:
    url = platform.queue()
    with refused("901 s"):
        platform.send(url, DelaySeconds=901)
    with refused("-1 s"):
        platform.send(url, DelaySeconds=-1)
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
    with refused("2 s", "DelaySeconds"):
        platform.send(url, DelaySeconds=2, MessageGroupId="a")
