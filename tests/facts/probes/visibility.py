"""Facts 1, 2, 4, 33 and 33a: the visibility of a message."""

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe


@probe("1", "A visibility is 0 to 43,200 s")
def range_of_a_visibility(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    message = platform.receive_one(url)
    with refused("43,201 s"):
        platform.change_visibility(url, message, 43_201)
    with refused("-1 s"):
        platform.change_visibility(url, message, -1)
    platform.change_visibility(url, message, 0)


@probe("1", "A total beyond 43,200 s is refused, not cut, with the quoted text")
def refusal_of_a_total(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    message = platform.receive_one(url)
    platform.wait(10)
    text = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    with refused("43,195 s after 10 s", text):
        platform.change_visibility(url, message, 43_195)
    platform.change_visibility(url, message, 43_150)


@probe("1", "The total counts from this receive, not from the send or the first receive")
def total_counts_from_this_receive(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    platform.receive_one(url)
    platform.wait(60)
    message = platform.receive_one(url)
    platform.change_visibility(url, message, 43_200 - 30)


@probe("1", "Extending a visibility does not restart the total", cost="hours")
def an_extension_does_not_restart_the_total(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    message = platform.receive_one(url)
    platform.change_visibility(url, message, 21_600)
    platform.wait(21_000)
    with refused("22,300 s after 21,000 s"):
        platform.change_visibility(url, message, 22_300)
    platform.change_visibility(url, message, 22_100)


@probe("1", "ApproximateFirstReceiveTimestamp is the time of the first receive")
def first_receive_timestamp(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    first = platform.receive_one(url)
    platform.wait(8)
    second = platform.receive_one(url)
    times = [each["Attributes"]["ApproximateFirstReceiveTimestamp"] for each in (first, second)]
    assert times[1] == times[0], "another at the second receive"


@probe("2", "A changed visibility applies to one receive; the next one gets the queue's timeout")
def a_changed_visibility_applies_to_one_receive(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=30)
    platform.send(url)
    platform.change_visibility(url, platform.receive_one(url), 1)
    platform.wait(4)
    platform.receive_one(url)
    platform.wait(8)
    expect(platform.receive(url), [], "received while invisible")


@probe("4", "An invisible message is in flight, a delayed one is not")
def an_invisible_message_is_in_flight(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=300)
    platform.send(url)
    platform.receive_one(url)
    platform.send(url, DelaySeconds=300)
    platform.expect_depth(url, in_flight=1, delayed=1)


@probe("4", "With all places taken, a receive is refused: OverLimit", cost="hours", needs=("in-flight limit",))
def over_limit(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=3_600)
    _fill(platform, url)
    with refused("one receive more", "OverLimit"):
        platform.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)


@probe("4", "On FIFO, a receive returns nothing instead", cost="hours", needs=("in-flight limit",))
def over_limit_on_fifo(platform: Platform) -> None:
    url = platform.queue(fifo=True, VisibilityTimeout=3_600)
    _fill(platform, url, fifo=True)
    answer = platform.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    expect(answer.get("Messages", []), [], "received")


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
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    message = platform.receive_one(url)
    platform.wait(8)
    platform.change_visibility(url, message, 300)
    found = platform.gather(url, 1, platform.patience_seconds)
    expect(len(found), 1, "received after the late change")


def _fill(platform: Platform, url: str, *, fifo: bool = False) -> None:
    """Fill the in-flight limit of a queue, with one message left over."""
    numbers = range(platform.in_flight_limit + 1)
    for ten in (numbers[start : start + 10] for start in range(0, len(numbers), 10)):
        entries = [_entry(str(number), fifo=fifo) for number in ten]
        answer = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries)
        expect(answer.get("Failed", []), [], "not sent")
    expect(len(platform.receive(url, platform.in_flight_limit)), platform.in_flight_limit, "in flight")


def _entry(number: str, *, fifo: bool) -> dict[str, str]:
    ids = {"MessageGroupId": number, "MessageDeduplicationId": number} if fifo else {}
    return {"Id": number, "MessageBody": "x", **ids}
