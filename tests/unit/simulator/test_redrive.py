"""Dead-letter queues of the SQS model: moves and message move tasks. What is refused: test_refusals.py."""

import json
from base64 import b64decode, b64encode
from typing import Any

import pytest

from tarry.tools.simulator.sqs import SqsError
from tests.unit.simulator.account import Account, refused, text


@pytest.fixture
def account() -> Account:
    account = Account()
    account.queue("dead")
    account.queue("orders", dead_letter="dead", max_receives=2)
    account.queue("dead.fifo")
    account.queue("ledger.fifo", dead_letter="dead.fifo", max_receives=1)
    return account


def exhaust(account: Account, queue: str, receives: int = 2) -> None:
    for _ in range(receives):
        assert account.receive(queue)
        account.wait(30)


def test_a_moved_message_keeps_its_trace_and_its_times(account: Account) -> None:  # FACTS 1.4 and 2
    trace = {"AWSTraceHeader": text("Root=1-2-3")}
    account.send("orders", "hello", MessageSystemAttributes=trace)
    exhaust(account, "orders")
    account.wait(3600)
    assert account.sqs.depth("dead").ready == 0
    assert account.receive("orders") == []
    [dead] = account.receive("dead")
    kept = {"AWSTraceHeader": "Root=1-2-3", "ApproximateReceiveCount": "3", "SentTimestamp": "1800000000000"}
    assert dead["Attributes"].items() >= {**kept, "ApproximateFirstReceiveTimestamp": "1800000000000"}.items()


def test_a_fifo_group_continues_after_its_head_was_moved(account: Account) -> None:
    for body in ("1", "2"):
        account.send("ledger.fifo", body, group="a")
    assert account.bodies("ledger.fifo", most=1) == ["1"]
    account.wait(30)
    assert account.bodies("ledger.fifo") == ["2"]
    [dead] = account.receive("dead.fifo")
    own = {"MessageDeduplicationId": dead["MessageId"], "SentTimestamp": "1800000030000", "MessageGroupId": "a"}
    assert dead["Attributes"].items() >= own.items()


def test_the_sources_of_a_dead_letter_queue_can_be_listed_and_keep_delivering_when_it_is_deleted(
    account: Account,
) -> None:
    account.queue("invoices", dead_letter="dead")
    for changed, sources in ((None, ["orders", "invoices"]), ("invoices", ["orders"])):
        if changed is not None:
            account.call("SetQueueAttributes", changed, Attributes={"RedrivePolicy": ""})
        listed = account.call("ListDeadLetterSourceQueues", "dead")
        assert listed == {"queueUrls": [account.sqs.url(each) for each in sources]}
    account.send("orders")
    account.call("DeleteQueue", "dead")
    exhaust(account, "orders", receives=5)


# message move tasks


def move(account: Account, source: str = "dead", **parameters: object) -> str:
    task = {"SourceArn": account.sqs.arn(source), **parameters}
    handle: str = account.sqs.call("StartMessageMoveTask", task)["TaskHandle"]
    return handle


def last_task(account: Account) -> dict[str, Any]:
    [task] = account.sqs.call("ListMessageMoveTasks", {"SourceArn": account.sqs.arn("dead")})["Results"]
    return dict(task)


def dead_letters(account: Account, count: int = 1) -> list[str]:
    sent = [account.send("orders", "hello", MessageAttributes={"a": text("b")}) for _ in range(count)]
    exhaust(account, "orders")
    account.receive("orders")
    return sent


def test_a_message_sent_directly_to_the_dead_letter_queue_can_only_be_moved_elsewhere(account: Account) -> None:
    account.send("dead", "hello")
    move(account)
    task = last_task(account)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert len(account.sqs.peek("dead")) == 1
    account.queue("elsewhere")
    move(account, DestinationArn=account.sqs.arn("elsewhere"))
    assert account.bodies("elsewhere") == ["hello"]


def test_a_move_task_that_runs_can_be_cancelled_and_another_started_then(account: Account) -> None:  # PLATFORM 24
    dead_letters(account, 3)
    handle = move(account, MaxNumberOfMessagesPerSecond=1)
    account.wait(1)
    with refused("InvalidParameterValue", "There is already a task running."):
        move(account)
    assert account.sqs.call("CancelMessageMoveTask", {"TaskHandle": handle}) == {"ApproximateNumberOfMessagesMoved": 2}
    account.wait(10)
    assert (account.sqs.depth("orders").ready, account.sqs.depth("dead").ready) == (2, 1)
    move(account)
    back = account.receive("orders")
    assert len(back) == 3
    assert not any("DeadLetterQueueSourceArn" in each["Attributes"] for each in back)


def test_a_move_task_moves_messages_at_its_rate_and_wakes_who_waits_for_them(account: Account) -> None:
    dead_letters(account, 3)
    move(account, MaxNumberOfMessagesPerSecond=1)
    moved, calls = [], []
    account.sqs.subscribe("orders", lambda: calls.append(account.clock.now))
    for _ in range(4):
        moved.append((account.sqs.depth("orders").ready, account.sqs.depth("dead").ready))
        at = account.sqs.next_visible_at("orders")  # a long poll waits until then
        account.wait((at or account.clock.now) - account.clock.now)
    assert (moved, len(calls)) == ([(1, 2), (2, 1), (3, 0), (3, 0)], 2)
    account.wait(1)
    numbers = {"ApproximateNumberOfMessagesMoved": 3, "ApproximateNumberOfMessagesToMove": 3}
    assert last_task(account).items() >= {"Status": "COMPLETED", **numbers}.items()
    sent = [message.sent_at for message in account.sqs.peek("orders")]
    assert [at - sent[0] for at in sent] == [0, 1, 2]


def test_a_move_task_keeps_the_order_of_a_fifo_group_whose_head_is_in_flight(account: Account) -> None:
    for body in ("a1", "a2", "b1"):
        account.send("ledger.fifo", body, group=body[0])
    exhaust(account, "ledger.fifo", receives=1)
    account.receive("ledger.fifo")
    account.receive("dead.fifo", most=1)
    move(account, "dead.fifo")
    assert [message.body for message in account.sqs.peek("dead.fifo")] == ["a1", "a2"]


def test_a_completed_move_task_cannot_be_cancelled(account: Account) -> None:
    def cancel(handle: object) -> None:
        text = handle if isinstance(handle, str) else b64encode(json.dumps(handle).encode()).decode()
        account.sqs.call("CancelMessageMoveTask", {"TaskHandle": text})

    fields = json.loads(b64decode(move(account)))
    assert (set(fields), fields["sourceArn"]) == ({"taskId", "sourceArn"}, account.sqs.arn("dead"))
    with pytest.raises(SqsError, match=r"^ResourceNotFoundException: Task does not exist\.$") as refusal:
        cancel({**fields, "taskId": "1"})
    assert refusal.value.status == 404
    with refused("ResourceNotFoundException", "Task does not exist."):
        cancel(fields)
    with refused("ResourceNotFoundException", "specified for the SourceArn parameter doesn't exist"):
        cancel({**fields, "sourceArn": account.sqs.arn("dead") + "x"})
    for nonsense in ("nonsense", [], {"taskId": "1"}, "%"):
        with refused("InvalidParameterValue", "Value for parameter TaskHandle is invalid."):
            cancel(nonsense)
