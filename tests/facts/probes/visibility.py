"""Facts 1, 2, 4, 33 and 33a: the visibility of a message."""

from tests.facts.probes.refusal import refused
from tests.facts.registry import probe
from tests.facts.worlds.world import World, expect


@probe("1", "A visibility is 0 to 43,200 s")
def range_of_a_visibility(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    world.send(url)
    message = world.receive_one(url)
    with refused("43,201 s"):
        world.hide(url, message, 43_201)
    with refused("-1 s"):
        world.hide(url, message, -1)
    world.hide(url, message, 0)


@probe("1", "A total beyond 43,200 s is refused, not cut, with the quoted text")
def refusal_of_a_total(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    world.send(url)
    message = world.receive_one(url)
    world.wait(10)
    words = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    with refused("43,195 s after 10 s", words):
        world.hide(url, message, 43_195)
    world.hide(url, message, 43_150)


@probe("1", "The total counts from this receive, not from the send or the first receive")
def total_counts_from_this_receive(world: World) -> None:
    url = world.queue(VisibilityTimeout=5)
    world.send(url)
    world.receive_one(url)
    world.wait(60)
    message = world.receive_one(url)
    world.hide(url, message, 43_200 - 30)


@probe("1", "Extending a visibility does not restart the total", cost="hours")
def an_extension_does_not_begin_anew(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    world.send(url)
    message = world.receive_one(url)
    world.hide(url, message, 21_600)
    world.wait(21_000)
    with refused("22,300 s after 21,000 s"):
        world.hide(url, message, 22_300)
    world.hide(url, message, 22_100)


@probe("1", "ApproximateFirstReceiveTimestamp is the time of the first receive")
def first_receive_timestamp(world: World) -> None:
    url = world.queue(VisibilityTimeout=5)
    world.send(url)
    first = world.receive_one(url)
    world.wait(8)
    second = world.receive_one(url)
    times = [each["Attributes"]["ApproximateFirstReceiveTimestamp"] for each in (first, second)]
    assert times[1] == times[0], "another at the second receive"


@probe("2", "A changed visibility applies to one receive; the next one gets the queue's timeout")
def a_visibility_holds_for_one_receive(world: World) -> None:
    url = world.queue(VisibilityTimeout=30)
    world.send(url)
    world.hide(url, world.receive_one(url), 1)
    world.wait(4)
    world.receive_one(url)
    world.wait(8)
    expect(world.receive(url), [], "received while hidden")


@probe("4", "A hidden message is in flight, a delayed one is not")
def hidden_is_in_flight(world: World) -> None:
    url = world.queue(VisibilityTimeout=300)
    world.send(url)
    world.receive_one(url)
    world.send(url, DelaySeconds=300)
    world.expect_depth(url, in_flight=1, delayed=1)


@probe("4", "With all places taken, a receive is refused: OverLimit", cost="hours", needs=("in-flight limit",))
def over_limit(world: World) -> None:
    url = world.queue(VisibilityTimeout=3_600)
    _fill(world, url)
    with refused("one receive more", "OverLimit"):
        world.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)


@probe("4", "On FIFO, a receive returns nothing instead", cost="hours", needs=("in-flight limit",))
def over_limit_on_fifo(world: World) -> None:
    url = world.queue(fifo=True, VisibilityTimeout=3_600)
    _fill(world, url, fifo=True)
    answer = world.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    expect(answer.get("Messages", []), [], "received")


@probe("33", "On a standard queue the handle of an earlier receive changes the visibility of the current one")
def an_older_handle_acts(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    world.send(url)
    [first] = world.gather(url, 1, world.patience_seconds, VisibilityTimeout=0)
    world.receive_one(url)
    world.hide(url, first, 0)
    world.wait(1)
    found = world.gather(url, 1, world.patience_seconds)
    expect(len(found), 1, "received after the older handle ended the newer visibility")


@probe("33a", "On a standard queue a visibility change after the visibility timeout succeeds and hides nothing")
def a_late_change_hides_nothing(world: World) -> None:
    url = world.queue(VisibilityTimeout=5)
    world.send(url)
    message = world.receive_one(url)
    world.wait(8)
    world.hide(url, message, 300)
    found = world.gather(url, 1, world.patience_seconds)
    expect(len(found), 1, "received after the late change")


def _fill(world: World, url: str, *, fifo: bool = False) -> None:
    """Take every place in flight, and have a message left."""
    numbers = range(world.in_flight_limit + 1)
    for ten in (numbers[start : start + 10] for start in range(0, len(numbers), 10)):
        entries = [_entry(str(number), fifo=fifo) for number in ten]
        answer = world.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        expect(answer.get("Failed", []), [], "not sent")
    expect(len(world.receive(url, world.in_flight_limit)), world.in_flight_limit, "in flight")


def _entry(number: str, *, fifo: bool) -> dict[str, str]:
    ids = {"MessageGroupId": number, "MessageDeduplicationId": number} if fifo else {}
    return {"Id": number, "MessageBody": "x", **ids}
