"""Functions that lack permissions or settings: tarry works without them and logs once which one is missing."""

import logging
import os
from typing import Any

import pytest

from tarry import Consumer, DeadLetter, RetryInPlace, consumer
from tarry.world import World, use
from tests.handlers import behave, plain
from tests.loglines import Caplog, field, lines
from tests.records import Context, event, failed, record
from tests.settled import orders, settle, targets
from tests.wire import Wire, arn, client_error, url

CHANGE_VISIBILITY = "ChangeMessageVisibilityBatch"


def run(wire: Wire, *names: str, handler: Consumer[Any] | None = None) -> list[str]:
    return settle(handler or plain(), event(*(record(name, name) for name in names)), wire)[0]


def denied(operation: str, queue: str | None = None, code: str = "AccessDenied") -> Wire:
    """Return a wire that denies an operation on one queue or on all, like a missing permission in an IAM policy."""
    wire = orders()
    error = client_error(code, f"User is not authorized to perform: sqs:{operation}", status=403)
    wire.fails[operation] = lambda request: error if queue in (None, request.queue) else None
    return wire


def warning(caplog: Caplog) -> str:
    """Return the text of the one line about a missing permission."""
    [line] = lines(caplog, "missing_permission")
    assert line.levelno == logging.WARNING
    return line.getMessage()


POLLER, SENDER = "SQSPollerPolicy: {QueueName: orders}", "SQSSendMessagePolicy: {QueueName: orders-dlq}"


@pytest.mark.parametrize(
    ("operation", "queue", "shown", "reported"),
    [
        (CHANGE_VISIBILITY, None, ["sqs:ChangeMessageVisibility", POLLER], ["retry-1"]),
        ("SendMessageBatch", None, ["sqs:SendMessage", SENDER], ["dead-1", "retry-1"]),
        ("DeleteMessageBatch", None, ["sqs:DeleteMessage", POLLER], ["retry-1"]),
        ("GetQueueAttributes", "orders", ["sqs:GetQueueAttributes", POLLER], ["dead-1", "retry-1"]),
    ],
)
def test_a_missing_permission_is_named_once_per_cold_start_and_its_messages_are_reported(
    operation: str, queue: str | None, shown: list[str], reported: list[str], caplog: Caplog
) -> None:  # SPEC A8
    wire = denied(operation, queue)
    for _ in range(3):
        assert run(wire, "ok-1", "dead-1", "retry-1", "ok-2") == reported
        assert all(each in warning(caplog) for each in shown)
        wire.clock.now += 60
    run(denied(operation, queue), "dead-1", "retry-1")
    assert (len(lines(caplog, "missing_permission")), lines(caplog, "look_up_failed")) == (2, [])


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("AuthorizationError", "sqs:"),
        ("AWS.SimpleQueueService.AccessDenied", "sqs:"),
        ("KMS.AccessDeniedException", "kms:"),
        ("RequestThrottled", ""),
    ],
)
def test_each_error_code_for_a_missing_permission_is_recognized_and_no_other(
    code: str, named: str, caplog: Caplog
) -> None:  # SPEC A8
    """Also in the answer for a single entry. That of a KMS key is another one."""
    run(denied(CHANGE_VISIBILITY, code=code), "retry-1")
    wire = orders()
    wire.refuses["SendMessageBatch"] = lambda *_: (code, "not you")
    assert run(wire, "dead-1") == run(denied("SendMessageBatch", code=code), "dead-1") == ["dead-1"]
    assert len(lines(caplog, "missing_permission")) == (3 if named else 0)
    text = " ".join(line.getMessage() for line in lines(caplog, level=logging.WARNING))
    assert ("lacks sqs:SendMessage" in text, "kms:" in text) == (named == "sqs:", named == "kms:")


def test_the_warning_about_an_unreadable_dead_letter_queue_does_not_claim_that_messages_stay(caplog: Caplog) -> None:
    # SPEC A8, F1
    assert run(denied("GetQueueAttributes", queue="orders-dlq"), "dead-1") == []
    assert f"Action: sqs:GetQueueAttributes, Resource: '{arn('orders-dlq')}'" in warning(caplog)
    assert "messages stay in their queue" not in warning(caplog)


def test_deferrals_need_to_send_to_their_queue_and_look_it_up_once(caplog: Caplog) -> None:  # SPEC A8, F1
    defers = consumer(lambda message: message.defer(60))
    assert run(denied("SendMessageBatch"), "m1", handler=defers) == ["m1"]
    assert "sqs:SendMessage on orders: messages that are deferred" in warning(caplog)
    assert "SQSSendMessagePolicy: {QueueName: orders}" in warning(caplog)
    wire = denied("GetQueueAttributes")
    assert run(wire, "m1", handler=defers) == []
    assert len(wire.sent("GetQueueAttributes")) == 1
    assert POLLER in lines(caplog, "missing_permission")[1].getMessage()


def test_without_any_permission_only_the_response_settles_messages() -> None:  # SPEC A8
    """As in Powertools: Lambda deletes successful messages, and failed ones become visible again."""
    wire = orders()
    for operation in (CHANGE_VISIBILITY, "SendMessageBatch", "DeleteMessageBatch", "GetQueueAttributes"):
        wire.fails |= denied(operation).fails
    assert run(wire, "ok-1", "retry-1", "ok-2", "dead-1") == ["retry-1", "dead-1"]
    assert (len(wire.sent(CHANGE_VISIBILITY)), wire.accepted) == (1, [])


def test_without_a_redrive_policy_messages_wait_in_their_queue_and_retries_are_delayed(caplog: Caplog) -> None:
    # SPEC A8, F5
    wire = orders(dead_letter=None)
    assert run(wire, "ok-1", "dead-1", "retry-1") == ["dead-1", "retry-1"]
    assert settle(plain(), event(record(message_id="retry-2", receives=5)), wire)[0] == ["retry-2"]
    assert wire.visibilities() == {"handle-dead-1": 900, "handle-retry-1": 60, "handle-retry-2": 900}
    errors = lines(caplog, level=logging.ERROR)
    assert ["RedrivePolicy" in line.getMessage() for line in errors] == [True, True]


@pytest.mark.parametrize(
    ("missing", "present", "shown"),
    [
        (["AWS_REGION", "AWS_DEFAULT_REGION"], {}, "region"),
        (
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"],
            {"AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"},
            "credentials",
        ),
    ],
    ids=["no region", "no credentials"],
)
def test_without_a_client_failed_messages_are_only_reported(
    missing: list[str], present: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:  # SPEC A8, A2
    for name in (*missing, "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"), os.devnull)
    for name, value in (nowhere | present).items():
        monkeypatch.setenv(name, value)
    with use(World()):
        response = plain()(event(*(record(name, name) for name in ("ok-1", "retry-1", "dead-1"))), Context())
    assert failed(response) == ["retry-1", "dead-1"]
    assert any(shown in line.getMessage() for line in lines(caplog, level=logging.WARNING))


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def test_messages_without_a_queue_run_and_their_failures_are_only_reported(caplog: Caplog) -> None:  # SPEC A8, A2, G5
    records = (without(record(name, name), "eventSourceARN") for name in ("ok-1", "retry-1", "dead-1"))
    reported, wire = settle(plain(), event(*records))
    assert (reported, wire.requests) == (["retry-1", "dead-1"], [])
    assert {field(line, "message_id") for line in lines(caplog, level=logging.WARNING)} >= {"retry-1", "dead-1"}


@pytest.mark.parametrize("queue", [url("graveyard"), arn("graveyard")])
def test_messages_without_a_queue_can_be_dead_lettered_to_a_url_or_an_arn(queue: str) -> None:  # SPEC F1
    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(queue=queue)])(behave)
    reported, wire = settle(handler, event(without(record(message_id="dead-1"), "eventSourceARN")))
    assert (reported, targets(wire)) == ([], ["graveyard"])


@pytest.mark.parametrize("handle", [None, "", 7, ["a"], "x" * 5_000, "not a handle", "missing"], ids=repr)
def test_an_invalid_receipt_handle_does_not_affect_other_messages(handle: Any, caplog: Caplog) -> None:
    """SPEC E6, G1, G5. Neither their retries nor their deletes; without one, no request is made for the message."""
    others = [index for index in range(10) if index != 4]

    def of(kind: str) -> tuple[list[str], Wire]:
        records = [record(message_id=f"{kind}-{index}") for index in range(10)]
        records[4] = without(records[4], "receiptHandle") | ({} if handle == "missing" else {"receiptHandle": handle})
        return settle(plain(), event(*records))

    reported, wire = of("retry")
    assert reported == [f"retry-{index}" for index in range(10)]
    assert {f"handle-retry-{index}": 60 for index in others}.items() <= wire.visibilities().items()
    not_settled = [line.message_id for line in lines(caplog, "waiting_retry") if hasattr(line, "not_settled")]
    assert handle != "missing" or (not_settled, len(wire.sent(CHANGE_VISIBILITY))) == (["retry-4"], 1)
    reported, wire = of("dead")
    assert reported == []
    deleted = {entry["ReceiptHandle"] for request in wire.sent("DeleteMessageBatch") for entry in request.entries}
    assert {f"handle-dead-{index}" for index in others} <= deleted


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "InvalidParameterValue"])
def test_an_expired_receipt_handle_is_logged_without_a_second_request(code: str, caplog: Caplog) -> None:  # SPEC G5
    wire = orders()
    wire.refuses[CHANGE_VISIBILITY] = lambda _, entry: (
        (code, "The receipt handle has expired") if entry["ReceiptHandle"] == "handle-retry-1" else None
    )
    assert run(wire, "retry-1", "retry-2") == ["retry-1", "retry-2"]
    expired = [line for line in lines(caplog, level=logging.WARNING) if "expired" in line.getMessage()]
    assert [field(line, "message_id") for line in expired] == ["retry-1"]
    assert len(wire.sent(CHANGE_VISIBILITY)) == 1
