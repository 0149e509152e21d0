"""Facts 22 to 24: dead-letter queues."""

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.counting import received_count
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe


@probe("22", "A receive makes a message invisible and raises its count")
def inspecting_is_receiving(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=6)
    platform.send(url)
    first = platform.receive_one(url)
    expect(platform.receive(url), [], "at a second receive")
    platform.wait(8)
    expect(received_count(platform.receive_one(url)) - received_count(first), 1, "counts more")


@probe("23", "A FIFO queue's dead-letter queue is FIFO, a standard queue's standard")
def a_dead_letter_queue_has_the_type_of_its_source(platform: Platform) -> None:
    standard, fifo = platform.queue(), platform.queue(fifo=True)
    with refused("a FIFO one for a standard queue"):
        platform.queue(RedrivePolicy={"deadLetterTargetArn": platform.arn(fifo), "maxReceiveCount": 3})
    with refused("a standard one for a FIFO queue"):
        platform.queue(fifo=True, RedrivePolicy={"deadLetterTargetArn": platform.arn(standard), "maxReceiveCount": 3})


@probe("23", "RedriveAllowPolicy says which queues may use it")
def redrive_allow_policy(platform: Platform) -> None:
    dead = platform.queue(RedriveAllowPolicy={"redrivePermission": "denyAll"})
    with refused("a source that is not allowed"):
        platform.queue(RedrivePolicy={"deadLetterTargetArn": platform.arn(dead), "maxReceiveCount": 3})


@probe("24", "StartMessageMoveTask moves everything back, with new ids and new counts", cost="minutes")
def a_move_task_moves_everything(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    ids = {platform.send(url, f"number {n}") for n in range(3)}
    expect(len(platform.receive(url, 3)), 3, "received")
    platform.wait(8)
    expect(platform.receive(url), [], "received once more")
    platform.sqs.start_message_move_task(SourceArn=platform.arn(dead))
    back = platform.gather(url, 3, 120)
    expect(sorted(each["Body"] for each in back), [f"number {n}" for n in range(3)], "back")
    expect([each["MessageId"] for each in back if each["MessageId"] in ids], [], "ids that are as before")
    expect({received_count(each) for each in back}, {1}, "receive counts")
    expect(platform.receive(dead), [], "left in the dead-letter queue")


@probe("24", "It takes a dead-letter queue only")
def a_move_task_takes_a_dead_letter_queue(platform: Platform) -> None:
    url = platform.queue()
    with refused("an ordinary queue"):
        platform.sqs.start_message_move_task(SourceArn=platform.arn(url))


@probe("24", "One task per queue at a time", cost="minutes")
def one_move_task_per_queue(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(1, VisibilityTimeout=5)
    for n in range(9):
        platform.send(url, f"number {n}")
    platform.receive(url, 9)
    platform.wait(8)
    expect(platform.receive(url), [], "received once more")
    platform.sqs.start_message_move_task(SourceArn=platform.arn(dead), MaxNumberOfMessagesPerSecond=1)
    with refused("a second task while the first runs", "Only one active task"):
        platform.sqs.start_message_move_task(SourceArn=platform.arn(dead))
