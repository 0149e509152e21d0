"""Fact 5: how long a message is kept."""

from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import World, expect

SHORTEST_RETENTION = 60


@probe("5", "Retention is 4 days, at most 14")
def four_days_fourteen_at_most(world: World) -> None:
    expect(world.attribute(world.queue(), "MessageRetentionPeriod"), "345600", "by default")
    world.queue(MessageRetentionPeriod=1_209_600)
    with refused("14 days and a second"):
        world.queue(MessageRetentionPeriod=1_209_601)


@probe("5", "A message expires while it is hidden", cost="minutes")
def expires_while_hidden(world: World) -> None:
    url = world.queue(MessageRetentionPeriod=SHORTEST_RETENTION, VisibilityTimeout=90)
    world.send(url)
    world.receive_one(url)
    world.wait(100)
    expect(world.receive(url), [], "received after its time")


@probe("5", "Moved to a dead-letter queue of a standard queue, a message keeps its age", cost="minutes")
def a_dead_letter_keeps_its_age(world: World) -> None:
    expect(_letters(world), ["young"], "in the dead-letter queue")


@probe("5", "On FIFO, its age restarts", cost="minutes")
def on_fifo_its_age_begins_anew(world: World) -> None:
    expect(_letters(world, fifo=True), ["old", "young"], "in the dead-letter queue")


def _letters(world: World, *, fifo: bool = False) -> list[str]:
    """What is in a dead-letter queue of the shortest retention, of one message older than that and one younger."""
    dead = world.queue(fifo=fifo, MessageRetentionPeriod=SHORTEST_RETENTION)
    policy = {"deadLetterTargetArn": world.arn(dead), "maxReceiveCount": 1}
    url = world.queue(fifo=fifo, RedrivePolicy=policy, VisibilityTimeout=5)
    world.send(url, "old", **_ids("old", fifo=fifo))
    world.wait(90)
    world.send(url, "young", **_ids("young", fifo=fifo))
    expect(len(world.receive(url, 2)), 2, "received")
    world.wait(8)
    expect(world.receive(url), [], "received once more from the source")
    return sorted(each["Body"] for each in [world.receive_one(dead), *world.receive(dead)])


def _ids(body: str, *, fifo: bool) -> dict[str, str]:
    return {"MessageGroupId": body, "MessageDeduplicationId": body} if fifo else {}
