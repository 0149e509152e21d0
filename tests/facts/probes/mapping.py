"""Facts 10 to 13, 15 and 25 to 29: event source mappings, their batches and their function."""

from functools import partial
from typing import Any

from tests.facts.platforms.platform import (
    PATIENCE_SECONDS,
    TIMEOUT_SECONDS,
    Need,
    Platform,
    ReportedInvocation,
    expect,
    refused,
)
from tests.facts.registry import mapping_probe, not_probed, probe

REPORTS: dict[str, Any] = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
VISIBILITY_SECONDS = 20
UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
SUCCESSES: dict[str, Any] = {
    "an empty list": {"batchItemFailures": []},
    "a null list": {"batchItemFailures": None},
    "an empty object": {},
    "null": None,
}
FAILURES: dict[str, Any] = {
    "an empty id": {"batchItemFailures": [{"itemIdentifier": ""}]},
    "a null id": {"batchItemFailures": [{"itemIdentifier": None}]},
    "no id": {"batchItemFailures": [{}]},
    "a wrong key": {"batchItemFailures": [{"id": "$id"}]},
    "an id that is not in the batch": {"batchItemFailures": [{"itemIdentifier": UNKNOWN_ID}]},
    "invalid JSON": float("nan"),
}
LOOP: tuple[Need, ...] = ("mapping", "loop detection")


def receives(invocations: list[ReportedInvocation]) -> dict[str, list[int]]:
    """Return the receive counts with which each message was handled, by message id."""
    seen: dict[str, list[int]] = {}
    for invocation in invocations:
        for message_id, count in zip(invocation.ids, invocation.receives, strict=True):
            seen.setdefault(message_id, []).append(count)
    return {message_id: sorted(counts) for message_id, counts in seen.items()}


def one_invocation(platform: Platform, body: Any, visibility: int = 60, **message: Any) -> ReportedInvocation:
    """Send a message to a function; return its invocation."""
    url = platform.queue(VisibilityTimeout=visibility)
    platform.send(url, body, **message)
    platform.connect(url, BatchSize=1)
    [invocation] = platform.invoked(url)
    return invocation


# answers


def receives_by_answer(platform: Platform, answers: dict[str, Any], **settings: Any) -> dict[str, list[int]]:
    """Send a message for each answer of the function; return the receive counts with which it was handled."""
    url = platform.queue(VisibilityTimeout=VISIBILITY_SECONDS)
    ids = {platform.send(url, {"1": {"answer": answer}}): what for what, answer in answers.items()}
    platform.connect(url, BatchSize=1, **settings)
    platform.invoked(url, len(ids))
    platform.wait(2 * VISIBILITY_SECONDS + 5)
    return {ids[message_id]: counts for message_id, counts in receives(platform.invocations(url)).items()}


@mapping_probe("10", "Complete success: an empty list, a null list, an empty response, null")
def complete_success(platform: Platform) -> None:
    seen = receives_by_answer(platform, SUCCESSES, **REPORTS)
    expect(seen, {what: [1] for what in SUCCESSES}, "handled at its receives")


@mapping_probe("10", "Complete failure: an id that is empty, null, missing, unknown or under a wrong key, invalid JSON")
def complete_failure(platform: Platform) -> None:
    seen = receives_by_answer(platform, FAILURES, **REPORTS)
    expect(seen, {what: [1, 2] for what in FAILURES}, "handled at its receives")


@mapping_probe("10", "Without the setting the list is ignored: the batch is deleted")
def ignored_without_the_setting(platform: Platform) -> None:
    answers = {"a failure": {"batchItemFailures": [{"itemIdentifier": "$id"}]}}
    expect(receives_by_answer(platform, answers), {"a failure": [1]}, "handled at its receives")


def batch_of_two(platform: Platform, *, expected: tuple[list[int], list[int]], **orders: dict[str, Any]) -> None:
    """Send two messages in one batch; check their receive counts. One FIFO group is received together."""
    url = platform.queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout=VISIBILITY_SECONDS)
    bodies = [{"1": orders.get(name, {}), "is": name} for name in ("first", "second")]
    ids = [platform.send(url, each, MessageGroupId="a") for each in bodies]
    platform.connect(url, BatchSize=2, **REPORTS)
    [invocation] = platform.invoked(url)
    expect(len(invocation.ids), 2, "messages in the first batch")
    platform.wait(2 * VISIBILITY_SECONDS + TIMEOUT_SECONDS)
    seen = receives(platform.invocations(url))
    expect((seen[ids[0]], seen[ids[1]]), expected, "handled at their receives")


BOTH_TWICE = ([1, 2], [1, 2])
for claim, what in (
    ("A function error returns the whole batch", {"second": {"raise": "an error"}, "expected": BOTH_TWICE}),
    ("A timeout returns the whole batch", {"second": {"sleep": 2 * TIMEOUT_SECONDS}, "expected": BOTH_TWICE}),
    ("A crash returns the whole batch", {"second": {"exit": True}, "expected": BOTH_TWICE}),
    (
        "A message that the function deleted stays deleted",
        {"first": {"delete": True}, "second": {"raise": "an error"}, "expected": ([1], [1, 2])},
    ),
    ("A second delete by Lambda is harmless", {"first": {"delete": True}, "expected": ([1], [1])}),
):
    mapping_probe("11", claim)(partial(batch_of_two, **what))


@probe("11", "A delete with the receipt handle of an earlier receive succeeds")
def a_delete_with_an_old_handle(platform: Platform) -> None:
    url, old = platform.received(5)
    platform.wait(8)
    platform.receive_one(url)
    platform.delete(url, old)


@mapping_probe("12", "A message reported as failed comes back when the queue's visibility timeout ends")
def a_failed_message_returns_when_its_visibility_timeout_ends(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform)
    assert VISIBILITY_SECONDS - 3 < seconds < VISIBILITY_SECONDS + 25, f"after {seconds:.0f} s"


@mapping_probe("12", "A longer visibility that the function set is kept")
def a_longer_visibility_is_kept(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform, visibility=60)
    assert 57 < seconds < 85, f"after {seconds:.0f} s"


@mapping_probe("12", "A shorter one is kept too")
def a_shorter_visibility_is_kept(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform, of_the_queue=120, visibility=2)
    assert seconds < 30, f"after {seconds:.0f} s"


def _seconds_between_deliveries(platform: Platform, of_the_queue: int = VISIBILITY_SECONDS, **orders: int) -> float:
    url = platform.queue(VisibilityTimeout=of_the_queue)
    platform.send(url, {"1": {"fail": True, **orders}})
    platform.connect(url, BatchSize=1, **REPORTS)
    first, second = platform.invoked(url, 2, PATIENCE_SECONDS + 2 * of_the_queue)
    return second.began - first.began


# settings


@mapping_probe("13", "Above a batch size of 10 a window of 1 s is needed; 10,000 is the most")
def batch_sizes(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    refused("11 without a window", platform.connect, url, BatchSize=11)
    refused("10,001", platform.connect, url, BatchSize=10_001, MaximumBatchingWindowInSeconds=1)
    platform.connect(url, BatchSize=10_000, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A window is 0 to 300 s")
def windows(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=900)
    refused("301 s", platform.connect, url, BatchSize=10, MaximumBatchingWindowInSeconds=301)
    platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=300)


@mapping_probe("13", "FIFO: 10 at most, and no window")
def fifo_batches(platform: Platform) -> None:
    url = platform.queue(fifo=True, VisibilityTimeout=60)
    refused("11", platform.connect, url, BatchSize=11)
    refused("a window", platform.connect, url, BatchSize=10, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A queue whose visibility timeout is below the function's timeout is refused")
def visibility_below_the_timeout(platform: Platform) -> None:
    refused("one second less", platform.connect, platform.queue(VisibilityTimeout=TIMEOUT_SECONDS - 1), BatchSize=1)


@mapping_probe("13", "An event is at most 6 MB: a batch is cut to it")
def six_megabytes(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for _ in range(8):
        platform.send(url, {"filler": "x" * 1_000_000})
    platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=5)
    platform.until(lambda: len(receives(platform.invocations(url))) == 8, PATIENCE_SECONDS)
    sizes = [len(each.records) for each in platform.invocations(url)]
    expect(sum(sizes), 8, "handled")
    assert max(sizes) <= 6, f"batches of {sizes}"


@mapping_probe("15", "MaximumConcurrency is 2 to 1,000")
def range_of_maximum_concurrency(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for concurrency in (1, 1_001):
        refused(f"{concurrency:,}", platform.connect, url, ScalingConfig={"MaximumConcurrency": concurrency})


@mapping_probe("15", "It limits how many invocations run at once")
def maximum_concurrency(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=120)
    for number in range(8):
        platform.send(url, {"1": {"sleep": 5}, "number": number})
    platform.connect(url, BatchSize=1, ScalingConfig={"MaximumConcurrency": 2})
    platform.until(lambda: sum(each.ended is not None for each in platform.invocations(url)) == 8, 2 * PATIENCE_SECONDS)
    invocations = platform.invoked(url, 8)
    at_once = [sum(each.began <= one.began < (each.ended or 0) for each in invocations) for one in invocations]
    assert max(at_once) <= 2, f"{max(at_once)} at once"


@mapping_probe("15", "A throttled batch comes back when its visibility ends, one receive older, without having run")
def throttled(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(2, VisibilityTimeout=VISIBILITY_SECONDS)
    message_id = platform.send(url, {})
    platform.connect(url, throttled=True, BatchSize=1)
    platform.until(lambda: bool(platform.depth(dead)["ready"]), 4 * PATIENCE_SECONDS)
    expect(platform.receive_one(dead)["MessageId"], message_id, "the dead letter")
    expect(platform.invocations(url), [], "the invocations")


not_probed("15a", "it needs minutes of load, and AWS may change the figures")


@probe("15b", "A function that feeds its own queue is stopped after about 16 hops", cost="minutes", needs=LOOP)
def recursive_loops_are_stopped(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(2, VisibilityTimeout=VISIBILITY_SECONDS)
    platform.send(url, {"1": {"resend": True}})
    platform.connect(url, BatchSize=1)
    platform.until(lambda: bool(platform.depth(dead)["ready"]), 5 * PATIENCE_SECONDS)
    hops = len(platform.invocations(url))
    assert 14 <= hops <= 18, f"{hops} hops"
    platform.receive_one(dead)


@mapping_probe("15c", "A message that no filter matches is deleted without an invocation")
def filters_delete(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=VISIBILITY_SECONDS)
    wanted = platform.send(url, {"kind": "wanted"})
    for body in ({"kind": "other"}, "no JSON"):
        platform.send(url, body)
    pattern = '{"body": {"kind": ["wanted"]}}'
    platform.connect(url, BatchSize=1, FilterCriteria={"Filters": [{"Pattern": pattern}]})
    platform.invoked(url)
    platform.wait(2 * VISIBILITY_SECONDS + 5)
    expect([each.ids for each in platform.invocations(url)], [[wanted]], "handled")
    platform.expect_depth(url)


not_probed("15d", "it needs a capacity provider of Lambda Managed Instances, which costs money while it exists")


# the function

not_probed("25", "a protocol; the acceptance tests run the shipped functions under the real runtime client")


@mapping_probe("25a", "In the event a Binary value is base64 text, and a type keeps its label")
def attributes_in_the_event(platform: Platform) -> None:
    attributes = {
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "label": {"DataType": "Number.int", "StringValue": "7"},
    }
    invocation = one_invocation(platform, {}, 30, MessageAttributes=attributes)
    found = invocation.records[0]["messageAttributes"].items()
    seen = {name: (value["dataType"], value.get("binaryValue", value.get("stringValue"))) for name, value in found}
    expect(seen, {"bytes": ("Binary", "AP8="), "label": ("Number.int", "7")}, "attributes")


@mapping_probe("25a", "AWSTraceHeader is among the system attributes")
def trace_header_in_the_event(platform: Platform) -> None:
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0"
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
    invocation = one_invocation(platform, {}, 30, MessageSystemAttributes=system)
    expect(invocation.records[0]["attributes"].get("AWSTraceHeader"), header, "AWSTraceHeader")


not_probed("26", "an environment cannot observe when Lambda freezes it")
not_probed("27", "the cost of a cold start depends on the memory; `make bench` and the budget tests measure it")


@mapping_probe("28", "At the deadline the process is killed: no `finally` runs")
def killed_at_the_deadline(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url, {"1": {"sleep": 2 * TIMEOUT_SECONDS}})
    platform.connect(url, BatchSize=1)
    platform.invoked(url)
    platform.wait(3 * TIMEOUT_SECONDS)
    [invocation] = platform.invoked(url)
    expect(invocation.ended, None, "the end of the invocation")


@mapping_probe("28", "get_remaining_time_in_millis knows the deadline")
def time_left(platform: Platform) -> None:
    invocation, limit = one_invocation(platform, {}), TIMEOUT_SECONDS * 1_000
    assert limit - 3_000 < invocation.left_ms <= limit, f"{invocation.left_ms} ms left of {limit}"


not_probed("29", "what Powertools loads does not depend on where it runs")
