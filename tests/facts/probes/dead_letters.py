"""Facts 22 to 24: dead-letter queues."""

from tests.facts.probes.counting import received_count
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import World, expect


@probe("22", "A receive hides a message and raises its count")
def a_look_is_a_receive(world: World) -> None:
    url = world.queue(VisibilityTimeout=6)
    world.send(url)
    first = world.receive_one(url)
    expect(world.receive(url), [], "at a second look")
    world.wait(8)
    expect(received_count(world.receive_one(url)) - received_count(first), 1, "counts more")


@probe("23", "A FIFO queue's dead-letter queue is FIFO, a standard queue's standard")
def of_the_same_type(world: World) -> None:
    standard, fifo = world.queue(), world.queue(fifo=True)
    with refused("a FIFO one for a standard queue"):
        world.queue(RedrivePolicy={"deadLetterTargetArn": world.arn(fifo), "maxReceiveCount": 3})
    with refused("a standard one for a FIFO queue"):
        world.queue(fifo=True, RedrivePolicy={"deadLetterTargetArn": world.arn(standard), "maxReceiveCount": 3})


@probe("23", "RedriveAllowPolicy says which queues may use it")
def redrive_allow_policy(world: World) -> None:
    dead = world.queue(RedriveAllowPolicy={"redrivePermission": "denyAll"})
    with refused("a source that is not allowed"):
        world.queue(RedrivePolicy={"deadLetterTargetArn": world.arn(dead), "maxReceiveCount": 3})


@probe("24", "StartMessageMoveTask moves everything back, with new ids and new counts", cost="minutes")
def a_move_task_moves_everything(world: World) -> None:
    url, dead = world.with_dead_letters(1, VisibilityTimeout=5)
    ids = {world.send(url, f"number {n}") for n in range(3)}
    expect(len(world.receive(url, 3)), 3, "received")
    world.wait(8)
    expect(world.receive(url), [], "received once more")
    world.sqs.start_message_move_task(SourceArn=world.arn(dead))
    back = world.gather(url, 3, 120)
    expect(sorted(each["Body"] for each in back), [f"number {n}" for n in range(3)], "back")
    expect([each["MessageId"] for each in back if each["MessageId"] in ids], [], "ids that are as before")
    expect({received_count(each) for each in back}, {1}, "receive counts")
    expect(world.receive(dead), [], "left in the dead-letter queue")


@probe("24", "It takes a dead-letter queue only")
def a_move_task_takes_a_dead_letter_queue(world: World) -> None:
    url = world.queue()
    with refused("an ordinary queue"):
        world.sqs.start_message_move_task(SourceArn=world.arn(url))


@probe("24", "One task per queue at a time", cost="minutes")
def one_move_task_a_queue(world: World) -> None:
    url, dead = world.with_dead_letters(1, VisibilityTimeout=5)
    for n in range(9):
        world.send(url, f"number {n}")
    world.receive(url, 9)
    world.wait(8)
    expect(world.receive(url), [], "received once more")
    world.sqs.start_message_move_task(SourceArn=world.arn(dead), MaxNumberOfMessagesPerSecond=1)
    with refused("a second task while the first runs", "Only one active task"):
        world.sqs.start_message_move_task(SourceArn=world.arn(dead))
