"""Facts 10 to 12: the messages of a batch after each kind of response and failure."""

from typing import Any

from tests.facts.platforms.platform import PATIENCE_SECONDS, TIMEOUT_SECONDS, Platform, ReportedInvocation, expect
from tests.facts.registry import mapping_probe, probe

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


def receives(invocations: list[ReportedInvocation]) -> dict[str, list[int]]:
    """Return the receive counts with which each message was handled, by message id."""
    seen: dict[str, list[int]] = {}
    for invocation in invocations:
        for message_id, count in zip(invocation.ids, invocation.receives, strict=True):
            seen.setdefault(message_id, []).append(count)
    return {message_id: sorted(counts) for message_id, counts in seen.items()}


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


def batch_of_two(platform: Platform, first: dict[str, Any], second: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Send two messages in one batch; return their receive counts. One FIFO group is received together."""
    url = platform.queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout=VISIBILITY_SECONDS)
    orders = ({"1": first}, {"1": second, "is": "the second"})  # two bodies, or the second would be dropped
    ids = [platform.send(url, each, MessageGroupId="a") for each in orders]
    platform.connect(url, BatchSize=2, **REPORTS)
    [invocation] = platform.invoked(url)
    expect(len(invocation.ids), 2, "messages in the first batch")
    platform.wait(2 * VISIBILITY_SECONDS + TIMEOUT_SECONDS)
    seen = receives(platform.invocations(url))
    return seen[ids[0]], seen[ids[1]]


@mapping_probe("11", "A function error returns the whole batch")
def a_function_error(platform: Platform) -> None:
    seen = batch_of_two(platform, {}, {"raise": "an error"})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A timeout returns the whole batch")
def a_timeout(platform: Platform) -> None:
    seen = batch_of_two(platform, {}, {"sleep": 2 * TIMEOUT_SECONDS})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A crash returns the whole batch")
def a_crash(platform: Platform) -> None:
    seen = batch_of_two(platform, {}, {"exit": True})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A message that the function deleted stays deleted")
def a_delete_survives(platform: Platform) -> None:
    seen = batch_of_two(platform, {"delete": True}, {"raise": "an error"})
    expect(seen, ([1], [1, 2]), "handled at their receives")


@mapping_probe("11", "A second delete by Lambda is harmless")
def a_second_delete_is_harmless(platform: Platform) -> None:
    expect(batch_of_two(platform, {"delete": True}, {}), ([1], [1]), "handled at their receives")


@probe("11", "A delete with the receipt handle of an earlier receive succeeds")
def a_delete_with_an_old_handle(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=5)
    platform.send(url)
    old = platform.receive_one(url)
    platform.wait(8)
    platform.receive_one(url)
    platform.delete(url, old)


@mapping_probe("12", "A message reported as failed comes back when the queue's visibility timeout ends")
def a_failed_message_returns_when_its_visibility_timeout_ends(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform, {"fail": True})
    assert VISIBILITY_SECONDS - 3 < seconds < VISIBILITY_SECONDS + 25, f"after {seconds:.0f} s"


@mapping_probe("12", "A longer visibility that the function set is kept")
def a_longer_visibility_is_kept(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform, {"fail": True, "visibility": 60})
    assert 57 < seconds < 85, f"after {seconds:.0f} s"


@mapping_probe("12", "A shorter one is kept too")
def a_shorter_visibility_is_kept(platform: Platform) -> None:
    seconds = _seconds_between_deliveries(platform, {"fail": True, "visibility": 2}, visibility=120)
    assert seconds < 30, f"after {seconds:.0f} s"


def _seconds_between_deliveries(
    platform: Platform, orders: dict[str, Any], visibility: int = VISIBILITY_SECONDS
) -> float:
    url = platform.queue(VisibilityTimeout=visibility)
    platform.send(url, {"1": orders})
    platform.connect(url, BatchSize=1, **REPORTS)
    first, second = platform.invoked(url, 2, PATIENCE_SECONDS + 2 * visibility)
    return second.began - first.began
