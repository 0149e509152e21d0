"""The differences between the model, which behaves as AWS does, and moto.

Each test shows both behaviours, so that it fails once moto has been fixed. Random scripts look for others: `referee/`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tarry.tools.simulator.sqs import SqsError
from tests.simulation.model_beside_moto import Handles, ModelBesideMoto, side_by_side

HOURS = 3600


@pytest.fixture
def both() -> Iterator[ModelBesideMoto]:
    with side_by_side() as both:
        both.queue("dead")
        both.queue("orders", "dead")
        both.queue("dead.fifo")
        both.queue("ledger.fifo", "dead.fifo")
        yield both


def send(both: ModelBesideMoto, queue: str, body: str, **more: Any) -> tuple[Any, Any]:
    """Send a message; on FIFO the group is the first character of the body, and the body is the deduplication id."""
    if queue.endswith(".fifo"):
        more = {"MessageGroupId": body[0], "MessageDeduplicationId": body, **more}
    return both.request("SendMessage", queue, MessageBody=body, **more)


def bodies(both: ModelBesideMoto, queue: str, limit: int = 10, **more: Any) -> tuple[list[str], list[str]]:
    ours, moto = both.receive(queue, limit, **more)
    return [message["Body"] for message in ours], [message["Body"] for message in moto]


# time


def test_a_visibility_timeout_ends_on_time_but_moto_is_a_moment_late(both: ModelBesideMoto) -> None:  # PLATFORM 30
    send(both, "orders", "x")
    bodies(both, "orders")
    both.wait(30)
    assert bodies(both, "orders") == (["x"], [])


def test_the_12_hours_count_from_the_receive_but_moto_counts_from_the_send(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 1, 32
    send(both, "orders", "x")
    both.wait(11 * HOURS)
    handle = both.lease("orders")
    assert both.request("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=2 * HOURS) == (
        {},
        "InvalidParameterValue",
    )


def test_a_too_long_visibility_fails_its_entry_but_moto_fails_the_whole_request(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 32
    send(both, "orders", "x")
    handle = both.lease("orders")
    both.wait(10)
    entry = {"Id": "1", "ReceiptHandle": handle, "VisibilityTimeout": 43_200}
    ours, moto = both.request("ChangeMessageVisibilityBatch", "orders", Entries=[entry])
    assert [each["Code"] for each in ours["Failed"]] == ["InvalidParameterValue"]
    assert moto == "InvalidParameterValue"


def test_an_expired_message_is_gone_but_moto_still_counts_it(both: ModelBesideMoto) -> None:
    both.queue("short", MessageRetentionPeriod="60")
    send(both, "short", "x")
    both.wait(60)
    assert bodies(both, "short") == ([], [])
    assert (both.model.peek("short"), len(both.in_moto("short")._messages)) == ([], 1)


# handles


def test_an_old_handle_does_not_delete_a_message_but_moto_deletes_it(both: ModelBesideMoto) -> None:  # PLATFORM 11
    send(both, "orders", "x")
    old = both.lease("orders")
    both.wait(31)
    bodies(both, "orders")
    assert both.request("DeleteMessage", "orders", ReceiptHandle=old) == ({}, {})
    assert (len(both.model.peek("orders")), both.in_moto("orders")._messages) == (1, [])


def test_a_change_after_the_visibility_timeout_is_ignored_but_moto_applies_it(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 33a
    send(both, "orders", "x")
    handle = both.lease("orders", VisibilityTimeout=5)
    both.wait(6)
    assert both.request("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=60) == ({}, {})
    assert bodies(both, "orders") == (["x"], [])


def test_the_handle_of_a_deleted_message_is_expired_but_moto_calls_it_invalid(
    both: ModelBesideMoto,
) -> None:  # FACTS 1.6
    send(both, "orders", "x")
    handle = both.lease("orders")
    both.request("DeleteMessage", "orders", ReceiptHandle=handle)
    assert both.request("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=1) == (
        "InvalidParameterValue",
        "ReceiptHandleIsInvalid",
    )


def test_an_expired_fifo_handle_is_refused_but_moto_deletes_the_message(both: ModelBesideMoto) -> None:  # PLATFORM 14
    send(both, "ledger.fifo", "a1")
    handle = both.lease("ledger.fifo")
    both.wait(31)
    assert both.request("DeleteMessage", "ledger.fifo", ReceiptHandle=handle) == ("InvalidParameterValue", {})


# limits of a message


def test_sizes_are_bytes_with_attributes_but_moto_counts_characters_of_the_body(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 17, 32
    both.queue("small", MaximumMessageSize="1024")
    for body, attributes in (("é" * 513, {}), ("x" * 1024, {"a": {"DataType": "String", "StringValue": "b"}})):
        ours, moto = send(both, "small", body, MessageAttributes=attributes)
        assert ours == "InvalidParameterValue"
        assert "MessageId" in moto


def test_an_empty_body_is_refused_but_moto_accepts_it(both: ModelBesideMoto) -> None:  # PLATFORM 32
    ours, moto = send(both, "orders", "")
    assert ours == "MissingParameter"
    assert "MessageId" in moto


def test_invalid_characters_are_refused_but_moto_accepts_them(both: ModelBesideMoto) -> None:  # PLATFORM 19
    ours, moto = send(both, "orders", "\x00")
    assert ours == "InvalidMessageContents"
    assert "MessageId" in moto


def test_eleven_attributes_are_refused_but_moto_accepts_them(both: ModelBesideMoto) -> None:  # PLATFORM 18
    eleven = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(11)}
    ours, moto = send(both, "orders", "x", MessageAttributes=eleven)
    assert ours == "InvalidParameterValue"
    assert "MessageId" in moto


def test_eleven_entries_are_refused_but_moto_refuses_them_only_when_sending(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 16
    eleven = [{"Id": str(number), "ReceiptHandle": "x", "VisibilityTimeout": 1} for number in range(11)]
    ours, moto = both.request("ChangeMessageVisibilityBatch", "orders", Entries=eleven)
    assert ours == "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
    assert len(moto["Failed"]) == 11


def test_a_negative_visibility_is_refused_but_moto_accepts_it(both: ModelBesideMoto) -> None:  # PLATFORM 16
    send(both, "orders", "x")
    handle = both.lease("orders")
    assert both.request("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=-1) == (
        "InvalidParameterValue",
        {},
    )


def test_a_delay_on_fifo_fails_its_entry_but_moto_fails_the_whole_request(both: ModelBesideMoto) -> None:
    entry = {"Id": "1", "MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "d", "DelaySeconds": 1}
    ours, moto = both.request("SendMessageBatch", "ledger.fifo", Entries=[entry])
    assert [each["Code"] for each in ours["Failed"]] == ["InvalidParameterValue"]
    assert moto == "InvalidParameterValue"


# deduplication


def test_a_duplicate_gets_the_message_id_of_the_first_but_moto_makes_a_new_one(both: ModelBesideMoto) -> None:
    first, second = send(both, "ledger.fifo", "a1"), send(both, "ledger.fifo", "a1")
    assert first[0]["MessageId"] == second[0]["MessageId"]
    assert first[1]["MessageId"] != second[1]["MessageId"]


def test_deduplication_lasts_5_minutes_but_in_moto_until_the_message_is_deleted(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 20, 32
    send(both, "ledger.fifo", "a1")
    both.request("DeleteMessage", "ledger.fifo", ReceiptHandle=both.lease("ledger.fifo"))
    send(both, "ledger.fifo", "a1")
    assert bodies(both, "ledger.fifo") == ([], ["a1"])


# groups


def test_messages_of_a_group_are_received_together_but_moto_keeps_the_order_of_sending(both: ModelBesideMoto) -> None:
    for body in ("a1", "b1", "a2"):
        send(both, "ledger.fifo", body)
    assert bodies(both, "ledger.fifo") == (["a1", "a2", "b1"], ["a1", "b1", "a2"])


def test_a_group_that_was_received_goes_behind_the_others_but_moto_returns_the_oldest_message(
    both: ModelBesideMoto,
) -> None:
    for body in ("a1", "b1"):
        send(both, "ledger.fifo", body)
    assert bodies(both, "ledger.fifo", limit=1) == (["a1"], ["a1"])
    both.wait(31)
    assert bodies(both, "ledger.fifo", limit=1) == (["b1"], ["a1"])


def test_an_invisible_message_blocks_later_ones_but_moto_blocks_the_whole_group(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 14
    send(both, "ledger.fifo", "a1")
    send(both, "ledger.fifo", "a2")
    [_, ours], [_, moto] = both.receive("ledger.fifo", 2, VisibilityTimeout=5)
    tail = Handles(ours["ReceiptHandle"], moto["ReceiptHandle"])
    both.request("ChangeMessageVisibility", "ledger.fifo", ReceiptHandle=tail, VisibilityTimeout=60)
    both.wait(6)
    assert bodies(both, "ledger.fifo") == (["a1"], [])


def test_a_group_that_becomes_visible_is_in_order_but_moto_returns_the_last_message_first(
    both: ModelBesideMoto,
) -> None:  # PLATFORM 32
    send(both, "ledger.fifo", "a1")
    send(both, "ledger.fifo", "a2")
    bodies(both, "ledger.fifo", VisibilityTimeout=5)
    both.wait(6)
    ours, moto = bodies(both, "ledger.fifo", limit=1)
    assert ours == ["a1"]
    assert moto == ["a2"]  # moto notices only at a2 that the whole group is visible


def test_a_delayed_head_blocks_its_group_but_moto_returns_later_messages(both: ModelBesideMoto) -> None:  # PLATFORM 14
    both.queue("slow.fifo", DelaySeconds="60")
    send(both, "slow.fifo", "a1")
    changed = {"Attributes": {"DelaySeconds": "0"}}
    both.request("SetQueueAttributes", "slow.fifo", **changed)
    send(both, "slow.fifo", "a2")
    assert bodies(both, "slow.fifo") == ([], ["a2"])


# dead letters


def dead_letter(both: ModelBesideMoto, queue: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the system attributes of a message that was dead-lettered a minute after it was sent."""
    send(both, queue, "a1")
    for _ in range(2):
        bodies(both, queue)
        both.wait(30.001)
    bodies(both, queue)
    [ours], [moto] = both.receive(queue.replace("orders", "dead").replace("ledger", "dead"), 1)
    return ours["Attributes"], moto["Attributes"]


def test_a_dead_letter_has_its_source_queue_but_moto_leaves_it_out(both: ModelBesideMoto) -> None:  # PLATFORM 32
    ours, moto = dead_letter(both, "orders")
    assert ours["DeadLetterQueueSourceArn"] == both.model.arn("orders")
    assert "DeadLetterQueueSourceArn" not in moto


def test_a_fifo_dead_letter_has_a_new_timestamp_and_id_but_moto_keeps_the_old_ones(
    both: ModelBesideMoto,
) -> None:  # FACTS 1.4
    ours, moto = dead_letter(both, "ledger.fifo")
    assert int(ours["SentTimestamp"]) - int(moto["SentTimestamp"]) == 60_002
    assert moto["MessageDeduplicationId"] == "a1"
    assert ours["MessageDeduplicationId"] == both.model.peek("dead.fifo")[0].delivery_id


def test_message_move_tasks_run_but_moto_does_not_implement_them(both: ModelBesideMoto) -> None:  # PLATFORM 24
    dead_letter(both, "orders")
    both.model.call("StartMessageMoveTask", {"SourceArn": both.model.arn("dead")})
    with pytest.raises(NotImplementedError):
        both.moto.start_message_move_task(SourceArn=both.model.arn("dead"))


# queues


def test_the_name_of_a_deleted_queue_is_reserved_for_a_minute_but_moto_frees_it(both: ModelBesideMoto) -> None:
    both.request("DeleteQueue", "orders")
    both.moto.create_queue(QueueName="orders")
    with pytest.raises(SqsError, match="QueueDeletedRecently"):
        both.model.call("CreateQueue", {"QueueName": "orders"})
