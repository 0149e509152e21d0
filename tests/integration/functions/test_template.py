"""The settings in template.yaml: they fit the retry policies of the functions."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

TEMPLATE = yaml_parse((Path(__file__).parents[3] / "template.yaml").read_text())
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
FUNCTIONS = [name for name, resource in RESOURCES.items() if resource["Type"] == "AWS::Serverless::Function"]


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = RESOURCES[name]["Properties"]
    return found


def target(arn: dict[str, Any]) -> str:
    """Return the resource of `!GetAtt Resource.Arn`."""
    value: Any = arn["Fn::GetAtt"]
    name: str = value[0] if isinstance(value, list) else value.partition(".")[0]
    return name


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> dict[str, Any]:
    return properties(request.param)


@pytest.fixture
def mapping(function: dict[str, Any]) -> dict[str, Any]:
    [event] = function["Events"].values()
    found: dict[str, Any] = event["Properties"]
    return found


@pytest.fixture
def queue(mapping: dict[str, Any]) -> dict[str, Any]:
    return properties(target(mapping["Queue"]))


@pytest.fixture
def dead_letters(queue: dict[str, Any]) -> dict[str, Any]:
    return properties(target(queue["RedrivePolicy"]["deadLetterTargetArn"]))


def test_failed_messages_are_reported_individually(mapping: dict[str, Any]) -> None:
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_the_visibility_timeout_allows_retries_of_a_throttled_batch(
    mapping: dict[str, Any], queue: dict[str, Any]
) -> None:
    timeout = TEMPLATE["Globals"]["Function"]["Timeout"]
    assert queue["VisibilityTimeout"] >= 6 * timeout + mapping.get("MaximumBatchingWindowInSeconds", 0)


def test_a_batch_of_more_than_ten_has_a_batching_window(mapping: dict[str, Any]) -> None:
    assert mapping["BatchSize"] <= 10 or mapping["MaximumBatchingWindowInSeconds"] >= 1


def test_max_receive_count_is_well_above_the_attempts_of_the_policy(  # SPEC C9
    function: dict[str, Any],
    mapping: dict[str, Any],
    queue: dict[str, Any],
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in function["Environment"]["Variables"]:
        monkeypatch.setenv(variable, "some-table")
    attempts = load(Path(function["CodeUri"]).name).handler.policy.max_attempts
    factor = max(2, mapping["BatchSize"]) if queue.get("FifoQueue") else 2
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= factor * attempts + 5


def test_dead_letters_are_kept_longer_than_messages_and_in_the_same_kind_of_queue(
    queue: dict[str, Any], dead_letters: dict[str, Any]
) -> None:
    assert dead_letters["MessageRetentionPeriod"] == 14 * 24 * 3600 > queue["MessageRetentionPeriod"]
    assert dead_letters.get("FifoQueue") == queue.get("FifoQueue")
    [allowed] = dead_letters["RedriveAllowPolicy"]["sourceQueueArns"]
    assert allowed["Fn::Sub"].split(":")[-1] == queue["QueueName"]


def test_the_role_allows_what_the_runtime_does_and_no_more(
    function: dict[str, Any], mapping: dict[str, Any], queue: dict[str, Any]
) -> None:
    [policy] = properties(target(function["Role"]))["Policies"]
    granted = {
        target(statement["Resource"]): {action for action in statement["Action"] if action.startswith("sqs:")}
        for statement in policy["PolicyDocument"]["Statement"]
        if isinstance(statement["Action"], list)
    }
    consume = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"}
    if function["CodeUri"] == "functions/webhooks":
        consume.add("sqs:SendMessage")  # it defers messages
    assert granted[target(mapping["Queue"])] == consume
    dead_letters = target(queue["RedrivePolicy"]["deadLetterTargetArn"])
    assert granted[dead_letters] == {"sqs:SendMessage", "sqs:GetQueueAttributes"}
    assert "*" not in str(policy).replace("${DigestBucket.Arn}/scans/*", "the objects it writes")


def test_recursive_loops_stay_forbidden_because_no_message_is_sent_to_its_own_queue_more_than_11_times(
    function: dict[str, Any],
) -> None:
    # SPEC E8, J5; by the test above only webhooks sends to its own queue
    assert "RecursiveLoop" not in function


def test_the_powertools_layer_is_for_the_runtime_that_loads_it() -> None:
    defaults, layer = TEMPLATE["Globals"]["Function"], properties("PowertoolsLayer")
    assert layer["CompatibleRuntimes"] == [defaults["Runtime"]]
    assert layer["CompatibleArchitectures"] == defaults["Architectures"]


def test_the_bucket_is_encrypted_private_and_deletes_old_objects() -> None:
    bucket = properties("DigestBucket")
    [encryption] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    [rule] = bucket["LifecycleConfiguration"]["Rules"]
    assert rule["Status"] == "Enabled"
    assert rule["ExpirationInDays"] == 90
