"""Facts 10 to 12: what becomes of a batch, by how its invocation ended."""

from typing import Any

from tests.facts.registry import mapping_probe, probe
from tests.facts.worlds.world import PATIENCE_SECONDS, TIMEOUT_SECONDS, Invocation, World, expect

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


def receives(invocations: list[Invocation]) -> dict[str, list[int]]:
    """At which receives each message was handled, by its id."""
    seen: dict[str, list[int]] = {}
    for invocation in invocations:
        for message_id, count in zip(invocation.ids, invocation.receives, strict=True):
            seen.setdefault(message_id, []).append(count)
    return {message_id: sorted(counts) for message_id, counts in seen.items()}


def answered(world: World, answers: dict[str, Any], **settings: Any) -> dict[str, list[int]]:
    """At which receives a message was handled whose function answered so at its first, by what the answer is."""
    url = world.queue(VisibilityTimeout=VISIBILITY_SECONDS)
    ids = {world.send(url, {"1": {"answer": answer}}): what for what, answer in answers.items()}
    world.connect(url, BatchSize=1, **settings)
    world.invoked(url, len(ids))
    world.wait(2 * VISIBILITY_SECONDS + 5)
    return {ids[message_id]: counts for message_id, counts in receives(world.invocations(url)).items()}


@mapping_probe("10", "Complete success: an empty list, a null list, an empty response, null")
def complete_success(world: World) -> None:
    seen = answered(world, SUCCESSES, **REPORTS)
    expect(seen, {what: [1] for what in SUCCESSES}, "handled at its receives")


@mapping_probe("10", "Complete failure: an id that is empty, null, missing, unknown or under a wrong key, invalid JSON")
def complete_failure(world: World) -> None:
    seen = answered(world, FAILURES, **REPORTS)
    expect(seen, {what: [1, 2] for what in FAILURES}, "handled at its receives")


@mapping_probe("10", "Without the setting the list is ignored: the batch is deleted")
def ignored_without_the_setting(world: World) -> None:
    told = {"a failure": {"batchItemFailures": [{"itemIdentifier": "$id"}]}}
    expect(answered(world, told), {"a failure": [1]}, "handled at its receives")


def batch_of_two(world: World, first: dict[str, Any], second: dict[str, Any]) -> tuple[list[int], list[int]]:
    """At which receives two messages of one batch were handled. FIFO, since SQS gives one group out together."""
    url = world.queue(fifo=True, ContentBasedDeduplication="true", VisibilityTimeout=VISIBILITY_SECONDS)
    orders = ({"1": first}, {"1": second, "is": "the second"})  # two bodies, or the second would be swallowed
    ids = [world.send(url, each, MessageGroupId="a") for each in orders]
    world.connect(url, BatchSize=2, **REPORTS)
    [invocation] = world.invoked(url)
    expect(len(invocation.ids), 2, "messages in the first batch")
    world.wait(2 * VISIBILITY_SECONDS + TIMEOUT_SECONDS)
    seen = receives(world.invocations(url))
    return seen[ids[0]], seen[ids[1]]


@mapping_probe("11", "A function error returns the whole batch")
def a_function_error(world: World) -> None:
    seen = batch_of_two(world, {}, {"raise": "an error"})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A timeout returns the whole batch")
def a_timeout(world: World) -> None:
    seen = batch_of_two(world, {}, {"sleep": 2 * TIMEOUT_SECONDS})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A crash returns the whole batch")
def a_crash(world: World) -> None:
    seen = batch_of_two(world, {}, {"exit": True})
    expect(seen, ([1, 2], [1, 2]), "handled at their receives")


@mapping_probe("11", "A message that the function deleted stays deleted")
def a_delete_survives(world: World) -> None:
    seen = batch_of_two(world, {"delete": True}, {"raise": "an error"})
    expect(seen, ([1], [1, 2]), "handled at their receives")


@mapping_probe("11", "A second delete by Lambda is harmless")
def a_second_delete_is_harmless(world: World) -> None:
    expect(batch_of_two(world, {"delete": True}, {}), ([1], [1]), "handled at their receives")


@probe("11", "A delete with the receipt handle of an earlier receive succeeds")
def a_delete_with_an_old_handle(world: World) -> None:
    url = world.queue(VisibilityTimeout=5)
    world.send(url)
    old = world.receive_one(url)
    world.wait(8)
    world.receive_one(url)
    world.delete(url, old)


@mapping_probe("12", "A message reported as failed comes back when the queue's visibility timeout ends")
def comes_back_when_its_visibility_ends(world: World) -> None:
    seconds = _seconds_between_deliveries(world, {"fail": True})
    assert VISIBILITY_SECONDS - 3 < seconds < VISIBILITY_SECONDS + 25, f"after {seconds:.0f} s"


@mapping_probe("12", "A longer visibility that the function set is kept")
def a_longer_visibility_is_kept(world: World) -> None:
    seconds = _seconds_between_deliveries(world, {"fail": True, "hide": 60})
    assert 57 < seconds < 85, f"after {seconds:.0f} s"


@mapping_probe("12", "A shorter one is kept too")
def a_shorter_visibility_is_kept(world: World) -> None:
    seconds = _seconds_between_deliveries(world, {"fail": True, "hide": 2}, visibility=120)
    assert seconds < 30, f"after {seconds:.0f} s"


def _seconds_between_deliveries(world: World, orders: dict[str, Any], visibility: int = VISIBILITY_SECONDS) -> float:
    url = world.queue(VisibilityTimeout=visibility)
    world.send(url, {"1": orders})
    world.connect(url, BatchSize=1, **REPORTS)
    first, second = world.invoked(url, 2, PATIENCE_SECONDS + 2 * visibility)
    return second.began - first.began
