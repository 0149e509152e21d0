"""Dead-letter queues of the SQS model: redrive policies and message move tasks."""

import json
from base64 import b64decode, b64encode
from typing import Any

import pytest

from tarry.tools.simulator.sqs import SqsError
from tests.facts.platforms.simulator import simulated_platform
from tests.unit.simulator.account import Account, refused, text


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("dead")
    account.queue("orders", dead_letter="dead", max_receives=2)
    return account


def exhaust(account: Account, queue: str, receives: int = 2) -> None:
    for _ in range(receives):
        assert account.receive(queue)
        account.wait(30)


def test_a_message_is_moved_at_the_receive_after_the_maximum_receive_count(account: Account) -> None:  # PLATFORM 7
    account.send("orders")
    exhaust(account, "orders")
    account.wait(3600)
    assert account.sqs.depth("dead").ready == 0
    assert account.receive("orders") == []
    assert account.sqs.depth("dead").ready == 1


def test_a_moved_message_keeps_its_id_body_and_attributes(account: Account) -> None:  # FACTS 1.4
    trace = {"AWSTraceHeader": text("Root=1-2-3")}
    sent = account.send("orders", "hello", MessageAttributes={"a": text("b")}, MessageSystemAttributes=trace)
    exhaust(account, "orders")
    account.receive("orders")
    [dead] = account.receive("dead")
    assert (dead["MessageId"], dead["Body"], dead["MessageAttributes"]) == (sent, "hello", {"a": text("b")})
    attributes = dead["Attributes"]
    assert attributes["AWSTraceHeader"] == "Root=1-2-3"
    assert attributes["ApproximateReceiveCount"] == "3"
    assert attributes["ApproximateFirstReceiveTimestamp"] == "1800000000000"
    assert attributes["SentTimestamp"] == "1800000000000"
    assert attributes["DeadLetterQueueSourceArn"] == account.sqs.arn("orders")


def test_the_retention_of_a_standard_dead_letter_counts_from_the_original_send(account: Account) -> None:  # PLATFORM 5
    account.send("orders")
    account.wait(3 * 86_400)
    exhaust(account, "orders")
    account.receive("orders")
    account.wait(86_400)
    assert account.receive("dead") == []


def test_a_fifo_dead_letter_has_a_new_retention_period_and_its_id_as_deduplication_id() -> None:  # FACTS 1.4
    account = Account()
    account.queue("dead.fifo")
    account.queue("ledger.fifo", dead_letter="dead.fifo", max_receives=2)
    sent = account.send("ledger.fifo", group="a", MessageDeduplicationId="d")
    exhaust(account, "ledger.fifo")
    account.receive("ledger.fifo")
    [dead] = account.receive("dead.fifo")
    assert dead["MessageId"] == dead["Attributes"]["MessageDeduplicationId"] == sent
    assert dead["Attributes"]["SentTimestamp"] == "1800000060000"
    assert dead["Attributes"]["MessageGroupId"] == "a"


def test_a_fifo_group_continues_after_its_head_was_moved() -> None:
    account = Account()
    account.queue("dead.fifo")
    account.queue("ledger.fifo", dead_letter="dead.fifo", max_receives=1)
    account.send("ledger.fifo", "1", group="a")
    account.send("ledger.fifo", "2", group="a")
    assert account.bodies("ledger.fifo", most=1) == ["1"]
    account.wait(30)
    assert account.bodies("ledger.fifo") == ["2"]


def test_a_receive_that_moves_messages_still_returns_others(account: Account) -> None:  # FACTS 2
    account.send("orders", "old")
    exhaust(account, "orders")
    account.send("orders", "fresh")
    assert account.bodies("orders") == ["fresh"]


def test_a_move_is_recorded_with_its_source_and_its_target(account: Account) -> None:
    sent = account.send("orders")
    exhaust(account, "orders")
    account.receive("orders")
    [(_, fields)] = account.recorded("moved")
    assert (fields["queue"], fields["to"], fields["delivery_id"]) == ("orders", "dead", sent)


def test_a_queue_whose_dead_letter_queue_was_deleted_keeps_delivering(account: Account) -> None:
    account.send("orders")
    account.call("DeleteQueue", "dead")
    exhaust(account, "orders", receives=5)


# policies


def test_a_dead_letter_queue_must_exist(account: Account) -> None:
    with refused("InvalidParameterValue", "Dead letter target does not exist."):
        policy = {"deadLetterTargetArn": account.sqs.arn("dead") + "x", "maxReceiveCount": 3}
        account.queue("others", RedrivePolicy=json.dumps(policy))


def test_a_dead_letter_queue_must_have_the_type_of_its_source(account: Account) -> None:  # PLATFORM 23
    with refused("InvalidParameterValue", "Dead-letter queue must be same type of queue as the source."):
        account.queue("ledger.fifo", dead_letter="dead")


@pytest.mark.parametrize(
    "count", [0, 1001, "many", 3.5, True, "3.0", " 3", pytest.param("9" * 5_000, id="5000 digits")]
)
def test_the_maximum_receive_count_is_a_whole_number_from_1_to_1000(account: Account, count: object) -> None:
    policy = {"deadLetterTargetArn": account.sqs.arn("dead"), "maxReceiveCount": count}
    with refused("InvalidParameterValue", f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to"):
        account.queue("others", RedrivePolicy=json.dumps(policy))


def test_a_maximum_receive_count_may_be_a_text(account: Account) -> None:
    policy = {"deadLetterTargetArn": account.sqs.arn("dead"), "maxReceiveCount": "42"}
    account.queue("others", RedrivePolicy=json.dumps(policy))
    assert account.attributes("others")["RedrivePolicy"] == json.dumps(policy)
    with refused("InvalidParameterValue", "Redrive policy does not contain mandatory attribute: maxReceiveCount."):
        account.queue("more", RedrivePolicy="{}")


@pytest.mark.parametrize("permission", ["allowAll", "denyAll"])
def test_sources_are_named_only_by_a_policy_by_queue(account: Account, permission: str) -> None:
    policy = {"redrivePermission": permission, "sourceQueueArns": [account.sqs.arn("orders")]}
    with refused("InvalidParameterValue", "sourceQueueArns may be given only if redrivePermission is byQueue."):
        account.queue("others", RedriveAllowPolicy=json.dumps(policy))


def test_an_invalid_dead_letter_target_arn_is_refused(account: Account) -> None:
    with refused("InvalidParameterValue", "Invalid value for deadLetterTargetArn."):
        account.queue("others", RedrivePolicy='{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}')


def test_a_redrive_allow_policy_restricts_the_sources_of_a_dead_letter_queue(account: Account) -> None:  # PLATFORM 23
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [account.sqs.arn("orders")]}
    account.queue("private", RedriveAllowPolicy=json.dumps(allowed))
    with refused("InvalidParameterValue", "does not permit this source queue"):
        account.queue("others", dead_letter="private")
    policy = json.dumps({"deadLetterTargetArn": account.sqs.arn("private"), "maxReceiveCount": 3})
    account.call("SetQueueAttributes", "orders", Attributes={"RedrivePolicy": policy})


def test_the_sources_of_a_dead_letter_queue_can_be_listed(account: Account) -> None:
    assert account.call("ListDeadLetterSourceQueues", "dead") == {"queueUrls": [account.sqs.url("orders")]}
    account.call("SetQueueAttributes", "orders", Attributes={"RedrivePolicy": ""})
    assert account.call("ListDeadLetterSourceQueues", "dead") == {"queueUrls": []}


# message move tasks


def move(account: Account, **parameters: object) -> None:
    account.sqs.call("StartMessageMoveTask", {"SourceArn": account.sqs.arn("dead"), **parameters})


def dead_letter(account: Account) -> str:
    sent = account.send("orders", "hello", MessageAttributes={"a": text("b")})
    exhaust(account, "orders")
    account.receive("orders")
    return sent


def test_a_move_task_sends_all_messages_back_as_new_ones(account: Account) -> None:  # PLATFORM 24
    sent = dead_letter(account)
    move(account)
    assert account.sqs.peek("dead") == []
    [back] = account.receive("orders")
    assert (back["Body"], back["MessageAttributes"]) == ("hello", {"a": text("b")})
    assert back["MessageId"] != sent
    assert back["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in back["Attributes"]
    [task] = account.sqs.call("ListMessageMoveTasks", {"SourceArn": account.sqs.arn("dead")})["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)


def test_a_move_task_may_have_another_queue_as_destination(account: Account) -> None:
    account.queue("elsewhere")
    dead_letter(account)
    move(account, DestinationArn=account.sqs.arn("elsewhere"))
    assert account.bodies("elsewhere") == ["hello"]


def test_a_move_task_records_the_old_and_the_new_message(account: Account) -> None:
    sent = dead_letter(account)
    move(account)
    [(_, moved)] = [(what, fields) for what, fields in account.recorded("moved") if fields["queue"] == "dead"]
    (_, new) = account.recorded("sent")[-1]
    assert (moved["delivery_id"], moved["new_delivery_id"]) == (sent, new["delivery_id"])
    assert new["origin"] == "redrive"


def test_a_message_sent_directly_to_the_dead_letter_queue_cannot_be_moved_back(account: Account) -> None:
    account.send("dead")
    move(account)
    [task] = account.sqs.call("ListMessageMoveTasks", {"SourceArn": account.sqs.arn("dead")})["Results"]
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert len(account.sqs.peek("dead")) == 1


def test_a_move_task_needs_a_dead_letter_queue_as_source(account: Account) -> None:  # PLATFORM 24
    with refused("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."):
        account.sqs.call("StartMessageMoveTask", {"SourceArn": account.sqs.arn("orders")})


def test_a_move_task_needs_an_existing_source_and_destination(account: Account) -> None:
    nowhere = account.sqs.arn("dead") + "x"
    with refused("ResourceNotFoundException", "SourceArn"):
        account.sqs.call("StartMessageMoveTask", {"SourceArn": nowhere})
    with refused("ResourceNotFoundException", "DestinationArn"):
        move(account, DestinationArn=nowhere)


def slow_task(account: Account, seconds: int, **parameters: str) -> str:
    """Start a task that moves one message per second; return its handle."""
    for _ in range(seconds):
        account.send("orders")
    exhaust(account, "orders")
    account.receive("orders")
    task = {"SourceArn": account.sqs.arn("dead"), "MaxNumberOfMessagesPerSecond": 1, **parameters}
    handle: str = account.sqs.call("StartMessageMoveTask", task)["TaskHandle"]
    return handle


def last_task(account: Account) -> dict[str, Any]:
    [task] = account.sqs.call("ListMessageMoveTasks", {"SourceArn": account.sqs.arn("dead")})["Results"]
    return dict(task)


def test_a_queue_has_one_move_task_at_a_time(account: Account) -> None:  # PLATFORM 24
    handle = slow_task(account, seconds=3)
    account.wait(2)
    assert (last_task(account)["Status"], last_task(account)["TaskHandle"]) == ("RUNNING", handle)
    with refused("InvalidParameterValue", "There is already a task running."):
        move(account)
    account.wait(1)
    assert last_task(account)["Status"] == "COMPLETED"
    move(account)


def test_a_move_task_moves_messages_at_its_rate(account: Account) -> None:
    slow_task(account, seconds=3)
    moved = []
    calls: list[float] = []
    account.sqs.subscribe("orders", lambda: calls.append(account.clock.now))
    for _ in range(4):
        moved.append((account.sqs.depth("orders").ready, account.sqs.depth("dead").ready))
        at = account.sqs.next_visible_at("orders")  # a long poll waits until then
        account.wait((at or account.clock.now) - account.clock.now)
    assert moved == [(1, 2), (2, 1), (3, 0), (3, 0)]
    assert len(calls) == 2
    task = last_task(account)
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (3, 3)
    sent = [message.sent_at for message in account.sqs.peek("orders")]
    assert [at - sent[0] for at in sent] == [0, 1, 2]


def test_a_mapping_receives_what_a_move_task_brings_as_it_arrives() -> None:
    with simulated_platform() as platform:
        url, dead = platform.queue_with_dlq(1, VisibilityTimeout=60)
        for number in range(3):
            platform.send(url, {"number": number})
        platform.receive(url, 3)
        platform.wait(61)
        assert platform.receive(url) == []
        platform.connect(url)
        platform.sqs.start_message_move_task(SourceArn=platform.arn(dead), MaxNumberOfMessagesPerSecond=1)
        began = [each.began for each in platform.invoked(url, 3)]
        assert [round(at - began[0]) for at in began] == [0, 1, 2]


def test_a_cancelled_move_task_leaves_what_it_has_not_moved(account: Account) -> None:
    handle = slow_task(account, seconds=3)
    account.wait(1)
    assert account.sqs.call("CancelMessageMoveTask", {"TaskHandle": handle}) == {"ApproximateNumberOfMessagesMoved": 2}
    account.wait(10)
    assert (last_task(account)["Status"], "TaskHandle" in last_task(account)) == ("CANCELLED", False)
    assert (account.sqs.depth("orders").ready, account.sqs.depth("dead").ready) == (2, 1)
    move(account)
    assert account.sqs.depth("orders").ready == 3


def test_a_move_task_fails_when_its_destination_is_deleted(account: Account) -> None:
    account.queue("elsewhere")
    slow_task(account, seconds=3, DestinationArn=account.sqs.arn("elsewhere"))
    account.call("DeleteQueue", "elsewhere")
    account.wait(1)
    task = last_task(account)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert (task["ApproximateNumberOfMessagesMoved"], account.sqs.depth("dead").ready) == (1, 2)


def test_a_move_task_returns_the_messages_of_several_queues_to_where_they_come_from(account: Account) -> None:
    account.queue("invoices", dead_letter="dead", max_receives=2)
    for queue in ("orders", "invoices"):
        account.send(queue, f"of {queue}")
        exhaust(account, queue)
        account.receive(queue)
    move(account)
    assert (account.bodies("orders"), account.bodies("invoices")) == (["of orders"], ["of invoices"])


@pytest.mark.parametrize("rate", [0, 501])
def test_a_move_task_moves_1_to_500_messages_a_second(account: Account, rate: int) -> None:
    with refused("InvalidParameterValue", f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid."):
        move(account, MaxNumberOfMessagesPerSecond=rate)


def test_a_move_task_moves_to_another_queue_of_the_same_type(account: Account) -> None:
    account.queue("ledger.fifo")
    for destination in ("ledger.fifo", "dead"):
        with refused("InvalidParameterValue", "Source queue and destination queue must"):
            move(account, DestinationArn=account.sqs.arn(destination))


def test_a_move_task_keeps_the_order_of_a_fifo_group_whose_head_is_in_flight() -> None:
    account = Account()
    account.queue("dead.fifo")
    account.queue("ledger.fifo", dead_letter="dead.fifo", max_receives=1)
    for body in ("a1", "a2", "b1"):
        account.send("ledger.fifo", body, group=body[0])
    exhaust(account, "ledger.fifo", receives=1)
    account.receive("ledger.fifo")
    account.receive("dead.fifo", most=1)
    account.sqs.call("StartMessageMoveTask", {"SourceArn": account.sqs.arn("dead.fifo")})
    assert [message.body for message in account.sqs.peek("dead.fifo")] == ["a1", "a2"]


def test_a_completed_move_task_cannot_be_cancelled(account: Account) -> None:
    handle = account.sqs.call("StartMessageMoveTask", {"SourceArn": account.sqs.arn("dead")})["TaskHandle"]
    with refused("ResourceNotFoundException", "Task does not exist."):
        account.sqs.call("CancelMessageMoveTask", {"TaskHandle": handle})
    fields = json.loads(b64decode(handle))
    assert (set(fields), fields["sourceArn"]) == ({"taskId", "sourceArn"}, account.sqs.arn("dead"))
    of_no_task = b64encode(json.dumps({**fields, "taskId": "1"}).encode()).decode()
    with pytest.raises(SqsError, match=r"^ResourceNotFoundException: Task does not exist\.$") as refusal:
        account.sqs.call("CancelMessageMoveTask", {"TaskHandle": of_no_task})
    assert refusal.value.status == 404
    no_queue = b64encode(json.dumps({**fields, "sourceArn": account.sqs.arn("dead") + "x"}).encode()).decode()
    with refused("ResourceNotFoundException", "specified for the SourceArn parameter doesn't exist"):
        account.sqs.call("CancelMessageMoveTask", {"TaskHandle": no_queue})
    for nonsense in ("nonsense", b64encode(b"[]").decode(), b64encode(b'{"taskId": "1"}').decode(), "%"):
        with refused("InvalidParameterValue", "Value for parameter TaskHandle is invalid."):
            account.sqs.call("CancelMessageMoveTask", {"TaskHandle": nonsense})
