"""Facts 6 to 9: what SQS counts."""

from tests.facts.probes.refusal import refused
from tests.facts.registry import not_probed, probe
from tests.facts.worlds.world import World, expect


def received_count(message: dict[str, dict[str, str]]) -> int:
    return int(message["Attributes"]["ApproximateReceiveCount"])


@probe("6", "The receive count is 1 at first, and rises with every receive")
def the_count_rises(world: World) -> None:
    url = world.queue(VisibilityTimeout=5)
    world.send(url)
    counts = []
    for _ in range(3):
        counts.append(received_count(world.receive_one(url)))
        world.wait(8)
    expect(counts, [1, 2, 3], "counts")


@probe("6", "It rises for a FIFO message that is received behind another one of its group")
def the_count_rises_behind_a_head(world: World) -> None:
    url = world.queue(fifo=True, VisibilityTimeout=10, ContentBasedDeduplication="true")
    for body in ("head", "tail"):
        world.send(url, body, MessageGroupId="a")
    expect(len(world.receive(url, 2)), 2, "received together")
    world.wait(13)
    counts = {each["Body"]: received_count(each) for each in world.receive(url, 2)}
    expect(counts, {"head": 2, "tail": 2}, "counts")


@probe("7", "A message is moved at the receive after maxReceiveCount, with its id, body and attributes")
def moved_at_the_receive_after(world: World) -> None:
    url, dead = world.with_dead_letters(2, VisibilityTimeout=5)
    tenant = {"tenant": {"DataType": "String", "StringValue": "acme"}}
    message_id = world.send(url, "a body", MessageAttributes=tenant)
    counts = []
    for _ in range(2):
        counts.append(received_count(world.receive_one(url)))
        world.wait(8)
    expect(counts, [1, 2], "counts")
    expect(world.receive(dead), [], "in the dead-letter queue before the third receive")
    expect(world.receive(url), [], "at the third receive")
    letter = world.receive_one(dead)
    expect((letter["MessageId"], letter["Body"]), (message_id, "a body"), "the letter")
    expect(letter["MessageAttributes"]["tenant"]["StringValue"], "acme", "its attribute")


@probe("7", "The moved message keeps its receive count, and names its source queue")
def the_letter_goes_on_counting(world: World) -> None:
    url, dead = world.with_dead_letters(1, VisibilityTimeout=5)
    world.send(url)
    world.receive_one(url)
    world.wait(8)
    world.receive(url)
    letter = world.receive_one(dead)
    expect(received_count(letter), 2, "the receive count")
    expect(letter["Attributes"].get("DeadLetterQueueSourceArn"), world.arn(url), "DeadLetterQueueSourceArn")


@probe("7", "maxReceiveCount is 1 to 1,000")
def range_of_max_receive_count(world: World) -> None:
    world.with_dead_letters(1_000)
    for count in (0, 1_001):
        with refused(f"{count:,}"):
            world.with_dead_letters(count)


@probe("8", "A message that is sent again is a new message: new id, new sent time, count 1")
def sent_again_is_new(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    world.send(url)
    before = world.receive_one(url)
    world.wait(2)
    world.send(url, before["Body"], MessageAttributes=before.get("MessageAttributes", {}))
    world.delete(url, before)
    after = world.receive_one(url)
    assert after["MessageId"] != before["MessageId"], "the same id"
    expect(received_count(after), 1, "the receive count")
    times = [int(each["Attributes"]["SentTimestamp"]) for each in (before, after)]
    assert times[1] > times[0], "no later sent time"


not_probed("9", "no request of SQS changes a message")
