"""Functions that lack permissions or settings: tarry works without them and logs once which one is missing."""

import logging
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError

from tarry import Consumer, DeadLetter, RetryInPlace, consumer
from tarry.world import World, use
from tests.handlers import behave, plain
from tests.loglines import field, lines
from tests.records import Context, event, failed, record
from tests.wire import Queue, Wire, arn, client_error, url


def orders() -> Wire:
    return Wire(queues={"orders": Queue(dead_letter="orders-dlq")})


def run(wire: Wire, *names: str, handler: Consumer[Any] | None = None) -> list[str]:
    with wire:
        return failed((handler or plain())(event(*(record(name, name) for name in names)), Context()))


def denied(wire: Wire, operation: str, queue: str | None = None, code: str = "AccessDenied") -> None:
    """Deny an operation on one queue or on all, like a missing permission in an IAM policy."""
    error = client_error(code, f"User is not authorized to perform: sqs:{operation}", status=403)
    wire.fails[operation] = lambda request: error if queue in (None, request.queue) else None


POLLER, SENDER = "SQSPollerPolicy: {QueueName: orders}", "SQSSendMessagePolicy: {QueueName: orders-dlq}"
PERMISSIONS = pytest.mark.parametrize(
    ("operation", "permission", "line", "reported"),
    [
        ("ChangeMessageVisibilityBatch", "sqs:ChangeMessageVisibility", POLLER, ["retry-1"]),
        ("SendMessageBatch", "sqs:SendMessage", SENDER, ["dead-1", "retry-1"]),
        ("DeleteMessageBatch", "sqs:DeleteMessage", POLLER, ["retry-1"]),
        ("GetQueueAttributes", "sqs:GetQueueAttributes", POLLER, ["dead-1", "retry-1"]),
    ],
    ids=["change visibility", "send", "delete", "read the queue"],
)


@PERMISSIONS
def test_messages_whose_settlement_lacks_a_permission_are_reported_as_failed(
    operation: str, permission: str, line: str, reported: list[str]
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, operation, queue=None if operation != "GetQueueAttributes" else "orders")
    assert run(wire, "ok-1", "dead-1", "retry-1", "ok-2") == reported


@PERMISSIONS
def test_a_warning_names_the_missing_permission_and_the_policy_to_add(
    operation: str, permission: str, line: str, reported: list[str], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, operation, queue=None if operation != "GetQueueAttributes" else "orders")
    run(wire, "ok-1", "dead-1", "retry-1")
    [warning] = lines(caplog, "missing_permission")
    assert warning.levelno == logging.WARNING
    assert permission in warning.getMessage()
    assert line in warning.getMessage()


@PERMISSIONS
def test_a_missing_permission_is_logged_once_per_cold_start(
    operation: str, permission: str, line: str, reported: list[str], caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, operation, queue=None if operation != "GetQueueAttributes" else "orders")
    for _ in range(3):
        run(wire, "dead-1", "retry-1")
        wire.clock.now += 60
    assert len(lines(caplog, "missing_permission")) == 1
    fresh = orders()
    denied(fresh, operation, queue=None if operation != "GetQueueAttributes" else "orders")
    run(fresh, "dead-1", "retry-1")
    assert len(lines(caplog, "missing_permission")) == 2


@pytest.mark.parametrize(
    "code", ["AccessDenied", "AccessDeniedException", "AWS.SimpleQueueService.AccessDenied", "AuthorizationError"]
)
def test_each_error_code_for_a_missing_permission_is_recognized(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "ChangeMessageVisibilityBatch", code=code)
    run(wire, "retry-1")
    assert len(lines(caplog, "missing_permission")) == 1


def test_a_missing_permission_for_a_single_entry_is_recognized(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    wire.refuses["SendMessageBatch"] = lambda *_: ("AccessDenied", "not you")
    assert run(wire, "dead-1") == ["dead-1"]
    assert len(lines(caplog, "missing_permission")) == 1


def test_a_warning_for_a_batch_of_one_fatal_error_names_the_permission_to_read_the_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "GetQueueAttributes")
    assert run(wire, "dead-1") == ["dead-1"]
    [warning] = lines(caplog, "missing_permission")
    assert POLLER in warning.getMessage()


@pytest.mark.parametrize("code", ["KmsAccessDenied", "KMS.AccessDeniedException"])
def test_a_missing_permission_to_use_a_kms_key_is_not_reported_as_a_missing_sqs_permission(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "SendMessageBatch", code=code)
    assert run(wire, "dead-1") == ["dead-1"]
    text = " ".join(line.getMessage() for line in lines(caplog, level=logging.WARNING))
    assert "lacks sqs:SendMessage" not in text
    assert "kms:" in text


def test_the_warning_about_an_unreadable_dead_letter_queue_does_not_claim_that_messages_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, F1
    wire = orders()
    denied(wire, "GetQueueAttributes", queue="orders-dlq")
    assert run(wire, "dead-1") == []
    [warning] = lines(caplog, "missing_permission")
    assert f"Action: sqs:GetQueueAttributes, Resource: '{arn('orders-dlq')}'" in warning.getMessage()
    assert "messages stay in their queue" not in warning.getMessage()


def test_throttling_is_not_reported_as_a_missing_permission(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    for operation in ("ChangeMessageVisibilityBatch", "SendMessageBatch", "GetQueueAttributes"):
        wire.fails[operation] = client_error("RequestThrottled")
    run(wire, "dead-1", "retry-1")
    assert lines(caplog, "missing_permission") == []


def test_without_any_permission_only_the_response_settles_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    """As in Powertools: Lambda deletes successful messages, and failed ones become visible again."""
    wire = orders()
    for operation in ("ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch", "GetQueueAttributes"):
        denied(wire, operation)
    assert run(wire, "ok-1", "retry-1", "ok-2", "dead-1") == ["retry-1", "dead-1"]
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1
    assert wire.accepted == []


# missing settings


def test_without_a_redrive_policy_a_rejected_message_is_reported_as_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, F5
    wire = Wire(queues={"orders": Queue()})
    assert run(wire, "ok-1", "dead-1") == ["dead-1"]
    assert wire.visibilities() == {"handle-dead-1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "RedrivePolicy" in line.getMessage()


def test_without_a_redrive_policy_an_exhausted_message_is_reported_as_failed() -> None:  # SPEC A8, F5
    wire = Wire(queues={"orders": Queue()})
    with wire:
        assert failed(plain()(event(record(message_id="retry-1", receives=5)), Context())) == ["retry-1"]
    assert wire.visibilities() == {"handle-retry-1": 900}


def test_without_a_redrive_policy_retries_are_delayed() -> None:  # SPEC A8
    wire = Wire(queues={"orders": Queue()})
    assert run(wire, "retry-1") == ["retry-1"]
    assert wire.visibilities() == {"handle-retry-1": 60}


@pytest.mark.parametrize("error", [NoRegionError(), NoCredentialsError()], ids=["no region", "no credentials"])
def test_without_a_client_failed_messages_are_only_reported(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8, A2
    def no_client() -> Any:
        raise error

    with use(World(client_factory=no_client)):
        response = plain()(event(*(record(name, name) for name in ("ok-1", "retry-1", "dead-1"))), Context())
    assert failed(response) == ["retry-1", "dead-1"]
    assert any(str(error) in line.getMessage() for line in lines(caplog, level=logging.WARNING))


def test_without_a_region_in_the_environment_failed_messages_are_only_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with use(World()):
        response = plain()(event(record(message_id="retry-1"), record(message_id="ok-1")), Context())
    assert failed(response) == ["retry-1"]
    assert any("region" in line.getMessage() for line in lines(caplog, level=logging.WARNING))


def test_without_credentials_in_the_environment_failed_messages_are_only_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with use(World()):
        response = plain()(event(record(message_id="retry-1"), record(message_id="ok-1")), Context())
    assert failed(response) == ["retry-1"]
    assert any("credentials" in line.getMessage() for line in lines(caplog, level=logging.WARNING))


# records that do not come from SQS


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def test_messages_without_a_queue_run_and_their_failures_are_only_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, A2
    wire = orders()
    names = ("ok-1", "retry-1", "dead-1")
    with wire:
        response = plain()(event(*(without(record(name, name), "eventSourceARN") for name in names)), Context())
    assert failed(response) == ["retry-1", "dead-1"]
    assert wire.sent_entries() == []
    assert {field(line, "message_id") for line in lines(caplog, level=logging.WARNING)} >= {"retry-1", "dead-1"}


def test_no_request_is_made_for_messages_without_a_queue() -> None:  # SPEC A8, G5
    wire = orders()
    with wire:
        plain()(event(without(record(message_id="retry-1"), "eventSourceARN")), Context())
    assert wire.requests == []


def test_messages_without_a_queue_can_be_dead_lettered_to_a_url() -> None:  # SPEC F1
    wire = orders()
    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(queue=url("graveyard"))])(behave)
    with wire:
        response = handler(event(without(record(message_id="dead-1"), "eventSourceARN")), Context())
    assert failed(response) == []


def test_messages_without_a_queue_can_be_dead_lettered_to_an_arn() -> None:  # SPEC F1
    wire = orders()
    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(queue=arn("graveyard"))])(behave)
    with wire:
        response = handler(event(without(record(message_id="dead-1"), "eventSourceARN")), Context())
    assert failed(response) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["graveyard"]


ODD_HANDLES = pytest.mark.parametrize("handle", [None, "", 7, ["a"], "x" * 5_000, "not a handle"], ids=repr)


@ODD_HANDLES
def test_an_invalid_receipt_handle_does_not_affect_the_retries_of_other_messages(handle: Any) -> None:  # SPEC G1, G5
    wire = orders()
    records = [record(message_id=f"retry-{index}") for index in range(10)]
    records[4]["receiptHandle"] = handle
    with wire:
        assert failed(plain()(event(*records), Context())) == [f"retry-{index}" for index in range(10)]
    assert dict.fromkeys((f"handle-retry-{index}" for index in range(10) if index != 4), 60).items() <= (
        wire.visibilities().items()
    )


def test_a_missing_receipt_handle_does_not_affect_the_retries_of_other_messages() -> None:  # SPEC G1, G5
    wire = orders()
    records = [record(message_id="retry-0"), without(record(message_id="retry-1"), "receiptHandle")]
    with wire:
        assert failed(plain()(event(*records), Context())) == ["retry-0", "retry-1"]
    assert wire.visibilities() == {"handle-retry-0": 60}


def test_a_missing_receipt_handle_causes_no_extra_requests() -> None:  # SPEC G1
    wire = orders()
    records = [record(message_id=f"retry-{index}") for index in range(10)]
    del records[4]["receiptHandle"]
    with wire:
        plain()(event(*records), Context())
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


@ODD_HANDLES
def test_an_invalid_receipt_handle_does_not_affect_the_deletes_of_other_messages(handle: Any) -> None:  # SPEC E6, G5
    wire = orders()
    records = [record(message_id=f"dead-{index}") for index in range(10)]
    records[4]["receiptHandle"] = handle
    with wire:
        assert failed(plain()(event(*records), Context())) == []
    deleted = {entry["ReceiptHandle"] for request in wire.sent("DeleteMessageBatch") for entry in request.entries}
    assert {f"handle-dead-{index}" for index in range(10) if index != 4} <= deleted


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "InvalidParameterValue"])
def test_an_expired_receipt_handle_is_logged_without_a_second_request(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC G5
    wire = orders()
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: (
        (code, "The receipt handle has expired") if entry["ReceiptHandle"] == "handle-retry-1" else None
    )
    assert run(wire, "retry-1", "retry-2") == ["retry-1", "retry-2"]
    expired = [line for line in lines(caplog, level=logging.WARNING) if "expired" in line.getMessage()]
    assert [field(line, "message_id") for line in expired] == ["retry-1"]
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


def defer_one(wire: Wire) -> list[str]:
    return run(wire, "m1", handler=consumer(lambda message: message.defer(60)))


def test_the_warning_about_sends_to_the_source_queue_names_the_affected_features(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "SendMessageBatch")
    assert defer_one(wire) == ["m1"]
    [warning] = lines(caplog, "missing_permission")
    assert "sqs:SendMessage on orders: messages that are deferred" in warning.getMessage()
    assert "SQSSendMessagePolicy: {QueueName: orders}" in warning.getMessage()


def test_a_queue_without_read_permission_is_looked_up_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, F1
    wire = orders()
    denied(wire, "GetQueueAttributes")
    assert defer_one(wire) == []
    assert len(wire.sent("GetQueueAttributes")) == 1
    assert len(lines(caplog, "missing_permission")) == 1
