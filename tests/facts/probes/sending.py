"""Facts 16 and 35: batch requests."""

from typing import Any

from tests.facts.platforms.platform import Platform, expect
from tests.facts.probes.refusal import refused
from tests.facts.registry import probe


def entries(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "MessageBody": f"number {n}", **more} for n in range(count)]


@probe("16", "A batch request has at most ten entries: sends")
def ten_entries(platform: Platform) -> None:
    url = platform.queue()
    platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(10))
    with refused("11 sends", "TooManyEntriesInBatchRequest"):
        platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(11))


@probe("16", "The same for visibilities and deletes")
def ten_of_any_kind(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    handle = platform.receive_one(url)["ReceiptHandle"]
    eleven = [{"Id": str(n), "ReceiptHandle": handle} for n in range(11)]
    with refused("11 visibilities", "TooManyEntriesInBatchRequest"):
        changes = [{**each, "VisibilityTimeout": 1} for each in eleven]
        platform.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    with refused("11 deletes", "TooManyEntriesInBatchRequest"):
        platform.sqs.delete_message_batch(QueueUrl=url, Entries=eleven)


@probe("16", "Entry ids are unique in a request")
def unique_ids(platform: Platform) -> None:
    url = platform.queue()
    repeated = [{"Id": "same", "MessageBody": "one"}, {"Id": "same", "MessageBody": "two"}]
    with refused("an id twice", "BatchEntryIdsNotDistinct"):
        platform.sqs.send_message_batch(QueueUrl=url, Entries=repeated)


@probe("16", "A failed entry is reported in a successful response: a send")
def a_failed_send(platform: Platform) -> None:
    wrong = {"Id": "wrong", "MessageBody": "parked too long", "DelaySeconds": 901}
    answer = platform.sqs.send_message_batch(QueueUrl=platform.queue(), Entries=[*entries(1), wrong])
    expect(_ids_by_result(answer), (["0"], ["wrong"]), "successful and failed")


@probe("35", "The answer has no Failed if no entry failed, and no Successful if all did")
def empty_lists_are_left_out(platform: Platform) -> None:
    url = platform.queue()
    sent = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(1))
    late = platform.sqs.send_message_batch(QueueUrl=url, Entries=entries(1, DelaySeconds=901))
    keys = [sorted({"Successful", "Failed"} & answer.keys()) for answer in (sent, late)]
    expect(keys, [["Successful"], ["Failed"]], "keys")


@probe("16", "The same for a visibility: -1 s, and an invalid receipt handle")
def a_failed_visibility(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for _ in range(2):
        platform.send(url)
    one, two = platform.receive(url, 2)
    asked = [(one["ReceiptHandle"], 30), (two["ReceiptHandle"], -1), ("no handle", 30)]
    changes = [
        {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
        for n, (handle, seconds) in enumerate(asked)
    ]
    answer = platform.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    expect(_ids_by_result(answer), (["0"], ["1", "2"]), "successful and failed")


@probe("16", "The same for a total beyond the 12 hours of fact 1")
def a_failed_total(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for _ in range(2):
        platform.send(url)
    handles = [each["ReceiptHandle"] for each in platform.receive(url, 2)]
    platform.wait(10)
    changes = [
        {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
        for n, (handle, seconds) in enumerate(zip(handles, (30, 43_195), strict=True))
    ]
    answer = platform.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    expect(_ids_by_result(answer), (["0"], ["1"]), "successful and failed")


@probe("16", "The same for a delete with an invalid receipt handle")
def a_failed_delete(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url)
    handles = [platform.receive_one(url)["ReceiptHandle"], "no handle"]
    deletes = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
    answer = platform.sqs.delete_message_batch(QueueUrl=url, Entries=deletes)
    expect(_ids_by_result(answer), (["0"], ["1"]), "successful and failed")


def _ids_by_result(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    successful, failed = ([each["Id"] for each in answer.get(key, [])] for key in ("Successful", "Failed"))
    return sorted(successful), sorted(failed)
