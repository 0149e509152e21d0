"""What the model does as AWS does, and moto in another way: the only differences there may be between the two.

Each test shows both, so that one that moto has mended is taken off the list.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tarry.simulator.sqs import Realism, SqsError
from tests.simulation.both import Both, Pair, moto_client, side_by_side

HOURS = 3600


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with moto_client() as client:
        yield client


@pytest.fixture
def both(client: Any) -> Iterator[Both]:
    with side_by_side(client, Realism()) as both:
        both.queue("dead")
        both.queue("orders", "dead")
        both.queue("dead.fifo")
        both.queue("ledger.fifo", "dead.fifo")
        yield both


def send(both: Both, queue: str, body: str, **more: Any) -> tuple[Any, Any]:
    """On FIFO the group is the first letter of the body, and the body the deduplication id."""
    if queue.endswith(".fifo"):
        more = {"MessageGroupId": body[0], "MessageDeduplicationId": body, **more}
    return both.ask("SendMessage", queue, MessageBody=body, **more)


def bodies(both: Both, queue: str, most: int = 10, **more: Any) -> tuple[list[str], list[str]]:
    ours, moto = both.receive(queue, most, **more)
    return [message["Body"] for message in ours], [message["Body"] for message in moto]


# time


def test_a_visibility_ends_when_it_is_over_in_moto_a_moment_later(both: Both) -> None:  # PLATFORM 30
    send(both, "orders", "x")
    bodies(both, "orders")
    both.wait(30)
    assert bodies(both, "orders") == (["x"], [])


def test_the_12_hours_count_from_the_receive_in_moto_from_the_send(both: Both) -> None:  # PLATFORM 1, 32
    send(both, "orders", "x")
    both.wait(11 * HOURS)
    handle = both.lease("orders")
    assert both.ask("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=2 * HOURS) == (
        {},
        "InvalidParameterValue",
    )


def test_one_visibility_that_is_too_long_fails_its_entry_in_moto_the_whole_call(both: Both) -> None:  # PLATFORM 32
    send(both, "orders", "x")
    handle = both.lease("orders")
    both.wait(10)
    entry = {"Id": "1", "ReceiptHandle": handle, "VisibilityTimeout": 43_200}
    ours, moto = both.ask("ChangeMessageVisibilityBatch", "orders", Entries=[entry])
    assert [each["Code"] for each in ours["Failed"]] == ["InvalidParameterValue"]
    assert moto == "InvalidParameterValue"


def test_an_expired_message_is_gone_in_moto_it_is_still_counted(both: Both) -> None:
    both.queue("short", MessageRetentionPeriod="60")
    send(both, "short", "x")
    both.wait(60)
    assert bodies(both, "short") == ([], [])
    assert (both.model.peek("short"), len(both.in_moto("short")._messages)) == ([], 1)


# handles


def test_an_old_handle_deletes_nothing_in_moto_the_message(both: Both) -> None:  # PLATFORM 11
    send(both, "orders", "x")
    old = both.lease("orders")
    both.wait(31)
    bodies(both, "orders")
    assert both.ask("DeleteMessage", "orders", ReceiptHandle=old) == ({}, {})
    assert (len(both.model.peek("orders")), both.in_moto("orders")._messages) == (1, [])


def test_a_change_after_the_visibility_timeout_hides_nothing_in_moto_the_message(both: Both) -> None:  # PLATFORM 33a
    send(both, "orders", "x")
    handle = both.lease("orders", VisibilityTimeout=5)
    both.wait(6)
    assert both.ask("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=60) == ({}, {})
    assert bodies(both, "orders") == (["x"], [])


def test_a_deleted_message_cannot_be_hidden_in_moto_its_handle_never_was_one(both: Both) -> None:  # FACTS 1.6
    send(both, "orders", "x")
    handle = both.lease("orders")
    both.ask("DeleteMessage", "orders", ReceiptHandle=handle)
    assert both.ask("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=1) == (
        "InvalidParameterValue",
        "ReceiptHandleIsInvalid",
    )


def test_an_expired_handle_of_fifo_is_refused_in_moto_it_deletes(both: Both) -> None:  # PLATFORM 14
    send(both, "ledger.fifo", "a1")
    handle = both.lease("ledger.fifo")
    both.wait(31)
    assert both.ask("DeleteMessage", "ledger.fifo", ReceiptHandle=handle) == ("InvalidParameterValue", {})


# what a message may be


def test_sizes_are_bytes_with_attributes_in_moto_characters_of_the_body(both: Both) -> None:  # PLATFORM 17, 32
    both.queue("small", MaximumMessageSize="1024")
    for body, attributes in (("é" * 513, {}), ("x" * 1024, {"a": {"DataType": "String", "StringValue": "b"}})):
        ours, moto = send(both, "small", body, MessageAttributes=attributes)
        assert ours == "InvalidParameterValue"
        assert "MessageId" in moto


def test_an_empty_body_is_refused_in_moto_sent(both: Both) -> None:  # PLATFORM 32
    ours, moto = send(both, "orders", "")
    assert ours == "MissingParameter"
    assert "MessageId" in moto


def test_characters_are_checked_in_moto_not(both: Both) -> None:  # PLATFORM 19
    ours, moto = send(both, "orders", "\x00")
    assert ours == "InvalidMessageContents"
    assert "MessageId" in moto


def test_eleven_attributes_are_refused_in_moto_sent(both: Both) -> None:  # PLATFORM 18
    eleven = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(11)}
    ours, moto = send(both, "orders", "x", MessageAttributes=eleven)
    assert ours == "InvalidParameterValue"
    assert "MessageId" in moto


def test_eleven_entries_are_refused_in_moto_only_when_sending(both: Both) -> None:  # PLATFORM 16
    eleven = [{"Id": str(number), "ReceiptHandle": "x", "VisibilityTimeout": 1} for number in range(11)]
    ours, moto = both.ask("ChangeMessageVisibilityBatch", "orders", Entries=eleven)
    assert ours == "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
    assert len(moto["Failed"]) == 11


def test_a_negative_visibility_is_refused_in_moto_taken(both: Both) -> None:  # PLATFORM 16
    send(both, "orders", "x")
    handle = both.lease("orders")
    assert both.ask("ChangeMessageVisibility", "orders", ReceiptHandle=handle, VisibilityTimeout=-1) == (
        "InvalidParameterValue",
        {},
    )


def test_a_delay_on_fifo_fails_its_entry_in_moto_the_whole_call(both: Both) -> None:
    entry = {"Id": "1", "MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "d", "DelaySeconds": 1}
    ours, moto = both.ask("SendMessageBatch", "ledger.fifo", Entries=[entry])
    assert [each["Code"] for each in ours["Failed"]] == ["InvalidParameterValue"]
    assert moto == "InvalidParameterValue"


# deduplication


def test_a_swallowed_message_gets_the_id_of_the_first_in_moto_one_of_its_own(both: Both) -> None:
    first, again = send(both, "ledger.fifo", "a1"), send(both, "ledger.fifo", "a1")
    assert first[0]["MessageId"] == again[0]["MessageId"]
    assert first[1]["MessageId"] != again[1]["MessageId"]


def test_an_id_is_taken_for_5_minutes_in_moto_until_the_message_is_deleted(both: Both) -> None:  # PLATFORM 20, 32
    send(both, "ledger.fifo", "a1")
    both.ask("DeleteMessage", "ledger.fifo", ReceiptHandle=both.lease("ledger.fifo"))
    send(both, "ledger.fifo", "a1")
    assert bodies(both, "ledger.fifo") == ([], ["a1"])


# groups


def test_the_messages_of_a_group_come_together_in_moto_all_in_the_order_of_their_send(both: Both) -> None:
    for body in ("a1", "b1", "a2"):
        send(both, "ledger.fifo", body)
    assert bodies(both, "ledger.fifo") == (["a1", "a2", "b1"], ["a1", "b1", "a2"])


def test_a_group_goes_on_behind_a_dead_head_in_moto_the_oldest_message_comes_next(both: Both) -> None:
    for body in ("a1", "b1", "a2"):
        send(both, "ledger.fifo", body)
    for _ in range(2):
        assert bodies(both, "ledger.fifo", most=1) == (["a1"], ["a1"])
        both.wait(31)
    assert bodies(both, "ledger.fifo", most=1) == (["a2"], ["b1"])


def test_a_hidden_message_hides_later_ones_alone_in_moto_the_whole_group(both: Both) -> None:  # PLATFORM 14
    send(both, "ledger.fifo", "a1")
    send(both, "ledger.fifo", "a2")
    [_, ours], [_, moto] = both.receive("ledger.fifo", 2, VisibilityTimeout=5)
    tail = Pair(ours["ReceiptHandle"], moto["ReceiptHandle"])
    both.ask("ChangeMessageVisibility", "ledger.fifo", ReceiptHandle=tail, VisibilityTimeout=60)
    both.wait(6)
    assert bodies(both, "ledger.fifo") == (["a1"], [])


def test_a_group_that_is_shown_as_one_comes_in_order_in_moto_the_last_comes_first(both: Both) -> None:  # PLATFORM 32
    send(both, "ledger.fifo", "a1")
    send(both, "ledger.fifo", "a2")
    bodies(both, "ledger.fifo", VisibilityTimeout=5)
    both.wait(6)
    ours, moto = bodies(both, "ledger.fifo", most=1)
    assert ours == ["a1"]
    assert moto == ["a2"]  # only when it comes to a2 does it see that all of the group is visible


def test_a_delayed_head_holds_up_its_group_in_moto_it_is_overtaken(both: Both) -> None:  # PLATFORM 14
    both.queue("slow.fifo", DelaySeconds="60")
    send(both, "slow.fifo", "a1")
    changed = {"Attributes": {"DelaySeconds": "0"}}
    both.ask("SetQueueAttributes", "slow.fifo", **changed)
    send(both, "slow.fifo", "a2")
    assert bodies(both, "slow.fifo") == ([], ["a2"])


# dead letters


def dead_letter(both: Both, queue: str) -> tuple[dict[str, str], dict[str, str]]:
    """The system attributes of a message that has come to the dead-letter queue a minute after its send."""
    send(both, queue, "a1")
    for _ in range(2):
        bodies(both, queue)
        both.wait(30.001)
    bodies(both, queue)
    [ours], [moto] = both.receive(queue.replace("orders", "dead").replace("ledger", "dead"), 1)
    return ours["Attributes"], moto["Attributes"]


def test_a_dead_letter_tells_its_source_in_moto_not(both: Both) -> None:  # PLATFORM 32
    ours, moto = dead_letter(both, "orders")
    assert ours["DeadLetterQueueSourceArn"] == both.model.arn("orders")
    assert "DeadLetterQueueSourceArn" not in moto


def test_on_fifo_it_begins_anew_in_moto_it_stays_as_it_was(both: Both) -> None:  # FACTS 1.4
    ours, moto = dead_letter(both, "ledger.fifo")
    assert int(ours["SentTimestamp"]) - int(moto["SentTimestamp"]) == 60_002
    assert moto["MessageDeduplicationId"] == "a1"
    assert ours["MessageDeduplicationId"] == both.model.peek("dead.fifo")[0].delivery_id


def test_move_tasks_run_in_moto_they_are_missing(both: Both) -> None:  # PLATFORM 24
    dead_letter(both, "orders")
    both.model.call("StartMessageMoveTask", {"SourceArn": both.model.arn("dead")})
    with pytest.raises(NotImplementedError):
        both.moto.start_message_move_task(SourceArn=both.model.arn("dead"))


# queues


def test_the_name_of_a_deleted_queue_is_taken_for_a_minute_in_moto_it_is_free(both: Both) -> None:
    both.ask("DeleteQueue", "orders")
    both.moto.create_queue(QueueName="orders")
    with pytest.raises(SqsError, match="QueueDeletedRecently"):
        both.model.call("CreateQueue", {"QueueName": "orders"})
