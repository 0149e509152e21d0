"""A function that may not, or cannot, do what tarry would like to: it does without, and says once what is missing."""

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
    """As an IAM policy without a permission does it: in all requests of that kind, or on that queue."""
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
def test_what_the_function_may_not_do_leaves_messages_reported_as_failed(
    operation: str, permission: str, line: str, reported: list[str]
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, operation, queue=None if operation != "GetQueueAttributes" else "orders")
    assert run(wire, "ok-1", "dead-1", "retry-1", "ok-2") == reported


@PERMISSIONS
def test_one_warning_names_the_permission_and_the_line_to_add(
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
def test_the_warning_is_given_once_a_cold_start(
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
def test_each_of_awss_words_for_it_is_understood(code: str, caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "ChangeMessageVisibilityBatch", code=code)
    run(wire, "retry-1")
    assert len(lines(caplog, "missing_permission")) == 1


def test_an_entry_that_is_denied_is_understood_too(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    wire.refuses["SendMessageBatch"] = lambda *_: ("AccessDenied", "not you")
    assert run(wire, "dead-1") == ["dead-1"]
    assert len(lines(caplog, "missing_permission")) == 1


def test_a_fatal_error_alone_also_says_that_the_queue_may_not_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "GetQueueAttributes")
    assert run(wire, "dead-1") == ["dead-1"]
    [warning] = lines(caplog, "missing_permission")
    assert POLLER in warning.getMessage()


@pytest.mark.parametrize("code", ["KmsAccessDenied", "KMS.AccessDeniedException"])
def test_a_queues_key_that_may_not_be_used_is_not_taken_for_a_missing_sqs_permission(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "SendMessageBatch", code=code)
    assert run(wire, "dead-1") == ["dead-1"]
    said = " ".join(line.getMessage() for line in lines(caplog, level=logging.WARNING))
    assert "lacks sqs:SendMessage" not in said
    assert "kms:" in said


def test_the_warning_of_an_unreadable_target_says_what_is_done_without_its_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, F1
    wire = orders()
    denied(wire, "GetQueueAttributes", queue="orders-dlq")
    assert run(wire, "dead-1") == []
    [warning] = lines(caplog, "missing_permission")
    assert "orders-dlq" in warning.getMessage()
    assert "messages stay in their queue" not in warning.getMessage()


def test_a_throttle_is_no_missing_permission(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    for operation in ("ChangeMessageVisibilityBatch", "SendMessageBatch", "GetQueueAttributes"):
        wire.fails[operation] = client_error("RequestThrottled")
    run(wire, "dead-1", "retry-1")
    assert lines(caplog, "missing_permission") == []


def test_with_no_permission_at_all_it_is_powertools_batch_processor(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8
    """What succeeded is deleted by Lambda, what failed comes back when its visibility ends."""
    wire = orders()
    for operation in ("ChangeMessageVisibilityBatch", "SendMessageBatch", "DeleteMessageBatch", "GetQueueAttributes"):
        denied(wire, operation)
    assert run(wire, "ok-1", "retry-1", "ok-2", "dead-1") == ["retry-1", "dead-1"]
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1
    assert wire.accepted == []


# settings that are missing


def test_without_a_redrive_policy_what_is_dead_stays_reported(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8, F5
    wire = Wire(queues={"orders": Queue()})
    assert run(wire, "ok-1", "dead-1") == ["dead-1"]
    assert wire.visibilities() == {"handle-dead-1": 900}
    [line] = lines(caplog, level=logging.ERROR)
    assert "RedrivePolicy" in line.getMessage()


def test_without_a_redrive_policy_the_last_attempt_stays_reported() -> None:  # SPEC A8, F5
    wire = Wire(queues={"orders": Queue()})
    with wire:
        assert failed(plain()(event(record(message_id="retry-1", receives=5)), Context())) == ["retry-1"]
    assert wire.visibilities() == {"handle-retry-1": 900}


def test_without_a_redrive_policy_retries_are_delayed_as_ever() -> None:  # SPEC A8
    wire = Wire(queues={"orders": Queue()})
    assert run(wire, "retry-1") == ["retry-1"]
    assert wire.visibilities() == {"handle-retry-1": 60}


@pytest.mark.parametrize("error", [NoRegionError(), NoCredentialsError()], ids=["no region", "no credentials"])
def test_where_no_client_can_be_made_messages_stay_reported(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8, A2
    def no_client() -> Any:
        raise error

    with use(World(client_factory=no_client)):
        response = plain()(event(*(record(name, name) for name in ("ok-1", "retry-1", "dead-1"))), Context())
    assert failed(response) == ["retry-1", "dead-1"]
    assert any(str(error) in line.getMessage() for line in lines(caplog, level=logging.WARNING))


def test_without_a_region_in_the_environment_the_default_client_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC A8
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with use(World()):
        response = plain()(event(record(message_id="retry-1"), record(message_id="ok-1")), Context())
    assert failed(response) == ["retry-1"]
    assert any("region" in line.getMessage() for line in lines(caplog, level=logging.WARNING))


def test_without_credentials_in_the_environment_the_default_client_is_no_trouble(
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


# records that SQS did not make


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def test_an_event_without_a_queue_is_handled_and_its_failures_stay_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, A2
    wire = orders()
    names = ("ok-1", "retry-1", "dead-1")
    with wire:
        response = plain()(event(*(without(record(name, name), "eventSourceARN") for name in names)), Context())
    assert failed(response) == ["retry-1", "dead-1"]
    assert wire.letters() == []
    assert {field(line, "message_id") for line in lines(caplog, level=logging.WARNING)} >= {"retry-1", "dead-1"}


def test_nothing_is_asked_of_a_queue_without_a_name() -> None:  # SPEC A8, G5
    wire = orders()
    with wire:
        plain()(event(without(record(message_id="retry-1"), "eventSourceARN")), Context())
    assert wire.requests == []


def test_a_dead_letter_queue_named_by_its_url_needs_no_name_of_the_source() -> None:  # SPEC F1
    wire = orders()
    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(queue=url("graveyard"))])(behave)
    with wire:
        response = handler(event(without(record(message_id="dead-1"), "eventSourceARN")), Context())
    assert failed(response) == []


def test_a_dead_letter_queue_named_by_its_arn_needs_no_name_of_the_source() -> None:  # SPEC F1
    wire = orders()
    handler = consumer(on_failure=[RetryInPlace(), DeadLetter(queue=arn("graveyard"))])(behave)
    with wire:
        response = handler(event(without(record(message_id="dead-1"), "eventSourceARN")), Context())
    assert failed(response) == []
    assert [request.queue for request in wire.sent("SendMessageBatch")] == ["graveyard"]


ODD_HANDLES = pytest.mark.parametrize("handle", [None, "", 7, ["a"], "x" * 5_000, "not a handle"], ids=repr)


@ODD_HANDLES
def test_an_odd_receipt_handle_does_not_spoil_its_neighbours_retries(handle: Any) -> None:  # SPEC G1, G5
    wire = orders()
    records = [record(message_id=f"retry-{index}") for index in range(10)]
    records[4]["receiptHandle"] = handle
    with wire:
        assert failed(plain()(event(*records), Context())) == [f"retry-{index}" for index in range(10)]
    assert dict.fromkeys((f"handle-retry-{index}" for index in range(10) if index != 4), 60).items() <= (
        wire.visibilities().items()
    )


def test_a_missing_receipt_handle_does_not_spoil_its_neighbours_retries() -> None:  # SPEC G1, G5
    wire = orders()
    records = [record(message_id="retry-0"), without(record(message_id="retry-1"), "receiptHandle")]
    with wire:
        assert failed(plain()(event(*records), Context())) == ["retry-0", "retry-1"]
    assert wire.visibilities() == {"handle-retry-0": 60}


def test_a_missing_receipt_handle_costs_no_further_requests() -> None:  # SPEC G1
    wire = orders()
    records = [record(message_id=f"retry-{index}") for index in range(10)]
    del records[4]["receiptHandle"]
    with wire:
        plain()(event(*records), Context())
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


@ODD_HANDLES
def test_an_odd_receipt_handle_does_not_spoil_its_neighbours_deletes(handle: Any) -> None:  # SPEC E6, G5
    wire = orders()
    records = [record(message_id=f"dead-{index}") for index in range(10)]
    records[4]["receiptHandle"] = handle
    with wire:
        assert failed(plain()(event(*records), Context())) == []
    deleted = {entry["ReceiptHandle"] for request in wire.sent("DeleteMessageBatch") for entry in request.entries}
    assert {f"handle-dead-{index}" for index in range(10) if index != 4} <= deleted


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "InvalidParameterValue"])
def test_an_expired_receipt_handle_is_logged_no_more(code: str, caplog: pytest.LogCaptureFixture) -> None:  # SPEC G5
    wire = orders()
    wire.refuses["ChangeMessageVisibilityBatch"] = lambda _, entry: (
        (code, "The receipt handle has expired") if entry["ReceiptHandle"] == "handle-retry-1" else None
    )
    assert run(wire, "retry-1", "retry-2") == ["retry-1", "retry-2"]
    told = [line for line in lines(caplog, level=logging.WARNING) if "expired" in line.getMessage()]
    assert [field(line, "message_id") for line in told] == ["retry-1"]
    assert len(wire.sent("ChangeMessageVisibilityBatch")) == 1


def deferring(wire: Wire) -> list[str]:
    return run(wire, "m1", handler=consumer(lambda message: message.defer(60)))


def test_what_a_function_loses_that_may_not_send_to_its_own_queue(caplog: pytest.LogCaptureFixture) -> None:  # SPEC A8
    wire = orders()
    denied(wire, "SendMessageBatch")
    assert deferring(wire) == ["m1"]
    [warning] = lines(caplog, "missing_permission")
    assert "sqs:SendMessage on orders: messages that are deferred" in warning.getMessage()
    assert "SQSSendMessagePolicy: {QueueName: orders}" in warning.getMessage()


def test_a_queue_that_may_not_be_read_is_asked_once_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC A8, F1
    wire = orders()
    denied(wire, "GetQueueAttributes")
    assert deferring(wire) == []
    assert len(wire.sent("GetQueueAttributes")) == 1
    assert len(lines(caplog, "missing_permission")) == 1
